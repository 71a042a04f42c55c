"""hydrantd with TLS, client certificates and tokens on free ports; its own metrics, and the
kernel's figures for it."""
import collections
import hashlib
import os
import pathlib
import re
import signal
import ssl
import subprocess
import threading
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "hydrant-tiny.gguf"
TOKEN, ADMIN = "token-of-acme", "token-of-operator"


class Authority:
    """A CA in its own folder, and files that it has signed."""

    def __init__(self, folder):
        self.folder = folder
        self._openssl("req", "-x509", *self._new_key("ca"), "-out", "ca.crt", "-subj", "/CN=CA", "-days", "2")

    def sign(self, name, days=2):
        self._openssl("req", *self._new_key(name), "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (self.folder / f"{name}.ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n", encoding="utf-8")
        self._openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-days", str(days), "-out", f"{name}.crt",
                      "-extfile", f"{name}.ext")

    def path(self, name):
        return str(self.folder / name)

    def context(self, name=None, alpn="h2"):
        """Credentials of a client with the certificate `name`, or none."""
        context = ssl.create_default_context(cafile=self.path("ca.crt"))
        context.set_alpn_protocols([alpn])
        if name is not None:
            context.load_cert_chain(self.path(f"{name}.crt"), self.path(f"{name}.key"))
        return context

    @staticmethod
    def _new_key(name):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key"]

    def _openssl(self, *arguments):
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)


def tokens_yaml():
    entries = [("acme", TOKEN, ""), ("operator", ADMIN, ", admin: true")]
    return "tokens:\n" + "".join(f"  - {{tenant: {tenant}, sha256: {hashlib.sha256(token.encode()).hexdigest()}{more}}}\n"
                                 for tenant, token, more in entries)


class Daemon:
    """Its folder holds certificates, tokens and the log; `lines` counts log lines except those of
    finished requests. Thread safe."""

    def __init__(self, program, folder, flags=(), environment=None):
        self.authority = Authority(folder)
        for name in ("server", "client"):
            self.authority.sign(name)
        self.authority.sign("expired", days=-1)
        (folder / "tokens.yaml").write_text(tokens_yaml(), encoding="utf-8")
        (folder / "token").write_text(TOKEN + "\n", encoding="utf-8")
        path = self.authority.path
        command = [program, "--model", MODEL, "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--device", "cpu", "--threads", "1",
                   "--max-model-len", "1024", "--tls-certificate", path("server.crt"), "--tls-key",
                   path("server.key"), "--tls-client-ca", path("ca.crt"), "--auth-tokens", path("tokens.yaml"), *flags]
        self.lines, self.last = 0, collections.deque(maxlen=200)
        self._log = open(folder / "hydrantd.log", "w", encoding="utf-8")
        self._process = subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, text=True, errors="replace",
                                         env={**os.environ, **(environment or {})})
        self.address = self.metrics_address = None
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._ready.wait(120)
        if self.address is None:
            raise RuntimeError("hydrantd did not start: " + "".join(self.last))

    def _read(self):
        for line in self._process.stderr:
            self.lines += " info request " not in line
            self.last.append(line)
            self._log.write(line)
            if metrics := re.search(r"metrics and probes on http://(\S+)", line):
                self.metrics_address = metrics[1]
            if ready := re.search(r"ready after .* on (\S+)$", line):
                self.address = ready[1]
                self._ready.set()
        self._ready.set()

    @property
    def pid(self):
        return self._process.pid

    def alive(self):
        return self._process.poll() is None

    def tls(self, name="client", alpn="h2"):
        return self.authority.context(name, alpn)

    def reload(self):
        self._process.send_signal(signal.SIGHUP)

    def stop(self, timeout=90):
        """Its exit status; -9 if it had to be killed."""
        self._process.terminate()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        self._log.close()
        return self._process.returncode

    def rss(self):
        """Bytes."""
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu(self):
        """Seconds."""
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def metrics(self):
        """The value of each series, keyed by the beginning of its line in /metrics."""
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line and line[0] != "#")}


def unfinished(metrics):
    return sum(value for name, value in metrics.items() if name.startswith("hydrant_live_requests{"))


def free_pages(metrics):
    return metrics['hydrant_pages{state="free"}']


def is_empty(metrics):
    return unfinished(metrics) == 0 and free_pages(metrics) == metrics["hydrant_pages_total"]
