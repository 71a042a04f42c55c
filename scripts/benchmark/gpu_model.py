#!/usr/bin/env python3
"""The figures that scripts/gpu-check is expected to print, from a model of the device: each kernel takes the longest of its bytes,
its operations and its exponentials, and a ramp; blocks of prompts are dealt to the multiprocessors as the hardware deals them.

  gpu_model.py                                    Markdown tables of all rows, for both cards
  gpu_model.py --json FILE [--card h100|h200]     the rows of one card as JSON lines
  gpu_model.py --check                            beside the rows that were measured (docs/benchmarks.md), with the error of each;
                                                  exit status 1 if one is off by more than a fifth

The rows and their fields are those of device_benchmark, device_probe, step_benchmark and throughput_benchmark; gpu_table.py puts the
expected beside the measured figure. A change of a kernel changes its numbers here, in the same commit, before it is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import json
import math
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The free constants: how near to the card's limits the kernels come. The values are fitted to the measurements of 2026-11-26 on an
    H200 (MEASURED below), so that their errors tell how well the form of the model fits, not what it foresees."""

    decode_wave_us: float = 13.9  # of a wave of decode attention, in which nothing is on its way: table walk, softmax, join
    decode_stream: float = 0.93  # of a copy's bytes a second, while a wave reads
    decode_squeezed: float = 0.79  # the same where shared memory leaves the L1 too little room: 2,048 entries a block
    join_us: float = 3.0  # of a split head
    join_split_us: float = 0.125  # of each of its parts
    score_wave_us: float = 2.5  # scores of whole heads, a wave
    score_kernel_us: float = 7.0  # the kernel that scores split heads
    split_score_bytes: int = 44  # an entry of a split head, its weights written and read again among them
    prompt_rate: float = 330e12  # operations a second of prompt attention where all multiprocessors are at work
    prompt_block_us: float = 6.0  # of a block, before and after its tiles
    sums_rate: float = 165e12  # the same of column sums, which multiply queries and keys alone
    product_share: float = 0.875  # of the copy, of a product of one row
    product_share_a_row: float = 0.0035  # what each further row takes from it
    product_share_least: float = 0.65
    product_operations: float = 0.95  # of the largest product, where operations bound one
    launch_us: float = 1.4  # from a kernel to the next in a graph
    launches_a_layer: int = 11  # 361 of a step in the profile of that day; the emulation, whose products are one launch each, counts 9
    small_kernels_ms: float = 0.2  # norms, rotation, activation, sampling and host of a step of 32 layers
    small_kernels_ms_a_row: float = 0.008
    prompt_products: float = 0.68  # of the largest product, in a prompt's products with what lies between them


FITTED = Kernels()
# The kernels of this commit: dataclasses.replace(FITTED, ...) of what has changed and was not measured since.
NOW = FITTED


@dataclasses.dataclass(frozen=True)
class Card:
    name: str
    copy: float  # bytes a second, read and written
    products: float = 690e12  # bf16 operations a second of the largest product
    exps: float = 3.7e12  # exponentials a second: 16 a clock and multiprocessor
    multiprocessors: int = 132
    kernels: Kernels = NOW  # what runs on it


# The H100's rate is that of its data sheet, times what a copy reached of the H200's.
CARDS = {"h200": Card("NVIDIA H200", 4.278e12), "h100": Card("NVIDIA H100", 3.0e12)}

MOST_ERROR = 0.2  # of a row that was measured

DECODE_BLOCKS = 4  # a multiprocessor, tests/kernels/cuda_occupancy.tsv
PROMPT_BLOCKS, PROMPT_TILE, KEY_TILE = 2, 128, 64
SUMS_BLOCKS = 4
QUERY_TILE = 32


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int
    head_dim: int = 128

    def weights(self) -> int:
        """Numbers that a step multiplies with."""
        layer = self.hidden * (self.heads + 2 * self.kv_heads) * self.head_dim + self.hidden * self.heads * self.head_dim
        return self.layers * (layer + 3 * self.hidden * self.intermediate) + self.hidden * self.vocabulary


LLAMA_8B = Model("llama-3.1-8b", 32, 4096, 14336, 32, 8, 128256)
LLAMA_7B = Model("llama-7b", 32, 4096, 11008, 32, 32, 32000)
MODELS = {model.name: model for model in (LLAMA_8B, LLAMA_7B)}


