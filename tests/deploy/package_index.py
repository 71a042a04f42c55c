"""Virtual environments with packages from PyPI, for tests."""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77


def environment(folder, packages):
    """The Python of a virtual environment with these packages; None, after printing the reason, if
    they are unavailable."""
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    # Modules are compiled at first use.
    if subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", *packages], check=False).returncode != 0:
        print(f"skipped: {', '.join(packages)} cannot be had: is a package index reachable?")
        return None
    return python


def run_tests(python, file, modules=(), **variables):
    """The exit status of the unit tests in this file; `modules` are folders to import from, beside
    tests/client."""
    path = os.pathsep.join(map(str, [*modules, ROOT / "tests" / "client"]))
    file = pathlib.Path(file)
    return subprocess.run([python, "-m", "unittest", "-v", file.stem], cwd=file.parent, check=False,
                          env={**os.environ, "GRPC_VERBOSITY": "ERROR", "PYTHONPATH": path, **variables}).returncode
