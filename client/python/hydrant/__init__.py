"""Client of Hydrant, a daemon that serves language models over gRPC.

    from hydrant import Client

    with Client("127.0.0.1:50051") as client:
        print(client.generate("Once upon a time", max_tokens=40, cache_policy="h2o", cache_ratio=0.2).text)
"""
from hydrant.aio import AsyncClient, AsyncStream
from hydrant.answer import Answer, Sample
from hydrant.client import Client, Stream
from hydrant.errors import HydrantError
from hydrant.request import Prompt
from hydrant.retry import Event
from hydrant.v1.hydrant_pb2 import (
    Accepted, ChatMessage, Delta, Finished, GenerateRequest, KeptEntries, Progress, PromptLogprobs, TokenLogprobs, ToolCall, Usage)

__all__ = ["Accepted", "Answer", "AsyncClient", "AsyncStream", "ChatMessage", "Client", "Delta", "Event", "Finished",
           "GenerateRequest", "HydrantError", "KeptEntries", "Progress", "Prompt", "PromptLogprobs",
           "Sample", "Stream", "TokenLogprobs", "ToolCall", "Usage"]
