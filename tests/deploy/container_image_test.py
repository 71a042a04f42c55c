#!/usr/bin/env python3
"""Builds the container image with buildah; the last step of the build runs its programs.

With --cuda, the image with the CUDA backend, for one architecture; also checks its message on a
machine without a driver. With --arm64, the image for 64-bit ARM, whose programs run under qemu in
the build.

Exit status: 0 passed, 1 failed, 77 skipped: buildah is not installed or cannot run here, or --cuda
without nvcc 13.0.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TAG = "hydrant-test"
SKIPPED = 77


def why_not():
    """The reason why no image can be built here; None if one can."""
    for tool in ("buildah", "podman", "mmdebstrap"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (scripts/setup --cluster)"
    done = subprocess.run(["buildah", "from", "--name", TAG + "-try", "scratch"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)
    subprocess.run(["buildah", "rm", TAG + "-try"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return None if done.returncode == 0 else f"buildah cannot run: {done.stdout.strip()}"


def has_toolkit():
    if shutil.which("nvcc") is None:
        return False
    said = subprocess.run(["nvcc", "--version"], stdout=subprocess.PIPE, text=True, check=False).stdout
    return "release 13.0," in said


def refuses_without_a_driver(tag):
    """Whether the image's daemon ends with status 1 and one line if the container has no GPU."""
    podman = ["podman"] + ([] if pathlib.Path("/run/systemd/system").is_dir() else ["--cgroup-manager", "cgroupfs"])
    podman += ["run", "--rm", "--network", "host", "--no-healthcheck", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096", tag]
    asked = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "check": False}
    done = subprocess.run([*podman, "--version"], **asked)
    if done.returncode != 0:
        print(f"built, and not started: no container can run here: {done.stderr.strip()}")
        return True
    done = subprocess.run([*podman, "--device", "cuda", "--model", "/models/model.gguf", "--listen", "127.0.0.1:0", "--log-level", "error"],
                          **asked)
    said = re.fullmatch(r"hydrantd: device cuda: [^\n]*no NVIDIA driver[^\n]*--gpus all[^\n]*\n", done.stderr)
    if done.returncode == 1 and said:
        return True
    print(f"exit status {done.returncode}:\n{done.stdout}{done.stderr}")
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--cuda", action="store_true")
    kind.add_argument("--arm64", action="store_true")
    arguments = parser.parse_args()
    cuda = arguments.cuda
    reason = why_not()
    if reason is None and cuda and not has_toolkit():
        reason = "nvcc 13.0 is not installed"
    if reason:
        print(f"skipped: {reason}")
        return SKIPPED
    tag = TAG + (":cuda" if cuda else ":arm64" if arguments.arm64 else "")
    target = ["--target", "cuda", "--architectures", "90a-real"] if cuda else []
    if arguments.arm64:
        target = ["--platform", "linux/arm64"]
    done = subprocess.run([str(ROOT / "scripts" / "container-image"), "--tool", "buildah", "--tag", tag, *target], stdout=subprocess.PIPE,
                          text=True, check=False)
    if done.returncode != 0:
        return 1
    passed = done.stdout.splitlines()[-1] == tag and (not cuda or refuses_without_a_driver(tag))
    subprocess.run(["podman", "rmi", tag], stdout=subprocess.DEVNULL, check=False)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
