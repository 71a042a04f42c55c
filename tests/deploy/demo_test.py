#!/usr/bin/env python3
"""Runs scripts/demo with programs that are already built. It uses the downloaded model if that is there, else the small one.

Nothing is downloaded. Exit status: 0 passed, 1 failed.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Keeps the demonstration from reaching the hub and the package registry.
OFFLINE = {"HF_ENDPOINT": "http://127.0.0.1:9", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=pathlib.Path, required=True)
    args = parser.parse_args()
    done = subprocess.run([str(ROOT / "scripts" / "demo"), "--programs", str(args.programs.resolve())], stdout=subprocess.PIPE,
                          env={**os.environ, **OFFLINE}, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.returncode
    assert re.findall(r"^=== (\w+):", done.stdout, re.M) == ["full", "auto", "local"]
    assert len(re.findall(r"^\[[\d,]+ tokens of prompt, read in .*; [\d,]+ pages of memory at most\]$", done.stdout, re.M)) == 3
    whole, kept = re.search(r"hold (\d+) such requests at once with the whole cache, or (\d+) as auto", done.stdout.splitlines()[-1]).groups()
    assert 1 <= int(whole) < int(kept), (whole, kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
