#!/usr/bin/env python3
"""Checks that kernels launched to overlap with their predecessor begin by waiting for it.

Reads the sources of kernels/cuda: each kernel of a file with LaunchOverlapped(), or of a header with such kernels, calls
WaitForPredecessor() before anything else. The one exception copies weights first (block_matmul.cuh).
Exit status: 0 passed, 1 failed.
"""
import pathlib
import re
import sys
import unittest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "kernels" / "cuda"
WAIT = "WaitForPredecessor();"
# Headers with overlapped kernels.
HEADERS = ["decode_attention.cuh", "decode_stream.cuh"]
# Statements of the product kernel before its wait: they compute its units and copy weights.
EARLY = r"begin_ = FirstUnitOf\(blockIdx\.x\); end_ = FirstUnitOf\(blockIdx\.x \+ 1\); Cursor copied = \{[^;]*\}; Cursor at = copied; CopyEarly\(copied\); "


def kernels(text):
    """Names of the kernels defined in a source, each with its first statement."""
    for found in re.finditer(r"__global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(([^{}]*)\) \{(.*?);", text, re.S):
        yield found[1], re.sub(r"//[^\n]*\n", "", found[3]).strip() + ";"


class Overlap(unittest.TestCase):
    def test_each_kernel_waits_first(self):
        seen = 0
        for source in sorted(FOLDER.glob("*.cu")):
            text = source.read_text(encoding="utf-8")
            if "LaunchOverlapped(" not in text:
                continue
            self.assertNotRegex(text, r"(?<!\w)Launch\(", f"{source.name}: one way of launching a file, so that each kernel is sure of its own")
            for name, first in kernels(text):
                seen += 1
                self.assertEqual(first, WAIT, f"{source.name}: {name} does something before it waits")
            self.assertEqual(text.count("__global__"), sum(1 for _ in kernels(text)), source.name)
        self.assertGreater(seen, 10)

    def test_kernels_of_headers_wait_first(self):
        for header in HEADERS:
            found = dict(kernels((FOLDER / header).read_text(encoding="utf-8")))
            self.assertEqual(set(found.values()), {WAIT}, f"{header}: {found}")

    def test_products_copy_weights_alone_before_they_wait(self):
        text = re.sub(r"//[^\n]*", "", (FOLDER / "block_matmul.cuh").read_text(encoding="utf-8"))
        text = re.sub(r"\s+", " ", text)
        run = text[text.index("void Run() {") :]
        self.assertRegex(run, r"^void Run\(\) \{ " + EARLY + re.escape(WAIT))
        early = text[text.index("void CopyEarly(") :]
        self.assertRegex(early, r"^void CopyEarly\(Cursor at\) const \{ for \([^)]*\) \{ CopyWeights\(at\); Advance\(at\); \} \}")
        self.assertEqual(text.count(WAIT), 1)

    def test_it_finds_one_that_does_not(self):
        text = "__global__ void __launch_bounds__(8) A(int x) {\n  // why\n  WaitForPredecessor();\n}\n__global__ void B(int* x) {\n  *x = 1;\n}\n"
        self.assertEqual(dict(kernels(text)), {"A": WAIT, "B": "*x = 1;"})


if __name__ == "__main__":
    sys.exit(unittest.main())
