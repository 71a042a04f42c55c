#!/usr/bin/env python3
"""Predicts the figures of scripts/gpu-check from a model of the device: each kernel takes the
longest of its bytes, its operations and its exponentials, and a ramp; blocks of prompts are
scheduled to the multiprocessors as the hardware does.

  gpu_model.py                                    Markdown tables of all rows, for both cards
  gpu_model.py --json FILE [--card h100|h200]     the rows of one card as JSON lines, those of kernels on trial beside them
               [--trial decode,overlap]           with these kernels instead (HYDRANT_CUDA_TRIAL)
  gpu_model.py --check                            beside the rows that were measured (docs/results/gpu.md), with the error of each;
                                                  exit status 1 if one is off by more than a fifth

The rows and their fields are those of device_benchmark, device_probe, step_benchmark and
throughput_benchmark; gpu_table.py joins predictions and measurements. A change of a kernel changes
its numbers here, in the same commit, before it is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import json
import math
import pathlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The free constants: how close the kernels come to the card's limits. Fitted to the
    measurements of 2026-11-26 on an H200 (MEASURED below), so their errors show how well the form
    of the model fits, not how well it predicts."""

    decode_wave_us: float = 13.9  # per wave of decode attention, without loads in flight: table walk, softmax, join
    decode_stream: float = 0.93  # of a copy's bytes a second, during a wave's loads
    decode_squeezed: float = 0.79  # the same if shared memory leaves too little L1: 2,048 entries a block
    join_us: float = 3.0  # per split head
    join_split_us: float = 0.125  # per part of it
    score_wave_us: float = 2.5  # scores of whole heads, per wave
    score_kernel_us: float = 7.0  # the kernel that scores split heads
    split_score_bytes: int = 44  # per entry of a split head, including weights written and read again
    prompt_rate: float = 330e12  # operations a second of prompt attention at full occupancy
    prompt_block_us: float = 6.0  # per block, before and after its tiles
    sums_rate: float = 165e12  # the same for column sums, which multiply only queries and keys
    product_share: float = 0.875  # of a copy, for a matmul of one row
    product_share_a_row: float = 0.0035  # reduction by each further row
    product_share_least: float = 0.65
    product_operations: float = 0.95  # of the largest matmul, if bound by operations
    launch_us: float = 1.4  # between kernels of a graph
    launches_a_layer: int = 11  # 361 per step in the profile of that day; the emulation, with one launch per matmul, counts 9
    small_kernels_ms: float = 0.2  # norms, rotation, activation, sampling and host of a step of 32 layers
    small_kernels_ms_a_row: float = 0.008
    prompt_products: float = 0.68  # of the largest matmul, for a prompt's matmuls and the kernels between them

    # Later kernels, never measured. None of these numbers is fitted to our own measurements.
    # Prompts by wgmma: rate and block are fitted to NVIDIA's figures of the closed kernel of the
    # same family (WGMMA_SIBLING below, within 1 %); the share is a guess of how close the open one
    # comes.
    wgmma_prompts: bool = False
    wgmma_rate: float = 705e12
    wgmma_block_us: float = 3.4
    wgmma_prompt_us: float = 4.0  # per prompt
    wgmma_share: float = 0.9
    # Decode attention by a ring of tiles (decode_stream.cuh). The stream: more loads in flight than
    # a copy needs, so between the share measured with fewer and a copy. The start: eight dependent
    # loads before the first key arrives (slots, lengths, the run's first heads, their rules, rows
    # of the table, ids, those of the second piece, keys), and a launch. The end: the last tiles'
    # products, the warps' sums, and the join of shared heads, with parts that are read in two
    # steps.
    ring: bool = False
    ring_stream: float = 0.95
    ring_start_us: float = 6.5
    ring_end_us: float = 3.5
    ring_scan_us: float = 0.7  # lengths of each 512 heads, summed by every block
    ring_scores_us: float = 2.0  # positions and scores of the last heads, scored at the join
    # Programmatic dependent launch: number of a layer's launches that cost less.
    overlapped_a_layer: int = 0
    overlapped_us: float = 0.4
    # Column sums by wgmma: from the operations alone (a block has 128 keys, and loads 64 queries of
    # a head at a time).
    wgmma_sums: bool = False
    wgmma_sums_rate: float = 500e12
    # Matmuls of up to this many rows by own kernels, fused with norm, rotation, activation and
    # residual. Shares of a copy; attention and four matmuls per layer.
    fused_rows: int = 0
    fused_share: float = 0.93
    fused_launches_a_layer: int = 5
    fused_small_kernels_ms: float = 0.05
    fused_small_kernels_ms_a_row: float = 0.003


