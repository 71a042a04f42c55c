#!/usr/bin/env python3
"""Draws the output of hydrant-sim --json: running and waiting sequences, the share of pages in use,
and times to the first token. Several files are lines of one plot, named by their files.

  simulator_plot.py --out run.svg run.json other.json

Needs matplotlib.
"""

import argparse
import json
import pathlib

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "hydrant", "svg.fonttype": "none"})  # the same file from the same figures
from matplotlib import pyplot as plt  # noqa: E402  (the backend is chosen first)

COLOURS = ["#1b6ca8", "#d1495b", "#2e8b57", "#8a6fb0", "#555555"]
QUANTILES = [("median", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("p99.9", 99.9)]


def draw(runs):
    figure, (sequences, pages, first_token) = plt.subplots(3, 1, figsize=(8, 8))
    for index, (name, run) in enumerate(runs.items()):
        colour = COLOURS[index % len(COLOURS)]
        windows = run["timeline"]["windows"]
        times = [window["at_s"] for window in windows]
        sequences.step(times, [window["running"] for window in windows], where="post", color=colour, label=name)
        sequences.step(times, [window["waiting"] for window in windows], "--", where="post", color=colour, linewidth=1)
        pages.step(times, [100 * window["page_use"] for window in windows], where="post", color=colour)
        first_token.plot([str(percent) for _, percent in QUANTILES], [run[f"{key}_ttft_ms"] / 1000 for key, _ in QUANTILES],
                         marker="o", color=colour)
    sequences.set(ylabel="sequences (dashed: waiting)", xlabel="simulated seconds")
    pages.set(ylabel="% of the pages in use", xlabel="simulated seconds", ylim=(0, None))
    first_token.set(ylabel="TTFT, s", xlabel="percentile", yscale="log")
    sequences.legend(frameon=False)
    figure.tight_layout()
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path, help="of hydrant-sim --json")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="an SVG file")
    args = parser.parse_args()
    runs = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in args.files}
    draw(runs).savefig(args.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
