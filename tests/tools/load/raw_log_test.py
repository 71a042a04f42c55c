#!/usr/bin/env python3
"""Compares hydrant-load's figures with its own raw log: runs a load with faults through a whole
daemon, and recomputes percentiles from the CSV and the arrays of the JSON, with the standard
library.

  raw_log_test.py HYDRANT_LOAD HYDRANTD MODEL FOLDER
"""

import csv
import json
import pathlib
import socket
import statistics
import subprocess
import sys

QUANTILES = {"p90": 900, "p95": 950, "p99": 990, "p99.9": 999}  # of a thousand
MICROSECOND = 2e-3  # in ms: the CSV's last digit, for two times


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def check(name: str, said: float, computed: float) -> None:
    if abs(said - computed) > MICROSECOND + 1e-9 * abs(computed):
        sys.exit(f"{name}: {said} is reported, and the raw log has {computed}")


def check_times(report: dict, kind: str, times: list[float]) -> None:
    """Milliseconds."""
    check(f"mean_{kind}_ms", report[f"mean_{kind}_ms"], statistics.fmean(times))
    check(f"median_{kind}_ms", report[f"median_{kind}_ms"], statistics.median(times))
    cuts = statistics.quantiles(times, n=1000, method="inclusive")
    for name, permille in QUANTILES.items():
        check(f"{name}_{kind}_ms", report[f"{name}_{kind}_ms"], cuts[permille - 1])
    check(f"max_{kind}_ms", report[f"max_{kind}_ms"], max(times))


def check_report(report: dict, rows: list[dict]) -> None:
    completed = [row for row in rows if row["ending"] == "completed"]
    if len(completed) < 100 or len(completed) == len(rows):
        sys.exit(f"{len(completed)} of {len(rows)} requests completed: nothing to compare")
    check("completed", report["completed"], len(completed))
    check("total_input_tokens", report["total_input_tokens"], sum(int(row["input_tokens"]) for row in completed))
    check("total_output_tokens", report["total_output_tokens"], sum(int(row["output_tokens"]) for row in rows))
    first = [1e3 * (float(row["first_token_s"]) - float(row["intended_s"])) for row in completed]
    last = [1e3 * (float(row["last_token_s"]) - float(row["intended_s"])) for row in completed]
    several = [(int(row["output_tokens"]), end - begin) for row, begin, end in zip(completed, first, last, strict=True)
               if int(row["output_tokens"]) > 1]
    check_times(report, "ttft", first)
    check_times(report, "e2el", last)
    check_times(report, "tpot", [time / (tokens - 1) for tokens, time in several])
    gaps_of_completed = [gaps for gaps, row in zip(report["itls"], rows, strict=True) if row["ending"] == "completed"]
    check_times(report, "itl", [1e3 * gap for gaps in gaps_of_completed for gap in gaps])
    check("request_throughput", report["request_throughput"], len(completed) / report["duration"])


def main() -> None:
    load, daemon, model, folder = sys.argv[1], sys.argv[2], sys.argv[3], pathlib.Path(sys.argv[4])
    folder.mkdir(parents=True, exist_ok=True)
    address = f"127.0.0.1:{free_port()}"
    server = subprocess.Popen([daemon, "--model", model, "--listen", address], stderr=subprocess.DEVNULL)
    try:
        subprocess.run([load, "--address", address, "--wait", "60", "--num-prompts", "300", "--input-len", "30", "--output-len", "20",
                        "--range-ratio", "0.9", "--max-concurrency", "8", "--mix", "full@1,h2o:max_cache_tokens=24@1",
                        "--cancel-rate", "0.2", "--malformed-rate", "0.1", "--json", str(folder / "report.json"), "--csv",
                        str(folder / "requests.csv"), "--quiet"], check=True, timeout=240)
    finally:
        server.terminate()
        server.wait(timeout=60)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    with open(folder / "requests.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    check_report(report, rows)
    print(f"{len(rows)} requests: the figures are those of the raw log")


if __name__ == "__main__":
    main()
