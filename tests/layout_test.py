#!/usr/bin/env python3
"""A folder includes only folders below it, and no two folders include each other.

usage: layout_test.py ROOT
"""
import pathlib
import re
import sys

# From the top down, with the further folders each may include. kernels/ and engine/ do not depend
# on gRPC.
BELOW = {
    "server/startup": {"server/apis", "engine/model/hub"},
    "server/apis": {"server/requests"},
    "server/requests": {"server/auth", "server/observe"},
    "server/auth": {"server/net", "server/wire"},
    "server/observe": {"server/net", "server/wire"},
    "server/net": {"engine/model"},
    "server/wire": {"scheduler", "engine/run", "engine/text/chat", "proto"},
    "scheduler": {"scheduler/store", "engine/cache", "engine/run/step", "engine/text/grammar", "engine/text/passages"},
    "scheduler/store": {"kernels"},
    "client": {"engine/model/hub", "engine/text/tokenizer", "kernels", "proto"},
    "tools/load/commands": {"tools/load/report", "tools/load/targets", "client", "engine/model", "engine/text/tokenizer"},
    "tools/load/report": {"tools/load/run"},
    "tools/load/targets": {"tools/load/run", "client", "proto"},
    "tools/load/run": {"engine/model", "engine/text/tokenizer"},
    "tools/simulator": {"scheduler", "engine/run", "tools/load/run"},
    "tools/eval/daemon": {"client", "proto", "engine/model"},
    "tools/eval": {"tools/eval/daemon", "engine/run", "engine/model/hub", "engine/text/chat", "engine/text/passages"},
    "engine/run": {"engine/run/forward"},
    "engine/run/forward": {"engine/run/compress", "engine/model"},
    "engine/run/compress": {"engine/run/step", "engine/run/pool"},
    "engine/run/step": {"engine/cache", "engine/text/tokenizer"},
    "engine/run/pool": {"engine/cache"},
    "engine/cache": {"engine/cache/policies"},
    "engine/cache/policies": {"kernels"},
    "engine/text/chat": {"engine/text/jinja", "engine/model"},
    "engine/text/grammar": {"engine/text/tokenizer"},
    "engine/text/passages": {"engine/text/tokenizer"},
    "engine/text/tokenizer": {"engine/text/unicode", "engine/model"},
    "engine/text/jinja": {"engine/text/unicode", "kernels"},
    "engine/text/unicode": set(),
    "engine/model/hub": {"engine/model"},
    "engine/model": {"kernels"},
    "kernels/cpu": {"kernels/cpu/attention", "kernels/cpu/elementwise", "kernels/cpu/matmul"},
    "kernels/cpu/attention": {"kernels/cpu/pages"},
    "kernels/cpu/elementwise": {"kernels/cpu/pages"},
    "kernels/cpu/pages": {"kernels/cpu/eviction"},
    "kernels/cpu/eviction": {"kernels/cpu/isa"},
    "kernels/cpu/matmul": {"kernels/cpu/isa"},
    "kernels/cpu/isa": {"kernels"},
    "kernels": set(),
}
# Folders that may include the folder with their interface: policies implement the registry's, the
# daemon is a TrialRunner.
PLUG_INS = {("engine/cache/policies", "engine/cache"), ("tools/eval/daemon", "tools/eval")}


def folder_of(path):
    """The layout folder of a file: the longest prefix of its path."""
    parts = path.split("/")[:-1]
    for length in range(len(parts), 0, -1):
        if "/".join(parts[:length]) in BELOW:
            return "/".join(parts[:length])
    return parts[0] if parts else ""


def reachable(folder, seen=None):
    seen = set() if seen is None else seen
    for below in BELOW.get(folder, ()):
        if below not in seen:
            seen.add(below)
            reachable(below, seen)
    return seen


def main():
    root = pathlib.Path(sys.argv[1])
    wrong, checked = [], 0
    for folder in BELOW:
        if folder in reachable(folder):
            wrong.append(f"the layout itself has a circle through {folder}")
    for path in sorted(root.glob("*/**/*")):
        name = path.relative_to(root).as_posix()
        if path.suffix not in {".cc", ".h", ".cu", ".cuh"} or name.split("/")[0] in {"tests", "build"}:
            continue
        here = folder_of(name)
        if here not in BELOW:
            continue
        for included in re.findall(r'^#include "([^"]+/[^"]+)"', path.read_text(encoding="utf-8"), re.M):
            there = folder_of(included)
            if there not in BELOW or there == here:
                continue
            checked += 1
            if there not in reachable(here) and (here, there) not in PLUG_INS:
                wrong.append(f"{name} includes {included}: {there} is not below {here}")
    print("\n".join(wrong))
    print(f"{checked} includes between folders, {len(wrong)} wrong")
    return 1 if wrong or checked < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
