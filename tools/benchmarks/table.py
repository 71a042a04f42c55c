#!/usr/bin/env python3
"""Turns the JSON lines of scripts/bench into the tables of docs/results/performance.md: ours, the peers', and the machine's bound.

  table.py FOLDER DTYPE...    reads bounds.jsonl, hydrant.<dtype>.jsonl, llama_cpp.jsonl and openvino.jsonl of a run,
                              prints markdown; the first dtype is compared with the faster peer

The bound is the longer of two times: reading the weights once (and, with a context, the KV entries,
at two bytes a number) at the bandwidth measured on a buffer of the weights' size; and the
multiply-adds at the rates of the vector units measured in the same run: 8-bit for weights, bf16 for
attention, or fp32 without bf16.
"""

import json
import pathlib
import sys


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


PEERS = {"llama_cpp": "llama.cpp", "openvino": "OpenVINO GenAI"}


def figures(path):
    return {(r["what"], r["batch"], r["context"]): r["tokens_per_s"] for r in lines(path) if "tokens_per_s" in r}


def print_memory(folder, names):
    """Peak memory of each process."""
    for name in names:
        memory = next((r for r in lines(folder / f"hydrant.{name}.jsonl") if r["what"] == "memory"), None)
        if memory:
            planned = sum(memory[f"{part}_bytes"] for part in ("weight", "pool", "workspace"))
            print(f"Memory, Hydrant, {name}: {memory['resident_bytes'] / 1e6:.0f} MB; weights, pool and workspace are "
                  f"{planned / 1e6:.0f} MB, ratio {memory['resident_bytes'] / planned:.2f}.")
    for file, title in PEERS.items():
        path = folder / f"{file}.jsonl"
        for record in lines(path) if path.exists() else []:
            if record["what"] == "memory":
                print(f"Memory, {title}: {record['resident_bytes'] / 1e6:.0f} MB.")


def main():
    folder = pathlib.Path(sys.argv[1])
    model = json.loads((folder / "model.json").read_text())
    bounds = lines(folder / "bounds.jsonl")
    read = min((b for b in bounds if b["what"] == "read"), key=lambda b: b["bytes"])
    dram = max((b for b in bounds if b["what"] == "read"), key=lambda b: b["bytes"])
    rates = {b["what"]: b["operations_per_s"] for b in bounds if "operations_per_s" in b}
    of_attention = rates.get("dot_bf16", rates["fma_f32"])
    ours = {dtype: figures(folder / f"hydrant.{dtype}.jsonl") for dtype in sys.argv[2:]}
    peers = {title: figures(folder / f"{file}.jsonl") for file, title in PEERS.items()
             if (folder / f"{file}.jsonl").exists()}

    def bound(what, batch, context):
        prompt = what == "prefill"
        tokens = context if prompt else batch
        pairs = context * (context + 1) / 2 if prompt else batch * context
        weights = model["matmul_parameters"] * tokens + model["output_parameters"] * (1 if prompt else batch)
        multiplied = (2 * weights / rates["dot_i8"]
                      + 4 * model["layers"] * model["q_dim"] * pairs / of_attention)
        entries = 0 if prompt else batch * context
        bytes_read = model["weight_bytes"] + entries * model["layers"] * model["kv_dim"] * 2 * 2
        return tokens / max(multiplied, bytes_read / read["bytes_per_s"])

    print(f"Read bandwidth: {read['bytes_per_s'] / 1e9:.1f} GB/s over {read['bytes'] / 1e6:.0f} MB (the weights), "
          f"{dram['bytes_per_s'] / 1e9:.1f} GB/s over 1 GiB. Multiply-adds, 10^9 operations/s: "
          + ", ".join(f"{rate / 1e9:.0f} ({what})" for what, rate in rates.items()) + ".")
    names = list(ours)
    print_memory(folder, names)
    print()
    print("| tokens/s | " + " | ".join(f"Hydrant, {n}" for n in names)
          + "".join(f" | {title}" for title in peers) + " | ratio | bound | share of it |")
    print("|---|" + "---|" * (len(names) + len(peers) + 3))
    for key in next(iter(ours.values())):
        what, batch, context = key
        first = ours[names[0]][key]
        label = (f"prompt of {context}" if what == "prefill" else
                 f"decode, batch {batch}, " + (f"{context} tokens of context" if context else "empty context"))
        limit = bound(*key)
        cells = [f"{ours[n].get(key, float('nan')):.0f}" for n in names]
        cells += [f"{peer[key]:.0f}" if key in peer else "-" for peer in peers.values()]
        fastest = max((peer[key] for peer in peers.values() if key in peer), default=None)
        cells.append(f"{first / fastest:.2f}" if fastest else "-")
        print(f"| {label} | " + " | ".join(cells) + f" | {limit:.0f} | {100 * first / limit:.0f} % |")


if __name__ == "__main__":
    main()
