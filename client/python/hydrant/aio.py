"""The client for asyncio: client.py, with `await` and `async for`."""
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from hydrant.answer import Answer
from hydrant.batch import BatchPrompt, BatchResult, BatchRetry, build_batch
from hydrant.channel import Target
from hydrant.client import DEFAULT_RETRIES
from hydrant.errors import HydrantError
from hydrant.request import Prompt, build
from hydrant.retry import Event, GenerateRetry, Retry
from hydrant.v1 import hydrant_pb2 as pb
from hydrant.v1 import hydrant_pb2_grpc

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hydrant.channel import TargetOptions
    from hydrant.fields import CompressContextFields, EmbedFields, GenerateFields, TokenizeFields

R = TypeVar("R")


class AsyncStream:
    """client.Stream for `async for`; aclose(), or leaving an `async with`, ends the request early."""

    def __init__(self, events: AsyncIterator[Event]) -> None:
        self._events = events
        self.answer = Answer()

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Event:
        event = await self._events.__anext__()
        self.answer.add(event)
        return event

    async def texts(self) -> AsyncIterator[str]:
        async for event in self:
            if isinstance(event, pb.Delta) and event.text:
                yield event.text

    async def aclose(self) -> None:
        aclose = getattr(self._events, "aclose", None)
        if aclose is not None:
            await aclose()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()


class AsyncClient:
    """client.Client with coroutines. It belongs to the event loop in which it was created."""

    def __init__(self, address: str = "127.0.0.1:50051", *, retries: int = DEFAULT_RETRIES, timeout: float | None = None,
                 **target: Unpack[TargetOptions]) -> None:
        self._target = Target(address, **target)
        self._retries = retries
        self._timeout = timeout
        credentials, options = self._target.credentials(), self._target.channel_options()
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials, options)
        self.stub: hydrant_pb2_grpc.HydrantAsyncStub = hydrant_pb2_grpc.HydrantStub(self._channel)
        self.contexts = AsyncContexts(self)

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def generate(self, prompt: Prompt, *, timeout: float | None = None, **fields: Unpack[GenerateFields]) -> Answer:
        stream = self.stream(prompt, timeout=timeout, **fields)
        async for _ in stream:
            pass
        return stream.answer

    def stream(self, prompt: Prompt, *, timeout: float | None = None, **fields: Unpack[GenerateFields]) -> AsyncStream:
        request = build(pb.GenerateRequest, prompt, fields)
        return AsyncStream(self._events(GenerateRetry(request, self._retries, self._time(timeout))))

    async def generate_batch(self, prompts: Sequence[BatchPrompt], *, timeout: float | None = None,
                             **fields: Unpack[GenerateFields]) -> list[BatchResult]:
        batch = BatchRetry(build_batch(prompts, fields), self._retries, self._time(timeout))
        while True:
            call = self.stub.GenerateBatch(batch.request(), timeout=batch.timeout(), metadata=self._target.metadata())
            error = None
            try:
                async for response in call:
                    batch.note(response)
            except grpc.RpcError as rpc_error:
                error = HydrantError.of(rpc_error)
            finally:
                call.cancel()
            delay = batch.next_try(error)
            if delay is None:
                return batch.results()
            await asyncio.sleep(delay)

    async def embed(self, prompt: str | Sequence[int], *, timeout: float | None = None,
                    **fields: Unpack[EmbedFields]) -> pb.EmbedResponse:
        return await self._call(self.stub.Embed, build(pb.EmbedRequest, prompt, fields), timeout)

    async def tokenize(self, prompt: Prompt, *, timeout: float | None = None,
                       **fields: Unpack[TokenizeFields]) -> pb.TokenizeResponse:
        return await self._call(self.stub.Tokenize, build(pb.TokenizeRequest, prompt, fields), timeout)

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool | None = None,
                         timeout: float | None = None) -> str:
        request = build(pb.DetokenizeRequest, token_ids, {"skip_special_tokens": skip_special_tokens})
        return (await self._call(self.stub.Detokenize, request, timeout)).text

    async def model_info(self, *, timeout: float | None = None) -> pb.GetModelInfoResponse:
        return await self._call(self.stub.GetModelInfo, pb.GetModelInfoRequest(), timeout)

    async def server_info(self, *, timeout: float | None = None) -> pb.GetServerInfoResponse:
        return await self._call(self.stub.GetServerInfo, pb.GetServerInfoRequest(), timeout)

    def _time(self, timeout: float | None) -> float | None:
        return self._timeout if timeout is None else timeout

    async def _call(self, method: Callable[..., Awaitable[R]], request: Any, timeout: float | None) -> R:
        retry = Retry(self._retries, self._time(timeout))
        while True:
            try:
                return await method(request, timeout=retry.timeout(), metadata=self._target.metadata())
            except grpc.RpcError as error:
                delay = retry.delay_after(HydrantError.of(error))
            await asyncio.sleep(delay)

    async def _events(self, retry: GenerateRetry) -> AsyncIterator[Event]:
        while True:
            call = self.stub.Generate(retry.request, timeout=retry.timeout(), metadata=self._target.metadata())
            try:
                async for response in call:
                    event = retry.note(response)
                    if event is not None:
                        yield event
                return
            except grpc.RpcError as rpc_error:
                error = HydrantError.of(rpc_error)
            finally:
                call.cancel()
            if retry.ended(error):
                return
            await asyncio.sleep(retry.delay_after(error))


class AsyncContexts:
    """client.Contexts with coroutines."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def compress(self, prompt: Prompt, *, timeout: float | None = None,
                       **fields: Unpack[CompressContextFields]) -> pb.CompressContextResponse:
        request = build(pb.CompressContextRequest, prompt, fields)
        return await self._client._call(self._client.stub.CompressContext, request, timeout)

    async def list(self, *, cache_salt: str | None = None, timeout: float | None = None) -> Sequence[pb.Context]:
        response = await self._client._call(
            self._client.stub.ListContexts, pb.ListContextsRequest(cache_salt=cache_salt), timeout)
        return response.contexts

    async def get(self, handle: str, *, cache_salt: str | None = None, timeout: float | None = None) -> pb.Context:
        return await self._client._call(
            self._client.stub.GetContext, pb.GetContextRequest(handle=handle, cache_salt=cache_salt), timeout)

    async def delete(self, handle: str, *, cache_salt: str | None = None, timeout: float | None = None) -> None:
        await self._client._call(
            self._client.stub.DeleteContext, pb.DeleteContextRequest(handle=handle, cache_salt=cache_salt), timeout)

    async def save(self, handle: str, *, cache_salt: str | None = None, timeout: float | None = None) -> pb.Context:
        return await self._client._call(
            self._client.stub.SaveContext, pb.SaveContextRequest(handle=handle, cache_salt=cache_salt), timeout)

    async def load(self, handle: str, *, cache_salt: str | None = None, timeout: float | None = None) -> pb.Context:
        return await self._client._call(
            self._client.stub.LoadContext, pb.LoadContextRequest(handle=handle, cache_salt=cache_salt), timeout)
