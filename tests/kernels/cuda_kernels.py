"""The CUDA backend's kernels as reported by ptxas (cmake/keep-resources), and tables of limits: shared by the tests of kernel
resources, occupancy and instructions."""
import argparse
import collections
import fnmatch
import pathlib
import re
import subprocess
import sys

SKIPPED = 77  # a test's exit status
# Compute capability 9.0; CUDA C++ Programming Guide, "Compute Capabilities".
REGISTERS_OF_A_MULTIPROCESSOR, REGISTER_UNIT = 65536, 256  # a warp's registers are rounded up to the unit
MOST_WARPS, MOST_BLOCKS = 64, 32
SHARED_BYTES, SHARED_BYTES_A_BLOCK_MORE = 228 * 1024, 1024

# file: the kernel's object file; symbol: its mangled name; shared: bytes of static shared memory.
Kernel = collections.namedtuple("Kernel", "name stack spills registers shared symbol file")


def kernels_of(file):
    """The kernels of a report, with mangled names."""
    symbol = stack = spills = None
    for line in file.read_text(encoding="utf-8").splitlines():
        if entry := re.search(r"Compiling entry function '(\w+)'", line):
            symbol = entry[1]
        elif bytes_of := re.match(r" +(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stack, spills = int(bytes_of[1]), int(bytes_of[2]) + int(bytes_of[3])
        elif (used := re.search(r"Used (\d+) registers", line)) and symbol:
            shared = re.search(r"(\d+) bytes smem", line)
            yield Kernel(symbol, stack, spills, int(used[1]), int(shared[1]) if shared else 0, symbol, file.with_suffix(""))
            symbol = None


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
    """All kernels of folder/**/*.resources, by name."""
    kernels = [kernel for file in sorted(pathlib.Path(folder).rglob("*.resources")) for kernel in kernels_of(file)]
    names = subprocess.run(["c++filt"], input="\n".join(kernel.symbol for kernel in kernels), text=True, capture_output=True,
                           check=True).stdout.splitlines()
    return sorted(kernel._replace(name=short(name)) for kernel, name in zip(kernels, names))


def read_rows(file):
    """The rows of a table: tab-separated fields, the first is a kernel's name."""
    return [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]


def fits(pattern, name):
    """Whether the name matches the pattern, where `*` matches any characters and brackets are literal."""
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def kernels_of_limit(limit, kernels, file):
    """The kernels that a row of limits applies to. Reports a row without kernels, unless its name begins with `?`."""
    fitting = [kernel for kernel in kernels if fits(limit.name.lstrip("?"), kernel.name)]
    if not fitting and limit.name[0] != "?":
        print(f"{file.name}: no kernel is {limit.name}")
    return fitting


def parse_arguments(usage, *more):
    """Parses the common arguments and reads the kernels; skips the test if there are none."""
    parser = argparse.ArgumentParser(description=usage, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("limits", type=pathlib.Path)
    parser.add_argument("--table", action="store_true")
    for path in more:
        parser.add_argument(path, type=pathlib.Path)
    args = parser.parse_args()
    kernels = read_kernels(args.folder)
    if not kernels:
        print(f"there is no *.resources in {args.folder}: the CUDA backend was not built")
        sys.exit(SKIPPED)
    return args, kernels
