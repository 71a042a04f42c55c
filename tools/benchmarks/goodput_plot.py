#!/usr/bin/env python3
"""Draws the results of tools/benchmarks/goodput: for each pool good requests a second over arriving
requests, and running sequences over the time of one probe. A pool measured with and without targets
is one plot: lines are with targets, dashes without. Servers without a pool (llama.cpp's) appear in
every plot of goodput.

  goodput_plot.py --out docs/goodput.svg --batch-at 2 build/goodput/*.json

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


def curve(arm):
    points = sorted(arm["points"], key=lambda point: point["rate"])
    return [point["rate"] for point in points], [point["rate"] * point["share"] for point in points]


def batch_over_time(arm, rate):
    point = next((point for point in arm["points"] if point["rate"] == rate and point.get("server")), None)
    if point is None:
        return [], []
    samples = point["server"][0]["samples"]
    return [sample["at_s"] for sample in samples], [sample["running"] for sample in samples]


def draw(sweeps, batch_at):
    pools = {}  # [pool's name][whether with targets]
    for sweep in sweeps:
        if sweep["label"].startswith("pool"):
            pools.setdefault(sweep["label"].removesuffix(", targets"), {})[sweep["label"].endswith(", targets")] = sweep
    others = [sweep for sweep in sweeps if not sweep["label"].startswith("pool")]
    figure, axes = plt.subplots(2, len(pools), figsize=(4 * len(pools), 6.5), sharey="row", squeeze=False)
    best = max(max(curve(arm)[1]) for sweep in sweeps for arm in sweep["arms"])
    most = max(point["rate"] for modes in pools.values() for sweep in modes.values() for arm in sweep["arms"] for point in arm["points"])
    for column, (name, modes) in enumerate(pools.items()):
        pool = modes[max(modes)]
        goodput, batch = axes[0][column], axes[1][column]
        goodput.plot([0, most], [0, most], color="#cccccc", linewidth=1, label="all good")
        for colour, arm in zip(COLOURS, pool["arms"]):
            goodput.plot(*curve(arm), marker="o", color=colour, label=arm["name"])
            batch.step(*batch_over_time(arm, batch_at), where="post", color=colour, linewidth=1)
        if len(modes) > 1:
            for colour, arm in zip(COLOURS, modes[False]["arms"]):
                goodput.plot(*curve(arm), "--", color=colour, linewidth=1, label=f"{arm['name']}, no targets")
        for colour, style, other in zip(COLOURS[len(pool["arms"]):], ("-", "--"), others):
            goodput.plot(*curve(other["arms"][0]), style, marker="s", markersize=4, color=colour, label=other["label"])
        goodput.set(title=name, xlabel="requests/s that arrive", ylim=(0, 1.25 * best))
        batch.set(xlabel=f"seconds, {batch_at:g} requests/s")
    axes[0][0].set_ylabel("good requests/s")
    axes[1][0].set_ylabel("sequences at once")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=3, frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path, help="of hydrant-load sweep --json")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="an SVG file")
    parser.add_argument("--batch-at", type=float, default=2, help="the rate whose batch is shown; default: %(default)s")
    args = parser.parse_args()
    sweeps = [json.loads(file.read_text(encoding="utf-8")) for file in args.files]
    draw(sweeps, args.batch_at).savefig(args.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
