"""Runs a hydrantd for a measurement."""

from __future__ import annotations

import contextlib
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def daemon(build: pathlib.Path, model: str, threads: int, *flags: str) -> Iterator[str]:
    """A hydrantd for the duration of the block; yields its address."""
    command = [str(build / "server/hydrantd"), "--model", model, "--listen", "127.0.0.1:0", "--device", "cpu", "--threads",
               str(threads), *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            ready = re.search(r"ready after.*?(127\.0\.0\.1:\d+)", line)
            if ready:
                break
        else:
            sys.exit("hydrantd did not start")
        try:
            yield ready.group(1)
        finally:
            process.terminate()
            process.stderr.read()
