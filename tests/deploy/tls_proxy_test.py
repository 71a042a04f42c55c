#!/usr/bin/env python3
"""HAProxy and nginx between a client and hydrantd, with TLS on both sides and a token, as in
docs/guide/gateways.md. hydrantd also requires a certificate of the proxy.

usage: tls_proxy_test.py HYDRANTD HYDRANT

Certificates are made with openssl. Exit status: 0 passed, 1 failed, 77 skipped: neither proxy is installed.
"""
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HYDRANTD, HYDRANT = sys.argv[1:3]


def tool(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:{ROOT}/.cache/bin")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


class Folder:
    """Certificates of one CA, for 127.0.0.1 and the name `hydrant`, and a file of tokens."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1", "-subj", "/CN=CA",
                     "-keyout", self.path("ca.key"), "-out", self.path("ca.crt"))
        for name in ("replica", "proxy"):
            self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}", "-addext",
                         "subjectAltName=DNS:hydrant,DNS:localhost,IP:127.0.0.1", "-keyout", self.path(f"{name}.key"), "-out",
                         self.path(f"{name}.csr"))
            self.openssl("x509", "-req", "-in", self.path(f"{name}.csr"), "-CA", self.path("ca.crt"), "-CAkey", self.path("ca.key"),
                         "-CAcreateserial", "-days", "1", "-copy_extensions", "copy", "-out", self.path(f"{name}.crt"))
        with open(self.path("tls.pem"), "w", encoding="utf-8") as both:
            for name in ("proxy.crt", "proxy.key"):
                with open(self.path(name), encoding="utf-8") as part:
                    both.write(part.read())
        made = run(HYDRANTD, "--new-token", "acme").stdout
        self.token = made.splitlines()[1]
        with open(self.path("tokens.yaml"), "w", encoding="utf-8") as tokens:
            tokens.write("tokens:\n" + made[made.index("  - tenant"):])

    def path(self, name: str) -> str:
        return os.path.join(self.folder.name, name)

    @staticmethod
    def openssl(*arguments: str) -> None:
        done = run("openssl", *arguments)
        if done.returncode != 0:
            raise AssertionError(done.stderr)


class Proxies(unittest.TestCase):
    def setUp(self) -> None:
        self.files = Folder()
        self.addCleanup(self.files.folder.cleanup)
        self.grpc, self.metrics, self.front = free_port(), free_port(), free_port()
        path = self.files.path
        self.launch(HYDRANTD, "--model", f"{ROOT}/models/hydrant-tiny.gguf", "--device", "reference", "--threads", "1", "--listen",
                    f"127.0.0.1:{self.grpc}", "--metrics-listen", f"127.0.0.1:{self.metrics}", "--tls-certificate", path("replica.crt"),
                    "--tls-key", path("replica.key"), "--tls-client-ca", path("ca.crt"), "--auth-tokens", path("tokens.yaml"))

    def launch(self, *command: str, **environment: str) -> None:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **environment})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

    def generate(self, token: str, ca: str = "ca.crt", port: int | None = None) -> subprocess.CompletedProcess[str]:
        return run(HYDRANT, "--address", f"localhost:{port or self.front}", "--tls-ca", self.files.path(ca), "generate", "--prompt",
                   "One", "--max-tokens", "4", HYDRANT_TOKEN=token)

    def check_the_way_through(self) -> None:
        deadline = time.monotonic() + 60
        while (done := self.generate(self.files.token)).returncode != 0 and time.monotonic() < deadline:
            time.sleep(0.2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("4 new tokens", done.stderr)
        self.assertIn("token is not known", self.generate("wrong").stderr)
        self.assertIn("Bearer TOKEN", self.generate("").stderr)
        self.assertNotEqual(self.generate(self.files.token, "replica.crt").returncode, 0, "another CA")
        self.assertNotEqual(self.generate(self.files.token, port=self.grpc).returncode, 0, "past the proxy, without a certificate")
        plain = run(HYDRANT, "--address", f"localhost:{self.front}", "generate", "--prompt", "One", HYDRANT_TOKEN=self.files.token)
        self.assertNotEqual(plain.returncode, 0, "without TLS")

    @unittest.skipUnless(tool("haproxy"), "haproxy is not installed")
    def test_haproxy(self) -> None:
        path = self.files.path
        nowhere = str(free_port())
        self.launch(tool("haproxy"), "-f", f"{ROOT}/deploy/haproxy/haproxy.cfg", HYDRANT_BIND=f"127.0.0.1:{self.front}",
                    HYDRANT_STATUS_BIND=f"127.0.0.1:{free_port()}", HYDRANT_1=f"127.0.0.1:{self.grpc}",
                    HYDRANT_1_PROBE=str(self.metrics), HYDRANT_2=f"127.0.0.1:{nowhere}", HYDRANT_2_PROBE=nowhere,
                    HYDRANT_CLIENT_TLS=f"ssl crt {path('tls.pem')} alpn h2",
                    HYDRANT_SERVER_TLS=f"ssl verify required verifyhost hydrant ca-file {path('ca.crt')} alpn h2 crt {path('tls.pem')}")
        self.check_the_way_through()

    @unittest.skipUnless(tool("nginx"), "nginx is not installed")
    def test_nginx(self) -> None:
        path = self.files.path
        with open(f"{ROOT}/deploy/nginx/nginx.conf", encoding="utf-8") as file:
            text = file.read()
        with open(f"{ROOT}/docs/guide/gateways.md", encoding="utf-8") as file:
            changes = re.search(r"```nginx\n(.*?)```", file.read(), re.DOTALL)[1]
        # Replaces lines of the configuration by those of the documentation.
        text = text.replace("    listen 50051 http2;\n", changes[:changes.index("    location")])
        text = text.replace("      grpc_pass grpc://hydrant;\n", changes[changes.index("      grpc_pass"):])
        for was, becomes in (("listen 50051", f"listen 127.0.0.1:{self.front}"), ("server hydrant-1:50051", f"server 127.0.0.1:{self.grpc}"),
                             ("server hydrant-2:50051", f"server 127.0.0.1:{free_port()}"), ("/etc/nginx/tls.crt", path("proxy.crt")),
                             ("/etc/nginx/tls.key", path("proxy.key")), ("/etc/nginx/ca.crt", path("ca.crt")),
                             ("/tmp/nginx", path("nginx"))):
            self.assertIn(was, text)
            text = text.replace(was, becomes)
        with open(path("nginx.conf"), "w", encoding="utf-8") as file:
            file.write(text)
        self.launch(tool("nginx"), "-c", path("nginx.conf"), "-g", "daemon off;", "-e", path("error.log"))
        self.check_the_way_through()


if __name__ == "__main__":
    if not tool("haproxy") and not tool("nginx"):
        print("skipped: neither haproxy nor nginx is installed")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
