#!/usr/bin/env python3
"""Checks that no CUDA kernel uses more registers, stack or spills than its limit. Local memory costs bandwidth, registers cost warps.

usage: cuda_resources_test.py [--table] FOLDER LIMITS

The script reads all FOLDER/**/*.resources (cmake/keep-resources). LIMITS has a kernel a line, separated by tabs: its name, where `*` stands
for any characters, bytes of stack, bytes of spills (stores and loads), registers a thread. The first line that matches a kernel is its limit; a
kernel without one may have no stack, no spills and 255 registers. --table prints all kernels, with the warps that the registers of a
multiprocessor of compute capability 9.0 suffice for.

Exit status: 0 all kernels are within their limits, 1 some are not, 77 there are no reports (no nvcc).
"""
import argparse
import collections
import fnmatch
import pathlib
import re
import subprocess
import sys

SKIPPED = 77
REGISTERS_OF_A_MULTIPROCESSOR, MOST_WARPS = 65536, 64
Kernel = collections.namedtuple("Kernel", "name stack spills registers")


def kernels_of(file):
    """Mangled name, stack, spills and registers of each kernel in a report."""
    name = stack = spills = None
    for line in file.read_text(encoding="utf-8").splitlines():
        if entry := re.search(r"Compiling entry function '(\w+)'", line):
            name = entry[1]
        elif bytes_of := re.match(r" +(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stack, spills = int(bytes_of[1]), int(bytes_of[2]) + int(bytes_of[3])
        elif (used := re.search(r"Used (\d+) registers", line)) and name:
            yield Kernel(name, stack, spills, int(used[1]))
            name = None


def short(demangled):
    """The name without namespaces and parameters: F<...> of hydrant::cuda::(anonymous namespace)::F<...>(...)."""
    text = re.sub(r"hydrant::cuda::|hydrant::|\(anonymous namespace\)::|^void ", "", demangled)
    text = re.sub(r"\(DType\)(\d+)", r"\1", text)
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return text[:at]
    return text


def read_kernels(folder):
    kernels = [kernel for file in sorted(folder.rglob("*.resources")) for kernel in kernels_of(file)]
    names = subprocess.run(["c++filt"], input="\n".join(kernel.name for kernel in kernels), text=True, capture_output=True,
                           check=True).stdout.splitlines()
    return sorted(kernel._replace(name=short(name)) for kernel, name in zip(kernels, names))


def read_limits(file):
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    return [Kernel(name, int(stack), int(spills), int(registers)) for name, stack, spills, registers in rows]


def limit_of(limits, name):
    # Brackets are letters here.
    fits = (limit for limit in limits if fnmatch.fnmatchcase(name, limit.name.replace("[", "[[]")))
    return next(fits, Kernel(name, 0, 0, 255))


def warps(registers):
    of_a_warp = (registers + 7) // 8 * 8 * 32
    return min(MOST_WARPS, REGISTERS_OF_A_MULTIPROCESSOR // of_a_warp)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("limits", type=pathlib.Path)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    kernels, limits = read_kernels(args.folder), read_limits(args.limits)
    if not kernels:
        print(f"there is no *.resources in {args.folder}: the CUDA backend was not built")
        return SKIPPED
    failed = 0
    for kernel in kernels:
        if args.table:
            print(f"{kernel.registers:4} registers {warps(kernel.registers):3} warps {kernel.stack:5} stack {kernel.spills:5} spills  {kernel.name}")
        limit = limit_of(limits, kernel.name)
        for what in ("stack", "spills", "registers"):
            if getattr(kernel, what) > getattr(limit, what):
                print(f"{kernel.name}: {what} {getattr(kernel, what)}, at most {getattr(limit, what)} ({args.limits.name})")
                failed += 1
    unused = [limit.name for limit in limits if not any(limit_of(limits, kernel.name) is limit for kernel in kernels)]
    for name in unused:
        print(f"{args.limits.name}: no kernel is {name}")
    print(f"{len(kernels)} kernels, {failed} figures over their limits")
    return 1 if failed or unused else 0


if __name__ == "__main__":
    sys.exit(main())
