#!/usr/bin/env python3
"""Checks how a kernel is extracted from a header and patched (cmake/CutKernel.cmake), on synthetic headers, and on those of
cudnn-frontend if they were fetched.

usage: cut_kernel_test.py ROOT [FOLDER OF HEADERS]
"""
import pathlib
import re
import subprocess
import sys
import tempfile

HEADER = 'const char source[] =\n    R"KERNEL(\n{}\n)KERNEL"\n    R"KERNEL(\n{}\n)KERNEL";\nconst char flags[] = R"FLAGS(-x)FLAGS";\n'


def run(root, work, commands):
    """Runs a CMake script and returns its messages; None: success."""
    script = work / "script.cmake"
    script.write_text(f"include({root}/cmake/Sm90Attention.cmake)\n{commands}\n", encoding="utf-8")
    done = subprocess.run(["cmake", "-P", script], text=True, capture_output=True, check=False)
    return None if done.returncode == 0 else re.sub(r"\s+", " ", done.stderr)


def cut(root, work, header, changes):
    (work / "made_up.h").write_text(header, encoding="utf-8")
    source = work / "kernel.cu"
    source.unlink(missing_ok=True)
    said = run(root, work, f"hydrant_cut_kernel({work}/made_up.h {source} {changes})")
    return said, source.read_text(encoding="utf-8") if source.exists() else None


def expect(condition, text):
    if not condition:
        sys.exit(f"cut_kernel_test: {text}")


def check_made_up(root, work):
    header = HEADER.format("int a[2] = {0, 1};  // once", "int b; // twice; twice")
    said, text = cut(root, work, header, '1 "once" "one time" 2 "twice" "2 x"')
    expect(said is None, said)
    expect(text == "\nint a[2] = {0, 1};  // one time\n\nint b; // 2 x; 2 x\n", f"cut was {text!r}")
    for changes, message in [('1 "absent" "x"', "'absent' is there 0 times, not 1"), ('1 "twice" "x"', "'twice' is there 2 times, not 1"),
                             ('3 "twice" "x"', "'twice' is there 2 times, not 3"), ('1 "once"', "changes come in threes")]:
        said, text = cut(root, work, header, changes)
        expect(said is not None and message in said, f"{changes}: {said}")
        expect(text is None, f"{changes}: a source was written all the same")
    said, _ = cut(root, work, "const char source[] = nothing;\n", "")
    expect(said is not None and "holds no kernel" in said, f"no text: {said}")
    said, _ = cut(root, work, header.replace('\n    R"KERNEL(\nint b', '\n  R"KERNEL(\nint b'), "")
    expect(said is not None and "do not follow each other" in said, f"other pieces: {said}")


def check_missing(root, work):
    script = f"set(HYDRANT_SM90_ATTENTION_SOURCE {work}/absent)\nhydrant_sm90_headers(why)\nmessage(FATAL_ERROR \"${{why}}\")"
    said = run(root, work, script)
    expect("run scripts/fetch-sm90-attention" in said, f"missing headers: {said}")
    (work / "absent").mkdir()
    (work / "absent" / "d64_fprop_kernel.h").write_text("altered", encoding="utf-8")
    said = run(root, work, script)
    expect("d64_fprop_kernel.h is not the one of version 1.23.0" in said, f"altered header: {said}")


def check_fetched(root, work, folder):
    for head_dim in (64, 128):
        header = folder / f"d{head_dim}_fprop_kernel.h"
        source = work / f"kernel_{head_dim}.cu"
        said = run(root, work, f"hydrant_cut_kernel({header} {source} ${{HYDRANT_SM90_CHANGES}})")
        expect(said is None, said)
        text, whole = source.read_text(encoding="utf-8"), header.read_text(encoding="utf-8")
        pieces = re.findall(r'R"KERNEL\((.*?)\)KERNEL"', whole, re.S)
        before, after = "".join(pieces).splitlines(), text.splitlines()
        expect(len(before) == len(after), f"{header.name}: {len(before)} lines became {len(after)}")
        changed = [b for a, b in zip(before, after) if a != b]
        expect(len(changed) == 11, f"{header.name}: {len(changed)} lines changed: {changed}")
        expect(sum("is_shift_right_bound = true" in line for line in changed) == 2, f"{header.name}: {changed}")
        name = f"cudnn_generated_oss_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x{head_dim}_4x1x1_cga1x1x1_kernel0_0("
        expect(text.count(name) == 1, f"{header.name}: no kernel {name}")


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as work:
        check_made_up(root, pathlib.Path(work))
        check_missing(root, pathlib.Path(work))
        folder = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
        if folder is not None and (folder / "d128_fprop_kernel.h").exists():
            check_fetched(root, pathlib.Path(work), folder)
        else:
            print("scripts/fetch-sm90-attention was not run: the real headers were not tried")
    print("kernels are cut and changed as they should be")


if __name__ == "__main__":
    main()
