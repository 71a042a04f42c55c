"""The answer of a request, built from the events of its stream."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from hydrant.retry import Event
from hydrant.v1 import hydrant_pb2 as pb


@dataclass
class Sample:
    """One sample. `deltas` and `finished` are the server's messages about it."""

    deltas: list[pb.Delta] = field(default_factory=list)
    finished: Optional[pb.Finished] = None

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.token_ids]

    @property
    def logprobs(self) -> list[pb.TokenLogprobs]:
        """Logprobs of token_ids, if requested (logprobs=N)."""
        return [logprob for delta in self.deltas for logprob in delta.logprobs]

    @property
    def finish_reason(self) -> str | None:
        """"stop" or "length"; None until it has ended."""
        if self.finished is None:
            return None
        return pb.FinishReason.Name(self.finished.reason).removeprefix("FINISH_REASON_").lower()

    @property
    def context(self) -> str | None:
        """The handle of its kept cache (keep=True): later requests can continue it."""
        return self.finished.context or None if self.finished is not None else None


@dataclass
class Answer:
    """All samples of a request; `text` and similar properties belong to the first.

    accepted          its id, seed, and prompt tokens
    prompt_logprobs   for the prompt's tokens except the first, if requested (prompt_logprobs=N)
    kept_entries      which of the prompt's tokens each KV head keeps, if requested (kept_entries=True)
    usage             None: the stream was lost after its last token
    """

    accepted: Optional[pb.Accepted] = None
    prompt_logprobs: list[pb.TokenLogprobs] = field(default_factory=list)
    kept_entries: pb.KeptEntries = field(default_factory=pb.KeptEntries)
    usage: Optional[pb.Usage] = None
    _samples: dict[int, Sample] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        if isinstance(event, pb.Delta):
            self._sample(event.index).deltas.append(event)
        elif isinstance(event, pb.Finished):
            self._sample(event.index).finished = event
        elif isinstance(event, pb.Accepted):
            self.accepted = event
        elif isinstance(event, pb.PromptLogprobs):
            self.prompt_logprobs.extend(event.tokens)
        elif isinstance(event, pb.KeptEntries):
            self.kept_entries.token_texts.extend(event.token_texts)
            self.kept_entries.heads.extend(event.heads)
        elif isinstance(event, pb.Usage):
            self.usage = event

    def kept_shares(self) -> list[tuple[bytes, float]]:
        """The prompt's tokens, each with the share of KV heads that keep its entry."""
        heads = self.kept_entries.heads
        return [(text, sum(head.tokens[i >> 3] >> (i & 7) & 1 for head in heads) / len(heads))
                for i, text in enumerate(self.kept_entries.token_texts)]

    @property
    def samples(self) -> list[Sample]:
        return [self._samples[index] for index in sorted(self._samples)]

    @property
    def text(self) -> str:
        return self._sample(0).text

    @property
    def token_ids(self) -> list[int]:
        return self._sample(0).token_ids

    @property
    def logprobs(self) -> list[pb.TokenLogprobs]:
        return self._sample(0).logprobs

    @property
    def finish_reason(self) -> str | None:
        return self._sample(0).finish_reason

    @property
    def context(self) -> str | None:
        return self._sample(0).context

    @property
    def seed(self) -> int:
        """Reproduces the request; sample i was drawn with seed + i."""
        return self.accepted.seed if self.accepted is not None else 0

    def _sample(self, index: int) -> Sample:
        return self._samples.setdefault(index, Sample())
