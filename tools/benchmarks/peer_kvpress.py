#!/usr/bin/env python3
"""Compares the entries kept by Hydrant's policies and by NVIDIA's kvpress, head by head. See
docs/results/quality.md.

Both run the same prompts with the same float32 weights; our options are set to the press's
definition. Prints a markdown table and fails if a row agrees less than at the time of writing. The
entries kept by a press are found by looking up its remaining keys in a plain run; masked entries
are in its own list.

  .venv/bin/pip install kvpress==0.5.5 torch gguf
  cmake --build build/release --target policy_probe
  .venv/bin/python tools/benchmarks/peer_kvpress.py --text wiki.test.raw --text moby_dick.txt
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
import transformers
from kvpress import (
    AdaKVPress,
    KVzipPress,
    ObservedAttentionPress,
    PyramidKVPress,
    SnapKVPress,
    StreamingLLMPress,
    TOVAPress,
)
from kvpress.presses import kvzip_press

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
PROBE = ROOT / "build" / "release" / "tests" / "integration" / "policy_probe"
# Multiples of ten, so that shares of them are whole numbers.
LENGTHS = (400, 420, 480, 540, 640)
DROPPED = (0.5, 0.8)
# Between the context and its repetition, as in KVzipPress; then the end of a turn, "\n" without a
# template.
INSTRUCTION = "\n\nRepeat the previous context exactly."
TURN = "\n"

Json = dict[str, Any]
Kept = list[list[set[int]]]  # [layer][KV head]


class ColumnSumsPress(ObservedAttentionPress):
    """ObservedAttentionPress without its last step, the division by the number of queries that
    see a key."""

    def score(self, module: Any, hidden_states: Any, keys: Any, values: Any, attentions: Any, kwargs: Any) -> torch.Tensor:
        means = super().score(module, hidden_states, keys, values, attentions, kwargs)
        return means * torch.arange(means.shape[-1], 0, -1, dtype=means.dtype)


class RepetitionPress(KVzipPress):
    """KVzipPress scored by the repetition's queries alone, without the instruction's."""

    def _compute_cross_attention(self, module: Any, hidden_states: Any, keys: Any, kwargs: Any) -> torch.Tensor:
        weights = super()._compute_cross_attention(module, hidden_states, keys, kwargs)
        weights[..., :weights.shape[-2] - (self.end_idx - self.start_idx), :] = 0
        return weights


class Row:
    """A press and the equivalent options. `agreement`: minimum of the relevant measure."""

    def __init__(self, name: str, press: Callable[[float], Any], policy: str, measure: str, agreement: float,
                 eager: bool = False, **fields: object) -> None:
        self.name, self.press, self.measure, self.agreement, self.eager = name, press, measure, agreement, eager
        self.cache = {"policy": policy, **fields}


SNAPKV: Json = {"protected_window_size": 64}
POOLED = {"kernel_size": 5, "pooling": "avg"}
KVZIP: Json = {"sink_tokens": 4, "protected_window_size": 0}
PEAK = {"sum_weight": 0, "max_weight": 1, "head_floor": 0, "value_norms": "false", "candidates": 1000}

ROWS = [
    Row("StreamingLLMPress", lambda r: StreamingLLMPress(r), "streaming", "jaccard", 1.0),
    Row("SnapKVPress", lambda r: SnapKVPress(r), "snapkv", "jaccard", 0.999, **SNAPKV, params=POOLED),
    Row("SnapKVPress, each with its own defaults", lambda r: SnapKVPress(r), "snapkv", "jaccard", 0.55),
    Row("PyramidKVPress", lambda r: PyramidKVPress(r), "pyramidkv", "containment", 0.999, **SNAPKV, params=POOLED),
    Row("AdaKVPress(SnapKVPress), no floor", lambda r: AdaKVPress(SnapKVPress(r), alpha_safeguard=0.0), "ada-snapkv", "jaccard",
        0.999, **SNAPKV, params={**POOLED, "head_floor": 0}),
    Row("AdaKVPress(SnapKVPress), floor 0.2", lambda r: AdaKVPress(SnapKVPress(r)), "ada-snapkv", "jaccard", 0.92, **SNAPKV,
        params=POOLED),
    Row("TOVAPress", lambda r: TOVAPress(r), "tova", "jaccard", 0.999),
    Row("ObservedAttentionPress", lambda r: ObservedAttentionPress(r), "h2o", "jaccard", 0.25, eager=True,
        protected_window_size=0),
    Row("ObservedAttentionPress, division undone", lambda r: ColumnSumsPress(r), "h2o", "jaccard", 0.999, eager=True,
        protected_window_size=0),
    Row("KVzipPress", lambda r: KVzipPress(r), "reconstruct", "jaccard", 0.82, **KVZIP, params=PEAK),
    Row("KVzipPress, the repetition's queries only", lambda r: RepetitionPress(r), "reconstruct", "jaccard", 0.999, **KVZIP,
        params=PEAK),
    Row("KVzipPress, the same layer by layer", lambda r: RepetitionPress(r, layerwise=True), "reconstruct", "jaccard", 0.999, **KVZIP,
        params={**PEAK, "budget_scope": "layer"}),
]


class Peer:
    def __init__(self, args: argparse.Namespace) -> None:
        source = {"gguf_file": args.model.name}
        self.model = transformers.AutoModelForCausalLM.from_pretrained(args.model.parent, dtype=torch.float32, **source).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(args.model.parent, **source)
        # KVzipPress would load the tokenizer by name, which a GGUF lacks, and wrap the instruction
        # in its template.
        self.tokenizer.chat_template = None
        kvzip_press.AutoTokenizer = types.SimpleNamespace(from_pretrained=lambda name: self.tokenizer)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def read(self, ids: list[int], press: Any = None) -> transformers.DynamicCache:
        cache = transformers.DynamicCache()
        inputs = {"input_ids": torch.tensor([ids]), "past_key_values": cache, "logits_to_keep": 1}
        if press is None:
            self.model(**inputs)
        else:
            with press(self.model):
                self.model(**inputs)
        return cache

    def attend(self, eager: bool) -> None:
        self.model.set_attn_implementation("eager" if eager else "sdpa")

    def kept(self, ids: list[int], press: Any, whole: transformers.DynamicCache) -> Kept:
        for layer in self.model.model.layers:
            layer.self_attn.masked_key_indices = None
        cache = self.read(ids, press)
        masked = [layer.self_attn.masked_key_indices for layer in self.model.model.layers]
        return [masked_left(len(ids), whole.layers[i].keys.shape[1], masked[i]) if masked[i] is not None else
                found_in(whole.layers[i].keys[0], cache.layers[i].keys[0]) for i in range(len(masked))]


def masked_left(tokens: int, heads: int, masked: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> list[set[int]]:
    left = [set(range(tokens)) for _ in range(heads)]
    for head, position in zip(masked[1].tolist(), masked[2].tolist(), strict=True):
        left[head].remove(position)
    return left


def found_in(whole: torch.Tensor, kept: torch.Tensor) -> list[set[int]]:
    """Positions of the kept keys [heads, kept, dim] among all keys [heads, tokens, dim]."""
    heads = []
    for all_keys, keys in zip(whole, kept, strict=True):
        distances = (keys[:, None] - all_keys[None]).abs().amax(-1)
        nearest = distances.min(dim=-1)
        if nearest.values.max() > 1e-4:
            sys.exit("peer_kvpress: a key in the press's cache is none of the prompt's")
        heads.append(set(nearest.indices.tolist()))
        if len(heads[-1]) != len(keys):
            sys.exit("peer_kvpress: two keys of a head are the same")
    return heads


def average(kept: Kept) -> float:
    sizes = [len(head) for layer in kept for head in layer]
    return sum(sizes) / len(sizes)


def ours(args: argparse.Namespace, questions: list[Json]) -> list[Json]:
    command = [str(args.probe), "--model", str(args.model), "--threads", str(args.threads), "--batch", "4"]
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    answered = subprocess.run(command, input=lines, text=True, stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in answered.stdout.splitlines()]


class Agreement:
    """Over the heads' sets of all layers and prompts."""

    def __init__(self) -> None:
        self.heads = self.identical = 0
        self.jaccard = self.containment = 0.0
        self.sizes_differ = 0

    def add(self, mine: Kept, theirs: Kept) -> None:
        for my_layer, their_layer in zip(mine, theirs, strict=True):
            for a, b in zip(my_layer, their_layer, strict=True):
                both = len(a & b)
                self.heads += 1
                self.identical += a == b
                self.sizes_differ += len(a) != len(b)
                self.jaccard += both / len(a | b)
                self.containment += both / max(1, min(len(a), len(b)))

    def line(self, row: Row, dropped: float) -> str:
        n = self.heads
        return (f"| {row.name} | `{row.cache['policy']}` | {dropped:.0%} | {self.identical / n:.1%} | {self.jaccard / n:.4f} | "
                f"{self.containment / n:.4f} | {self.sizes_differ / n:.1%} |")


