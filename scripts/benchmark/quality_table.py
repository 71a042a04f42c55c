#!/usr/bin/env python3
"""Measures what choosing entries costs: a table of cache policies on a small model, as markdown. See docs/quality.md.

Two measures, both with the prompt compressed once and what follows appended, so that rows differ in the choice alone:

  nats     passages of 400 tokens are compressed and the next 100 given; how much worse these are foreseen than with the
           full cache, in nats a token
  needles  a five-digit number stands in 512 tokens of text; is it found when the question has been compressed with the
           text (seen), and when it comes afterwards (unseen)

Results are appended to --results, a line of JSON each, and what is there is not run again: the program may be stopped at any
time. Rows of policies that the build does not have are left out. Texts are plain UTF-8 files, wiki.test.raw of WikiText-2
and a book, say; needles are hidden in the first.

  cmake --build build/release --target policy_probe
  scripts/benchmark/quality_table.py --text wiki.test.raw --text moby_dick.txt
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
PROBE = ROOT / "build" / "release" / "tests" / "integration" / "policy_probe"

CONTEXT, GIVEN, HAYSTACK, GENERATED = 400, 100, 512, 10
NATS_RATIOS, NEEDLE_RATIOS = (0.1, 0.2, 0.4), (0.1, 0.2, 0.5)
NEEDLE = "\n The secret number of the lighthouse is {}. \n"
QUESTION = "\n\n Question: What is the secret number of the lighthouse?\n Answer: The secret number of the lighthouse is"

Json = dict[str, Any]


class Row:
    """A way to choose entries. `recent`: the protected window, as a share of the budget. `full_width`: all the measures."""

    def __init__(self, name: str, budgets: str, policy: str, recent: float | None = None, full_width: bool = True,
                 **fields: object) -> None:
        self.name, self.budgets, self.policy, self.recent, self.full_width = name, budgets, policy, recent, full_width
        self.params = fields.pop("params", {})
        self.fields = fields

    def key(self) -> str:
        return f"{self.name}, {self.budgets}"

    def cache(self, ratio: float, tokens: int) -> Json:
        cache: Json = {"policy": self.policy, "cache_ratio": ratio, "min_cache_tokens": 0, "params": self.params, **self.fields}
        if self.recent is not None:
            cache["protected_window_size"] = int(self.recent * ratio * tokens)
        return cache


def reconstruct(name: str, scope: str, sum_weight: int, max_weight: int) -> Row:
    where = {"layer": "per layer", "model": "all layers"}[scope]
    params = {"sum_weight": sum_weight, "max_weight": max_weight, "budget_scope": scope}
    return Row(f"reconstruct, {name}", where, "reconstruct", params=params)


def variant(name: str, **fields: object) -> Row:
    return Row("reconstruct", name, "reconstruct", full_width=False, **fields)


ROWS = [
    Row("h2o, recent 25 %", "per head", "h2o", recent=0.25),
    Row("h2o, recent 25 %", "per layer", "h2o", recent=0.25, params={"budget_scope": "layer"}),
    Row("h2o, recent 25 %", "all layers", "h2o", recent=0.25, params={"budget_scope": "model"}),
    Row("snapkv (window 32, pool 7)", "per head", "snapkv"),
    Row("tova", "per layer, one set", "tova"),
    Row("co2, alpha .01", "per head", "co2", params={"alpha": 0.01}),
    Row("co2, self-tuned", "per head", "co2", params={"self_tuning": "true"}),
    Row("co2, self-tuned", "all layers", "co2", params={"self_tuning": "true", "budget_scope": "model"}),
    Row("streaming (sinks + recents)", "per head", "streaming"),
    Row("random + recents", "per head", "random"),
    Row("subgen-kcenter", "per head", "subgen-kcenter"),
    reconstruct("sum", "layer", 1, 0),
    reconstruct("max", "layer", 0, 1),
    reconstruct("sum + 5 max", "layer", 1, 5),
    reconstruct("sum", "model", 1, 0),
    reconstruct("max", "model", 0, 1),
    reconstruct("sum + 5 max", "model", 1, 5),
]
# What other defaults of reconstruct would do; its own are candidates 8 and a window of 8.
VARIANTS = [
    variant("candidates 2", params={"candidates": 2}),
    variant("candidates 4", params={"candidates": 4}),
    variant("window 1", protected_window_size=1),
    variant("window 0, sinks 4", protected_window_size=0, sink_tokens=4),
    variant("window 8, sinks 4", sink_tokens=4),
    variant("a quarter recent", recent=0.25),
]
VARIANT_RATIOS = (0.1, 0.2)


class Probe:
    """The program that answers; see tests/integration/policy_probe.cc."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.command = [str(args.probe), "--model", str(args.model), "--dtype", args.dtype, "--device", args.device,
                        "--threads", str(args.threads), "--batch", "8", "--max-tokens", "1280"]

    def ask(self, questions: list[Json]) -> Iterator[Json]:
        process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin and process.stdout

        def write(stream: Any) -> None:
            for question in questions:
                stream.write(json.dumps(question) + "\n")
            stream.close()

        # Beside the reading: both pipes are bounded.
        threading.Thread(target=write, args=(process.stdin,), daemon=True).start()
        for line in process.stdout:
            yield json.loads(line)
        if process.wait() != 0:
            sys.exit(f"quality_table: {self.command[0]} ended with {process.returncode}")

    def tokens(self, texts: list[str]) -> list[list[int]]:
        return [answer["tokens"] for answer in self.ask([{"id": i, "text": text} for i, text in enumerate(texts)])]


