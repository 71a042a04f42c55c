#!/usr/bin/env python3
"""Turns the CSV of Nsight Compute (standard input) for one launch into a JSON line; see scripts/gpu-check.

  ncu --csv --metrics ... PROGRAM | ncu_lines.py KERNEL

Without metrics (profiling is not permitted, or the kernel did not run) the line says so, with ncu's
last output.
"""

from __future__ import annotations

import csv
import json
import sys

# Name of a metric in the output line, and the divisor of its unit.
NAMES = {
    "gpu__time_duration.sum": ("us", 1e3),
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("dram_percent", 1),
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": ("l2_percent", 1),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("occupancy_percent", 1),
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": ("waits_for_memory", 1),
    "l1tex__data_bank_conflicts_pipe_lsu.sum": ("bank_conflicts", 1),
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": ("tensor_percent", 1),
}


def main() -> None:
    said = list(sys.stdin)
    lines = [line for line in said if line.startswith('"')]
    found: dict[str, float] = {}
    for row in csv.DictReader(lines):
        name = row.get("Metric Name", "")
        if name in NAMES:
            short, unit = NAMES[name]
            try:
                found[short] = float(row["Metric Value"].replace(",", "")) / unit
            except ValueError:  # n/a: the card has no such counter
                continue
    if not found:
        words = [line.strip() for line in said if line.startswith("==")][-1:]
        print(json.dumps({"what": "skipped", "who": "ncu", "name": sys.argv[1], "reason": " ".join(["no metric", *words])[:160]}))
        return
    print(json.dumps({"what": "ncu", "who": "hydrant", "kernel": sys.argv[1], **found}))


if __name__ == "__main__":
    main()