def prompts_of(args: argparse.Namespace, peer: Peer) -> list[list[int]]:
    texts = [path.read_text(encoding="utf-8") for path in args.text]
    prompts = []
    for i, length in enumerate(LENGTHS[:args.prompts]):
        text = texts[i % len(texts)]
        start = text.index("\n", len(text) * (2 * i + 1) // (2 * len(LENGTHS))) + 1
        prompts.append(peer.encode(text[start:start + 8 * length])[:length])
    return prompts


def compare(args: argparse.Namespace, peer: Peer, prompts: list[list[int]], row: Row, dropped: float,
            plain: Callable[[bool, int], transformers.DynamicCache]) -> Agreement | str:
    """Refusals as text."""
    peer.attend(row.eager)
    theirs = [peer.kept(prompt, row.press(dropped), plain(row.eager, i)) for i, prompt in enumerate(prompts)]
    probe = peer.encode(INSTRUCTION) + peer.encode(TURN)
    # The press's average; PyramidKVPress rounds its layers.
    questions = [{"id": i, "tokens": prompt, "probe": probe, "positions": True,
                  "cache": {**row.cache, "max_cache_tokens": round(average(theirs[i]))}} for i, prompt in enumerate(prompts)]
    agreement = Agreement()
    for answer, kept in zip(ours(args, questions), theirs, strict=True):
        if "error" in answer:
            return answer["error"]
        agreement.add([[set(head) for head in layer] for layer in answer["kept"]], kept)
    return agreement


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=pathlib.Path, action="append", required=True, help="a text file; may be repeated")
    parser.add_argument("--model", type=pathlib.Path, default=MODEL, help="default: what scripts/fetch-model fetches")
    parser.add_argument("--probe", type=pathlib.Path, default=PROBE, help="policy_probe; default: the release build's")
    parser.add_argument("--prompts", type=int, default=len(LENGTHS), help="of the %(default)s there are")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


@torch.no_grad()
def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    worse = []
    peer = Peer(args)
    prompts = prompts_of(args, peer)
    caches: dict[tuple[bool, int], transformers.DynamicCache] = {}

    def plain(eager: bool, prompt: int) -> transformers.DynamicCache:
        if (eager, prompt) not in caches:
            peer.attend(eager)
            caches[eager, prompt] = peer.read(prompts[prompt])
        return caches[eager, prompt]

    print("| kvpress | policy | dropped | identical sets | Jaccard | containment | sizes differ |\n|---|---|---|---|---|---|---|",
          flush=True)
    for row in ROWS:
        for dropped in DROPPED if args.only in row.name else ():
            agreement = compare(args, peer, prompts, row, dropped, plain)
            if isinstance(agreement, str):
                print(f"peer_kvpress: {row.name}: skipped: {agreement}", file=sys.stderr)
                continue
            print(agreement.line(row, dropped), flush=True)
            found = getattr(agreement, row.measure) / agreement.heads
            if found < row.agreement:
                worse.append(f"{row.name}, {dropped:.0%} dropped: {row.measure} {found:.4f}, was at least {row.agreement}")
    for line in worse:
        print(f"peer_kvpress: {line}", file=sys.stderr)
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
