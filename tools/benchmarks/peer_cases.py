"""Shared by the peers of engine_benchmark: its cases, and how a figure is measured and printed."""

import argparse
import json
import resource


def numbers(text):
    return [int(part) for part in text.split(",")]


def parser(description):
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--model", required=True, help="a GGUF file")
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--repeat", type=int, default=3)
    made.add_argument("--prompts", type=numbers, default=[512, 1024])
    made.add_argument("--batches", type=numbers, default=[1, 4, 8, 16, 32])
    made.add_argument("--contexts", type=numbers, default=[0, 512])
    made.add_argument("--steps", type=int, default=32, help="of a repeat; twice as many for a batch of one")
    return made


def best(repeats, measure):
    return min(measure() for _ in range(repeats))


def report(what, batch, context, tokens_per_s):
    print(json.dumps({"what": what, "batch": batch, "context": context, "dtype": "stored", "policy": "full",
                      "tokens_per_s": round(tokens_per_s, 1)}), flush=True)


def report_memory():
    print(json.dumps({"what": "memory", "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
