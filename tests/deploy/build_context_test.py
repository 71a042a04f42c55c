#!/usr/bin/env python3
"""Checks the build context, as filtered by .dockerignore, against the Dockerfile, without
compiling.

Configures with the Dockerfile's own options, asks ninja for the Dockerfile's targets, and looks for
each file that the sources include, that is installed, or that a step of the Dockerfile names. Exit
status: 0 passed, 1 failed.
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

from small_setup import ROOT, hidden

# Untracked folders of a checkout that are not part of the context.
NEVER = {".git", "build", ".venv"}
SOURCES = {".cc", ".h", ".cu", ".cuh"}


def expression(pattern):
    """The regular expression of a .dockerignore pattern: Go's filepath.Match, with ** for any number of folders."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]*\])", pattern.strip("/"))
    special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(special.get(part) or (part if part.startswith("[") else re.escape(part)) for part in parts))


class Ignored:
    """The rules of .dockerignore: the last pattern that matches a path, or a folder above it, decides."""

    def __init__(self, text):
        lines = [line.strip() for line in text.splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        self.rules = [(line.startswith("!"), line.lstrip("!"), expression(line.lstrip("!"))) for line in lines]

    def sends(self, path):
        above = ["/".join(path.split("/")[:length]) for length in range(1, path.count("/") + 2)]
        sent = True
        for kept, _, matches in self.rules:
            if any(matches.fullmatch(name) for name in above):
                sent = kept
        return sent

    def may_send_from(self, folder):
        return self.sends(folder) or any(kept and pattern.startswith(folder + "/") for kept, pattern, _ in self.rules)


def context_files():
    ignored = Ignored((ROOT / ".dockerignore").read_text(encoding="utf-8"))
    for folder, folders, files in os.walk(ROOT):
        here = pathlib.Path(folder).relative_to(ROOT)
        folders[:] = [name for name in folders if name not in NEVER and ignored.may_send_from((here / name).as_posix())]
        yield from (name for name in ((here / file).as_posix() for file in files) if ignored.sends(name))


def steps():
    """The Dockerfile's instructions, each as one line."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.M)
    return re.sub(r"\\\n", " ", text).splitlines()


def builds():
    """For each scripts/build call of the Dockerfile: its targets, and its CMake options."""
    for step in steps():
        for command in re.findall(r"scripts/build ([^&]*)", step):
            words = shlex.split(command)
            end = words.index("--")
            yield [words[i + 1] for i in range(end) if words[i] == "--target"], words[end + 1:]


class BuildContext(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        work = tempfile.TemporaryDirectory()
        cls.addClassCleanup(work.cleanup)
        cls.context = pathlib.Path(work.name).resolve() / "src"
        cls.files = set(context_files())
        for name in cls.files:
            (cls.context / name).parent.mkdir(parents=True, exist_ok=True)
            (cls.context / name).symlink_to(ROOT / name)

    def run_there(self, *command):
        done = subprocess.run(command, cwd=self.context, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(done.returncode, 0, f"{shlex.join(command)}\n{done.stdout[-4000:]}")
        return done.stdout

    def test_configures_and_has_the_targets(self):
        (targets, options), *others = list(builds())
        folder = self.context / "build" / "image"
        self.run_there("cmake", "--preset", "release", "-B", str(folder), *hidden(), *options)
        self.run_there("ninja", "-C", str(folder), "-t", "query", *targets)
        installed = set()
        for script in folder.rglob("cmake_install.cmake"):
            found = re.findall(r'CMAKE_INSTALL_COMPONENT STREQUAL "(\w+)".*?\n((?:.*\n)*?)endif\(\)', script.read_text(encoding="utf-8"))
            for component, body in found:
                if component == "Unspecified":
                    installed.update(re.findall(rf'"{re.escape(str(self.context))}/(?!build/)([^"]+)"', body))
        self.assertEqual({name for name in installed if not (self.context / name).exists()}, set())
        # The image for arm64 has the same targets. The CUDA image builds one more, which exists only with nvcc.
        self.assertEqual([set(more) - set(targets) for more, _ in others], [set(), {"hydrant_cuda"}])

    def test_has_what_its_sources_include(self):
        missing = set()
        for name in self.files:
            if pathlib.PurePosixPath(name).suffix in SOURCES and not name.startswith(".cache/"):
                included = re.findall(r'^\s*#\s*include "([^"]+)"', (ROOT / name).read_text(encoding="utf-8"), re.M)
                missing.update(f"{name} includes {other}" for other in included if (ROOT / other).is_file() and other not in self.files)
        self.assertEqual(missing, set())

    def test_has_what_the_steps_name(self):
        named = set()
        for step in steps():
            if "--from=" not in step:
                named.update(re.findall(r"(?<![\w/.])((?:scripts|deploy)/[\w/.-]+)", step))
        self.assertIn("deploy/collect-licences", named)
        self.assertEqual(named - self.files, set())
        self.assertTrue(all(os.access(ROOT / name, os.X_OK) for name in named))


class CudaTarget(unittest.TestCase):
    """Checks that otherwise need an image with the CUDA toolkit."""

    @classmethod
    def setUpClass(cls):
        cls.stages = {}
        for step in steps():
            if begins := re.match(r"FROM (\S+)(?: AS (\S+))?$", step):
                cls.stages[begins[2] or "default"] = body = [step]
            elif step.strip() and cls.stages:
                body.append(step.strip())

    def words(self, stage):
        return " ".join(self.stages[stage])

    def test_is_the_same_image_but_for_the_backend(self):
        self.assertEqual(self.stages["cuda"][0], "FROM runtime AS cuda")
        self.assertEqual(self.stages["build-cuda"][0], "FROM tools AS build-cuda")
        self.assertEqual(self.stages["default"], ["FROM cpu"])
        self.assertIn("COPY --from=build-cuda /opt/hydrant /usr/local", self.stages["cuda"])

    def test_has_what_the_container_toolkit_looks_for(self):
        self.assertRegex(self.words("cuda"), r"NVIDIA_VISIBLE_DEVICES=all\b.*NVIDIA_DRIVER_CAPABILITIES=compute,utility\b")

    def test_brings_cublas_once_and_looks_for_every_library(self):
        self.assertRegex(self.words("build-cuda"), r"cp --dereference /usr/local/cuda-13.0/\S*/libcublasLt.so.13 /opt/hydrant/lib/")
        self.assertNotIn("libcublasLt", self.words("cuda"))
        self.assertRegex(self.words("cuda"), r"ldd /usr/local/lib/libhydrant_cuda.so .*not found")

    def test_the_toolkit_is_one_version_everywhere(self):
        version = re.search(r"^ARG CUDA_TOOLKIT=nvidia/cuda:(\d+\.\d+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.M)[1]
        named = set(re.findall(r"/usr/local/cuda-(\d+\.\d+)", self.words("build-cuda")))
        self.assertEqual(named, {version})
        script = (ROOT / "scripts" / "container-image").read_text(encoding="utf-8")
        self.assertIn(f"nvidia/cuda:{version}.", script)
        self.assertIn(f"/usr/local/cuda-{version}/", script.replace("usr/local", "/usr/local").replace("//", "/"))

    def test_compiles_for_what_cmake_does_by_default(self):
        default = re.search(r'set\(HYDRANT_CUDA_ARCHITECTURES "([^"]+)"', (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))[1]
        self.assertIn(f'ARG CUDA_ARCHITECTURES="{default}"', self.stages["build-cuda"])


class Patterns(unittest.TestCase):
    def test_the_last_one_decides(self):
        ignored = Ignored("# all\n*\n!a\n!b/c\na/**/*.o\n")
        sent = [name for name in ("a/x", "a/y.o", "a/d/y.o", "b/c", "b/d", "ab", "c") if ignored.sends(name)]
        self.assertEqual(sent, ["a/x", "b/c"])
        self.assertTrue(ignored.may_send_from("b"))
        self.assertFalse(ignored.may_send_from("c"))


if __name__ == "__main__":
    sys.exit(unittest.main())
