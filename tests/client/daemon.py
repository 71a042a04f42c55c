"""hydrantd for the tests of clients: HYDRANTD names the program."""
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Daemon:
    """Runs until the block ends; `address` is its listening address."""

    def __init__(self, model, *flags, listen="127.0.0.1:0"):
        self._command = [os.environ["HYDRANTD"], "--model", str(model), "--listen", listen, "--device", "cpu", "--threads", "1",
                         "--kv-cache-memory-bytes", "64M", "--shutdown-timeout", "1", *flags]

    def __enter__(self):
        self._process = subprocess.Popen(self._command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        said = []
        for line in self._process.stderr:
            said.append(line)
            ready = re.search(r"ready after .* on (\S+)$", line)
            if ready:
                self.address = ready[1]
                # Later output is not read: the log drops lines instead of blocking.
                return self
        self._process.communicate()
        raise AssertionError("".join(said))

    def terminate(self):
        """Makes it drain and exit."""
        self._process.terminate()

    def __exit__(self, *_):
        self.terminate()
        self._process.communicate(timeout=30)