def pieces(text: str, count: int, characters: int) -> list[str]:
    """From evenly spaced lines of the text on."""
    starts = [text.index("\n", len(text) * (2 * i + 1) // (2 * count)) + 1 for i in range(count)]
    return [text[start:start + characters] for start in starts]


def passages(probe: Probe, texts: list[str], count: int) -> list[list[int]]:
    split = [len(range(i, count, len(texts))) for i in range(len(texts))]
    cut = [piece for text, share in zip(texts, split, strict=True) for piece in pieces(text, share, 8 * (CONTEXT + GIVEN))]
    return [ids[:CONTEXT + GIVEN] for ids in probe.tokens(cut)]


class Needle:
    def __init__(self, number: str, haystack: list[int], question: list[int]) -> None:
        self.number, self.haystack, self.question = number, haystack, question


def needles(probe: Probe, text: str, count: int, seed: int) -> list[Needle]:
    """The i-th stands at (i + 1/2) / count of its haystack."""
    rng = random.Random(seed)
    numbers = [str(rng.randrange(10000, 100000)) for _ in range(count)]
    hay = probe.tokens(pieces(text, count, 8 * HAYSTACK))
    sentences = probe.tokens([NEEDLE.format(number) for number in numbers])
    question = probe.tokens([QUESTION])[0]
    made = []
    for i, sentence in enumerate(sentences):
        room = HAYSTACK - len(sentence)
        before = room * (2 * i + 1) // (2 * count)
        made.append(Needle(numbers[i], hay[i][:before] + sentence + hay[i][before:room], question))
    return made


def questions_of(args: argparse.Namespace, texts: list[str]) -> tuple[list[Json], list[Needle]]:
    """In an order in which a part of the results is a smaller table, not a part of one."""
    probe = Probe(args)
    reading = passages(probe, texts, args.passages)
    hidden = needles(probe, texts[0], args.needles, args.seed)
    asked: list[Json] = []

    def ask(measure: str, number: int, tokens: list[int], context: int, ratios: tuple[float, ...], **more: object) -> None:
        base = {"tokens": tokens, "context": context, "append": True, **more}
        asked.append({"id": ["full", measure, number, 1], "cache": {"policy": "full"}, **base})
        for row in ROWS + VARIANTS:
            for ratio in ratios:
                if row.full_width or (ratio in VARIANT_RATIOS and measure != "seen"):
                    asked.append({"id": [row.key(), measure, number, ratio], "cache": row.cache(ratio, context), **base})

    for i in range(max(args.passages, args.needles)):
        if i < len(reading):
            ask("nats", i, reading[i], CONTEXT, NATS_RATIOS)
        if i < len(hidden):
            # Depths far apart first.
            number = i * 7 % len(hidden) if len(hidden) % 7 else i
            tokens = hidden[number].haystack + hidden[number].question
            ask("unseen", number, tokens, HAYSTACK, NEEDLE_RATIOS, generate=GENERATED)
            ask("seen", number, tokens, len(tokens), NEEDLE_RATIOS, generate=GENERATED)
    return asked, hidden


class Results:
    """What has been answered, by id; kept in a file that begins with the settings it was made with."""

    def __init__(self, path: pathlib.Path, settings: Json) -> None:
        self.path = path
        self.values: dict[str, Json] = {}
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines[1:]:
            answer = json.loads(line)
            self.values[json.dumps(answer["id"])] = answer
        if not lines:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(settings) + "\n")
        elif json.loads(lines[0]) != settings:
            sys.exit(f"quality_table: {path} was made with other settings: {lines[0]}")

    def add(self, answer: Json) -> None:
        if "error" not in answer:
            self.values[json.dumps(answer["id"])] = answer
            with self.path.open("a") as file:
                file.write(json.dumps(answer) + "\n")

    def get(self, key: str, measure: str, number: int, ratio: float) -> Json | None:
        return self.values.get(json.dumps([key, measure, number, ratio]))


def run(args: argparse.Namespace, asked: list[Json], results: Results) -> None:
    missing = [question for question in asked if json.dumps(question["id"]) not in results.values]
    start = time.monotonic()
    refused: dict[str, str] = {}
    for done, answer in enumerate(Probe(args).ask(missing), 1):
        if "error" in answer:
            refused.setdefault(answer["id"][0], answer["error"])
        results.add(answer)
        part = done / len(missing)
        left = (time.monotonic() - start) / part * (1 - part)
        print(f"\r[{'#' * int(40 * part):40}] {done} of {len(missing)}, {left / 60:.0f} minutes left ", end="", file=sys.stderr,
              flush=True)
    print(file=sys.stderr)
    for key, error in refused.items():
        print(f"quality_table: {key}: {error}", file=sys.stderr)


def nats_lost(results: Results, key: str, ratio: float, passages_: int) -> str:
    lost = []
    for i in range(passages_):
        full, here = results.get("full", "nats", i, 1), results.get(key, "nats", i, ratio)
        if full and here:
            lost.append(here["nll"] - full["nll"])
    return f"{sum(lost) / len(lost):.3f}".replace("0.", ".", 1) if lost else "-"


def found(results: Results, key: str, measure: str, ratio: float, hidden: list[Needle]) -> str:
    """Of those that the full cache finds."""
    tries = hits = 0
    for i, needle in enumerate(hidden):
        full, here = results.get("full", measure, i, 1), results.get(key, measure, i, ratio)
        if full and here and needle.number in full["text"]:
            tries += 1
            hits += needle.number in here["text"]
    return f"{hits}/{tries}" if tries else "-"


def table(args: argparse.Namespace, results: Results, hidden: list[Needle]) -> None:
    read = [full["nll"] for i in range(args.passages) if (full := results.get("full", "nats", i, 1))]
    if read:
        print(f"\nNats lost at {', '.join(f'{r:.0%}' for r in NATS_RATIOS)} of the entries over the full cache, whose nll is "
              f"{sum(read) / len(read):.3f} ({len(read)} passages);\nneedles found at "
              f"{', '.join(f'{r:.0%}' for r in NEEDLE_RATIOS)}, of those that the full cache finds.\n")
    print("| how entries are chosen | budgets | nats lost | needles, question seen | question unseen |\n|---|---|---|---|---|")
    for row in ROWS + VARIANTS:
        nats = [nats_lost(results, row.key(), ratio, args.passages) for ratio in NATS_RATIOS]
        seen, unseen = ([found(results, row.key(), measure, ratio, hidden) for ratio in NEEDLE_RATIOS]
                        for measure in ("seen", "unseen"))
        if set(nats + seen + unseen) != {"-"}:
            print(f"| {row.name} | {row.budgets} | {' / '.join(nats)} | {' / '.join(seen)} | {' / '.join(unseen)} |")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=pathlib.Path, action="append", required=True, help="a text file; may be repeated")
    parser.add_argument("--model", type=pathlib.Path, default=MODEL, help="default: what scripts/fetch-model fetches")
    parser.add_argument("--probe", type=pathlib.Path, default=PROBE, help="policy_probe; default: the release build's")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "build" / "quality_table.jsonl")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16", "stored"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--passages", type=int, default=8)
    parser.add_argument("--needles", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1, help="of the numbers that are hidden")
    parser.add_argument("--quick", action="store_true", help="one passage and one needle, some minutes")
    parser.add_argument("--print-only", action="store_true", help="the table of what --results holds")
    args = parser.parse_args()
    if args.quick:
        args.passages = args.needles = 1
    return args


def main() -> None:
    args = parse_arguments()
    settings = {"model": args.model.name, "dtype": args.dtype, "texts": [text.name for text in args.text],
                "passages": args.passages, "needles": args.needles, "seed": args.seed}
    results = Results(args.results, settings)
    asked, hidden = questions_of(args, [text.read_text(encoding="utf-8") for text in args.text])
    if not args.print_only:
        run(args, asked, results)
    table(args, results, hidden)


if __name__ == "__main__":
    main()