def product(card: Card, rows: int, n: int, k: int) -> float:
    """Seconds of x W^T with `rows` rows and bf16 weights [n, k]."""
    share = max(card.kernels.product_share - card.kernels.product_share_a_row * (rows - 1), card.kernels.product_share_least)
    moved = 2.0 * n * k + rows * (2.0 * k + 4.0 * n)
    return max(moved / (card.copy * share), 2.0 * rows * n * k / (card.products * card.kernels.product_operations))


def chunk_of(card: Card, rows: int, kv_heads: int, planned: int, group: int) -> int:
    """Entries a block: ChunkOf of kernels/cuda/decode_attention.cu."""
    weight_rows = 1 if group == 1 else max(group, 4)
    most = max(256, 8192 // weight_rows // 64 * 64)
    splits_fit = math.ceil(math.ceil(math.sqrt(planned)) / 64) * 64
    share = math.ceil(math.ceil(rows * kv_heads * planned / (card.multiprocessors * DECODE_BLOCKS)) / 64) * 64
    return max(min(most, max(share, 128)), splits_fit)


def decode(card: Card, rows: int, entries: int, scored: bool = False, kv_heads: int = 8, group: int = 4, planned: int = 0) -> float:
    """Seconds of decode attention over bf16 pages. `planned`: the entries that the launch is planned by, if they are more."""
    chunk = chunk_of(card, rows, kv_heads, planned or entries, group)
    splits = math.ceil(entries / chunk)
    heads = rows * kv_heads
    waves = math.ceil(heads * splits / (card.multiprocessors * DECODE_BLOCKS))
    in_all = heads * entries
    bytes_a_second = card.copy * (card.kernels.decode_squeezed if min(chunk, entries) >= 2048 else card.kernels.decode_stream)
    us = in_all * 512 / bytes_a_second * 1e6 + card.kernels.decode_wave_us * waves
    if splits > 1:
        us += card.kernels.join_us + card.kernels.join_split_us * splits
    if scored:
        us += in_all * (card.kernels.split_score_bytes if splits > 1 else 12) / bytes_a_second * 1e6
        us += card.kernels.score_kernel_us if splits > 1 else card.kernels.score_wave_us * waves
    return us * 1e-6


def deal(costs: Iterable[float], places: int) -> float:
    """When the last block ends: each begins, in order, where a place is free first."""
    ends = [0.0] * places
    for cost in costs:
        heapq.heapreplace(ends, ends[0] + cost)
    return max(ends)


def prompt(card: Card, tokens: int, heads: int = 32, kv_heads: int = 8, head_by_head: bool = False) -> float:
    """Seconds of causal attention of one prompt, heads of 128. head_by_head: the order of blocks until 2026-11-26."""
    places = card.multiprocessors * PROMPT_BLOCKS
    of_a_key_tile = 4.0 * PROMPT_TILE * KEY_TILE * 128 / (card.kernels.prompt_rate / places)
    tiles = range(math.ceil(tokens / PROMPT_TILE))
    cost = [card.kernels.prompt_block_us * 1e-6 + of_a_key_tile * math.ceil(min((t + 1) * PROMPT_TILE, tokens) / KEY_TILE) for t in tiles]
    longest_first = sorted(cost, reverse=True)
    order = longest_first * heads if head_by_head else [c for c in longest_first for _ in range(heads)]
    rounding = tokens * (heads + 2 * kv_heads) * 128 * 6.0 / card.copy
    exps = heads * tokens * tokens / 2 / card.exps
    return max(deal(order, places), exps) + rounding + 4 * card.kernels.launch_us * 1e-6


def column_sums(card: Card, tokens: int, heads: int = 32, kv_heads: int = 8) -> float:
    """Seconds that one column statistic over all queries adds to prompt()."""
    places = card.multiprocessors * SUMS_BLOCKS
    tiles = math.ceil(tokens / KEY_TILE)
    splits = max(1, math.ceil(8 * card.multiprocessors / (tiles * kv_heads)))  # StatisticSplits of kernels/cuda/prefill_attention.cu
    of_a_query_tile = 2.0 * QUERY_TILE * KEY_TILE * 128 * heads / kv_heads / (card.kernels.sums_rate / places)
    cost = [of_a_query_tile * ((tokens - t * KEY_TILE) / QUERY_TILE) / splits for t in range(tiles) for _ in range(kv_heads * splits)]
    return max(deal(cost, places), heads * tokens * tokens / 2 / card.exps) + card.kernels.launch_us * 1e-6


def step(card: Card, model: Model, rows: int, entries: int, scored: bool) -> float:
    """Seconds of a decode step. Attention is planned by the next power of two (engine/decode_shape.h)."""
    share = max(card.kernels.product_share - card.kernels.product_share_a_row * (rows - 1), card.kernels.product_share_least)
    operations = 2.0 * model.weights() * rows / (card.products * card.kernels.product_operations)
    products = max(2.0 * model.weights() / (card.copy * share), operations)
    planned = 1 << (entries - 1).bit_length()
    attention = model.layers * decode(card, rows, entries, scored, model.kv_heads, model.heads // model.kv_heads, planned)
    gaps = model.layers * card.kernels.launches_a_layer * card.kernels.launch_us * 1e-6
    return products + attention + gaps + (card.kernels.small_kernels_ms + card.kernels.small_kernels_ms_a_row * rows) * 1e-3


def step_bound(card: Card, model: Model, rows: int, entries: int, scored: bool) -> float:
    """The roofline of step_benchmark."""
    weights = max(2.0 * model.weights() / card.copy, 2.0 * model.weights() * rows / card.products)
    return weights + rows * entries * model.layers * model.kv_heads * (512 + (8 if scored else 0)) / card.copy


def prompt_seconds(card: Card, model: Model, tokens: int, scored: bool) -> float:
    """Of reading one prompt."""
    attention = prompt(card, tokens, model.heads, model.kv_heads)
    if scored:
        attention += column_sums(card, tokens, model.heads, model.kv_heads)
    operations = 2.0 * model.weights() * tokens / (card.products * card.kernels.prompt_products)
    return max(operations, 2.0 * model.weights() / (card.copy * card.kernels.product_share)) + model.layers * attention


def kept(policy: str, prompt_tokens: int, tokens: int) -> int:
    """Entries of a head: h2o keeps a fifth of the prompt."""
    return min(tokens, prompt_tokens // 5) if policy == "h2o" else tokens


def throughput(card: Card, model: Model, policy: str, at_once: int, prompt_tokens: int, new_tokens: int) -> float:
    """Output tokens a second of a full batch whose sequences are at all ages."""
    entries = kept(policy, prompt_tokens, prompt_tokens + new_tokens // 2)
    decoding = new_tokens * step(card, model, at_once, entries, policy != "full")
    return at_once * new_tokens / (decoding + at_once * prompt_seconds(card, model, prompt_tokens, policy != "full"))


DECODE_SHAPES = [(64, 512), (64, 1024), (64, 2048), (64, 8192), (256, 205), (256, 512), (16, 1024), (8, 8192), (1, 1024), (1, 8192),
                 (1, 131072)]
STEPS = [("full", 1, 16), ("full", 1, 1024), ("full", 16, 1024), ("full", 64, 1024), ("h2o", 64, 1024), ("h2o", 256, 1024)]
PRODUCTS = {"qkv": (6144, 4096), "o": (4096, 4096), "gate, up": (28672, 4096), "down": (4096, 14336), "one of gate, up": (14336, 4096)}
PRODUCT_ROWS = [1, 4, 16, 64, 256, 1024, 2048, 4096]
# model, policy, most at once, sequences of a pool for so many whole ones, prompt and new tokens
IN_ONE_POOL = [(model, policy, most, 24, 2048, 2048) for model in (LLAMA_8B, LLAMA_7B) for policy, most in (("full", 24), ("h2o", 256))]
THROUGHPUTS = [(LLAMA_8B, "full", 64, 64, 1024, 256), *IN_ONE_POOL]


def in_pool(policy: str, most: int, whole: int, prompt_tokens: int, new_tokens: int) -> int:
    """Sequences that decode at once in a pool for `whole` whole ones; one is being read, whole."""
    entries = kept(policy, prompt_tokens, prompt_tokens + new_tokens)
    room = (whole * (prompt_tokens + new_tokens) - (prompt_tokens if policy != "full" else 0)) / entries
    return min(most, int(room))


def rows(card: Card) -> list[Row]:
    """All rows, with the fields by which gpu_table.py finds the measured ones."""
    out: list[Row] = []

    def add(what: str, seconds: float, **fields: object) -> None:
        out.append({"what": what, "who": "expected", **fields, "seconds": seconds})

    for name, (n, k) in PRODUCTS.items():
        for m in PRODUCT_ROWS:
            add("matmul", product(card, m, n, k), rows=m, n=n, k=k, name=name, flops=2.0 * m * n * k / product(card, m, n, k))
    for batch, length in DECODE_SHAPES:
        for variant in ("full", "h2o"):
            seconds = decode(card, batch, length, variant == "h2o")
            moved = batch * 8 * length * (512 + (12 if variant == "h2o" else 0))
            add("decode_attention", seconds, variant=variant, batch=batch, length=length, share_of_copy=moved / seconds / card.copy)
    for tokens in (1024, 2048, 4096, 8192, 16384):
        seconds = prompt(card, tokens)
        add("prefill_attention", seconds, tokens=tokens, flops=4.0 * 32 * 128 * (0.5 * tokens * (tokens + 1.0)) / seconds,
            seconds_with_sums=seconds + column_sums(card, tokens))
    for model in MODELS.values():
        for policy, batch, context in STEPS:
            entries = kept(policy, context, context + 48)
            add("step", step(card, model, batch, entries, policy != "full"), model=model.name, policy=policy, batch=batch,
                context=context, bound_seconds=step_bound(card, model, batch, entries, policy != "full"),
                prompt_tokens_per_s=context / prompt_seconds(card, model, context, policy != "full"))
    for model, policy, most, whole, prompt_tokens, new_tokens in THROUGHPUTS:
        at_once = in_pool(policy, most, whole, prompt_tokens, new_tokens)
        rate = throughput(card, model, policy, at_once, prompt_tokens, new_tokens)
        add("throughput", at_once * new_tokens / rate, model=model.name, policy=policy, in_flight=most, pool_sequences=whole,
            prompt_tokens=prompt_tokens, new_tokens=new_tokens, mean_batch=at_once, tokens_per_s=rate)
    return out


def print_table(head: str, lines: Iterable[list[str]]) -> None:
    print(f"\n{head}\n|{'---|' * (head.count('|') - 1)}")
    for cells in lines:
        print("| " + " | ".join(cells) + " |")


def tables() -> None:
    """All rows, both cards side by side; docs/benchmarks.md has what this prints."""
    h200, h100 = (rows(CARDS[name]) for name in ("h200", "h100"))
    pairs = list(zip(h200, h100))

    def of(what: str) -> list[tuple[Row, Row]]:
        return [pair for pair in pairs if pair[0]["what"] == what]

    def both(pair: tuple[Row, Row], text: Any) -> list[str]:
        return [text(row) for row in pair]

    heads = " | ".join(str(m) for m in PRODUCT_ROWS)
    print_table(f"| expected: bf16 product, us on an H200 / H100, rows | {heads} |",
                ([f"{n} x {k} ({name})", *(" / ".join(both(pair, lambda r: f"{r['seconds'] * 1e6:.0f}")) for pair in of("matmul")
                                           if pair[0]["name"] == name)] for name, (n, k) in PRODUCTS.items()))
    by_shape: dict[tuple[int, int], list[tuple[Row, Row]]] = {}
    for pair in of("decode_attention"):
        by_shape.setdefault((pair[0]["batch"], pair[0]["length"]), []).append(pair)
    print_table("| expected: decode attention | H200: us, `full` | share of copy | us, `h2o` "
                "| H100: us, `full` | share of copy | us, `h2o` |",
                ([f"{batch} x {length:,}", *(text for card in (0, 1) for text in (
                    f"{full[card]['seconds'] * 1e6:.1f}", f"{full[card]['share_of_copy']:.2f}", f"{h2o[card]['seconds'] * 1e6:.1f}"))]
                 for (batch, length), (full, h2o) in by_shape.items()))
    print_table("| expected: prompt attention | H200: us | TFLOP/s | column sums add | H100: us | TFLOP/s | column sums add |",
                ([f"{pair[0]['tokens']:,}", *(text for r in pair for text in (
                    f"{r['seconds'] * 1e6:.0f}", f"{r['flops'] / 1e12:.0f}", f"{(r['seconds_with_sums'] / r['seconds'] - 1) * 100:.0f} %"))]
                 for pair in of("prefill_attention")))
    print_table("| expected: step | H200: ms | to the roofline | prompt tokens/s | H100: ms | to the roofline | prompt tokens/s |",
                ([f"{pair[0]['model']}, `{pair[0]['policy']}` {pair[0]['batch']} x {pair[0]['context']:,}",
                  *(text for r in pair for text in (
                    f"{r['seconds'] * 1e3:.2f}", f"{r['seconds'] / r['bound_seconds']:.2f}", f"{r['prompt_tokens_per_s']:.0f}"))]
                 for pair in of("step")))
    print_table("| expected: output tokens/s | H200 | H100 | sequences at once |",
                ([f"{pair[0]['model']}, `{pair[0]['policy']}`, at most {pair[0]['in_flight']}, pool of {pair[0]['pool_sequences']}, "
                  f"{pair[0]['prompt_tokens']:,} + {pair[0]['new_tokens']:,} tokens",
                  *both(pair, lambda r: f"{r['tokens_per_s']:.0f}"), str(pair[0]["mean_batch"])] for pair in of("throughput")))


# docs/benchmarks.md, "The first runs": an H200, 2026-11-26. Microseconds, or milliseconds of steps.
MEASURED_DECODE = {(64, 512): (47.6, 50.9), (64, 1024): (81.3, 86.8), (64, 2048): (172.9, 186.8), (256, 205): (96.1, 108.7),
                   (256, 512): (197.9, 218.9), (16, 1024): (35.5, 45.2), (1, 1024): (17.6, 25.2), (1, 8192): (31.8, 44.2),
                   (1, 131072): (185.2, 235.0)}
MEASURED_PROMPT = {2048: 143, 4096: 214, 8192: 264, 16384: 297}  # TFLOP/s, head by head
MEASURED_SUMS = {2048: 1.67, 16384: 1.98}  # with column sums, times without, in that order of blocks
MEASURED_STEP = {("llama-3.1-8b", "full", 1, 16): 4.96, ("llama-3.1-8b", "full", 1, 1024): 5.17, ("llama-3.1-8b", "full", 16, 1024): 6.12,
                 ("llama-3.1-8b", "full", 64, 1024): 9.29, ("llama-3.1-8b", "h2o", 64, 1024): 6.83,
                 ("llama-7b", "full", 1, 16): 5.06, ("llama-7b", "full", 1, 1024): 5.35, ("llama-7b", "full", 16, 1024): 7.24,
                 ("llama-7b", "full", 64, 1024): 16.5}
MEASURED_PROMPT_TOKENS = {"h2o": 30500}  # a second, Llama-3.1-8B, 1,024 tokens


def comparisons(card: Card) -> Iterable[tuple[str, float, float]]:
    """What was measured, and what the model says of it."""
    for (batch, length), (full, h2o) in MEASURED_DECODE.items():
        yield f"decode attention {batch} x {length}, full, us", full, decode(card, batch, length) * 1e6
        yield f"decode attention {batch} x {length}, h2o, us", h2o, decode(card, batch, length, True) * 1e6
    for tokens, rate in MEASURED_PROMPT.items():
        measured = 4.0 * 32 * 128 * 0.5 * tokens * tokens / rate * 1e-6
        yield f"prompt attention {tokens}, head by head, us", measured, prompt(card, tokens, head_by_head=True) * 1e6
    for tokens, ratio in MEASURED_SUMS.items():
        plain = prompt(card, tokens, head_by_head=True)
        yield f"column sums of {tokens}, times attention", ratio, 1 + column_sums(card, tokens) / plain
    for (name, policy, batch, context), ms in MEASURED_STEP.items():
        entries = kept(policy, context, context + 48)
        yield (f"step {name}, {policy} {batch} x {context}, ms", ms,
               step(card, MODELS[name], batch, entries, policy != "full") * 1e3)
    for policy, rate in MEASURED_PROMPT_TOKENS.items():
        seconds = prompt_seconds(card, LLAMA_8B, 1024, policy != "full")
        yield f"prompts of 1024 with {policy}, tokens/s", rate, 1024 / seconds


def check() -> int:
    print("| row | measured | the model | error |\n|---|---|---|---|")
    errors = []
    for name, measured, modelled in comparisons(dataclasses.replace(CARDS["h200"], kernels=FITTED)):
        errors.append(abs(modelled / measured - 1))
        print(f"| {name} | {measured:.4g} | {modelled:.4g} | {(modelled / measured - 1) * 100:+.0f} % |")
    print(f"\n{len(errors)} rows, error {sum(errors) / len(errors) * 100:.0f} % on average, {max(errors) * 100:.0f} % at most.")
    return 1 if max(errors) > MOST_ERROR else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--card", choices=sorted(CARDS), default="h200")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.check:
        return check()
    card = CARDS[args.card]
    if args.json:
        args.json.write_text("".join(json.dumps(row) + "\n" for row in rows(card)), encoding="utf-8")
    else:
        tables()
    return 0


if __name__ == "__main__":
    sys.exit(main())
