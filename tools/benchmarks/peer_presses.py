#!/usr/bin/env python3
"""Runs the presses of NVIDIA's kvpress on the cases of hydrant-eval, and appends rows to its
results.

Same GGUF weights in float32, same tokens, equal numbers of entries; the tokens after the prompt are
appended, so rows differ in the choice alone. A prompt is computed once for all presses: each gets
the inputs of its own hook (hidden states, keys, values) and compresses with its own code at every
budget. The entries it kept, found by their keys or by its list of masked ones, become a mask, and
the following tokens are computed for all masks as one batch. KVzipPress computes the prompt itself,
twice. --check runs one press after the other as kvpress does, with the shortened cache and token by
token, and compares.

Rows are named kvpress:NAME. Existing rows are not repeated: the program may be stopped at any time.

  .venv/bin/pip install kvpress==0.5.5 torch gguf
  hydrant-eval --dtype float32 --append ... --out DIR
  hydrant-eval --dtype float32 --append ... --write-cases DIR/cases.jsonl
  .venv/bin/python tools/benchmarks/peer_presses.py --cases DIR/cases.jsonl --results DIR/results.jsonl
  hydrant-eval --dtype float32 --append ... --out DIR --report-only --against h2o

Left out: presses that need trained parameters (DuoAttention, QFilter, FastKVzip, KVzap,
ExpectedAttentionStats, LUKV, RestoreKV, DMS), a delimiter before the question (Finch), generated
answers (KVCompose), or that keep something other than entries (ThinK, Merging, CAM, SimLayerKV,
KeyRerotation).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import logging
import math
import os
import pathlib
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

# Before torch is loaded: waiting threads do not spin, as the machine may be shared.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TQDM_DISABLE", "1")

try:
    import torch
    import transformers
    from kvpress import (
        AdaKVPress,
        CapPress,
        ChunkKVPress,
        CompactorPress,
        CriticalAdaKVPress,
        CriticalKVPress,
        CURPress,
        ExpectedAttentionPress,
        KeyDiffPress,
        KnormPress,
        KVgradPress,
        KVzipPress,
        LagKVPress,
        LeverageScorePress,
        NonCausalAttnPress,
        ObservedAttentionPress,
        PyramidKVPress,
        RandomPress,
        SnapKVPress,
        StreamingLLMPress,
        TOVAPress,
    )
    from kvpress.presses import kvzip_press
except ImportError as error:
    sys.exit(f"peer_presses: {error}; install what it needs: pip install kvpress==0.5.5 torch gguf")

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
PREFIX = "kvpress:"
# Tolerance for the uncompressed models: nats per token.
SAME_NLL = 1e-3
WINDOW = 32  # last queries, over which retained mass is averaged
ROWS_AT_ONCE = 16

Json = dict[str, Any]

# Every press with its own defaults; and, as a window of 64 may exceed the budget, with one of 16.
PRESSES: dict[str, Callable[[], Any]] = {
    "SnapKVPress": SnapKVPress,
    "SnapKVPress(window_size=16)": lambda: SnapKVPress(window_size=16),
    "ObservedAttentionPress": ObservedAttentionPress,
    "TOVAPress": TOVAPress,
    "StreamingLLMPress": StreamingLLMPress,
    "PyramidKVPress": PyramidKVPress,
    "AdaKVPress(SnapKVPress)": lambda: AdaKVPress(SnapKVPress()),
    "AdaKVPress(SnapKVPress(window_size=16))": lambda: AdaKVPress(SnapKVPress(window_size=16)),
    "CriticalAdaKVPress(SnapKVPress(window_size=16))": lambda: CriticalAdaKVPress(SnapKVPress(window_size=16)),
    "ExpectedAttentionPress": ExpectedAttentionPress,
    "AdaKVPress(ExpectedAttentionPress)": lambda: AdaKVPress(ExpectedAttentionPress()),
    "CompactorPress": CompactorPress,
    "CURPress": CURPress,
    "KeyDiffPress": KeyDiffPress,
    "KnormPress": KnormPress,
    "RandomPress": RandomPress,
    "KVzipPress": KVzipPress,
    "KVzipPress(plus)": lambda: KVzipPress(kvzip_plus_normalization=True),
}
# Variants for --presses; and one that takes as long as all of them together.
MORE_PRESSES: dict[str, Callable[[], Any]] = {
    "KVgradPress": KVgradPress,
    "CriticalKVPress(SnapKVPress)": lambda: CriticalKVPress(SnapKVPress()),
    "ChunkKVPress(SnapKVPress)": lambda: ChunkKVPress(SnapKVPress()),
    "CapPress": CapPress,
    "LeverageScorePress": LeverageScorePress,
    "NonCausalAttnPress": NonCausalAttnPress,
    "LagKVPress": LagKVPress,
}
ALL_PRESSES = {**PRESSES, **MORE_PRESSES}
READ_BY_THEMSELVES = (KVzipPress,)  # and its variants
DRAW_NUMBERS = (RandomPress, LeverageScorePress, CompactorPress)  # --check would draw different ones
CHECKED_TOKENS = 30  # of a text, by --check
SCORE_BY_RATIO = (CompactorPress, CriticalKVPress)


def fail(message: str) -> None:
    sys.exit(f"peer_presses: {message}")


@dataclasses.dataclass
class Question:
    """A question on a compressed context: tokens to read, tokens to foresee, tokens to generate."""
    index: int
    task: str
    judge: str
    read: list[int]
    foreseen: list[int]
    generate: int
    stop: str
    answers: list[str]
    wrong: list[str]
    depth: float

    def found(self, text: str) -> float:
        if not self.answers or any(wrong in text for wrong in self.wrong):
            return 0.0
        return sum(answer in text for answer in self.answers) / len(self.answers)

    def given(self) -> list[int]:
        return self.read + self.foreseen


@dataclasses.dataclass
class Case:
    number: int
    context: list[int]
    questions: list[Question]

    def keeps(self, budget: float) -> int:
        """Counts like CacheSpec's cache_ratio."""
        return max(1, math.ceil(budget * len(self.context) - 1e-6))


