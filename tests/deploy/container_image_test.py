#!/usr/bin/env python3
"""Builds the container image with buildah and asks its programs for their version.

Exit status: 0 passed, 1 failed, 77 skipped: buildah is not installed, or cannot run here.
"""
import pathlib
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


def main():
    reason = why_not()
    if reason:
        print(f"skipped: {reason}")
        return SKIPPED
    # The image's last step runs its programs.
    done = subprocess.run([str(ROOT / "scripts" / "container-image"), "--tool", "buildah", "--tag", TAG], stdout=subprocess.PIPE, text=True,
                          check=False)
    if done.returncode != 0:
        return 1
    subprocess.run(["podman", "rmi", TAG], stdout=subprocess.DEVNULL, check=False)
    return 0 if done.stdout.splitlines()[-1] == TAG else 1


if __name__ == "__main__":
    sys.exit(main())
