#!/usr/bin/env python3
"""Checks the machine code of hot CUDA kernels: tensor cores are used, keys, values and weights are read by wide loads, and
local memory is not used.

usage: cuda_sass_test.py [--table] [--tools FOLDER] FOLDER LIMITS

The script reads the objects beside FOLDER/**/*.resources (cmake/keep-resources) with cuobjdump and nvdisasm, from PATH or --tools
(scripts/fetch-wheel cuda-tools). LIMITS has one kernel per line, separated by tabs:

  its name, where `*` matches any characters; with a leading `?` the kernel may be missing
  its arithmetic instruction, e.g. HMMA or HGMMA, and the least number of them
  the least share of wide loads: the fraction of bytes that hot loops load from global memory in accesses of at least 16 bytes,
     counting each instruction once
  the least width of the kernel's asynchronous copies (LDGSTS) in bytes; 0: it needs none
  the most loads and stores of local memory (LDL, STL) in the whole kernel

A hot loop contains arithmetic and loads, and no smaller loop inside it contains both. --table prints the values of the kernels in
LIMITS.

Exit status: 0 all kernels are within their limits, 1 some are not, 77 there are no reports (no nvcc) or no tools.
"""
import collections
import os
import re
import shutil
import subprocess
import sys

import cuda_kernels

Limit = collections.namedtuple("Limit", "name math count share copy local")
Instruction = collections.namedtuple("Instruction", "at opcode modifiers target")
Found = collections.namedtuple("Found", "count share copy local")
NARROW = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
BULK = ("UTMALDG", "UBLKCP")  # the Tensor Memory Accelerator: a whole tile


def read_limits(file):
    return [Limit(name, math, int(count), float(share), int(copy), int(local))
            for name, math, count, share, copy, local in cuda_kernels.read_rows(file)]


def instructions_of(sass):
    """Parses cuobjdump's output: the instructions of each function, by mangled name."""
    functions, here = {}, None
    for line in sass.splitlines():
        if function := re.match(r"\s*Function : (\w+)", line):
            here = functions.setdefault(function[1], [])
        elif here is not None and (code := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);", line)):
            opcode, *modifiers = code[2].split(".")
            target = re.search(r"0x[0-9a-f]+", code[3]) if opcode == "BRA" else None
            here.append(Instruction(int(code[1], 16), opcode, modifiers, int(target[0], 16) if target else None))
    return functions


def loaded_bytes(instruction):
    """Bytes of global memory that a thread loads; 0 for other instructions."""
    if instruction.opcode in BULK:
        return 16
    if instruction.opcode not in ("LDG", "LD", "LDGSTS"):
        return 0
    return next((NARROW[m] for m in instruction.modifiers if m in NARROW), 4)


def hot_loops(code, math):
    """The instructions of the smallest loops with both arithmetic and loads."""
    loops = sorted({(i.target, i.at) for i in code if i.target is not None and i.target <= i.at}, key=lambda loop: loop[1] - loop[0])
    hot = []
    for begin, end in loops:
        body = [i for i in code if begin <= i.at <= end]
        busy = any(i.opcode == math for i in body) and any(loaded_bytes(i) for i in body)
        if busy and not any(begin <= other[0].at and other[-1].at <= end for other in hot):
            hot.append(body)
    return {i.at: i for body in hot for i in body}.values()


def measure(code, math):
    loads = [loaded_bytes(i) for i in hot_loops(code, math)]
    wide = sum(size for size in loads if size >= 16)
    return Found(count=sum(i.opcode == math for i in code), share=wide / sum(loads) if sum(loads) else 0.0,
                 copy=min((loaded_bytes(i) for i in code if i.opcode == "LDGSTS"), default=0),
                 local=sum(i.opcode in ("LDL", "STL") for i in code))


def disassemble(kernels, tools):
    """Mangled name -> instructions. cuobjdump finds nvdisasm on PATH."""
    path = f"{tools}:{os.environ['PATH']}" if tools else os.environ["PATH"]
    functions = {}
    for file in {kernel.file for kernel in kernels}:
        names = ",".join(kernel.symbol for kernel in kernels if kernel.file == file)
        run = subprocess.run(["cuobjdump", "-sass", "-fun", names, str(file)], env={**os.environ, "PATH": path}, text=True,
                             capture_output=True, check=True)
        functions.update(instructions_of(run.stdout))
    return functions


def why_over(limit, found):
    """Yields the limits that a kernel exceeds."""
    if found.count < limit.count:
        yield f"{found.count} {limit.math}, at least {limit.count}"
    if found.share < limit.share - 0.005:
        yield f"{found.share:.2f} of the bytes that hot loops load come 16 at a time, at least {limit.share:.2f}"
    if limit.copy and found.copy < limit.copy:
        yield f"the narrowest asynchronous copy has {found.copy} bytes, at least {limit.copy}"
    if found.local > limit.local:
        yield f"{found.local} loads and stores of local memory, at most {limit.local}"


def main():
    args, kernels = cuda_kernels.parse_arguments(__doc__, "--tools")
    limits = read_limits(args.limits)
    chosen = []
    if not ((args.tools and (args.tools / "nvdisasm").exists()) or (shutil.which("cuobjdump") and shutil.which("nvdisasm"))):
        print("no cuobjdump and nvdisasm: scripts/fetch-wheel cuda-tools fetches them")
        return cuda_kernels.SKIPPED
    failed = 0
    for limit in limits:
        fitting = cuda_kernels.kernels_of_limit(limit, kernels, args.limits)
        failed += not fitting and limit.name[0] != "?"
        chosen += [(limit, kernel) for kernel in fitting if all(kernel != other for _, other in chosen)]
    code = disassemble([kernel for _, kernel in chosen], args.tools)
    for limit, kernel in chosen:
        found = measure(code[kernel.symbol], limit.math)
        if args.table:
            print(f"{found.count:4} {limit.math:5} {found.share:5.2f} wide {found.copy:3} B copies {found.local:3} local  {kernel.name}")
        for reason in why_over(limit, found):
            print(f"{kernel.name}: {reason} ({args.limits.name})")
            failed += 1
    print(f"{len(chosen)} kernels, {failed} limits broken")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