FITTED = Kernels()
# The kernels in use at this commit: changes since the measurement of FITTED.
NOW = dataclasses.replace(FITTED, wgmma_prompts=True)

# The constants changed by each name of HYDRANT_CUDA_TRIAL. A trial kernel is a line here and a name
# in ON_TRIAL.
TRIALS: dict[str, dict[str, Any]] = {
    "decode": {"ring": True},
    "overlap": {"overlapped_a_layer": 4},  # two norms, rotation, activation
    "sums": {"wgmma_sums": True},
    "fused": {"fused_rows": 64, "overlapped_a_layer": 5},
}
ON_TRIAL = ("decode", "fused", "overlap", "sums")


def with_trials(*names: str) -> Kernels:
    return dataclasses.replace(NOW, **{field: value for name in names for field, value in TRIALS[name].items()})


@dataclasses.dataclass(frozen=True)
class Card:
    name: str
    copy: float  # bytes a second, read and written
    products: float = 690e12  # bf16 operations a second of the largest matmul
    exps: float = 3.7e12  # exponentials a second: 16 per clock and multiprocessor
    multiprocessors: int = 132
    kernels: Kernels = NOW  # used on it

    def with_trials(self, *names: str) -> Card:
        return dataclasses.replace(self, kernels=with_trials(*names))

    def instructions(self) -> float:
        """Instructions a second of all lanes: 4 x 32 per clock and multiprocessor, of which
        exponentials are 16."""
        return 8 * self.exps


# The H100's rate is its data sheet's, times the fraction that a copy reached on the H200.
CARDS = {"h200": Card("NVIDIA H200", 4.278e12), "h100": Card("NVIDIA H100", 3.0e12)}

MOST_ERROR = 0.2  # of a measured row

DECODE_BLOCKS = 4  # per multiprocessor, tests/kernels/cuda_occupancy.tsv
PROMPT_BLOCKS, PROMPT_TILE, KEY_TILE = 2, 128, 64
SUMS_BLOCKS = 4
QUERY_TILE = 32
RING_BLOCKS, RING_STEP, RING_PIECE = 3, 64, 256  # kernels/cuda/decode_work.cuh, decode_stream.cuh
SCORED_BY_ONE = 1024  # entries; longer heads are scored by a separate kernel (decode_stream.cu)
WGMMA_TILE = 128  # of queries, and of keys; one block per multiprocessor

# Bytes of an entry's key and value of 128 dimensions. fp8 pages: e4m3, without a scale.
ENTRY_BYTES = {"bf16": 512, "fp8": 256}


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
        """Parameters used by a step's matmuls."""
        layer = self.hidden * (self.heads + 2 * self.kv_heads) * self.head_dim + self.hidden * self.heads * self.head_dim
        return self.layers * (layer + 3 * self.hidden * self.intermediate) + self.hidden * self.vocabulary


LLAMA_8B = Model("llama-3.1-8b", 32, 4096, 14336, 32, 8, 128256)
LLAMA_7B = Model("llama-7b", 32, 4096, 11008, 32, 32, 32000)
MODELS = {model.name: model for model in (LLAMA_8B, LLAMA_7B)}


def product(card: Card, rows: int, n: int, k: int) -> float:
    """Seconds of x W^T with `rows` rows and bf16 weights [n, k], by the library."""
    share = max(card.kernels.product_share - card.kernels.product_share_a_row * (rows - 1), card.kernels.product_share_least)
    moved = 2.0 * n * k + rows * (2.0 * k + 4.0 * n)
    return max(moved / (card.copy * share), 2.0 * rows * n * k / (card.products * card.kernels.product_operations))


