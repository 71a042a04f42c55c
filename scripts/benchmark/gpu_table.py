#!/usr/bin/env python3
"""Joins what scripts/gpu-check measured, ours and the peers', to the tables of docs/benchmarks.md.

  gpu_table.py FILE.jsonl...

Reads JSON lines of device_benchmark, step_benchmark, throughput_benchmark, peer_torch.py and peer_transformers.py, in any
order and whichever are there; prints markdown, last the figures that are wanted and whether they were reached. Of several
variants of a peer the fastest counts. A dash: not measured.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

Record = dict[str, Any]
OURS = "hydrant"


class Wanted:
    """The figures that are wanted, as they come up."""

    def __init__(self) -> None:
        self.rows: list[str] = []

    def add(self, what: str, want: str, values: Iterable[float], good: bool) -> None:
        values = list(values)
        reached = ("yes" if good else "no") if values else "not measured"
        span = "-"
        if values:
            low, high = min(values), max(values)
            span = f"{low:.2f}" if len(values) == 1 else f"{low:.2f} to {high:.2f}"
        self.rows.append(f"| {what} | {want} | {span} | {reached} |")

    def at_least(self, what: str, least: float, values: Iterable[float]) -> None:
        values = list(values)
        self.add(what, f">= {least:g}", values, bool(values) and min(values) >= least)

    def at_most(self, what: str, most: float, values: Iterable[float]) -> None:
        values = list(values)
        self.add(what, f"<= {most:g}", values, bool(values) and max(values) <= most)


def read(paths: list[str]) -> list[Record]:
    lines = (line for path in paths for line in pathlib.Path(path).read_text().splitlines())
    return [json.loads(line) for line in lines if line.startswith("{")]


def pick(records: list[Record], what: str, who: str, **fields: object) -> list[Record]:
    wanted = {"what": what, "who": who, **fields}
    return [r for r in records if all(r.get(name) == value for name, value in wanted.items())]


def fastest(records: list[Record]) -> Record | None:
    return min(records, key=lambda r: r["seconds"], default=None)


def values(records: list[Record], what: str, field: str) -> list[Any]:
    """The different values of a field, in the order in which they come."""
    return list(dict.fromkeys(r[field] for r in records if r["what"] == what and field in r))


def cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f} %"


def table(head: str, rows: list[str]) -> None:
    if rows:
        print(f"\n{head}\n|{'---|' * (head.count('|') - 1)}")
        print("\n".join(rows))


def machine(records: list[Record]) -> None:
    for record in pick(records, "run", "gpu-check"):
        print(f"{record['date']}, commit {record['commit']}.")
    for line in values(records, "device", "description"):
        print(f"- {line}")
    for record in records:
        if record["what"] == "copy":
            print(f"- copy, by {record['who']}: {record['bytes_per_s'] / 1e9:.0f} GB/s, read and written")
    for who in (OURS, "torch"):
        rates = [r["flops"] for r in pick(records, "matmul", who)]
        if rates:
            print(f"- bf16 matrix product, by {who}: {max(rates) / 1e12:.0f} TFLOP/s")


def decode(records: list[Record], wanted: Wanted) -> None:
    rows, shares, costs = [], [], []
    shapes = dict.fromkeys((r["batch"], r["length"]) for r in records if r["what"] == "decode_attention")
    for batch, length in shapes:
        ours = {r["variant"]: r for r in pick(records, "decode_attention", OURS, batch=batch, length=length)}
        full = ours.get("full")
        cells = [cell(full and full["seconds"] * 1e6, ".1f"), cell(full and full["share_of_copy"], ".2f")]
        for variant in ("h2o", "window", "mixed"):
            added = ours[variant]["seconds"] / full["seconds"] * 100 - 100 if full and variant in ours else None
            cells.append(percent(added))
            if variant == "h2o" and added is not None and batch == 64:
                costs.append(added)
        if full and batch == 64:
            shares.append(full["share_of_copy"])
        for who in ("flashinfer", "torch"):
            peer = fastest(pick(records, "decode_attention", who, batch=batch, length=length))
            name = f" ({peer['variant']})" if peer else ""
            cells.append(cell(peer and peer["seconds"] * 1e6, ".1f") + name)
            cells.append(cell(peer["seconds"] / full["seconds"] if peer and full else None, ".2f"))
        rows.append(f"| {batch} x {length} | " + " | ".join(cells) + " |")
    table("| decode attention, sequences x entries | us, full | share of copy | h2o adds | window adds | mixed adds "
          "| FlashInfer, us | over ours | PyTorch, us | over ours |", rows)
    wanted.at_least("decode attention at 64 sequences, share of copy bandwidth", 0.85, shares)
    wanted.at_most("scoring and choosing victims add, %", 5, costs)


def prefill(records: list[Record], wanted: Wanted) -> None:
    rows, ratios, sums = [], [], []
    for tokens in values(records, "prefill_attention", "tokens"):
        ours = fastest(pick(records, "prefill_attention", OURS, tokens=tokens))
        peer = fastest(pick(records, "prefill_attention", "torch", tokens=tokens))
        added = (ours["seconds_with_sums"] / ours["seconds"] - 1) * 100 if ours else None
        ratio = peer["seconds"] / ours["seconds"] if ours and peer else None
        if added is not None:
            sums.append(added)
        if ratio is not None:
            ratios.append(ratio)
        name = f" ({peer['variant']})" if peer else ""
        rows.append(f"| {tokens} | {cell(ours and ours['seconds'] * 1e6, '.0f')} | {cell(ours and ours['flops'] / 1e12, '.1f')} "
                    f"| {percent(added)} | {cell(peer and peer['flops'] / 1e12, '.1f')}{name} | {cell(ratio, '.2f')} |")
    table("| prompt attention, tokens | us | TFLOP/s | column sums add | PyTorch, TFLOP/s | ratio |", rows)
    wanted.at_least("prompt attention, share of PyTorch's speed", 0.6, ratios)
    wanted.at_most("column sums add, %", 60, sums)


def steps(records: list[Record]) -> None:
    rows = [f"| {r['model']} | {r['policy']} | {r['batch']} x {r['context']} | {r['seconds'] * 1e3:.2f} "
            f"| {r['batch'] / r['seconds']:.0f} | {r['bound_seconds'] * 1e3:.2f} | {r['bound_seconds'] / r['seconds']:.2f} "
            f"| {r['prompt_tokens_per_s']:.0f} |" for r in pick(records, "step", OURS)]
    table("| decode step | policy | sequences x context | ms | tokens/s | bytes' time, ms | share | prompt tokens/s |", rows)


def workload(record: Record) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("model", "requests", "prompt_tokens", "new_tokens"))


def throughput(records: list[Record], wanted: Wanted) -> None:
    runs = [r for r in records if r["what"] == "throughput"]
    batch_ratios, speed_ratios, peer_ratios, host_us = [], [], [], []
    for load in dict.fromkeys(map(workload, runs)):
        here = [r for r in runs if workload(r) == load]
        ours = [r for r in here if r["who"] == OURS]
        full = max((r for r in ours if r["policy"] == "full"), key=lambda r: r["tokens_per_s"], default=None)
        peer = max((r for r in here if r["who"] != OURS), key=lambda r: r["tokens_per_s"], default=None)
        model, requests, prompt_tokens, new_tokens = load
        rows = []
        for r in here:
            name = f"{r['policy']}, at most {r['in_flight']}" if r["who"] == OURS else f"{r['who']}: {r['variant']}"
            ratio = r["tokens_per_s"] / full["tokens_per_s"] if full else None
            cut_off = ", cut off" if r["finished"] < r["requests"] else ""
            peak = r.get("peak_batch") or min(r["batch"], r["requests"])
            rows.append(f"| {name} | {peak} | {cell(r.get('mean_batch'), '.1f')} | {r['tokens_per_s']:.0f} "
                        f"| {cell(ratio, '.2f')} | {r.get('preemptions', '-')} "
                        f"| {cell(r.get('step_ms_p50'), '.1f')} / {cell(r.get('step_ms_p99'), '.1f')} "
                        f"| {cell(r.get('host_us'), '.0f')} | {r['seconds']:.0f}{cut_off} |")
        table(f"| {model}, {requests} requests of {prompt_tokens} + {new_tokens} tokens | peak batch | mean batch "
              "| output tokens/s | to full | preemptions | ms between steps, p50 / p99 | host us a step | seconds |", rows)
        for h2o in [r for r in ours if r["policy"] == "h2o"] if full else []:
            batch_ratios.append(h2o["mean_batch"] / full["mean_batch"])
            speed_ratios.append(h2o["tokens_per_s"] / full["tokens_per_s"])
            host_us.append(h2o["host_us"])
        if full and peer:
            peer_ratios.append(full["tokens_per_s"] / peer["tokens_per_s"])
    wanted.at_least("h2o beside full in the same pool, mean batch", 4, batch_ratios)
    wanted.at_least("h2o beside full in the same pool, output tokens/s", 2.5, speed_ratios)
    wanted.at_most("h2o, host us between steps", 200, host_us)
    wanted.at_least("full beside transformers, output tokens/s", 3, peer_ratios)


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if len(sys.argv) > 1 else 2)
    records = read(sys.argv[1:])
    wanted = Wanted()
    machine(records)
    decode(records, wanted)
    prefill(records, wanted)
    steps(records)
    throughput(records, wanted)
    if any(record["what"] != "run" for record in records):
        table("| wanted | | measured | reached |", wanted.rows)
    names: dict[str, list[str]] = {}
    for record in records:
        if record["what"] == "skipped":
            names.setdefault(f"{record['who']}: {record['reason']}", []).append(record["name"])
    if names:
        print("\nSkipped:\n" + "\n".join(f"- {reason} ({'; '.join(which)})" for reason, which in names.items()))


if __name__ == "__main__":
    main()
