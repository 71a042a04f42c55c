#!/usr/bin/env python3
"""Measures attention of PyTorch and FlashInfer on the shapes of device_benchmark; prints JSON lines. See scripts/gpu-check.

Llama-3.1-8B's heads (32 query and 8 KV heads of 128), bfloat16. Decode: one query per sequence over
a full cache, no scores; PyTorch reads contiguous keys and values, FlashInfer reads shuffled pages
of 16 entries, as Hydrant does. Prompt: causal. As in device_benchmark, a figure is the fastest of
five runs, each of enough calls for a tenth of a second; on a GPU calls are also repeated as a CUDA
graph, and the faster way counts. Every variant is first compared with plain float32 attention on a
small shape. Unavailable variants are printed as {"what": "skipped", ..., "reason": ...}.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    print(json.dumps({"what": "skipped", "who": "torch", "name": "all", "reason": str(error)}))
    sys.exit(0)

HEADS, KV_HEADS, HEAD_DIM, PAGE = 32, 8, 128, 16
GROUP = HEADS // KV_HEADS
DECODE_SHAPES = [(64, 512), (64, 1024), (64, 2048), (64, 8192), (256, 512), (1, 1024), (1, 8192), (1, 131072), (8, 8192)]
PROMPTS = [2048, 4096, 8192, 16384]

Call = Callable[[], torch.Tensor]
# Takes q [batch, HEADS, queries, HEAD_DIM] and k, v [batch, KV_HEADS, entries, HEAD_DIM], returns a
# call that computes the output.
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Call]


def report(what: str, who: str, **fields: object) -> None:
    print(json.dumps({"what": what, "who": who, **fields}), flush=True)


def skipped(who: str, name: str, reason: object) -> None:
    text = (str(reason).strip() or type(reason).__name__).splitlines()[0]
    report("skipped", who, name=name, reason=text)
    print(f"peer_torch: {who}, {name}: skipped: {text}", file=sys.stderr)


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.device = torch.device(args.device)
        self.quick: bool = args.quick
        self.end = time.perf_counter() + args.seconds if args.seconds else float("inf")
        self.random = torch.Generator(device=self.device).manual_seed(7)

    def normals(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.random, device=self.device, dtype=torch.bfloat16)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def late(self) -> bool:
        return time.perf_counter() > self.end

    def seconds(self, call: Call) -> float:
        """Seconds of one call."""
        fastest = self._fastest(call)
        if self.device.type == "cuda":
            try:
                fastest = min(fastest, self._fastest(captured(call)))
            except RuntimeError as error:  # some calls cannot be captured
                print(f"peer_torch: no CUDA graph: {str(error).splitlines()[0]}", file=sys.stderr)
        return fastest

    def _fastest(self, call: Callable[[], Any]) -> float:
        self._timed(call, 1)
        once = self._timed(call, 1)
        calls = min(10000, max(1, int((0.01 if self.quick else 0.1) / max(once, 1e-6))))
        return min([once] + [self._timed(call, calls) for _ in range(1 if self.quick else 5)])

    def _timed(self, call: Callable[[], Any], calls: int) -> float:
        self.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        self.synchronize()
        return (time.perf_counter() - start) / calls


def captured(call: Call) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def plain_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    k, v = (x.float().repeat_interleave(GROUP, dim=1) for x in (k, v))
    logits = q.float() @ k.transpose(-1, -2) / HEAD_DIM**0.5
    if causal:
        logits += torch.full_like(logits, float("-inf")).triu(1)
    return logits.softmax(-1) @ v


def wrong(call: Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> str:
    """Why the result is wrong; empty if it is right."""
    want = plain_attention(q, k, v, causal)
    difference = (call().float().reshape(want.shape) - want).abs().max().item()
    return "" if difference < 0.05 else f"differs from plain attention by {difference:.3f}"


def sdpa(backend: SDPBackend, how: str, causal: bool) -> Attention:
    """how: grouped (enable_gqa), repeated (a KV head for every query head) or folded (a group's queries as rows)."""

    def build(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Call:
        if how == "repeated":
            k, v = (x.repeat_interleave(GROUP, dim=1) for x in (k, v))
        if how == "folded":
            q = q.reshape(q.shape[0], KV_HEADS, GROUP, HEAD_DIM)

        def call() -> torch.Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=how == "grouped")

        return call

    return build


def flex() -> Attention:
    from torch.nn.attention.flex_attention import flex_attention

    def build(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Call:
        torch.compiler.reset()  # with many shapes the last ones would not be compiled
        compiled = torch.compile(flex_attention, dynamic=False)
        return lambda: compiled(q, k, v, enable_gqa=True)

    return build


def flashinfer_decode(tensor_cores: bool, device: torch.device) -> Attention:
    import flashinfer

    workspace = torch.zeros(256 << 20, dtype=torch.uint8, device=device)

    def build(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Call:
        batch, _, entries, _ = k.shape
        width = entries // PAGE
        order = torch.randperm(batch * width, device=device)
        pages = torch.empty(batch * width, 2, PAGE, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device=device)
        for part, x in enumerate((k, v)):
            pages[order, part] = x.transpose(1, 2).reshape(batch * width, PAGE, KV_HEADS, HEAD_DIM)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=tensor_cores)
        begins = torch.arange(batch + 1, dtype=torch.int32, device=device) * width
        last = torch.full((batch,), PAGE, dtype=torch.int32, device=device)
        wrapper.plan(begins, order.int(), last, HEADS, KV_HEADS, HEAD_DIM, PAGE, q_data_type=torch.bfloat16,
                     kv_data_type=torch.bfloat16)
        queries = q.reshape(batch, HEADS, HEAD_DIM)
        return lambda: wrapper.run(queries, pages)

    return build


def ceilings(bench: Bench) -> None:
    """The device's limits as measured by PyTorch."""
    count = (1 << 20) if bench.quick else (4 << 30)
    source, target = (torch.empty(count, dtype=torch.uint8, device=bench.device) for _ in range(2))
    report("copy", "torch", bytes_per_s=2 * count / bench.seconds(lambda: target.copy_(source)))
    m, n, k = (16, 64, 64) if bench.quick else (4096, 14336, 4096)
    x, weight = bench.normals(m, k), bench.normals(n, k)
    seconds = bench.seconds(lambda: F.linear(x, weight))
    report("matmul", "torch", rows=m, n=n, k=k, seconds=seconds, flops=2 * m * n * k / seconds)


def measure_decode(bench: Bench, who: str, name: str, attention: Attention) -> None:
    for batch, length in [(1, 1024), (4, 208)] if bench.quick else DECODE_SHAPES:
        if bench.late():
            return skipped(who, name, f"the time is over before {batch} x {length}")
        q = bench.normals(batch, HEADS, 1, HEAD_DIM)
        k, v = (bench.normals(batch, KV_HEADS, length, HEAD_DIM) for _ in range(2))
        try:
            seconds = bench.seconds(attention(q, k, v))
        except Exception as error:  # noqa: BLE001  a peer may fail in any way
            skipped(who, f"{name}, {batch} x {length}", error)
            continue
        report("decode_attention", who, variant=name, batch=batch, length=length, seconds=seconds,
               kv_bytes=2 * k.numel() * k.element_size())


def measure_prompts(bench: Bench, name: str, attention: Attention) -> None:
    for tokens in [128] if bench.quick else PROMPTS:
        if bench.late():
            return skipped("torch", name, f"the time is over before {tokens} tokens")
        q = bench.normals(1, HEADS, tokens, HEAD_DIM)
        k, v = (bench.normals(1, KV_HEADS, tokens, HEAD_DIM) for _ in range(2))
        try:
            seconds = bench.seconds(attention(q, k, v))
        except Exception as error:  # noqa: BLE001
            skipped("torch", f"{name}, {tokens} tokens", error)
            continue
        flops = 4 * HEADS * HEAD_DIM * tokens * (tokens + 1) / 2 / seconds
        report("prefill_attention", "torch", variant=name, tokens=tokens, seconds=seconds, flops=flops)


def usable(bench: Bench, who: str, name: str, make: Callable[[], Attention], causal: bool) -> Attention | None:
    """None, after printing the reason, if it does not run here or its result is wrong."""
    queries, entries = (48, 48) if causal else (1, 64)
    q = bench.normals(2, HEADS, queries, HEAD_DIM)
    k, v = (bench.normals(2, KV_HEADS, entries, HEAD_DIM) for _ in range(2))
    try:
        attention = make()
        reason = wrong(attention(q, k, v), q, k, v, causal)
    except Exception as error:  # noqa: BLE001
        reason = error
    if reason:
        skipped(who, f"{'prompt' if causal else 'decode'}, {name}", reason)
        return None
    return attention


def sdpa_variants(ways: tuple[str, str], causal: bool) -> list[tuple[str, Callable[[], Attention]]]:
    backends = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
    return [(f"SDPA {backend.name.split('_')[0].lower()}, {how}", lambda b=backend, h=how: sdpa(b, h, causal))
            for backend in backends for how in ways]


def decode_variants(bench: Bench, parts: list[str]) -> list[tuple[str, str, Callable[[], Attention]]]:
    variants = []
    if "decode" in parts:
        variants += [("torch", name, make) for name, make in sdpa_variants(("grouped", "folded"), causal=False)]
    if "flex" in parts:
        variants.append(("torch", "FlexAttention", flex))
    if "flashinfer" in parts:
        variants += [("flashinfer", f"paged, tensor cores {cores}", lambda c=cores: flashinfer_decode(c, bench.device))
                     for cores in (True, False)]
    return variants


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=0, help="start nothing new after so long; 0: no limit")
    parser.add_argument("--parts", default="ceilings,prefill,decode,flex,flashinfer",
                        help="default: %(default)s; the last two compile at first use, which takes minutes")
    parser.add_argument("--quick", action="store_true", help="small shapes, to see that it runs")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    if args.device == "cuda" and not torch.cuda.is_available():
        return skipped("torch", "all", "PyTorch sees no CUDA device")
    torch.set_grad_enabled(False)
    bench = Bench(args)
    parts = args.parts.split(",")
    machine = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    report("device", "torch", program="peer_torch", description=f"{machine}, PyTorch {torch.__version__}")
    if "ceilings" in parts:
        ceilings(bench)
    for name, make in sdpa_variants(("grouped", "repeated"), causal=True) if "prefill" in parts else []:
        attention = usable(bench, "torch", name, make, causal=True)
        if attention:
            measure_prompts(bench, name, attention)
    for who, name, make in decode_variants(bench, parts):
        attention = usable(bench, who, name, make, causal=False)
        if attention:
            measure_decode(bench, who, name, attention)


if __name__ == "__main__":
    main()
