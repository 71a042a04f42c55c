#!/usr/bin/env python3
"""Makes the Python client's wheel, installs it into its own environment, and runs its tests against hydrantd there.

Exit status: 0 passed, 1 failed, 77 skipped: no package index can be reached.
"""
import argparse
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SKIPPED = 77


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="where wheel and environment are made")
    args = parser.parse_args()
    args.out, args.daemon = args.out.resolve(), args.daemon.resolve()

    made = subprocess.run([sys.executable, ROOT / "scripts" / "python-client", "--out", args.out], stdout=subprocess.PIPE, text=True,
                          check=False)
    if made.returncode != 0:
        return SKIPPED if made.returncode == 2 else 1
    wheel = made.stdout.strip().splitlines()[-1]

    python = args.out / "environment" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([sys.executable, "-m", "venv", args.out / "environment"], check=True)
    if subprocess.run([*pip, f"{wheel}[typing]", "mypy"], check=False).returncode != 0:
        print("skipped: the client's dependencies cannot be had")
        return SKIPPED
    # The same version may already be installed.
    subprocess.run([*pip, "--force-reinstall", "--no-deps", wheel], check=True)

    for check in (["-m", "mypy", "--strict", "-p", "hydrant"], ["-m", "mypy", "--strict", HERE / "python_client_types.py"],
                  ["-m", "unittest", "-v", "python_client_checks"]):
        environment = {**os.environ, "HYDRANTD": str(args.daemon), "MYPY_CACHE_DIR": str(args.out / "mypy"), "GRPC_VERBOSITY": "ERROR"}
        if subprocess.run([python, *check], cwd=HERE, env=environment, check=False).returncode != 0:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
