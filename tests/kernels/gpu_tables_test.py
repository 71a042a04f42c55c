#!/usr/bin/env python3
"""Checks the processing of GPU measurements without a GPU: the device model against measured figures, the tables of a whole run and their
size, and that device_probe's lines are parsed.

usage: gpu_tables_test.py ROOT DEVICE_PROBE MODULE

MODULE is the emulated device's shared object, with ceilings.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

MOST_BYTES = 10500  # scripts/gpu-check prints no more
SECTIONS = ("bf16 product", "product of 14336 x 4096 in blocks", "decode attention", "prompt attention", "decode step", "requests of", "wanted")


def run(*command):
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{command}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def as_measured(row):
    """A row of the model with the additional fields of a measurement."""
    extra = {"prefill_attention": {"share_of_matmul": 0.4, "echo_seconds": 1e-3},
             "decode_attention": {"cold_seconds": row["seconds"]},
             "throughput": {"requests": 128, "finished": 100, "preemptions": 1, "step_ms_p50": 1, "step_ms_p99": 2, "host_us": 3, "peak_batch": 4}}
    return {**row, **extra.get(row["what"], {}), "who": "hydrant"}


def main():
    root, probe, module = map(pathlib.Path, sys.argv[1:])
    tools = root / "tools/benchmarks"
    table, model = tools / "gpu_table.py", tools / "gpu_model.py"
    print(run(sys.executable, model, "--check").splitlines()[-1])
    docs = (root / "docs/results/gpu.md").read_text(encoding="utf-8")
    for line in run(sys.executable, model).splitlines():
        if line not in docs:
            sys.exit(f"docs/results/gpu.md lacks what gpu_model.py prints: {line}")
    with tempfile.TemporaryDirectory() as folder:
        expected, measured, probed = (pathlib.Path(folder, name) for name in ("expected", "measured", "probed"))
        for card in ("h100", "h200"):
            run(sys.executable, model, "--card", card, "--json", expected)
            rows = [as_measured(json.loads(line)) for line in expected.read_text(encoding="utf-8").splitlines()]
            peer = {"what": "decode_attention", "who": "flashinfer", "variant": "decode.cuh", "batch": 64, "length": 512, "seconds": 5e-5}
            measured.write_text("".join(json.dumps(row) + "\n" for row in [*rows, peer]), encoding="utf-8")
            text = run(sys.executable, table, "--expected", expected, measured)
            missing = [section for section in SECTIONS if f"| {section}" not in text and section not in text]
            if missing or len(text.encode()) > MOST_BYTES:
                sys.exit(f"{card}: no {missing}, {len(text.encode())} bytes of at most {MOST_BYTES}\n{text}")
            # Expected and measured values stand side by side; here they are equal.
            row = next(line for line in text.splitlines() if line.startswith("| 64 x 512 |"))
            us, beside = row.split("|")[2:4]
            if us != beside or "50.0 (decode.cuh)" not in row:
                sys.exit(f"{card}: the expected figure or the peer is not beside the measured one: {row}")
        run(probe, "--quick", "--module", module, "--ceilings", module, "--json", probed)
        text = run(sys.executable, table, probed)
        for row in ("| 64 x 32 |", "| 1 x 300 |", "| 3 x 40 |", "| 96 |", "| q4_k |", "- copy, by hydrant", "- reading alone"):
            if row not in text:
                sys.exit(f"device_probe's lines make no '{row}':\n{text}")
        variant = pathlib.Path(folder, "variant")
        both = probed.read_text(encoding="utf-8")
        variant.write_text("".join(json.dumps({**json.loads(line), "module": name}) + "\n" for name in ("a", "b") for line in both.splitlines()),
                           encoding="utf-8")
        text = run(sys.executable, table, variant)
        if "| us | a | b | b to a |" not in text or "1.000" not in text:
            sys.exit(f"variants are not side by side:\n{text}")


if __name__ == "__main__":
    main()
