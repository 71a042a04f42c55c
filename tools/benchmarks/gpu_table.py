#!/usr/bin/env python3
"""Joins the measurements of scripts/gpu-check, ours and the peers', to the tables of
docs/results/gpu.md.

  gpu_table.py [--expected FILE.jsonl] FILE.jsonl...

Reads JSON lines of device_probe, device_benchmark, step_benchmark, throughput_benchmark,
peer_flashinfer, peer_torch.py and peer_transformers.py, in any order and any subset; prints
markdown, last the target figures and whether they were reached. --expected: predictions of
gpu_model.py, in their own columns. Of several variants of a peer the fastest counts. A dash: not
measured. Measurements with a module name (device_probe --name) are listed side by side instead.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Iterable
from typing import Any

Record = dict[str, Any]
OURS = "hydrant"


class Wanted:
    """The target figures, collected on the way."""

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
    """A killed program may leave a truncated line: it is reported, and the other lines count."""
    records = []
    for line in (line for path in paths for line in pathlib.Path(path).read_text(errors="replace").splitlines() if line.startswith("{")):
        try:
            record = json.loads(line)
            record["what"], record["who"]  # of every measurement
            records.append(record)
        except (ValueError, KeyError):
            records.append({"what": "skipped", "who": "gpu_table.py", "name": line[:60], "reason": "no whole measurement"})
    return records


def pick(records: list[Record], what: str, who: str, **fields: object) -> list[Record]:
    wanted = {"what": what, "who": who, **fields}
    return [r for r in records if all(r.get(name) == value for name, value in wanted.items())]


def fastest(records: list[Record]) -> Record | None:
    return min(records, key=lambda r: r["seconds"], default=None)


def values(records: list[Record], what: str, field: str) -> list[Any]:
    """The distinct values of a field, in order of appearance."""
    return list(dict.fromkeys(r[field] for r in records if r["what"] == what and field in r))


def expected_of(records: list[Record], what: str, field: str = "seconds", **fields: object) -> float | None:
    """The prediction of gpu_model.py for a row."""
    found = pick(records, what, "expected", **fields)
    return found[0][field] if found else None


def scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


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
    for r in pick(records, "ceilings", OURS):
        print(f"- reading alone {r['read_bytes_per_s'] / 1e9:.0f} GB/s, gathers of 64 bytes {r['gather_bytes_per_s'] / 1e9:.0f}; an empty "
              f"kernel in a graph {r['launch_seconds'] * 1e6:.2f} us, dependent {r['dependent_launch_seconds'] * 1e6:.2f}")
    for who in (OURS, "torch"):
        rates = [r["flops"] for r in pick(records, "matmul", who)]
        if rates:
            print(f"- bf16 matrix product, by {who}: {max(rates) / 1e12:.0f} TFLOP/s")


def products(records: list[Record]) -> None:
    ours = pick(records, "matmul", OURS)
    counts = sorted({r["rows"] for r in ours})
    rows = []
    for n, k in dict.fromkeys((r["n"], r["k"]) for r in ours):
        cells = []
        for m in counts:
            us = [r["seconds"] * 1e6 for r in ours if (r["n"], r["k"], r["rows"]) == (n, k, m)]
            expected = scaled(expected_of(records, "matmul", n=n, k=k, rows=m), 1e6)
            cells.append(f"{cell(min(us, default=None), '.0f')} / {cell(expected, '.0f')}")
        rows.append(f"| {n} x {k} | " + " | ".join(cells) + " |")
    table("| bf16 product, us / expected, rows | " + " | ".join(map(str, counts)) + " |", rows)


def block_products(records: list[Record]) -> None:
    ours = pick(records, "matmul_blocks", OURS)
    counts = sorted({r["rows"] for r in ours})
    for n, k in dict.fromkeys((r["n"], r["k"]) for r in ours):
        rows = []
        for name in values(ours, "matmul_blocks", "type"):
            cells = []
            for m in counts:
                found = pick(ours, "matmul_blocks", OURS, n=n, k=k, rows=m, type=name)
                expected = scaled(expected_of(records, "matmul_blocks", n=n, k=k, rows=m, type=name), 1e6)
                cells.append(f"{cell(scaled(min((r['seconds'] for r in found), default=None), 1e6), '.0f')} / {cell(expected, '.0f')}")
            rows.append(f"| {name} | " + " | ".join(cells) + " |")
        table(f"| product of {n} x {k} in blocks, us / expected, rows | " + " | ".join(map(str, counts)) + " |", rows)


def decode(records: list[Record], wanted: Wanted) -> None:
    rows, shares, costs = [], [], []
    mine = [r for r in records if r["what"] == "decode_attention" and r["who"] == OURS]
    others = [v for v in ("window", "mixed") if any(r["variant"] == v for r in mine)]
    peers = [who for who in ("flashinfer", "torch") if any(r["what"] == "decode_attention" and r["who"] == who for r in records)]
    measured = [r for r in records if r["what"] == "decode_attention" and r["who"] != "expected"]
    for batch, length in dict.fromkeys((r["batch"], r["length"]) for r in measured):
        ours = {r["variant"]: r for r in mine if (r["batch"], r["length"]) == (batch, length)}
        full, h2o = ours.get("full"), ours.get("h2o")
        expected = {v: scaled(expected_of(records, "decode_attention", batch=batch, length=length, variant=v), 1e6) for v in ("full", "h2o")}
        cells = [cell(full and full["seconds"] * 1e6, ".1f"), cell(expected["full"], ".1f"), cell(full and full["share_of_copy"], ".2f"),
                 cell(full and scaled(full.get("cold_seconds"), 1e6), ".1f"), cell(h2o and h2o["seconds"] * 1e6, ".1f"),
                 cell(expected["h2o"], ".1f"), cell(h2o and scaled(h2o.get("cold_seconds"), 1e6), ".1f")]
        for variant in ["h2o", *others]:
            added = ours[variant]["seconds"] / full["seconds"] * 100 - 100 if full and variant in ours else None
            cells.append(percent(added))
            if variant == "h2o" and added is not None and batch == 64:
                costs.append(added)
        if full and batch == 64 and full["share_of_copy"] is not None:
            shares.append(full["share_of_copy"])
        for who in peers:
            peer = fastest(pick(records, "decode_attention", who, batch=batch, length=length))
            name = f" ({peer['variant']})" if peer else ""
            cells.append(cell(peer and peer["seconds"] * 1e6, ".1f") + name)
            cells.append(cell(peer["seconds"] / full["seconds"] if peer and full else None, ".2f"))
        rows.append(f"| {batch} x {length} | " + " | ".join(cells) + " |")
    columns = [f"{variant} adds" for variant in ["h2o", *others]]
    columns += [word for who in peers for word in (f"{'FlashInfer' if who == 'flashinfer' else 'PyTorch'}, us", "over ours")]
    table("| decode attention, sequences x entries | us, full | expected | share of copy | cold | us, h2o | expected | cold | "
          + " | ".join(columns) + " |", rows)
    wanted.at_least("decode attention at 64 sequences, share of copy bandwidth", 0.85, shares)
    wanted.at_most("scoring and choosing victims add, %", 3, costs)


def prefill(records: list[Record], wanted: Wanted) -> None:
    rows, ratios, shares, sums = [], [], [], []
    for tokens in dict.fromkeys(r["tokens"] for r in records if r["what"] == "prefill_attention" and r["who"] != "expected"):
        ours = fastest(pick(records, "prefill_attention", OURS, tokens=tokens))
        peer = fastest(pick(records, "prefill_attention", "torch", tokens=tokens))
        added = (ours["seconds_with_sums"] / ours["seconds"] - 1) * 100 if ours else None
        ratio = peer["seconds"] / ours["seconds"] if ours and peer else None
        echo = ours["echo_seconds"] / ours["seconds"] * 100 if ours and ours.get("echo_seconds") else None
        if added is not None:
            sums.append(added)
        if ratio is not None:
            ratios.append(ratio)
        if ours and tokens >= 4096 and ours["share_of_matmul"] is not None:
            shares.append(ours["share_of_matmul"])
        name = f" ({peer['variant']})" if peer else ""
        expected = expected_of(records, "prefill_attention", tokens=tokens)
        with_sums = expected_of(records, "prefill_attention", "seconds_with_sums", tokens=tokens)
        rows.append(f"| {tokens} | {cell(ours and ours['seconds'] * 1e6, '.0f')} | {cell(scaled(expected, 1e6), '.0f')} "
                    f"| {cell(ours and ours['flops'] / 1e12, '.1f')} | {cell(ours and ours['share_of_matmul'], '.2f')} | {percent(added)} "
                    f"| {percent((with_sums / expected - 1) * 100 if with_sums and expected else None)} | {percent(echo)} "
                    f"| {cell(peer and peer['flops'] / 1e12, '.1f')}{name} | {cell(ratio, '.2f')} |")
    table("| prompt attention, tokens | us | expected | TFLOP/s | share of product | column sums add | expected | echo adds "
          "| PyTorch, TFLOP/s | ratio |", rows)
    wanted.at_least("prompt attention from 4,096 tokens, share of the largest product", 0.6, shares)
    wanted.at_least("prompt attention, share of PyTorch's speed", 0.6, ratios)
    wanted.at_most("column sums add, %", 60, sums)


STEPS_WANTED = {("full", 1, 1024): 1.15, ("full", 64, 1024): 1.25, ("h2o", 256, 1024): 1.25}


def steps(records: list[Record], wanted: Wanted) -> None:
    rows = []
    for what, where in (("step", ""), ("step_shuffled", ", pages anywhere")):
        for r in pick(records, what, OURS):
            ratio = r["seconds"] / r["bound_seconds"]
            fields = {name: r[name] for name in ("model", "policy", "batch", "context")}
            expected = scaled(expected_of(records, "step", **fields), 1e3)
            prompts = expected_of(records, "step", "prompt_tokens_per_s", **fields)
            rows.append(f"| {r['model']}{where} | {r['policy']} | {r['batch']} x {r['context']} | {r['seconds'] * 1e3:.2f} "
                        f"| {cell(expected, '.2f')} | {r['batch'] / r['seconds']:.0f} | {ratio:.2f} "
                        f"| {r['prompt_tokens_per_s']:.0f} / {cell(prompts, '.0f')} |")
            most = STEPS_WANTED.get((r["policy"], r["batch"], r["context"]))
            if most is not None and what == "step" and r["model"] == "llama-3.1-8b":
                wanted.at_most(f"a step of {r['model']}, {r['policy']} {r['batch']} x {r['context']}, to the roofline", most, [ratio])
    table("| decode step | policy | sequences x context | ms | expected | tokens/s | to the roofline | prompt tokens/s / expected |", rows)


def profiles(records: list[Record]) -> None:
    names = ("us", "dram_percent", "l2_percent", "occupancy_percent", "tensor_percent", "waits_for_memory", "bank_conflicts")
    rows = ["| " + " | ".join([r["kernel"], *(cell(r.get(name), ".4g") for name in names)]) + " |" for r in pick(records, "ncu", OURS)]
    table("| Nsight Compute | us | DRAM, % | L2, % | warps, % | tensor cores, % | warps that wait for memory, an instruction | bank conflicts |",
          rows)


MODULE_KEYS = {"matmul": ("n", "k", "rows"), "matmul_blocks": ("type", "rows"), "decode_attention": ("variant", "batch", "length"), "prefill_attention": ("tokens",)}


def row_of(record: Record) -> tuple[Any, ...]:
    return (record["what"].replace("_", " "), *(record[key] for key in MODULE_KEYS[record["what"]]))


def modules(records: list[Record]) -> None:
    """Measurements of backend variants, side by side; ratios to the first. Rows without a name stay
    as they are."""
    plain = "as it is"
    expected_of_module = [r for r in records if "module" in r and r["who"] == "expected"]
    records = [r for r in records if r["who"] != "expected"]
    names = list(dict.fromkeys(r["module"] for r in records if "module" in r))
    if not names:
        return
    varied = {r["what"] for r in records if "module" in r}
    if any("module" not in r and r["what"] in varied and r["who"] == OURS for r in records):
        names.insert(0, plain)
    seconds: dict[tuple[Any, ...], dict[str, float]] = {}
    for r in records:
        name = r.get("module", plain)
        if name not in names or r["what"] not in MODULE_KEYS or r["what"] not in varied or r["who"] != OURS:
            continue
        row = row_of(r)
        seconds.setdefault(row, {})[name] = r["seconds"]
        if "seconds_with_sums" in r:
            seconds.setdefault((*row, "with sums"), {})[name] = r["seconds_with_sums"]
    foreseen = [name for name in names if any(r["module"] == name for r in expected_of_module)]
    rows = []
    for row, by_module in seconds.items():
        first = by_module.get(names[0])
        cells = [f"{cell(scaled(by_module.get(name), 1e6), '.1f')}" for name in names]
        cells += [cell(by_module[name] / first if first and name in by_module else None, ".3f") for name in names[1:]]
        for name in foreseen:
            same = [r["seconds"] for r in expected_of_module if r["module"] == name and row_of(r) == row]
            cells.append(cell(scaled(min(same, default=None), 1e6), ".1f"))
        rows.append(f"| {' '.join(map(str, row))} | " + " | ".join(cells) + " |")
    table("| us | " + " | ".join(names + [f"{name} to {names[0]}" for name in names[1:]] + [f"{name}, expected" for name in foreseen])
          + " |", rows)


def workload(record: Record) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("model", "requests", "prompt_tokens", "new_tokens"))


def throughput(records: list[Record], wanted: Wanted) -> None:
    runs = [r for r in records if r["what"] == "throughput" and r["who"] != "expected"]
    batch_ratios, speed_ratios, peer_ratios, host_us, long_answers = [], [], [], [], []
    for load in dict.fromkeys(map(workload, runs)):
        here = [r for r in runs if workload(r) == load]
        ours = [r for r in here if r["who"] == OURS]
        full = max((r for r in ours if r["policy"] == "full"), key=lambda r: r["tokens_per_s"], default=None)
        peer = max((r for r in here if r["who"] != OURS), key=lambda r: r["tokens_per_s"], default=None)
        model, requests, prompt_tokens, new_tokens = load
        if full and (model, prompt_tokens, new_tokens) == ("llama-3.1-8b", 1000, 1000):
            long_answers.append(full["tokens_per_s"])
        rows = []
        for r in here:
            name = f"{r['policy']}, at most {r['in_flight']}" if r["who"] == OURS else f"{r['who']}: {r['variant']}"
            ratio = r["tokens_per_s"] / full["tokens_per_s"] if full else None
            cut_off = ", cut off" if r["finished"] < r["requests"] else ""
            peak = r.get("peak_batch") or min(r["batch"], r["requests"])
            expected = expected_of(records, "throughput", "tokens_per_s", model=model, policy=r.get("policy"), in_flight=r.get("in_flight"),
                                   prompt_tokens=prompt_tokens, new_tokens=new_tokens)
            rows.append(f"| {name} | {peak} | {cell(r.get('mean_batch'), '.1f')} | {r['tokens_per_s']:.0f} | {cell(expected, '.0f')} "
                        f"| {cell(ratio, '.2f')} | {r.get('preemptions', '-')} "
                        f"| {cell(r.get('step_ms_p50'), '.1f')} / {cell(r.get('step_ms_p99'), '.1f')} "
                        f"| {cell(r.get('host_us'), '.0f')} | {r['seconds']:.0f}{cut_off} |")
        table(f"| {model}, {requests} requests of {prompt_tokens} + {new_tokens} tokens | peak batch | mean batch "
              "| output tokens/s | expected | to full | preemptions | ms between steps, p50 / p99 | host us a step | seconds |", rows)
        for h2o in [r for r in ours if r["policy"] == "h2o"] if full else []:
            batch_ratios.append(h2o["mean_batch"] / full["mean_batch"])
            speed_ratios.append(h2o["tokens_per_s"] / full["tokens_per_s"])
            host_us.append(h2o["host_us"])
        if full and peer:
            peer_ratios.append(full["tokens_per_s"] / peer["tokens_per_s"])
    wanted.at_least("h2o beside full in the same pool, mean batch", 4, batch_ratios)
    wanted.at_least("h2o beside full in the same pool, output tokens/s", 3, speed_ratios)
    wanted.at_most("h2o, host us between steps", 200, host_us)
    wanted.at_least("full, 1,000 + 1,000 tokens, output tokens/s (of an H100)", 7000, long_answers)
    wanted.at_least("full beside transformers, output tokens/s", 3, peer_ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--expected")
    args = parser.parse_args()
    all_records = read(args.files) + (read([args.expected]) if args.expected else [])
    records = [r for r in all_records if "module" not in r]
    measured = [r for r in records if r["who"] != "expected"]
    wanted = Wanted()
    machine(measured)
    products(records)
    block_products(records)
    decode(records, wanted)
    prefill(records, wanted)
    steps(records, wanted)
    profiles(records)
    throughput(records, wanted)
    modules(all_records)
    if any(record["what"] not in ("run", "copy", "ceilings", "device") for record in measured):
        table("| wanted | | measured | reached |", wanted.rows)
    names: dict[str, list[str]] = {}
    for record in measured:
        if record["what"] == "skipped":
            names.setdefault(f"{record['who']}: {record['reason']}", []).append(record["name"])
    if names:
        print("\nSkipped:\n" + "\n".join(f"- {reason} ({'; '.join(which)})" for reason, which in names.items()))


if __name__ == "__main__":
    main()
