"""State of a batch: results of its requests, and requests to retry. It does no I/O; both clients drive it."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

import grpc

from hydrant.answer import Answer
from hydrant.errors import HydrantError
from hydrant.request import Prompt, build
from hydrant.retry import GenerateRetry, Retry
from hydrant.v1 import hydrant_pb2 as pb

BatchPrompt = Union[Prompt, pb.GenerateRequest]
"""A prompt, or a request; its own fields override the common ones."""

BatchResult = Union[Answer, HydrantError]


def build_batch(prompts: Sequence[BatchPrompt], fields: Mapping[str, Any]) -> list[pb.GenerateRequest]:
    requests = []
    for prompt in prompts:
        if isinstance(prompt, pb.GenerateRequest):
            request = build(pb.GenerateRequest, None, fields)
            request.MergeFrom(prompt)
        else:
            request = build(pb.GenerateRequest, prompt, fields)
        requests.append(request)
    return requests


class BatchRetry(Retry):
    """The attempts of a batch: each sends the requests that have not ended."""

    def __init__(self, requests: Sequence[pb.GenerateRequest], retries: int, timeout: float | None) -> None:
        super().__init__(retries, timeout)
        self._requests = [GenerateRetry(request, retries, timeout) for request in requests]
        self._answers = [Answer() for _ in requests]
        self._errors: dict[int, HydrantError] = {}
        # indices sent in this attempt; the server's index refers to this list
        self._asked = list(range(len(requests)))
        self._open = set(self._asked)

    def request(self) -> pb.GenerateBatchRequest:
        return pb.GenerateBatchRequest(requests=[self._requests[index].request for index in self._asked])

    def note(self, response: pb.GenerateBatchResponse) -> None:
        index = self._asked[response.index]
        if response.HasField("failure"):
            self._errors[index] = HydrantError.of_failure(response.failure)
        elif response.HasField("response"):
            event = self._requests[index].note(response.response)
            if event is not None:
                self._answers[index].add(event)
            if isinstance(event, pb.Usage):
                self._open.discard(index)

    def next_try(self, error: HydrantError | None) -> float | None:
        """Seconds until the next attempt, after this one has ended, with or without an error. None: no further attempt.

        Raises the error if no request has a result.
        """
        if error is not None:
            self._open -= {index for index in self._open if self._requests[index].ended(error)}
            for index in self._open:
                self._errors.setdefault(index, error)
        again = sorted(index for index in self._open if index in self._errors and self._requests[index]._may_help(self._errors[index]))
        self._open.intersection_update(again)
        if again:
            try:
                delay = self.delay_after(max((self._errors[index] for index in again), key=lambda each: each.retry_after or 0.0))
            except HydrantError:
                again = []
        if again:
            for index in again:
                del self._errors[index]
            self._asked = again
            return delay
        if error is not None and all(each is error for each in self.results()):
            raise error
        return None

    def results(self) -> list[BatchResult]:
        """One per request, in their order."""
        return [self._errors.get(index, answer) for index, answer in enumerate(self._answers)]

    def _may_help(self, error: HydrantError) -> bool:
        return True  # next_try() has decided for each request
