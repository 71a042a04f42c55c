"""Decides when a call is retried, and with which request. It does no I/O; both clients drive it."""
from __future__ import annotations

import random
import time

import grpc

from hydrant.errors import HydrantError
from hydrant.v1 import hydrant_pb2 as pb

_FIRST_DELAY_S = 0.2
_LONGEST_DELAY_S = 5.0

Event = pb.Accepted | pb.Progress | pb.PromptLogprobs | pb.KeptEntries | pb.Delta | pb.Finished | pb.Usage
"""The events of a stream. Event types unknown to this client are skipped."""


class Retry:
    """The attempts of one call: at most `retries` more, and none after its deadline."""

    def __init__(self, retries: int, timeout: float | None) -> None:
        self._left = retries
        self._delay = _FIRST_DELAY_S
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def timeout(self) -> float | None:
        """Seconds until the deadline."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def delay_after(self, error: HydrantError) -> float:
        """Seconds until the next attempt; raises the error if there is none."""
        if self._left <= 0 or not self._may_help(error):
            raise error
        self._left -= 1
        backoff = self._delay * random.uniform(0.5, 1.5)
        self._delay = min(2 * self._delay, _LONGEST_DELAY_S)
        delay = max(backoff, error.retry_after or 0.0)
        timeout = self.timeout()
        if timeout is not None and delay >= timeout:
            raise error
        return delay

    def _may_help(self, error: HydrantError) -> bool:
        return error.code is grpc.StatusCode.UNAVAILABLE or error.retry_after is not None


class GenerateRetry(Retry):
    """As Retry, for a stream, which is resumed where it was lost: with its seed and the received ids.

    Several samples (n) cannot be resumed: once they have begun, a loss is an error.
    """

    def __init__(self, request: pb.GenerateRequest, retries: int, timeout: float | None) -> None:
        super().__init__(retries, timeout)
        self.request = pb.GenerateRequest()  # request of the next attempt
        self.request.CopyFrom(request)
        self._accepted = False
        self._finished = False
        self._prompt_position = 1  # position of the next prompt token without a logprob
        self._num_texts = 0  # prompt tokens whose texts have come
        self._heads: set[tuple[int, int]] = set()  # layers and heads whose entries have come

    def note(self, response: pb.GenerateResponse) -> Event | None:
        """The event for the caller. None: the caller already has it."""
        kind = response.WhichOneof("event")
        if kind is None:  # an event unknown to this client
            return None
        event: Event = getattr(response, kind)
        if isinstance(event, pb.Accepted):
            if self._accepted:
                return None
            self._accepted = True
            # the id is taken while the first request still runs
            self.request.ClearField("request_id")
            self.request.sampling.seed = event.seed
        elif isinstance(event, pb.PromptLogprobs):
            return self._new_of(event)
        elif isinstance(event, pb.KeptEntries):
            return self._new_entries(event)
        elif isinstance(event, pb.Delta):
            self.request.resume_token_ids.extend(event.token_ids)
            # complete by now; prompt_logprobs are not allowed with resume_token_ids
            self.request.sampling.ClearField("prompt_logprobs")
            if self.request.output.kept_entries:
                self.request.output.ClearField("kept_entries")
        elif isinstance(event, pb.Finished):
            self._finished = True
        return event

    def _new_of(self, logprobs: pb.PromptLogprobs) -> pb.PromptLogprobs | None:
        """Removes logprobs received before the stream was lost."""
        known = min(self._prompt_position - logprobs.first_position, len(logprobs.tokens))
        del logprobs.tokens[:known]
        logprobs.first_position += known
        self._prompt_position += len(logprobs.tokens)
        return logprobs if logprobs.tokens else None

    def _new_entries(self, entries: pb.KeptEntries) -> pb.KeptEntries | None:
        """Removes texts and heads received before the stream was lost."""
        known = min(self._num_texts - entries.first_token, len(entries.token_texts))
        del entries.token_texts[:known]
        entries.first_token += known
        self._num_texts += len(entries.token_texts)
        new = [head for head in entries.heads if (head.layer, head.head) not in self._heads]
        del entries.heads[:]
        entries.heads.extend(new)
        self._heads.update((head.layer, head.head) for head in new)
        return entries if entries.token_texts or new else None

    def ended(self, error: HydrantError) -> bool:
        """Whether only the usage was lost: the only sample was complete."""
        return error.lost and self._finished and self._is_single()

    def _may_help(self, error: HydrantError) -> bool:
        if not self._accepted:
            return super()._may_help(error)
        return self._is_single() and (super()._may_help(error) or error.lost)

    def _is_single(self) -> bool:
        return not self.request.sampling.n > 1
