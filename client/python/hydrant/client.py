"""The synchronous client. aio.py is the same for asyncio."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from hydrant.answer import Answer
from hydrant.batch import BatchPrompt, BatchResult, BatchRetry, build_batch
from hydrant.channel import Target
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

DEFAULT_RETRIES = 5


class Stream:
    """The events of an answer as they arrive. `answer` holds the answer so far.

    close(), or leaving a `with`, ends the request early.
    """

    def __init__(self, events: Iterator[Event]) -> None:
        self._events = events
        self.answer = Answer()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Event:
        event = next(self._events)
        self.answer.add(event)
        return event

    def texts(self) -> Iterator[str]:
        """The pieces of text; pieces of several samples (n) alternate."""
        for event in self:
            if isinstance(event, pb.Delta) and event.text:
                yield event.text

    def close(self) -> None:
        close = getattr(self._events, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Client:
    """A connection to a daemon. Thread safe. Address, TLS and token: Target.

    retries   further attempts of a call if the server cannot be reached, or says when to retry
              (RetryInfo). A lost stream is resumed.
    timeout   seconds for a whole call, retries and waits included; None: unlimited. The server ends a request
              after this time.

    Keyword arguments of calls are the fields of their requests (request.py). Calls raise HydrantError.
    """

    def __init__(self, address: str = "127.0.0.1:50051", *, retries: int = DEFAULT_RETRIES, timeout: float | None = None,
                 **target: Unpack[TargetOptions]) -> None:
        self._target = Target(address, **target)
        self._retries = retries
        self._timeout = timeout
        credentials, options = self._target.credentials(), self._target.channel_options()
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, credentials, options)
        self.stub = hydrant_pb2_grpc.HydrantStub(self._channel)
        self.contexts = Contexts(self)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def generate(self, prompt: Prompt, *, timeout: float | None = None, **fields: Unpack[GenerateFields]) -> Answer:
        """The whole answer to a text, token ids, or the messages of a chat."""
        stream = self.stream(prompt, timeout=timeout, **fields)
        for _ in stream:
            pass
        return stream.answer

    def stream(self, prompt: Prompt, *, timeout: float | None = None, **fields: Unpack[GenerateFields]) -> Stream:
        """The same as a stream of events: Accepted, Progress, PromptLogprobs, KeptEntries, Delta, Finished, and Usage at the end."""
        request = build(pb.GenerateRequest, prompt, fields)
        return Stream(self._events(GenerateRetry(request, self._retries, self._time(timeout))))

    def generate_batch(self, prompts: Sequence[BatchPrompt], *, timeout: float | None = None,
                       **fields: Unpack[GenerateFields]) -> list[BatchResult]:
        """The answers to many prompts, in one call; `fields` apply to all. An item may be a GenerateRequest; its own
        fields override these. The result of a failed request is its HydrantError. Requests for which a retry may help
        are retried."""
        batch = BatchRetry(build_batch(prompts, fields), self._retries, self._time(timeout))
        while True:
            call = self.stub.GenerateBatch(batch.request(), timeout=batch.timeout(), metadata=self._target.metadata())
            error = None
            try:
                for response in call:
                    batch.note(response)
            except grpc.RpcError as rpc_error:
                error = HydrantError.of(rpc_error)
            finally:
                call.cancel()
            delay = batch.next_try(error)
            if delay is None:
                return batch.results()
            time.sleep(delay)

    def embed(self, prompt: str | Sequence[int], *, timeout: float | None = None,
              **fields: Unpack[EmbedFields]) -> pb.EmbedResponse:
        return self._call(self.stub.Embed, build(pb.EmbedRequest, prompt, fields), timeout)

    def tokenize(self, prompt: Prompt, *, timeout: float | None = None, **fields: Unpack[TokenizeFields]) -> pb.TokenizeResponse:
        return self._call(self.stub.Tokenize, build(pb.TokenizeRequest, prompt, fields), timeout)

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool | None = None,
                   timeout: float | None = None) -> str:
        request = build(pb.DetokenizeRequest, token_ids, {"skip_special_tokens": skip_special_tokens})
        return self._call(self.stub.Detokenize, request, timeout).text

    def model_info(self, *, timeout: float | None = None) -> pb.GetModelInfoResponse:
        return self._call(self.stub.GetModelInfo, pb.GetModelInfoRequest(), timeout)

    def server_info(self, *, timeout: float | None = None) -> pb.GetServerInfoResponse:
        """Also answered while the model loads."""
        return self._call(self.stub.GetServerInfo, pb.GetServerInfoRequest(), timeout)

    def _time(self, timeout: float | None) -> float | None:
        return self._timeout if timeout is None else timeout

    def _call(self, method: Callable[..., R], request: Any, timeout: float | None) -> R:
        retry = Retry(self._retries, self._time(timeout))
        while True:
            try:
                return method(request, timeout=retry.timeout(), metadata=self._target.metadata())
            except grpc.RpcError as error:
                delay = retry.delay_after(HydrantError.of(error))
            time.sleep(delay)

    def _events(self, retry: GenerateRetry) -> Iterator[Event]:
        while True:
            call = self.stub.Generate(retry.request, timeout=retry.timeout(), metadata=self._target.metadata())
            try:
                for response in call:
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
            time.sleep(retry.delay_after(error))


class Contexts:
    """Texts that were prefilled and compressed once. Later requests continue one with `context=HANDLE`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def compress(self, prompt: Prompt, *, timeout: float | None = None,
                 **fields: Unpack[CompressContextFields]) -> pb.CompressContextResponse:
        request = build(pb.CompressContextRequest, prompt, fields)
        return self._client._call(self._client.stub.CompressContext, request, timeout)

    def list(self, *, cache_salt: str | None = None, timeout: float | None = None) -> Sequence[pb.Context]:
        request = pb.ListContextsRequest(cache_salt=cache_salt)
        return self._client._call(self._client.stub.ListContexts, request, timeout).contexts

    def get(self, handle: str, *, cache_salt: str | None = None, timeout: float | None = None) -> pb.Context:
        request = pb.GetContextRequest(handle=handle, cache_salt=cache_salt)
        return self._client._call(self._client.stub.GetContext, request, timeout)

    def delete(self, handle: str, *, cache_salt: str | None = None, timeout: float | None = None) -> None:
        """Deletes from memory and from the store."""
        request = pb.DeleteContextRequest(handle=handle, cache_salt=cache_salt)
        self._client._call(self._client.stub.DeleteContext, request, timeout)

    def save(self, handle: str, *, cache_salt: str | None = None, timeout: float | None = None) -> pb.Context:
        """Returns when it is saved in the server's store."""
        request = pb.SaveContextRequest(handle=handle, cache_salt=cache_salt)
        return self._client._call(self._client.stub.SaveContext, request, timeout)

    def load(self, handle: str, *, cache_salt: str | None = None, timeout: float | None = None) -> pb.Context:
        """Loads from the store into memory."""
        request = pb.LoadContextRequest(handle=handle, cache_salt=cache_salt)
        return self._client._call(self._client.stub.LoadContext, request, timeout)
