#!/usr/bin/env python3
"""Runs scripts/fetch-model against a hub and a package registry that the test provides. Exit status: 0 passed, 1 failed."""
import contextlib
import functools
import hashlib
import http.server
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import sys
import tempfile
import threading
import unittest
import unittest.mock
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PIECES = [b"a" * 3_000_000, b"b" * 2_000_000]
CONTENT = b"".join(PIECES)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def load():
    loader = importlib.machinery.SourceFileLoader("fetch_model", str(ROOT / "scripts" / "fetch-model"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("fetch_model", loader))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


class Hub(http.server.BaseHTTPRequestHandler):
    """Behaves like huggingface.co: HEAD gives the digest in a redirect, GET gives the bytes."""

    def __init__(self, said, content, *args):
        self.said, self.content = said, content
        super().__init__(*args)

    def do_HEAD(self):
        self.send_response(302)
        self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.send_header("X-Linked-Etag", f'"{self.said}"')
        self.end_headers()

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def hub(said, content):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Hub, said, content))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def write_wheels(folder):
    for i, content in enumerate(PIECES, 1):
        name = f"some_model_part{i}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(folder / name, "w") as wheel:
            info = f"some_model_part{i}-1.0.dist-info"
            wheel.writestr(f"some_model_part{i}/data/piece.bin", content)
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: some-model-part{i}\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")


class FetchModel(unittest.TestCase):
    def setUp(self):
        work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.script = load()
        self.script.MODELS_DIR = work / "models"
        self.script.MODELS = {"some": self.script.Model("some.gguf", SHA256, 5, "org/some/some.gguf",
                                                        self.script.parts("some-model-part", "1.0", 2))}
        self.target = work / "models" / "some.gguf"
        (work / "wheels").mkdir()
        write_wheels(work / "wheels")
        self.wheels = work / "wheels"

    def fetch(self, hub_address, wheels=None, name="some"):
        """Returns the exit status and the messages."""
        environment = {"HF_ENDPOINT": hub_address, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels or ""), "PIP_CONFIG_FILE": os.devnull}
        said = io.StringIO()
        with unittest.mock.patch.dict(os.environ, environment), unittest.mock.patch.object(sys, "argv", ["fetch-model", name]), \
             contextlib.redirect_stdout(io.StringIO()), unittest.mock.patch.object(self.script, "say", lambda text: said.write(f"{text}\n")):
            return self.script.main(), said.getvalue()

    def test_takes_the_hub(self):
        with hub(SHA256, CONTENT) as address:
            status, said = self.fetch(address)
        self.assertEqual((status, self.target.read_bytes()), (0, CONTENT), said)
        status, said = self.fetch("http://127.0.0.1:9")  # the file is there: no request is made
        self.assertEqual((status, said), (0, "already there, checksum correct\n"))

    def test_takes_the_packages_where_the_hub_has_another_file_or_breaks_its_word(self):
        for said, content in (("0" * 64, CONTENT), (SHA256, b"other bytes")):
            self.target.unlink(missing_ok=True)
            with hub(said, content) as address:
                status, told = self.fetch(address, self.wheels)
            self.assertEqual((status, self.target.read_bytes()), (0, CONTENT), told)

    def test_mends_a_damaged_copy(self):
        self.target.parent.mkdir()
        self.target.write_bytes(CONTENT[:-1])
        with hub(SHA256, CONTENT) as address:
            self.assertEqual(self.fetch(address)[0], 0)
        self.assertEqual(self.target.read_bytes(), CONTENT)

    def test_says_that_nothing_was_reached(self):
        status, said = self.fetch("http://127.0.0.1:9")
        self.assertEqual(status, 2)
        self.assertIn("PIP_INDEX_URL", said)
        self.assertEqual(list(self.script.MODELS_DIR.iterdir()), [])

    def test_refuses_a_damaged_package_and_an_unknown_name(self):
        self.script.MODELS["some"] = self.script.MODELS["some"]._replace(sha256="0" * 64)
        status, said = self.fetch("http://127.0.0.1:9", self.wheels)
        self.assertEqual(status, 1)
        self.assertIn(SHA256, said)
        status, said = self.fetch("http://127.0.0.1:9", name="same")
        self.assertEqual((status, said), (1, "there is no model 'same'; there are some\n"))


if __name__ == "__main__":
    unittest.main()
