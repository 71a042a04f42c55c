#!/usr/bin/env python3
"""Checks how many blocks of a kernel a multiprocessor holds and how many bytes of global memory they have in flight.

usage: cuda_occupancy_test.py [--table] FOLDER LIMITS

The script reads all FOLDER/**/*.resources (cmake/keep-resources) and models compute capability 9.0: 65,536 registers, 228 KB of
shared memory, 64 warps, 32 blocks. LIMITS has one launch per line, separated by tabs:

  the kernel's name, where `*` matches any characters; with a leading `?` the kernel may be missing
  a description of the launch
  threads per block, bytes of dynamic shared memory per block
  most bytes that a block has in flight, by its design
  least blocks per multiprocessor and least bytes in flight per multiprocessor

By Little's law a multiprocessor of an H200, with 32 bytes per nanosecond at a latency of 900 to 1,000 ns, needs 30 to 35 KB in
flight at all times; a kernel that waits between its phases needs more while it loads.

Exit status: 0 all launches are within their limits, 1 some are not, 77 there are no reports (no nvcc).
"""
import collections
import sys

import cuda_kernels

Launch = collections.namedtuple("Launch", "name which threads dynamic_shared in_flight blocks flight_at_least")


def read_launches(file):
    return [Launch(name, which, *map(int, numbers)) for name, which, *numbers in cuda_kernels.read_rows(file)]


def blocks_of(kernel, launch):
    """Blocks per multiprocessor, and the limiting resource. Warps are distributed over four partitions with separate registers."""
    warps = (launch.threads + 31) // 32
    unit = cuda_kernels.REGISTER_UNIT
    of_a_warp = (kernel.registers * 32 + unit - 1) // unit * unit
    shared = kernel.shared + launch.dynamic_shared + cuda_kernels.SHARED_BYTES_A_BLOCK_MORE
    bounds = {"registers": cuda_kernels.REGISTERS_OF_A_MULTIPROCESSOR // 4 // of_a_warp * 4 // warps,
              "shared memory": cuda_kernels.SHARED_BYTES // shared,
              "warps": cuda_kernels.MOST_WARPS // warps,
              "blocks": cuda_kernels.MOST_BLOCKS}
    bound = min(bounds, key=bounds.get)
    return bounds[bound], bound


def main():
    args, kernels = cuda_kernels.parse_arguments(__doc__)
    launches = read_launches(args.limits)
    failed = 0
    for launch in launches:
        fitting = cuda_kernels.kernels_of_limit(launch, kernels, args.limits)
        failed += not fitting and launch.name[0] != "?"
        for kernel in fitting:
            blocks, bound = blocks_of(kernel, launch)
            flight = blocks * launch.in_flight
            if args.table:
                print(f"{blocks:3} blocks, by {bound:13} {flight / 1024:4.0f} KB on their way  {kernel.name}, {launch.which}")
            if blocks < launch.blocks or flight < launch.flight_at_least:
                print(f"{kernel.name}, {launch.which}: {blocks} blocks by {bound} with {flight} bytes on their way; at least "
                      f"{launch.blocks} and {launch.flight_at_least} ({args.limits.name})")
                failed += 1
    print(f"{len(launches)} launches, {failed} limits broken")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
