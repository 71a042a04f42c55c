#!/usr/bin/env python3
"""Runs scripts/gpu-check without a GPU, every part of both calls, with fake programs for all that it starts: the pack's, nvidia-smi, ncu,
compute-sanitizer, nvcc and a python with PyTorch. An error in the script is found here instead of on a card. The fake programs report the
measurements that gpu_model.py expects.

usage: gpu_check_test.py ROOT
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

from gpu_tables_test import as_measured

MOST_BYTES = 11 * 1024
SOURCES = {"device_probe": "tests/kernels/device_probe.cc", "peer_flashinfer": "tests/kernels/peer_flashinfer.cu",
           "step_benchmark": "tests/engine/run/step_benchmark.cc", "throughput_benchmark": "tests/integration/throughput_benchmark.cc",
           "peer_torch.py": "tools/benchmarks/peer_torch.py", "peer_transformers.py": "tools/benchmarks/peer_transformers.py"}

# The first lines of each fake program set its behaviour, the log of its arguments, and the rows that it may print.
STAND_IN = r'''#!/usr/bin/env -S {python} -S
import json, os, re, sys, time
FOLDER = {folder!r}
name, args = os.path.basename(sys.argv[0]), sys.argv[1:]
behaviour = os.environ.get("STAND_IN", "")
asks = name == "backend_test" and "NamesItself" in " ".join(args)  # whether there is a device
if name == "python" and args[:1] == ["-c"]:
    sys.exit(0)
if name == "python" and not os.path.basename(args[0]).startswith("peer_"):
    os.execv({python!r}, [{python!r}, *args])
if name == "compute-sanitizer":
    while args and (args[0].startswith("-") or "/" not in args[0]):
        args.pop(0)
    os.execv(args[0], args)
script = os.path.basename(args[0]) if name == "python" else name
with open(FOLDER + "/calls", "a") as calls:
    trial = os.environ.get("HYDRANT_CUDA_TRIAL", "-")
    calls.write(" ".join([script, trial, os.environ.get("HYDRANT_TEST_FAST", "-"), *args]) + "\n")
if name == "ncu":
    kernel = args[args.index("--kernel-name") + 1].removeprefix("regex:")
    if not re.search(kernel, open(FOLDER + "/kernels").read()):
        sys.exit("no kernel is called " + kernel)
    print('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"')
    print('"0","%s","gpu__time_duration.sum","ns","70,000"' % kernel)
    sys.exit(0)
if name == "nvidia-smi":
    print("NVIDIA H100 80GB HBM3, 1980 MHz, 2619 MHz, 350.12 W, 41, 1024 MiB")
    sys.exit(0)
if name == "nvcc":
    out = args[args.index("-o") + 1]
    open(out, "w").close()
    sys.exit(0)
flags = json.load(open(FOLDER + "/flags")).get(script)
if flags is not None:
    unknown = [word for word in args if word.startswith("--") and word not in flags]
    if unknown:
        sys.exit(script + " has no " + " ".join(unknown))
if behaviour == "hang" and not asks:
    time.sleep(100)
if behaviour == "fail" and script in ("step_benchmark", "select_test"):
    print("it cannot be done")
    sys.exit(3)
if script.endswith("_test"):
    if behaviour == "no device":
        print("device cuda: no CUDA device can be used")
        sys.exit(1)
    count = 0 if behaviour == "no tests" and script == "compact_test" else 1
    print("[       OK ] A.B (1 ms)\n" * count + "[==========] %d tests from %d test suites ran. (1 ms total)" % (count, count))
    sys.exit(0)
option = lambda flag: args[args.index(flag) + 1] if flag in args else ""
rows = [json.loads(line) for line in open(FOLDER + "/rows")]
parts = {{"products": "matmul", "decode": "decode_attention", "prompts": "prefill_attention", "ceilings": "ceilings"}}
wanted = {{"device_probe": [parts[part] for part in option("--only").split(",") if part], "step_benchmark": ["step"],
          "throughput_benchmark": ["throughput"], "peer_flashinfer": ["decode_attention"], "peer_torch.py": ["prefill_attention"],
          "peer_transformers.py": ["throughput"]}}[script]
rows = [row for row in rows if (row["what"] in wanted or row["what"] == "matmul_blocks" and "matmul" in wanted) and ("new_tokens" not in row or str(row["new_tokens"]) == option("--new-tokens"))]
if script.startswith("peer_"):
    rows = [{{**row, "who": script[5:].split(".")[0], "variant": "a peer"}} for row in rows]
elif not script.endswith(".py"):
    rows.insert(0, {{"what": "device", "who": "hydrant", "description": "cuda: NVIDIA H100 80GB HBM3 (79.2 GiB, CUDA 13.0, driver 580)"}})
name_of_module = option("--name")
if name_of_module:
    rows = [{{**row, "module": name_of_module}} for row in rows]
out = open(option("--json"), "w") if "--json" in args else sys.stdout
for row in rows:
    out.write(json.dumps(row) + "\n")
if behaviour == "cut":
    out.write('{{"what": "matm')
'''


class Sandbox:
    """Copies the files that gpu-check needs, with a pack of fake programs."""

    def __init__(self, root, folder):
        self.folder = folder
        self.copy = folder / "project"
        for part in ("tools/benchmarks", "kernels/cuda"):
            shutil.copytree(root / part, self.copy / part)
        for file in ("scripts/gpu-check", "scripts/device-probe", "tests/kernels/device_ceilings.cu", "tests/kernels/device_probe.cc"):
            (self.copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / file, self.copy / file)
        self.script = (root / "scripts/gpu-check").read_text(encoding="utf-8")
        programs = set(re.findall(r'"(\w+_test):', self.script)) | {"backend_test", "peer_flashinfer"} | set(
            re.search(r"BENCHMARKS=\(([^)]*)\)", self.script)[1].split())
        packed, tools = folder / "packed", folder / "tools"
        for place in (packed / "bin", packed / "lib", tools):
            place.mkdir(parents=True)
        text = STAND_IN.format(python=sys.executable, folder=str(folder))
        for place, names in ((packed / "bin", programs), (tools, {"ncu", "nvidia-smi", "nvcc", "compute-sanitizer", "python"})):
            for name in names:
                (place / name).write_text(text, encoding="utf-8")
                (place / name).chmod(0o755)
        (packed / "commit").write_text("abcdef0\n", encoding="utf-8")
        archive = self.copy / "build/gpu-check/pack.tar.gz"
        archive.parent.mkdir(parents=True)
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(packed, ".")
        self.write_inputs(root)

    def write_inputs(self, root):
        model = [sys.executable, str(root / "tools/benchmarks/gpu_model.py"), "--card", "h100", "--json", str(self.folder / "model")]
        subprocess.run(model, check=True)
        rows = [json.loads(line) for line in (self.folder / "model").read_text(encoding="utf-8").splitlines()]
        rows = [as_measured(row) for row in rows if "module" not in row]
        rows.append({"what": "ceilings", "who": "hydrant", "read_bytes_per_s": 3.1e12, "gather_bytes_per_s": 2e12, "launch_seconds": 1.4e-6,
                     "dependent_launch_seconds": 4e-7})
        rows.append({"what": "copy", "who": "hydrant", "bytes_per_s": 3e12})
        (self.folder / "rows").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        sources = [*(root / "kernels/cuda").rglob("*.cu*"), root / "kernels/cuda/sm90/attention.cu"]
        names = {name for source in sources for name in re.findall(r"\b(\w+Kernel)\(", source.read_text(encoding="utf-8"))}
        names.add("cudnn_generated_oss_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0")
        (self.folder / "kernels").write_text("\n".join(sorted(names)), encoding="utf-8")
        flags = {}
        for program, source in SOURCES.items():
            text = (root / source).read_text(encoding="utf-8")
            flags[program] = re.findall(r'"(--[a-z-]+)"', text) + ["--" + name for name in re.findall(r'\{"([a-z-]+)",\s*"', text)]
        (self.folder / "flags").write_text(json.dumps(flags), encoding="utf-8")

    def run(self, *options, status=0, behaviour="", seconds=60):
        (self.folder / "calls").write_text("", encoding="utf-8")
        # Without compiler folders and virtual environments: the machine with the card has neither.
        environment = {"PATH": f"{self.folder / 'tools'}:/usr/bin:/bin", "PEER_PYTHON": str(self.folder / "tools/python"),
                       "STAND_IN": behaviour, "HOME": str(self.folder)}
        start = time.monotonic()
        done = subprocess.run([self.copy / "scripts/gpu-check", "--packed", *options], env=environment, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds)
        taken = time.monotonic() - start
        self.said, self.calls = done.stdout, (self.folder / "calls").read_text(encoding="utf-8").splitlines()
        print(f"gpu-check {' '.join(options)} {behaviour}: {taken:.1f} s, exit status {done.returncode}, {len(self.said.encode())} bytes, "
              f"{len(self.calls)} programs")
        if done.returncode != status:
            sys.exit(f"it was to end with {status}:\n{self.said}")
        if len(self.said.encode()) > MOST_BYTES:
            sys.exit(f"it prints {len(self.said.encode())} bytes, at most {MOST_BYTES}:\n{self.said}")
        return taken

    def says(self, *texts):
        for text in texts:
            if text not in self.said:
                sys.exit(f"it does not say '{text}':\n{self.said}")

    def called(self, program, trial="-", options=""):
        if not any(call.startswith(f"{program} {trial} ") and options in call for call in self.calls):
            sys.exit(f"{program} was not started with {options}, on trial {trial}:\n" + "\n".join(self.calls))


def first_call(box, trial):
    box.run()
    box.says("| bf16 product", "in blocks, us / expected", "| decode attention,", "| prompt attention,", "| decode step", "| Nsight Compute", "| on trial, expected |",
             "2048 + 2048 tokens", "| wanted |", "Tests:", "compute-sanitizer: 4 cases passed", "programs that failed: 0", "H100", "ended after")
    for program in ("golden_test", "decode_attention_test", "peer_flashinfer", "peer_torch.py", "step_benchmark", "throughput_benchmark"):
        box.called(program)
    box.called("device_probe", trial, "--only decode")
    if box.said.index("| wanted |") < box.said.index("| decode step"):
        sys.exit("what is wanted does not come last")
    if any("ncu: no metric" in line for line in box.said.splitlines()):
        sys.exit(f"ncu is asked for a kernel that there is not:\n{box.said}")


def second_calls(box, trial):
    box.run("--second", "trial")
    for program in ("decode_attention_test", "golden_test", "device_probe", "step_benchmark", "throughput_benchmark"):
        box.called(program, trial)
    box.run("--second", "throughput")
    box.called("throughput_benchmark", options="--new-tokens 1000")
    box.called("throughput_benchmark", options="llama-7b.json")
    box.says("| full, 1,000 + 1,000 tokens")
    box.run("--second", "transformers")
    box.called("peer_transformers.py")
    box.run("--second", "tests")
    box.called("pressure_test")
    box.run("--second", "ab:-DX=1")
    box.says("-DX=1 to packed")
    box.called("nvcc", options="-DX=1")


def what_goes_wrong(box):
    taken = box.run("--seconds", "3", "--only", "tests", "--jobs", "3", behaviour="hang")
    box.says("Tests: 0 cases passed; programs that failed: 0; ended before their last case: ", "; golden_test *cuda*; ", "ended after")
    taken += box.run("--seconds", "3", "--only", "probe,steps,ncu,throughput,peers", behaviour="hang")
    box.says("its time being over", "left out, the time of 3 s being over: ", "PyTorch's attention")
    if taken > 30:
        sys.exit(f"it was to end after 3 s and took {taken / 2:.0f}")
    box.run("--only", "tests,probe,steps", behaviour="fail", status=1)
    box.says("steps, 8B failed (exit status 3)", "it cannot be done", "select_test", "| decode attention,", "| wanted |")
    box.run("--only", "probe", behaviour="cut")
    box.says("| decode attention,", "no whole measurement")
    box.run("--only", "tests", behaviour="no tests", status=1)
    box.says("no test has a name like this")
    box.run(behaviour="no device", status=2)
    box.says("there is no device to check")
    (box.copy / "tools/benchmarks/gpu_table.py").write_text("1 / 0\n", encoding="utf-8")
    box.run("--only", "steps", status=1)
    box.says("No tables", '"what": "step"')


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        box = Sandbox(root, pathlib.Path(folder))
        trial = re.search(r"^readonly TRIAL=(\S+)$", box.script, re.M)[1]
        sys.path.insert(0, str(root / "tools/benchmarks"))
        import gpu_model  # noqa: PLC0415
        if tuple(trial.split(",")) != gpu_model.ON_TRIAL:
            sys.exit(f"gpu-check tries {trial}, gpu_model.py expects of {','.join(gpu_model.ON_TRIAL)}")
        first_call(box, trial)
        second_calls(box, trial)
        what_goes_wrong(box)


if __name__ == "__main__":
    os.environ.pop("PEER_PYTHON", None)
    main()
