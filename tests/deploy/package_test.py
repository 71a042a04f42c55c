#!/usr/bin/env python3
"""Packs the programs of the build folder, and installs, starts and purges the package in its own
root folder, without a chroot.

The test replaces systemd, with the unit's command line and the socket for sd_notify. Exit status: 0
passed, 1 failed, 77 skipped: not a Debian system, or a tool is missing.
"""
import argparse
import os
import pathlib
import re
import shutil
import shlex
import socket
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "hydrant-tiny.gguf"
SKIPPED = 77
PROGRAMS = {"hydrantd", "hydrant", "hydrant-load", "hydrant-eval", "hydrant-sim"}
package = None  # its path
cuda_package = None  # hydrant-cuda; None if the build has no nvcc


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          **options)
    if done.returncode != 0:
        raise AssertionError(f"{shlex.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def dpkg(root, *arguments):
    """Runs dpkg on the root folder: maintainer scripts run on this machine, and see it as
    $DPKG_ROOT. Dependencies are this machine's."""
    return run("dpkg", f"--root={root}", "--force-not-root", "--force-script-chrootless", "--force-depends", *arguments,
               env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"})


def files_of(root):
    """All files except dpkg's own."""
    found = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() or path.is_symlink()}
    return {name for name in found if not name.startswith("var/lib/dpkg/") and name != "var/log/dpkg.log"}


class Notifications:
    """The socket on which systemd would listen."""

    def __init__(self, name):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(name.replace("@", "\0", 1))
        self._socket.settimeout(60)

    def next(self):
        return self._socket.recv(4096).decode()

    def close(self):
        self._socket.close()


class Installed(unittest.TestCase):
    """A root folder in which a package can be installed."""

    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for folder in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/log"):
            (self.root / folder).mkdir(parents=True)
        (self.root / "var/lib/dpkg/status").touch()

    def install(self):
        dpkg(self.root, "--install", package)


class Package(Installed):
    def unit(self, name):
        text = (self.root / "lib/systemd/system/hydrantd.service").read_text(encoding="utf-8")
        return re.search(rf"^{name}=(.*)$", text, re.MULTILINE)[1]

    def command(self):
        """The command line that systemd would build from the unit and /etc/hydrant/hydrantd.yaml."""
        program, *flags = self.unit("ExecStart").split()
        self.assertEqual(flags, ["--config", "/etc/hydrant/hydrantd.yaml"])
        return [self.root / program.lstrip("/"), "--config", self.root / flags[1].lstrip("/")]

    def test_what_is_in_it(self):
        control = run("dpkg-deb", "--field", package)
        self.assertRegex(control, r"(?m)^Package: hydrant$")
        self.assertIn("libgrpc++", control)
        self.assertIn("ca-certificates", control)
        version = re.search(r"^project\(hydrant VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"), re.MULTILINE)[1]
        self.assertRegex(control, rf"(?m)^Version: {re.escape(version)}$")
        self.assertEqual(run("dpkg-deb", "--info", package, "conffiles"), "/etc/hydrant/hydrantd.yaml\n")
        self.install()
        files = files_of(self.root)
        self.assertEqual({pathlib.Path(name).name for name in files if name.startswith("usr/bin/")}, PROGRAMS)
        pages = {pathlib.Path(name).name for name in files if name.startswith("usr/share/man/")}
        self.assertEqual(pages, {f"{name}.{8 if name == 'hydrantd' else 1}.gz" for name in PROGRAMS})
        self.assertEqual([name for name in files if "test" in name or name.endswith((".a", ".h"))], [])
        self.assertIn("--kv-cache-memory-bytes", run("zcat", self.root / "usr/share/man/man8/hydrantd.8.gz").replace("\\-", "-"))
        for program in PROGRAMS:
            run(self.root / "usr/bin" / program, "--help")

    def test_it_serves_and_says_so(self):
        self.install()
        command = self.command()
        settings = pathlib.Path(command[-1])
        text = settings.read_text(encoding="utf-8")
        for key, value in (("model", MODEL), ("listen", "127.0.0.1:0"), ("metrics-listen", "127.0.0.1:0")):
            text, changed = re.subn(rf"(?m)^{key}: .*$", f"{key}: {value}", text)  # keys of the conffile
            self.assertEqual(changed, 1, key)
        settings.write_text(text, encoding="utf-8")
        self.assertIn(f"model: {MODEL}\n", run(*command, "--check-config"))
        for name in (str(self.root / "notify"), "@hydrant-package-test"):
            with self.subTest(name):
                listener = Notifications(name)
                self.addCleanup(listener.close)
                daemon = subprocess.Popen([*command, "--device", "cpu", "--threads", "1", "--kv-cache-memory-bytes", "32M"],
                                          env={**os.environ, "NOTIFY_SOCKET": name}, stderr=subprocess.PIPE, text=True, cwd=ROOT)
                self.addCleanup(daemon.stderr.close)
                self.addCleanup(daemon.wait)
                self.addCleanup(daemon.kill)
                self.assertEqual(listener.next(), "READY=1")
                address = next(line for line in daemon.stderr if "ready after" in line).split()[-1]
                # systemd was notified, so the daemon serves.
                answer = run(self.root / "usr/bin/hydrant", "--address", address, "generate", "--prompt", "Once", "--max-tokens", "3")
                self.assertIn("3 new tokens", answer)
                daemon.terminate()
                self.assertEqual(listener.next(), "STOPPING=1")
                self.assertEqual(daemon.wait(timeout=60), 0)

    def test_nobody_listens(self):
        self.install()
        done = subprocess.Popen([self.root / "usr/bin/hydrantd", "--model", MODEL, "--listen", "127.0.0.1:0", "--device", "cpu",
                                 "--kv-cache-memory-bytes", "32M"], stderr=subprocess.PIPE, text=True,
                                env={**os.environ, "NOTIFY_SOCKET": str(self.root / "absent")})
        said = next(line for line in done.stderr if "systemd does not hear" in line)
        self.assertIn("READY=1", said)
        done.terminate()
        done.communicate(timeout=60)
        self.assertEqual(done.returncode, 0)

    def test_removing_leaves_what_is_the_administrators_and_purging_nothing(self):
        self.install()
        settings = self.root / "etc/hydrant/hydrantd.yaml"
        settings.write_text("model: mine\n", encoding="utf-8")
        kept = self.root / "var/lib/private/hydrant/contexts/one"
        kept.parent.mkdir(parents=True)
        kept.touch()
        (self.root / "var/lib/hydrant").symlink_to("private/hydrant")
        dpkg(self.root, "--force-confold", "--install", package)  # an upgrade
        self.assertIn("mine", settings.read_text(encoding="utf-8"))
        dpkg(self.root, "--remove", "hydrant")
        self.assertEqual(files_of(self.root), {"etc/hydrant/hydrantd.yaml", "var/lib/hydrant", "var/lib/private/hydrant/contexts/one"})
        dpkg(self.root, "--purge", "hydrant")
        self.assertEqual(files_of(self.root), set())
        self.assertFalse((self.root / "etc/hydrant").exists())

    def test_the_unit_is_sound_and_keeps_the_daemon_in_its_place(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("systemd-analyze is not installed")
        self.install()
        # Based on this machine's units, with the installed programs and files.
        text = (self.root / "lib/systemd/system/hydrantd.service").read_text(encoding="utf-8")
        unit = self.root / "hydrantd.service"
        unit.write_text(text.replace("=/usr/", f"={self.root}/usr/").replace("=/etc/", f"={self.root}/etc/"), encoding="utf-8")
        self.assertNotIn("hydrantd.service:", run("systemd-analyze", "--man=no", "verify", unit))
        # From 0, fully sandboxed, to 100; a plain service has 96.
        run("systemd-analyze", f"--root={self.root}", "--offline=yes", "--threshold=20", "security", "hydrantd.service")

    def test_lintian(self):
        if not shutil.which("lintian"):
            self.skipTest("lintian is not installed")
        run("lintian", "--allow-root", "--fail-on=error,warning", package)


class CudaPackage(Installed):
    """hydrant-cuda beside hydrant."""

    def setUp(self):
        if cuda_package is None:
            self.skipTest("built without nvcc")
        super().setUp()

    def install(self):
        super().install()
        dpkg(self.root, "--install", cuda_package)

    def test_what_is_in_it(self):
        control = run("dpkg-deb", "--field", cuda_package)
        version = run("dpkg-deb", "--field", package, "Version").strip()
        self.assertRegex(control, rf"(?m)^Depends: .*\bhydrant \(= {re.escape(version)}\)")
        self.assertRegex(control, r"(?m)^Recommends: libcublas-13-0\b")
        self.assertNotIn("libgrpc", control)
        super().install()
        before = files_of(self.root)
        dpkg(self.root, "--install", cuda_package)
        brought = {name for name in files_of(self.root) - before if "/share/" not in name}
        self.assertEqual(brought, {"usr/lib/libhydrant_cuda.so", "lib/systemd/system/hydrantd.service.d/cuda.conf"})

    def test_without_a_driver_the_daemon_says_so_in_a_line(self):
        self.install()
        command = [self.root / "usr/bin/hydrantd", "--model", MODEL, "--listen", "127.0.0.1:0", "--log-level", "error", "--device", "cuda"]
        # It looks for a driver first; if a variable names the module, it loads that at once.
        module = {"HYDRANT_CUDA_MODULE": str(self.root / "usr/lib/libhydrant_cuda.so")}
        for more, words in (({}, "no NVIDIA driver"), (module, "no CUDA device can be used")):
            done = subprocess.run(command, env={**os.environ, **more}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  check=False, timeout=60)
            if "libcublasLt.so.13" in done.stderr:
                self.skipTest("cuBLAS 13 is not where the loader looks")
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertRegex(done.stderr, rf"\Ahydrantd: device cuda: [^\n]*{words}[^\n]*580 or later[^\n]*\n\Z")

    def test_the_unit_sees_the_gpu_and_no_other_device(self):
        self.install()
        text = (self.root / "lib/systemd/system/hydrantd.service.d/cuda.conf").read_text(encoding="utf-8")
        settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
        self.assertEqual(settings["PrivateDevices"], "no")
        self.assertEqual(settings["DevicePolicy"], "closed")
        self.assertEqual(settings["DeviceAllow"], "char-nvidia* rw")
        self.assertTrue(settings["Environment"].startswith("CUDA_CACHE_PATH=%C/hydrant/"))

    def test_removing_it_leaves_the_daemon(self):
        super().install()
        before = files_of(self.root)
        dpkg(self.root, "--install", cuda_package)
        dpkg(self.root, "--purge", "hydrant-cuda")
        self.assertEqual(files_of(self.root), before)

    def test_lintian(self):
        if not shutil.which("lintian"):
            self.skipTest("lintian is not installed")
        run("lintian", "--allow-root", "--fail-on=error,warning", cuda_package)


def main():
    global package, cuda_package
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="a build folder in which all programs are built")
    args, rest = parser.parse_known_args()
    command = [ROOT / "scripts" / "package", "--built", "--dir", args.build.resolve()]
    cuda = (args.build / "lib" / "libhydrant_cuda.so").exists()
    made = subprocess.run(command + ["--cuda"] * cuda, stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode == 2:
        print("skipped: the tools that make Debian packages are not installed")
        return SKIPPED
    if made.returncode != 0:
        return 1
    package, *others = made.stdout.strip().splitlines()[-1 - cuda:]
    cuda_package = others[0] if others else None
    return not unittest.main(argv=[sys.argv[0], *rest], verbosity=2, exit=False).result.wasSuccessful()


if __name__ == "__main__":
    sys.exit(main())