def chunk_of(card: Card, rows: int, kv_heads: int, planned: int, group: int) -> int:
    """Entries per block: ChunkOf of kernels/cuda/decode_attention.cu."""
    weight_rows = 1 if group == 1 else max(group, 4)
    most = max(256, 8192 // weight_rows // 64 * 64)
    splits_fit = math.ceil(math.ceil(math.sqrt(planned)) / 64) * 64
    share = math.ceil(math.ceil(rows * kv_heads * planned / (card.multiprocessors * DECODE_BLOCKS)) / 64) * 64
    return max(min(most, max(share, 128)), splits_fit)


def decode_in_waves(card: Card, rows: int, entries: int, scored: bool, kv_heads: int, group: int, planned: int, entry_bytes: int) -> float:
    chunk = chunk_of(card, rows, kv_heads, planned or entries, group)
    splits = math.ceil(entries / chunk)
    heads = rows * kv_heads
    waves = math.ceil(heads * splits / (card.multiprocessors * DECODE_BLOCKS))
    in_all = heads * entries
    bytes_a_second = card.copy * (card.kernels.decode_squeezed if min(chunk, entries) >= 2048 else card.kernels.decode_stream)
    us = in_all * entry_bytes / bytes_a_second * 1e6 + card.kernels.decode_wave_us * waves
    if splits > 1:
        us += card.kernels.join_us + card.kernels.join_split_us * splits
    if scored:
        us += in_all * (card.kernels.split_score_bytes if splits > 1 else 12) / bytes_a_second * 1e6
        us += card.kernels.score_kernel_us if splits > 1 else card.kernels.score_wave_us * waves
    return us * 1e-6


def decode_by_ring(card: Card, rows: int, entries: int, scored: bool, kv_heads: int, entry_bytes: int) -> float:
    """All blocks have runs of equal length, whatever the heads' lengths, and share the memory's
    rate."""
    heads = rows * kv_heads
    kernels = card.kernels
    bytes_a_second = card.copy * kernels.ring_stream
    us = heads * entries * entry_bytes / bytes_a_second * 1e6 + kernels.ring_start_us + kernels.ring_end_us
    us += kernels.ring_scan_us * (math.ceil(heads / 512) - 1)
    if scored:
        steps = math.ceil(entries / RING_STEP)
        run = max(2, math.ceil(heads * steps / (card.multiprocessors * RING_BLOCKS)))
        # Heads of one piece in one block are scored in place; for others logits are written and
        # read again.
        kept = 1.0 if entries > RING_PIECE else min(1.0, (steps - math.gcd(run, steps)) / run)
        us += heads * entries * (12 + kept * (kernels.split_score_bytes - 12)) / bytes_a_second * 1e6
        us += kernels.score_kernel_us if entries > SCORED_BY_ONE else kernels.ring_scores_us
    return us * 1e-6


def decode(card: Card, rows: int, entries: int, scored: bool = False, kv_heads: int = 8, group: int = 4, planned: int = 0,
           pages: str = "bf16") -> float:
    """Seconds of decode attention. `planned`: entries assumed by the launch, if more."""
    if card.kernels.ring:
        return decode_by_ring(card, rows, entries, scored, kv_heads, ENTRY_BYTES[pages])
    return decode_in_waves(card, rows, entries, scored, kv_heads, group, planned, ENTRY_BYTES[pages])


def deal(costs: Iterable[float], places: int) -> float:
    """End of the last block: each starts, in order, at the first free place."""
    ends = [0.0] * places
    for cost in costs:
        heapq.heapreplace(ends, ends[0] + cost)
    return max(ends)


def causal_tiles(tokens: int, query_tile: int, key_tile: int) -> list[int]:
    """Tiles of keys of each tile of queries, longest first."""
    return [math.ceil(min((t + 1) * query_tile, tokens) / key_tile) for t in reversed(range(math.ceil(tokens / query_tile)))]


def prompt(card: Card, tokens: int, heads: int = 32, kv_heads: int = 8, head_by_head: bool = False) -> float:
    """Seconds of causal attention of one prompt, heads of 128. head_by_head: the order of blocks
    until 2026-11-26."""
    exps = heads * tokens * tokens / 2 / card.exps
    kernels = card.kernels
    if kernels.wgmma_prompts and not head_by_head:
        of_a_key_tile = 4.0 * WGMMA_TILE * WGMMA_TILE * 128 / (kernels.wgmma_rate / card.multiprocessors)
        costs = [kernels.wgmma_block_us * 1e-6 + of_a_key_tile * keys for keys in causal_tiles(tokens, WGMMA_TILE, WGMMA_TILE)]
        dealt = deal([cost for cost in costs for _ in range(heads)], card.multiprocessors) + kernels.wgmma_prompt_us * 1e-6
        return max(dealt / kernels.wgmma_share, exps)
    places = card.multiprocessors * PROMPT_BLOCKS
    of_a_key_tile = 4.0 * PROMPT_TILE * KEY_TILE * 128 / (kernels.prompt_rate / places)
    costs = [kernels.prompt_block_us * 1e-6 + of_a_key_tile * keys for keys in causal_tiles(tokens, PROMPT_TILE, KEY_TILE)]
    order = costs * heads if head_by_head else [cost for cost in costs for _ in range(heads)]
    rounding = tokens * (heads + 2 * kv_heads) * 128 * 6.0 / card.copy
    return max(deal(order, places), exps) + rounding + 4 * kernels.launch_us * 1e-6


def column_sums(card: Card, tokens: int, heads: int = 32, kv_heads: int = 8) -> float:
    """Seconds that a column statistic over all queries adds to prompt()."""
    kernels = card.kernels
    places = card.multiprocessors * (1 if kernels.wgmma_sums else SUMS_BLOCKS)
    keys_a_tile, rate = (WGMMA_TILE, kernels.wgmma_sums_rate) if kernels.wgmma_sums else (KEY_TILE, kernels.sums_rate)
    tiles = math.ceil(tokens / keys_a_tile)
    blocks = (4 if kernels.wgmma_sums else 8) * card.multiprocessors  # StatisticSplits of kernels/cuda/prefill_attention.cu
    splits = max(1, math.ceil(blocks / (tiles * kv_heads)))
    of_a_query_tile = 2.0 * QUERY_TILE * keys_a_tile * 128 * heads / kv_heads / (rate / places)
    cost = [of_a_query_tile * ((tokens - t * keys_a_tile) / QUERY_TILE) / splits for t in range(tiles) for _ in range(kv_heads * splits)]
    return max(deal(cost, places), heads * tokens * tokens / 2 / card.exps) + kernels.launch_us * 1e-6


def step(card: Card, model: Model, rows: int, entries: int, scored: bool, pages: str = "bf16") -> float:
    """Seconds of a decode step. Attention in waves is planned for the next power of two
    (engine/run/step/graph_shape.h)."""
    kernels = card.kernels
    fused = rows <= kernels.fused_rows
    share = max(kernels.product_share - kernels.product_share_a_row * (rows - 1), kernels.product_share_least)
    operations = 2.0 * model.weights() * rows / (card.products * kernels.product_operations)
    products = max(2.0 * model.weights() / (card.copy * (kernels.fused_share if fused else share)), operations)
    planned = 1 << (entries - 1).bit_length()
    attention = model.layers * decode(card, rows, entries, scored, model.kv_heads, model.heads // model.kv_heads, planned, pages)
    launches = kernels.fused_launches_a_layer if fused else kernels.launches_a_layer
    overlapped = min(kernels.overlapped_a_layer, launches)
    gaps = model.layers * (launches * kernels.launch_us - overlapped * (kernels.launch_us - kernels.overlapped_us)) * 1e-6
    small_ms = kernels.fused_small_kernels_ms if fused else kernels.small_kernels_ms
    small_ms_a_row = kernels.fused_small_kernels_ms_a_row if fused else kernels.small_kernels_ms_a_row
    return products + attention + gaps + (small_ms + small_ms_a_row * rows) * 1e-3


def step_bound(card: Card, model: Model, rows: int, entries: int, scored: bool, pages: str = "bf16") -> float:
    """The roofline of step_benchmark."""
    weights = max(2.0 * model.weights() / card.copy, 2.0 * model.weights() * rows / card.products)
    return weights + rows * entries * model.layers * model.kv_heads * (ENTRY_BYTES[pages] + (8 if scored else 0)) / card.copy


@dataclasses.dataclass(frozen=True)
class Block:
    """A block-quantised weight type (kernels/cuda/block_matmul.cuh). Instructions of the compiled
    loops, per weight and lane."""

    bytes_a_weight: float
    few: float  # up to 8 rows
    many: float  # 64 rows

    def seconds(self, card: Card, weights: int, rows: int, launches: int) -> float:
        """Instructions are issued at two thirds of the rate; 2 us for a launch to fill and drain."""
        instructions = weights * (self.few if rows <= 8 else self.many) / (card.instructions() * 2 / 3)
        return max(weights * self.bytes_a_weight / card.copy, instructions) + launches * 2e-6

    def products(self, card: Card, model: Model, rows: int) -> float:
        """Seconds of a step's matmuls."""
        return self.seconds(card, model.weights(), rows, 4 * model.layers + 1)

    def bound(self, card: Card, model: Model) -> float:
        return model.weights() * self.bytes_a_weight / card.copy


BLOCKS = {"Q8_0": Block(34 / 32, 5.1, 8.6), "fp8": Block(132 / 128, 5.1, 8.6), "Q6_K": Block(210 / 256, 5.1, 11.2),
          "Q5_K": Block(176 / 256, 4.6, 9.9), "Q4_K": Block(144 / 256, 3.7, 10.5), "Q4_0": Block(18 / 32, 3.7, 10.5)}


def prompt_seconds(card: Card, model: Model, tokens: int, scored: bool) -> float:
    """Seconds of the prefill of one prompt."""
    attention = prompt(card, tokens, model.heads, model.kv_heads)
    if scored:
        attention += column_sums(card, tokens, model.heads, model.kv_heads)
    operations = 2.0 * model.weights() * tokens / (card.products * card.kernels.prompt_products)
    return max(operations, 2.0 * model.weights() / (card.copy * card.kernels.product_share)) + model.layers * attention


def kept(policy: str, prompt_tokens: int, tokens: int) -> int:
    """Entries per head: h2o keeps a fifth of the prompt."""
    return min(tokens, prompt_tokens // 5) if policy == "h2o" else tokens


def throughput(card: Card, model: Model, policy: str, at_once: int, prompt_tokens: int, new_tokens: int, pages: str = "bf16") -> float:
    """Output tokens a second of a full batch with sequences at uniformly distributed ages."""
    entries = kept(policy, prompt_tokens, prompt_tokens + new_tokens // 2)
    decoding = new_tokens * step(card, model, at_once, entries, policy != "full", pages)
    return at_once * new_tokens / (decoding + at_once * prompt_seconds(card, model, prompt_tokens, policy != "full"))


DECODE_SHAPES = [(64, 512), (64, 1024), (64, 2048), (64, 8192), (256, 205), (256, 512), (16, 1024), (8, 8192), (1, 1024), (1, 8192),
                 (1, 131072)]
STEPS = [("full", 1, 16), ("full", 1, 1024), ("full", 16, 1024), ("full", 64, 1024), ("h2o", 64, 1024), ("h2o", 256, 1024)]
PRODUCTS = {"qkv": (6144, 4096), "o": (4096, 4096), "gate, up": (28672, 4096), "down": (4096, 14336), "one of gate, up": (14336, 4096)}
PRODUCT_ROWS = [1, 4, 16, 64, 256, 1024, 2048, 4096]
# model, policy, maximum batch, pool size in whole sequences, prompt and new tokens
IN_ONE_POOL = [(model, policy, most, 24, 2048, 2048) for model in (LLAMA_8B, LLAMA_7B) for policy, most in (("full", 24), ("h2o", 256))]
LONG_ANSWERS = (LLAMA_8B, "full", 192, 192, 1000, 1000)
THROUGHPUTS = [(LLAMA_8B, "full", 64, 64, 1024, 256), LONG_ANSWERS, *IN_ONE_POOL]


def in_pool(policy: str, most: int, whole: int, prompt_tokens: int, new_tokens: int) -> int:
    """Concurrent decodes in a pool for `whole` whole sequences; one sequence is in prefill, whole."""
    entries = kept(policy, prompt_tokens, prompt_tokens + new_tokens)
    room = (whole * (prompt_tokens + new_tokens) - (prompt_tokens if policy != "full" else 0)) / entries
    return min(most, int(room))


def pool_throughput(card: Card, model: Model, policy: str, most: int, whole: int, prompt_tokens: int, new_tokens: int,
                    pages: str = "bf16") -> float:
    """With fp8 pages as many sequences as with bf16, in half the memory."""
    return throughput(card, model, policy, in_pool(policy, most, whole, prompt_tokens, new_tokens), prompt_tokens, new_tokens, pages)


def decode_share(card: Card, batch: int, length: int, scored: bool = False, pages: str = "bf16") -> float:
    """Relative to a copy's bytes a second."""
    moved = batch * 8 * length * (ENTRY_BYTES[pages] + (12 if scored else 0))
    return moved / decode(card, batch, length, scored, pages=pages) / card.copy


def prompt_rate(card: Card, tokens: int) -> float:
    """Operations a second of prompt attention."""
    return 4.0 * 32 * 128 * (0.5 * tokens * (tokens + 1.0)) / prompt(card, tokens)


def decode_rows(card: Card) -> list[Row]:
    return [{"what": "decode_attention", "who": "expected", "variant": variant, "batch": batch, "length": length,
             "share_of_copy": decode_share(card, batch, length, variant == "h2o"), "seconds": decode(card, batch, length, variant == "h2o")}
            for batch, length in DECODE_SHAPES for variant in ("full", "h2o")]


def rows(card: Card) -> list[Row]:
    """All rows, with the fields by which gpu_table.py matches measurements."""
    out: list[Row] = []

    def add(what: str, seconds: float, **fields: object) -> None:
        out.append({"what": what, "who": "expected", **fields, "seconds": seconds})

    for name, (n, k) in PRODUCTS.items():
        for m in PRODUCT_ROWS:
            add("matmul", product(card, m, n, k), rows=m, n=n, k=k, name=name, flops=2.0 * m * n * k / product(card, m, n, k))
    n, k = PRODUCTS["one of gate, up"]
    for name in ("Q4_K", "Q6_K", "Q8_0"):
        for m in (1, 8, 64):
            add("matmul_blocks", BLOCKS[name].seconds(card, n * k, m, 1), rows=m, n=n, k=k, type=name.lower())
    out += decode_rows(card)
    for tokens in (1024, 2048, 4096, 8192, 16384):
        seconds = prompt(card, tokens)
        add("prefill_attention", seconds, tokens=tokens, flops=prompt_rate(card, tokens),
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


@dataclasses.dataclass(frozen=True)
class Goal:
    name: str
    wanted: float
    of: Callable[[Card], float]
    at_least: bool = True

    def cell(self, card: Card) -> str:
        """Bold: target reached."""
        value = self.of(card)
        text = f"{value:,.0f}" if self.wanted >= 100 else f"{value:.2f}" if self.wanted < 3 else f"{value:.1f}"
        reached = value >= self.wanted if self.at_least else value <= self.wanted
        return f"**{text}**" if reached else text


def step_ratio(model: Model, policy: str, batch: int, context: int) -> Callable[[Card], float]:
    entries, scored = kept(policy, context, context + 48), policy != "full"
    return lambda card: step(card, model, batch, entries, scored) / step_bound(card, model, batch, entries, scored)


def scores_add(batch: int, length: int) -> Callable[[Card], float]:
    return lambda card: (decode(card, batch, length, True) / decode(card, batch, length) - 1) * 100


def goals() -> Iterable[Goal]:
    for batch, length in ((64, 512), (64, 1024), (64, 2048), (64, 8192)):
        yield Goal(f"decode attention {batch} x {length:,}, share of copy", 0.85, lambda card, b=batch, n=length: decode_share(card, b, n))
    for batch, length in ((64, 512), (64, 1024), (256, 205)):
        yield Goal(f"scores of {batch} x {length:,} add, %", 3, scores_add(batch, length), at_least=False)
    for tokens in (4096, 8192, 16384):
        yield Goal(f"prompt attention {tokens:,}, share of the largest product", 0.6,
                   lambda card, n=tokens: prompt_rate(card, n) / card.products)
    for tokens in (4096, 16384):
        yield Goal(f"column sums of {tokens:,} add, %", 60, lambda card, n=tokens: column_sums(card, n) / prompt(card, n) * 100, at_least=False)
    for wanted, shape in ((1.15, ("full", 1, 1024)), (1.25, ("full", 64, 1024)), (1.25, ("h2o", 256, 1024))):
        yield Goal(f"step `{shape[0]}` {shape[1]} x {shape[2]:,}, to the roofline", wanted, step_ratio(LLAMA_8B, *shape), at_least=False)
    yield Goal("`full`, 1,000 + 1,000 tokens, output tokens/s (an H100's goal)", 7000, lambda card: pool_throughput(card, *LONG_ANSWERS))
    full, h2o = (pool for pool in IN_ONE_POOL if pool[0] is LLAMA_7B)
    yield Goal("Llama-7B in a pool of 24: `h2o`, times `full`", 3,
               lambda card: pool_throughput(card, *h2o) / pool_throughput(card, *full))
    for name in ("Q8_0", "Q4_K"):
        yield Goal(f"products of one row, {name}, to their bytes", 1.4,
                   lambda card, block=BLOCKS[name]: block.products(card, LLAMA_8B, 1) / block.bound(card, LLAMA_8B), at_least=False)


BOTH = (CARDS["h200"], CARDS["h100"])
FORMS = (("by default", ()), ("on trial", ON_TRIAL))  # kernels; in the tables, and in this order


def goals_table() -> None:
    names = " | ".join(f"{card}: {form}" if i == 0 else form for card in ("H200", "H100") for i, (form, _) in enumerate(FORMS))
    print_table(f"| expected: goal | wanted | {names} |",
                ([goal.name, f"{'>=' if goal.at_least else '<='} {goal.wanted:,g}",
                  *(goal.cell(card.with_trials(*trials)) for card in BOTH for _, trials in FORMS)] for goal in goals()))


def products_tables(pairs: list[tuple[Row, Row]]) -> None:
    heads = " | ".join(str(m) for m in PRODUCT_ROWS)
    print_table(f"| expected: bf16 product, us on an H200 / H100, rows | {heads} |",
                ([f"{n} x {k} ({name})", *(" / ".join(f"{r['seconds'] * 1e6:.0f}" for r in pair) for pair in pairs if pair[0].get("name") == name)]
                 for name, (n, k) in PRODUCTS.items()))
    print_table("| expected: Llama-3.1-8B's products in blocks | GB a step | H200: bound, ms | one row | 64 rows | H100: bound, ms | one row | 64 rows |",
                ([name, f"{block.bytes_a_weight * LLAMA_8B.weights() / 1e9:.2f}",
                  *(f"{ms * 1e3:.2f}" for card in BOTH
                    for ms in (block.bound(card, LLAMA_8B), block.products(card, LLAMA_8B, 1), block.products(card, LLAMA_8B, 64)))]
                 for name, block in BLOCKS.items()))


def decode_table(what: str, trials: Iterable[str], pages: str = "bf16") -> None:
    cards = [card.with_trials(*trials) for card in BOTH]
    print_table(f"| expected: decode attention{what} | H200: us, `full` | share of copy | us, `h2o` | H100: us, `full` | share of copy | us, `h2o` |",
                ([f"{batch} x {length:,}", *(text for card in cards for text in (
                    f"{decode(card, batch, length, pages=pages) * 1e6:.1f}", f"{decode_share(card, batch, length, pages=pages):.2f}",
                    f"{decode(card, batch, length, True, pages=pages) * 1e6:.1f}"))] for batch, length in DECODE_SHAPES))


def step_table() -> None:
    """ms, and factor of the roofline, with the default and with other kernels."""
    columns = " | ".join(form for card in ("H200", "H100") for form in (f"{card}: roofline, ms", *(name for name, _ in FORMS), "on trial, fp8 pages"))

    def cells(card: Card, model: Model, policy: str, batch: int, context: int) -> Iterable[str]:
        entries, scored = kept(policy, context, context + 48), policy != "full"
        bound = step_bound(card, model, batch, entries, scored)
        yield f"{bound * 1e3:.2f}"
        for _, trials in FORMS:
            seconds = step(card.with_trials(*trials), model, batch, entries, scored)
            yield f"{seconds * 1e3:.2f} ({seconds / bound:.2f})"
        yield f"{step(card.with_trials(*FORMS[-1][1]), model, batch, entries, scored, 'fp8') * 1e3:.2f}"

    print_table(f"| expected: step, ms (to the roofline) | {columns} |",
                ([f"{model.name}, `{policy}` {batch} x {context:,}", *(text for card in BOTH for text in cards_cells(card))]
                 for model in MODELS.values() for policy, batch, context in STEPS
                 for cards_cells in [lambda card, m=model, p=policy, b=batch, c=context: cells(card, m, p, b, c)]))


def prompt_tables(pairs: list[tuple[Row, Row]]) -> None:
    print_table("| expected: prompt attention | H200: us | TFLOP/s | column sums add | on trial | H100: us | TFLOP/s | column sums add | on trial |",
                ([f"{pair[0]['tokens']:,}", *(text for card, r in zip(BOTH, pair) for text in (
                    f"{r['seconds'] * 1e6:.0f}", f"{r['flops'] / 1e12:.0f}", f"{(r['seconds_with_sums'] / r['seconds'] - 1) * 100:.0f} %",
                    f"{column_sums(card.with_trials(*ON_TRIAL), r['tokens']) / r['seconds'] * 100:.0f} %"))]
                 for pair in pairs if pair[0]["what"] == "prefill_attention"))
    print_table("| expected: one prompt, tokens/s | H200: `full` | `h2o` | `h2o`, on trial | H100: `full` | `h2o` | `h2o`, on trial |",
                ([f"{model.name}, {tokens:,}", *(f"{tokens / prompt_seconds(c, model, tokens, scored):,.0f}" for card in BOTH
                                                 for c, scored in ((card, False), (card, True), (card.with_trials(*ON_TRIAL), True)))]
                 for model in MODELS.values() for tokens in (1024, 2048, 4096, 8192, 16384)))


def throughput_table() -> None:
    names = " | ".join(form for card in ("H200", "H100") for form in (f"{card}: by default", "on trial", "on trial, fp8 pages"))
    print_table(f"| expected: output tokens/s | sequences at once | {names} |",
                ([f"{load[0].name}, `{load[1]}`, at most {load[2]}, pool of {load[3]}, {load[4]:,} + {load[5]:,} tokens", str(in_pool(*load[1:])),
                  *(f"{rate:,.0f}" for card in BOTH for rate in (
                      *(pool_throughput(card.with_trials(*trials), *load) for _, trials in FORMS),
                      pool_throughput(card.with_trials(*FORMS[-1][1]), *load, "fp8")))]
                 for load in THROUGHPUTS))


def tables() -> None:
    """All rows, both cards side by side; docs/results/gpu.md has this output."""
    pairs = list(zip(*(rows(card) for card in BOTH)))
    goals_table()
    products_tables(pairs)
    decode_table("", ())
    decode_table(" on trial", ON_TRIAL)
    decode_table(" on trial, fp8 pages", ON_TRIAL, "fp8")
    prompt_tables(pairs)
    step_table()
    throughput_table()


# docs/results/gpu.md, "Measured": an H200, 2026-11-26. Microseconds, or milliseconds of steps.
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
    """Measured rows beside the model's predictions."""
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
    parser.add_argument("--trial", default="")
    args = parser.parse_args()
    if args.check:
        return check()
    trials = [name for name in args.trial.split(",") if name]
    if unknown := [name for name in trials if name not in TRIALS]:
        parser.error(f"--trial: there is no {', '.join(unknown)}; there are {', '.join(TRIALS)}")
    if args.json:
        beside = decode_rows(CARDS[args.card].with_trials(*ON_TRIAL)) if not trials else []
        out = rows(CARDS[args.card].with_trials(*trials)) + [{**row, "module": "on trial"} for row in beside]
        args.json.write_text("".join(json.dumps(row) + "\n" for row in out), encoding="utf-8")
    else:
        tables()
    return 0


if __name__ == "__main__":
    sys.exit(main())
