#!/usr/bin/env python3
"""Checks that handwritten lists of folders, sources and tests are complete.

usage: lists_test.py ROOT
"""
import functools
import os
import pathlib
import re
import sys

import layout_test

# Folders that are not part of the build.
APART = {"build", ".cache", ".venv", ".git"}
SOURCES = {".cc", ".cu"}


def files(root, *suffixes):
    """Yields the paths of the files with these suffixes, relative to the root."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in APART and not name.startswith("build"))
        yield from (pathlib.Path(folder, name).relative_to(root) for name in sorted(names) if pathlib.Path(name).suffix in suffixes)


@functools.lru_cache(maxsize=None)
def cmake_text(root, folder):
    """The text of the CMake files in a folder and in the folders above it."""
    here = "".join(path.read_text(encoding="utf-8") for path in [root / folder / "CMakeLists.txt", *(root / folder).glob("*.cmake")]
                   if path.exists())
    return here + (cmake_text(root, folder.parent) if folder.parts else "")


def sources_that_nothing_builds(root):
    for name in files(root, *SOURCES):
        text = cmake_text(root, name.parent)
        stem = re.escape(name.stem)
        globbed = rf"{re.escape(name.parent.name)}/\*\{name.suffix}|^file\(GLOB .*[ (]\*\{name.suffix}"
        named = rf"(?<![\w.]){stem}(?![\w])"
        if not re.search(named, text) and not re.search(globbed, text, re.M):
            yield f"{name}: no CMakeLists.txt names it"


def folders_that_nothing_enters(root):
    for name in files(root, ".txt"):
        if name.name == "CMakeLists.txt" and len(name.parts) > 1:
            folder = name.parent
            words = set(re.findall(r"[\w/]+", cmake_text(root, folder.parent)))
            if not words & {"/".join(folder.parts[i:]) for i in range(len(folder.parts))}:
                yield f"{folder}: no CMakeLists.txt above adds it"


def text_of_tests(root):
    return "".join((root / "tests" / name).read_text(encoding="utf-8") for name in files(root / "tests", ".txt", ".cmake"))


def tests_that_nothing_runs(root):
    text = text_of_tests(root)
    for name in files(root, ".py"):
        if name.name.endswith("_test.py") and name.name not in text:
            yield f"{name}: no CMakeLists.txt of tests/ runs it"


def tests_that_no_gpu_sees(root):
    emulated = set(re.findall(r"^hydrant_emulated_cuda_test\((\w+)", text_of_tests(root), re.M))
    listed = set(re.findall(r'"(\w+_test):', (root / "scripts" / "gpu-check").read_text(encoding="utf-8")))
    for name in sorted(emulated - listed):
        yield f"scripts/gpu-check: {name} runs in the emulation, but not on a GPU"


def folders_without_a_place(root):
    for name in files(root, *SOURCES):
        if name.parts[0] != "tests" and layout_test.folder_of(name.as_posix()) not in layout_test.BELOW:
            yield f"{name}: tests/layout_test.py has no place for its folder"


def main():
    root = pathlib.Path(sys.argv[1])
    checks = [sources_that_nothing_builds, folders_that_nothing_enters, tests_that_nothing_runs, tests_that_no_gpu_sees,
              folders_without_a_place]
    wrong = [line for check in checks for line in check(root)]
    seen = sum(1 for _ in files(root, *SOURCES))
    print("\n".join(wrong))
    print(f"{seen} sources, {len(wrong)} faults")
    return 1 if wrong or seen < 500 else 0


if __name__ == "__main__":
    sys.exit(main())
