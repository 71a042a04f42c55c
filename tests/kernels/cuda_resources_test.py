#!/usr/bin/env python3
"""Checks that no CUDA kernel uses more registers, stack or spills than its limit. Local memory costs bandwidth, registers cost warps.

usage: cuda_resources_test.py [--table] FOLDER LIMITS

The script reads all FOLDER/**/*.resources (cmake/keep-resources). LIMITS has one kernel per line, separated by tabs: its name, where `*`
matches any characters, bytes of stack, bytes of spills (stores and loads), registers per thread. The first line that matches a kernel is
its limit; a kernel without a limit may have no stack, no spills and 255 registers. --table prints all kernels, with the number of warps
that the registers of a multiprocessor of compute capability 9.0 allow.

Exit status: 0 all kernels are within their limits, 1 some are not, 77 there are no reports (no nvcc).
"""
import collections
import sys

import cuda_kernels

Limit = collections.namedtuple("Limit", "name stack spills registers")


def read_limits(file):
    return [Limit(name, int(stack), int(spills), int(registers)) for name, stack, spills, registers in cuda_kernels.read_rows(file)]


def limit_of(limits, name):
    return next((limit for limit in limits if cuda_kernels.fits(limit.name, name)), Limit(name, 0, 0, 255))


def warps(registers):
    of_a_warp = (registers + 7) // 8 * 8 * 32
    return min(cuda_kernels.MOST_WARPS, cuda_kernels.REGISTERS_OF_A_MULTIPROCESSOR // of_a_warp)


def main():
    args, kernels = cuda_kernels.parse_arguments(__doc__)
    limits = read_limits(args.limits)
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
