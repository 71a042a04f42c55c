#!/usr/bin/env python3
"""Runs EleutherAI's lm-evaluation-harness against hydrantd through a gateway with OpenAI's
interface, and compares its inputs and counts with answers of hydrantd's native contract.
`scripts/openai-demo -- COMMAND` starts both.

lm_eval comes from PyPI into OUT, a virtual environment. Exit status: 0 passed, 1 failed, 77
skipped: it is unavailable.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

from package_index import SKIPPED, environment

PACKAGES = ["lm_eval[api]==0.4.13"]
CASES = [("The capital of France is", "Paris"), ("One, two, three,", "four, five, six, seven, eight, nine"), ("Water boils at", "100 degrees"),
         ("The first month of the year is", "January")]
TOKENS, STOP = 12, "."
# By lm_eval's kind of model: its path, further arguments, and the equivalent arguments of
# hydrantd's client.
KINDS = {"local-completions": ("completions", [], ["generate", "--prompt"]),
         "local-chat-completions": ("chat/completions", ["--apply_chat_template"], ["chat"])}


def write_task(folder: pathlib.Path) -> None:
    cases = folder / "cases.jsonl"
    cases.write_text("".join(json.dumps({"prompt": prompt, "answer": answer}) + "\n" for prompt, answer in CASES), encoding="utf-8")
    task = {"task": "continue", "dataset_path": "json", "dataset_kwargs": {"data_files": str(cases)}, "test_split": "train",
            "output_type": "generate_until", "doc_to_text": "{{prompt}}", "doc_to_target": "{{answer}}",
            "generation_kwargs": {"until": [STOP], "max_gen_toks": TOKENS, "temperature": 0},
            "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
            "filter_list": [{"name": "trimmed", "filter": [{"function": "regex", "regex_pattern": r"\s*(.*\S)"}, {"function": "take_first"}]}]}
    (folder / "continue.yaml").write_text(json.dumps(task), encoding="utf-8")  # all JSON is YAML


def evaluate(python: pathlib.Path, kind: str, folder: pathlib.Path) -> tuple[list[str], float]:
    """lm_eval's answer for each case, and its count of right answers."""
    path, further, _ = KINDS[kind]
    out = folder / kind
    model = f"model=smollm2,base_url={os.environ['OPENAI_BASE_URL']}/{path},tokenizer_backend=None,max_retries=1"
    subprocess.run([python, "-m", "lm_eval", "--model", kind, "--model_args", model, "--tasks", "continue", "--include_path", folder,
                    "--log_samples", "--output_path", out, *further], check=True,
                   env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf"),
                        "PYTHONDONTWRITEBYTECODE": ""})  # the second run finds what the first has compiled
    newest = {name: max(out.rglob(f"{name}_*"), key=lambda file: file.stat().st_mtime) for name in ("samples", "results")}
    samples = [json.loads(line) for line in newest["samples"].read_text(encoding="utf-8").splitlines()]
    samples.sort(key=lambda sample: sample["doc_id"])
    results = json.loads(newest["results"].read_text(encoding="utf-8"))["results"]["continue"]
    return [sample["resps"][0][0] for sample in samples], results["exact_match,trimmed"]


def ask(client: pathlib.Path, kind: str) -> list[str]:
    *_, command = KINDS[kind]
    return [subprocess.run([client, *command, prompt, "--temperature", "0", "--max-tokens", str(TOKENS), "--stop", STOP], check=True,
                           stdout=subprocess.PIPE, text=True).stdout for prompt, _ in CASES]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", type=pathlib.Path, required=True, help="the program `hydrant`")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    folder = args.out.resolve()
    python = environment(folder, PACKAGES)
    if python is None:
        return SKIPPED
    runs = folder / "runs"  # lm_eval reads all YAML below
    runs.mkdir(exist_ok=True)
    write_task(runs)
    for kind in KINDS:
        told, score = evaluate(python, kind, runs)
        own = ask(args.client.resolve(), kind)
        print(kind, told, score)
        assert [text.strip() for text in told] == [text.strip() for text in own], (kind, told, own)
        right = sum(text.strip() == answer for text, (_, answer) in zip(own, CASES))
        assert score == right / len(CASES), (kind, score, right)
    return 0


if __name__ == "__main__":
    sys.exit(main())