def ids_of(ids: int | list[int] | None) -> list[int]:
    return [] if ids is None else [ids] if isinstance(ids, int) else ids


def question_of(index: int, asked: Json, dialogues: list[list[Json]]) -> Question | None:
    """None: presses compress a context once, so conversations of several turns are left out, as are choices and texts that
    follow the full cache's."""
    dialogue = dialogues[asked["dialogue"]]
    exchange = dialogue[0]
    if len(dialogue) > 1 or exchange["follow"] > 0 or asked["judge"] == "choice":
        return None
    return Question(index, asked["task"], asked["judge"], exchange["read"], exchange["foreseen"], exchange["generate"],
                    exchange["stop"], asked["answers"], asked["wrong"], asked["depth"])


def read_cases(path: pathlib.Path) -> list[Case]:
    cases = []
    for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            made = json.loads(line)
            questions = [question_of(k, asked, made["dialogues"]) for k, asked in enumerate(made["questions"])]
            cases.append(Case(made["case"], made["context"], [question for question in questions if question is not None]))
        except (ValueError, KeyError, TypeError) as error:
            fail(f"{path}, line {i}: {type(error).__name__} {error}; hydrant-eval --write-cases writes such files")
    return [case for case in cases if case.questions]


class Results:
    """The results file of hydrant-eval: settings first, then one outcome per line."""

    def __init__(self, path: pathlib.Path, model: pathlib.Path) -> None:
        self.path = path
        text = path.read_text(encoding="utf-8")
        whole = text[:text.rfind("\n") + 1]
        if whole != text:  # a partial last line of a killed run
            path.write_text(whole, encoding="utf-8")
        lines = whole.splitlines()
        try:
            rows = [json.loads(line) for line in lines]
            self.rows = {(row["task"], row["case"], row["question"], row["arm"], row["budget"]): row for row in rows[1:]}
        except (ValueError, KeyError, TypeError) as error:
            fail(f"{path} is not what hydrant-eval keeps: {type(error).__name__} {error}")
        settings = rows[0] if rows else {}
        for name, wanted in (("dtype", "float32"), ("append", True), ("model", model.name)):
            if settings.get(name) != wanted:
                fail(f"{path} was made with {name} {settings.get(name)}, and can only be compared with {wanted}")

    def full(self, case: Case, question: Question) -> Json:
        row = self.rows.get((question.task, case.number, question.index, "full", 1.0))
        if row is None:
            fail(f"{self.path} lacks our full cache of {question.task} {case.number}: run hydrant-eval to its end first")
        return row

    def has(self, case: Case, name: str, budget: float) -> bool:
        return all((question.task, case.number, question.index, PREFIX + name, budget) in self.rows for question in case.questions)

    def add(self, rows: list[Json]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))


