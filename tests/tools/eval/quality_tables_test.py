#!/usr/bin/env python3
"""Checks how tools/benchmarks/quality puts the tables of hydrant-eval into one: every figure in its row and column, and better or worse
than another policy from the comparison.

usage: quality_tables_test.py ROOT
"""
import importlib.machinery
import importlib.util
import pathlib
import sys

sys.dont_write_bytecode = True

TABLES = """2026-01-01, a machine: 4 cases of each task.

**perplexity**: nats a token lost over the full cache:

| policy | 10 % | 20 % |
|---|---|---|
| `a` | 0.100 ±0.010 | 0.050 ±0.010 |
| `b` | 0.300 ±0.010 | 0.060 ±0.020 |

**needle**: found, of what the full cache finds:

| policy | 10 % | 20 % |
|---|---|---|
| `a` | 50 % of 4 | 75 % of 4 |
| `b` | 0 % of 4 | 100 % of 4 |

**perplexity**: nats a token more than a, over the same cases (**better**, *worse*):

| policy | 10 % | 20 % |
|---|---|---|
| `b` | *+0.200 ±0.010* | +0.010 ±0.020 |

**needle**: found more than a, over the same cases (**better**, *worse*):

| policy | 10 % | 20 % |
|---|---|---|
| `b` | *-50 ±10 %* | **+25 ±10 %** |"""

AVERAGES = """| policy | nats lost | needles found |
|---|---|---|
| `b` | 0.180 | 50 % |
| `a` | 0.075 | 62 % |"""

SIDE_BY_SIDE = """2026-01-01, a machine: 4 cases of each task.
`perplexity`: nats a token lost over the full cache; `needle`: found, of what the full cache finds (of 4); **better** or *worse* than `a` over the same cases, beyond chance.

| policy | perplexity 10 % | 20 % | needle 10 % | 20 % | nats lost | needles found |
|---|---|---|---|---|---|---|
| `b` | *0.300 ±0.010* | 0.060 ±0.020 | *0 %* | **100 %** | 0.180 | 50 % |
| `a` | 0.100 ±0.010 | 0.050 ±0.010 | 50 % | 75 % | 0.075 | 62 % |"""

A_COLUMN_A_TASK = """a machine
found, of what the full cache finds (of 4), in %, at 10 / 20 % of the entries.

| policy | needle | lines |
|---|---|---|
| `a` | 50 / 75 | 25 / 100 |"""


# Two contexts; the full cache fails one of the second's questions, which therefore does not count. RULER's questions all count.
ROWS = [
    {"task": task, "case": case, "question": question, "arm": arm, "budget": budget, "nll": nll, "found": found}
    for task, case, question, by_arm in [
        ("perplexity", 1, 0, {("full", 1.0): (3.0, 0), ("a", 0.1): (3.2, 0), ("b", 0.1): (3.5, 0)}),
        ("perplexity", 3, 0, {("full", 1.0): (2.0, 0), ("a", 0.1): (2.2, 0), ("b", 0.1): (2.5, 0)}),
        ("facts-exact", 1, 0, {("full", 1.0): (0, 1), ("a", 0.1): (0, 1), ("b", 0.1): (0, 0)}),
        ("facts-exact", 1, 1, {("full", 1.0): (0, 1), ("a", 0.1): (0, 0), ("b", 0.1): (0, 0)}),
        ("facts-exact", 3, 0, {("full", 1.0): (0, 1), ("a", 0.1): (0, 1), ("b", 0.1): (0, 1)}),
        ("facts-exact", 3, 1, {("full", 1.0): (0, 0), ("a", 0.1): (0, 0), ("b", 0.1): (0, 1)}),
        ("vt", 1, 0, {("full", 1.0): (0, 0.5), ("a", 0.1): (0, 0.25), ("b", 0.1): (0, 0.5)}),
        ("cwe", 1, 0, {("full", 1.0): (0, 0), ("a", 0.1): (0, 0.25), ("b", 0.1): (0, 0.5)}),
    ]
    for (arm, budget), (nll, found) in by_arm.items()
]

# Interval of the facts of a: scores of 50 and 100, 1.96 * 35.36 / sqrt(2) = 49.
TASKS = """| policy | nats lost (2) | facts (2) | RULER (2) |
|---|---|---|---|
| `full` | 0 | 100 | 25 |
| `a` | 0.200 ±0.000 | 75 ±49 | 25 ±0 |
| `b` | *0.500 ±0.000* | 50 ±98 | **50 ±0** |"""


def main():
    path = pathlib.Path(sys.argv[1], "tools/benchmarks/quality")
    loader = importlib.machinery.SourceFileLoader("quality", str(path))
    quality = importlib.util.module_from_spec(importlib.util.spec_from_loader("quality", loader))
    loader.exec_module(quality)
    one_task = "**{}**: found, of what the full cache finds:\n\n| policy | 10 % | 20 % |\n|---|---|---|\n| `a` | {} % of 4 | {} % of 4 |\n\n"
    for found, wanted in ((quality.side_by_side(TABLES, AVERAGES), SIDE_BY_SIDE),
                          (quality.a_column_a_task("a machine\n\n" + one_task.format("needle", 50, 75) + one_task.format("lines", 25, 100)),
                           A_COLUMN_A_TASK),
                          (quality.tasks_table(ROWS, "a"), TASKS)):
        if found != wanted:
            sys.exit(f"wanted\n{wanted}\n\nfound\n{found}")


if __name__ == "__main__":
    main()