@dataclasses.dataclass
class Choice:
    """The entries kept by a press for a prompt at a budget."""
    name: str
    budget: float
    kept: torch.Tensor  # bool [layers, KV heads, context]


@dataclasses.dataclass
class Outcome:
    nll: float = 0.0
    agreement: float = 0.0
    divergence: float = 0.0
    text: str = ""


@dataclasses.dataclass
class Reading:
    """The prompt, uncompressed."""
    cache: transformers.DynamicCache
    logits: torch.Tensor  # [vocabulary], after the last token
    mass: torch.Tensor    # [layers, KV heads, context] mean weight of its last queries


def masked_attention(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _mask: Any, scaling: float,
                     **_more: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Causal attention in which a row sees only those of the first entries in `module.kept` [rows,
    KV heads, context]. Weights are returned for a prompt only."""
    queries, keys = query.shape[2], key.shape[2]
    group = query.shape[1] // key.shape[1]
    seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries).expand(len(query), query.shape[1], -1, -1)
    if module.kept is not None:
        context = module.kept.shape[-1]
        seen = seen.clone()
        seen[..., :context] = module.kept.repeat_interleave(group, dim=1)[:, :, None, :]
    if queries == keys:
        weights = query @ key.repeat_interleave(group, dim=1).transpose(2, 3) * scaling
        weights = weights.masked_fill(~seen, float("-inf")).softmax(dim=-1)
        return (weights @ value.repeat_interleave(group, dim=1)).transpose(1, 2).contiguous(), weights
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2).contiguous(), None


def innermost(press: Any) -> Any:
    while hasattr(press, "press"):
        press = press.press
    return press


@contextlib.contextmanager
def scored_once(press: Any) -> Iterator[None]:
    """Within it the innermost press scores once, whatever ratios are requested."""
    inner = innermost(press)
    if isinstance(inner, SCORE_BY_RATIO):
        yield
        return
    score, kept = inner.score, []

    def once(*args: Any, **kwargs: Any) -> torch.Tensor:
        if not kept:
            kept.append(score(*args, **kwargs))
        return kept[0].clone()

    object.__setattr__(inner, "score", once)
    try:
        yield
    finally:
        object.__delattr__(inner, "score")


# Odd, so that every bit of a number matters.
FINGERPRINT = torch.randint(-2**62, 2**62, (4096,), generator=torch.Generator().manual_seed(1)) | 1


def fingerprints(keys: torch.Tensor) -> torch.Tensor:
    """Hash of rows of bits; int64 sums wrap around and so do not depend on their order."""
    bits = keys.contiguous().view(torch.int32).to(torch.int64)
    return (bits * FINGERPRINT[:bits.shape[-1]]).sum(dim=-1)


def kept_of(module: Any, whole: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """bool [KV heads, context]: keys kept by a press, out of all keys `whole` [1, KV heads,
    context, dim]."""
    if module.masked_key_indices is not None:
        kept = torch.ones(whole.shape[1:3], dtype=torch.bool)
        kept[module.masked_key_indices[1], module.masked_key_indices[2]] = False
        return kept
    return torch.stack([torch.isin(a, b) for a, b in zip(fingerprints(whole)[0], fingerprints(keys)[0], strict=True)])


class Peer:
    def __init__(self, path: pathlib.Path) -> None:
        source = {"gguf_file": path.name}
        self.model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **source).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **source)
        # KVzipPress would load the tokenizer by name, which a GGUF lacks, and wrap its instruction
        # in a template.
        self.tokenizer.chat_template = None
        kvzip_press.AutoTokenizer = types.SimpleNamespace(from_pretrained=lambda _name: self.tokenizer)
        transformers.AttentionInterface.register("masked", masked_attention)
        self.ends = {*ids_of(self.tokenizer.eos_token_id), *ids_of(self.model.generation_config.eos_token_id)}
        self.attentions = [layer.self_attn for layer in self.model.model.layers]
        for attention in self.attentions:
            attention.rotary_emb = self.model.model.rotary_emb  # as in BasePress
            attention.kept = attention.masked_key_indices = None

    def read(self, case: Case, presses: dict[str, Any], budgets: dict[str, list[float]]) -> tuple[Reading, list[Choice]]:
        """The prompt, and the entries kept by the presses: with their own code, from the inputs of
        their hooks."""
        self.model.set_attn_implementation("masked")
        chosen: dict[tuple[str, float], list[torch.Tensor]] = {(n, b): [] for n in presses for b in budgets[n]}
        mass: list[torch.Tensor] = []

        def hook(module: Any, _inputs: Any, kwargs: Any, output: Any) -> None:
            cached = kwargs["past_key_values"].layers[module.layer_idx]
            weights = output[1]
            mass.append(weights[0, :, -WINDOW:].mean(dim=1).view(cached.keys.shape[1], -1, weights.shape[-1]).mean(dim=1))
            for name, press in presses.items():
                attentions = weights if isinstance(press, ObservedAttentionPress) else None
                torch.manual_seed(1000 * case.number + module.layer_idx)
                with scored_once(press):
                    for budget in budgets[name]:
                        # Half an entry more would make PyramidKVPress keep another; with none,
                        # rounding could lose one.
                        press.compression_ratio = 1 - (case.keeps(budget) + 1e-4) / len(case.context)
                        module.masked_key_indices = None
                        keys, _ = press.compress(module, kwargs["hidden_states"], cached.keys, cached.values, attentions, kwargs)
                        chosen[name, budget].append(kept_of(module, cached.keys, keys))
            module.masked_key_indices = None

        cache = transformers.DynamicCache()
        hooks = [attention.register_forward_hook(hook, with_kwargs=True) for attention in self.attentions]
        try:
            logits = self.model(input_ids=torch.tensor([case.context]), past_key_values=cache, logits_to_keep=1).logits
        finally:
            for registered in hooks:
                registered.remove()
        choices = [Choice(name, budget, torch.stack(kept)) for (name, budget), kept in chosen.items()]
        return Reading(cache, logits[0, -1], torch.stack(mass)), choices

    def choose_alone(self, case: Case, name: str, press: Any, budgets: list[float]) -> list[Choice]:
        """For a press that computes the prompt itself: scored once, cut at every budget."""
        self.model.set_attn_implementation("sdpa")
        choices = []
        cut = press.compress_post

        def cut_each(model: Any) -> None:
            for budget in budgets:
                # Slightly less, so that rounding does not drop another entry.
                press.compression_ratio = 1 - (case.keeps(budget) - 1e-6) / len(case.context)
                cut(model)
                kept = torch.ones(len(self.attentions), model.config.num_key_value_heads, len(case.context), dtype=torch.bool)
                for layer, attention in enumerate(self.attentions):
                    kept[layer, attention.masked_key_indices[1], attention.masked_key_indices[2]] = False
                    attention.masked_key_indices = None
                choices.append(Choice(name, budget, kept))

        press.compression_ratio = 0.5
        press.compress_post = cut_each
        try:
            with press(self.model):
                self.model(input_ids=torch.tensor([case.context]), past_key_values=transformers.DynamicCache(),
                           logits_to_keep=1)
        finally:
            del press.compress_post
        return choices

    def go_on(self, question: Question, reading: Reading, kept: list[torch.Tensor | None], against: torch.Tensor | None
              ) -> tuple[list[Outcome], torch.Tensor]:
        """Results of the tokens after the context per row, and the log-probabilities of the first
        row [given, vocabulary]. `kept`: a mask per row; `against`: log-probabilities of the full
        cache."""
        self.model.set_attn_implementation("masked")
        outcomes = [Outcome() for _ in kept]
        cache = transformers.DynamicCache()
        for i, attention in enumerate(self.attentions):
            layer = reading.cache.layers[i]
            cache.update(layer.keys.expand(len(kept), -1, -1, -1), layer.values.expand(len(kept), -1, -1, -1), i)
            attention.kept = None if kept[0] is None else torch.stack([mask[i] for mask in kept])
        last = reading.logits.expand(len(kept), -1)
        given, begin = question.given(), len(question.read)
        first = last
        if given:
            fed = torch.tensor([given]).expand(len(kept), -1)
            hidden = self.model.model(input_ids=fed, past_key_values=cache).last_hidden_state
            for i, outcome in enumerate(outcomes):
                after = self.model.lm_head(hidden[i])
                log_p = torch.cat([reading.logits[None], after[:-1]]).log_softmax(dim=-1)
                if question.foreseen:
                    self.measure(question.foreseen, log_p[begin:], (log_p if against is None else against)[begin:], outcome)
                if i == 0:
                    first = log_p
            last = self.model.lm_head(hidden[:, -1])
        self.generate(question, cache, last, outcomes)
        for attention in self.attentions:
            attention.kept = None
        return outcomes, first

    @staticmethod
    def measure(given: list[int], log_p: torch.Tensor, log_full: torch.Tensor, outcome: Outcome) -> None:
        outcome.nll = -log_p[torch.arange(len(given)), torch.tensor(given)].double().mean().item()
        outcome.agreement = (log_p.argmax(dim=-1) == log_full.argmax(dim=-1)).double().mean().item()
        outcome.divergence = max(0.0, (log_full.exp() * (log_full - log_p)).sum(dim=-1).double().mean().item())

    def generate(self, question: Question, cache: transformers.DynamicCache, logits: torch.Tensor, outcomes: list[Outcome]) -> None:
        made: list[torch.Tensor] = []
        ended = torch.zeros(len(outcomes), dtype=torch.bool)
        for i in range(question.generate):
            made.append(logits.argmax(dim=-1))
            ended |= torch.isin(made[-1], torch.tensor(sorted(self.ends)))
            if ended.all():
                break
            if i + 1 < question.generate:
                logits = self.model(input_ids=made[-1][:, None], past_key_values=cache).logits[:, -1]
        for row, outcome in enumerate(outcomes if made else []):
            ids = list(itertools.takewhile(lambda token: token not in self.ends, (tokens[row].item() for tokens in made)))
            outcome.text = self.tokenizer.decode(ids, skip_special_tokens=True)
            if question.stop:
                outcome.text = outcome.text.split(question.stop)[0]

    def as_kvpress_does(self, case: Case, name: str, budget: float) -> Outcome:
        """With the shortened cache, or the press's masked keys, token by token."""
        press = ALL_PRESSES[name]()
        self.model.set_attn_implementation("eager" if isinstance(press, ObservedAttentionPress) else "sdpa")
        nudge = -1e-6 if isinstance(press, READ_BY_THEMSELVES) else 1e-4
        press.compression_ratio = 1 - (case.keeps(budget) + nudge) / len(case.context)
        cache = transformers.DynamicCache()
        with press(self.model):
            logits = self.model(input_ids=torch.tensor([case.context]), past_key_values=cache, logits_to_keep=1).logits
        nll = []
        for position, token in enumerate(case.questions[0].foreseen, len(case.context)):
            nll.append(-logits[0, -1].log_softmax(dim=-1)[token].item())
            logits = self.model(input_ids=torch.tensor([[token]]), past_key_values=cache,
                                position_ids=torch.tensor([[position]])).logits
        for attention in self.attentions:
            attention.masked_key_indices = None
        return Outcome(nll=sum(nll) / max(1, len(nll)))


class Comparison:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.results = Results(args.results, args.model)
        self.peer = Peer(args.model)
        self.presses = {name: ALL_PRESSES[name]() for name in args.presses}
        self.differ = 0  # texts that differ with the full cache

    def missing(self, case: Case) -> dict[str, list[float]]:
        lacks = {name: [b for b in self.args.budgets if not self.results.has(case, name, b)] for name in self.presses}
        return {name: budgets for name, budgets in lacks.items() if budgets}

    def run(self, case: Case, budgets: dict[str, list[float]]) -> None:
        together = {n: self.presses[n] for n in budgets if not isinstance(self.presses[n], READ_BY_THEMSELVES)}
        reading, choices = self.peer.read(case, together, budgets)
        for name in budgets:
            if name not in together:
                choices += self.peer.choose_alone(case, name, self.presses[name], budgets[name])
        for question in case.questions:
            self.ask(case, question, reading, choices)

    def ask(self, case: Case, question: Question, reading: Reading, choices: list[Choice]) -> None:
        ours = self.results.full(case, question)
        (full,), log_full = self.peer.go_on(question, reading, [None], None)
        if abs(full.nll - ours["nll"]) > SAME_NLL:
            fail(f"{question.task} {case.number}: uncompressed, transformers has {full.nll:.5f} nats a token and we "
                 f"{ours['nll']:.5f}: not the same model, or not the same cases")
        self.differ += full.text != ours["text"]
        rows = []
        for begin in range(0, len(choices), ROWS_AT_ONCE):
            part = choices[begin:begin + ROWS_AT_ONCE]
            outcomes, _ = self.peer.go_on(question, reading, [choice.kept for choice in part], log_full)
            rows += [self.row(case, question, choice, outcome, reading) for choice, outcome in zip(part, outcomes, strict=True)]
        self.results.add(rows)

    @staticmethod
    def row(case: Case, question: Question, choice: Choice, outcome: Outcome, reading: Reading) -> Json:
        kept = choice.kept.sum(dim=-1).flatten().tolist()
        return {"task": question.task, "case": case.number, "question": question.index, "arm": PREFIX + choice.name,
                "budget": choice.budget, "nll": outcome.nll, "agreement": outcome.agreement if question.foreseen else 0.0,
                "divergence": outcome.divergence, "retrieval": question.judge == "found", "found": question.found(outcome.text),
                "depth": question.depth, "text": outcome.text, "entries": sum(kept),
                "retained_mass": (reading.mass * choice.kept).sum(dim=-1).mean().item(), "kept": kept}

    def check(self, cases: list[Case]) -> None:
        """One case: checks that the measurement equals kvpress's own way."""
        case = next((case for case in cases if case.questions[0].foreseen and not case.questions[0].read), None)
        if case is None:
            fail("--check: no case has a text to foresee")
        question = dataclasses.replace(case.questions[0], foreseen=case.questions[0].foreseen[:CHECKED_TOKENS], generate=0)
        case = dataclasses.replace(case, questions=[question])
        worst = 0.0
        for name, press in self.presses.items():
            if isinstance(innermost(press), DRAW_NUMBERS):
                continue
            for budget in self.args.budgets:
                alone = isinstance(press, READ_BY_THEMSELVES)
                reading, choices = self.peer.read(case, {} if alone else {name: press}, {name: [budget]})
                if alone:
                    choices = self.peer.choose_alone(case, name, press, [budget])
                (here,), _ = self.peer.go_on(question, reading, [choices[0].kept], None)
                there = self.peer.as_kvpress_does(case, name, budget)
                worst = max(worst, abs(here.nll - there.nll))
                print(f"{name} at {budget:.0%}: {here.nll:.5f} here, {there.nll:.5f} as kvpress does it", file=sys.stderr)
        if worst > SAME_NLL:
            fail(f"--check: {worst:.5f} nats apart")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=pathlib.Path, required=True, help="what hydrant-eval --write-cases wrote")
    parser.add_argument("--results", type=pathlib.Path, required=True, help="results.jsonl of hydrant-eval's --out")
    parser.add_argument("--model", type=pathlib.Path, default=MODEL, help="a GGUF file; default: what scripts/fetch-model fetches")
    parser.add_argument("--budgets", default="0.1,0.2,0.4", help="shares of the context that stay; default %(default)s")
    parser.add_argument("--presses", default=",".join(PRESSES), help=f"default: %(default)s; there are {', '.join(MORE_PRESSES)} too")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="measure nothing; compare with kvpress's own way, on one case")
    args = parser.parse_args()
    args.presses = args.presses.split(",")
    for name in args.presses:
        if name not in ALL_PRESSES:
            parser.error(f"--presses: '{name}' is unknown; one of {', '.join(ALL_PRESSES)}")
    try:
        args.budgets = [float(budget) for budget in args.budgets.split(",")]
    except ValueError:
        parser.error(f"--budgets: '{args.budgets}' is not a list of numbers")
    if not all(0 < budget < 1 for budget in args.budgets):
        parser.error("--budgets: each is between 0 and 1")
    if not args.model.exists():
        parser.error(f"--model: there is no {args.model}; scripts/fetch-model fetches it")
    for flag, path in (("--cases", args.cases), ("--results", args.results)):
        if not path.exists():
            parser.error(f"{flag}: there is no {path}")
    return args


@torch.no_grad()
def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("kvpress").setLevel(logging.ERROR)
    cases = read_cases(args.cases)
    comparison = Comparison(args)
    if args.check:
        comparison.check(cases)
        return
    missing = [(case, lacks) for case in cases if (lacks := comparison.missing(case))]
    start = time.monotonic()
    for done, (case, lacks) in enumerate(missing, 1):
        comparison.run(case, lacks)
        left = (time.monotonic() - start) / done * (len(missing) - done)
        end = "\r" if sys.stderr.isatty() else "\n"
        print(f"{done} of {len(missing)} cases, {left:.0f} s left   ", end=end, file=sys.stderr, flush=True)
    if comparison.differ:
        print(f"peer_presses: the full cache's text differs from ours in {comparison.differ} of {len(missing)} cases",
              file=sys.stderr)


if __name__ == "__main__":
    main()
