#!/usr/bin/env python3
"""Tests the gates of CUDA kernels (cuda_resources_test.py, cuda_occupancy_test.py, cuda_sass_test.py) on synthetic reports and machine
code, so that a gate that accepts everything is detected without nvcc."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

import cuda_kernels
import cuda_occupancy_test
import cuda_sass_test

HERE = pathlib.Path(__file__).parent
REPORT = """ptxas info    : Compiling entry function '_ZN7hydrant4cuda8MyKernelILi2EEEvi' for 'sm_90a'
ptxas info    : Function properties for _ZN7hydrant4cuda8MyKernelILi2EEEvi
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 121 registers, used 1 barriers, 8 bytes cumulative stack size, 48 bytes smem
"""
# A loop over tiles that loads 2 x 16 bytes and 4, with an inner loop of products; scalar loads and local memory outside.
SASS = """
\t\tFunction : _Z1fv
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;      /* 0x00 */
        /*0010*/                   LDG.E R2, desc[UR8][R2.64] ;
        /*0020*/                   STL [R1], R2 ;
        /*0030*/                   LDG.E.128.STRONG.GPU R4, desc[UR8][R2.64] ;
        /*0040*/              @!P0 LDGSTS.E.BYPASS.128 [R9], desc[UR8][R2.64] ;
        /*0050*/                   LDG.E.CONSTANT R8, desc[UR8][R2.64] ;
        /*0060*/                   HMMA.16816.F32.BF16 R4, R4, R8, RZ ;
        /*0070*/              @P1  BRA 0x60 ;
        /*0080*/              @P0  BRA 0x30 ;
        /*0090*/                   LDL.64 R2, [R1] ;
        /*00a0*/                   LDG.E.U16 R3, desc[UR8][R2.64] ;
        /*00b0*/              @P2  BRA 0x10 ;
        /*00c0*/                   EXIT ;
"""
# registers, threads, static and dynamic shared memory -> blocks, as counted by cudaOccupancyMaxActiveBlocksPerMultiprocessor.
OCCUPANCIES = [(32, 1024, 0, 0, 2), (33, 1024, 0, 0, 1), (128, 128, 0, 0, 4), (168, 384, 0, 200 * 1024, 1), (168, 128, 0, 0, 3),
               (16, 32, 0, 0, 32), (32, 128, 1024, 54 * 1024, 4), (32, 128, 1024, 55 * 1024 + 1, 3), (255, 128, 0, 69632, 2)]


def gate(script, report, row):
    """Returns the exit status of a gate and its output."""
    with tempfile.TemporaryDirectory() as folder:
        if report:
            pathlib.Path(folder, "a.cu.o.resources").write_text(report, encoding="utf-8")
        limits = pathlib.Path(folder, "limits.tsv")
        limits.write_text("# a comment\n" + row + "\n", encoding="utf-8")
        run = subprocess.run([sys.executable, str(HERE / script), folder, str(limits)], text=True, capture_output=True, check=False)
        return run.returncode, run.stdout + run.stderr


class GatesTest(unittest.TestCase):
    def check(self, script, row, status, words=""):
        code, text = gate(script, REPORT, row)
        self.assertEqual(code, status, text)
        self.assertIn(words, text)

    def test_resources(self):
        self.check("cuda_resources_test.py", "MyKernel<*>\t8\t16\t121", 0)
        self.check("cuda_resources_test.py", "MyKernel<*>\t7\t16\t121", 1, "stack 8, at most 7")
        self.check("cuda_resources_test.py", "MyKernel<*>\t8\t15\t121", 1, "spills 16, at most 15")
        self.check("cuda_resources_test.py", "MyKernel<*>\t8\t16\t120", 1, "registers 121, at most 120")
        self.check("cuda_resources_test.py", "Another\t8\t16\t120", 1, "no kernel is Another")
        self.assertEqual(gate("cuda_resources_test.py", "", "MyKernel<*>\t8\t16\t121")[0], cuda_kernels.SKIPPED)

    def test_occupancy(self):
        self.check("cuda_occupancy_test.py", "MyKernel<*>\ta launch\t128\t1000\t16384\t4\t65536", 0)
        self.check("cuda_occupancy_test.py", "MyKernel<*>\ta launch\t128\t1000\t16384\t5\t65536", 1, "4 blocks by registers")
        self.check("cuda_occupancy_test.py", "MyKernel<*>\ta launch\t128\t1000\t16384\t4\t65537", 1, "65536 bytes on their way")
        self.check("cuda_occupancy_test.py", "MyKernel<*>\ta launch\t128\t100000\t16384\t3\t0", 1, "2 blocks by shared memory")
        self.check("cuda_occupancy_test.py", "Another\ta launch\t128\t0\t0\t0\t0", 1, "no kernel is Another")
        self.check("cuda_occupancy_test.py", "?Another\ta launch\t128\t0\t0\t0\t0", 0)

    def test_blocks(self):
        for registers, threads, static, dynamic, blocks in OCCUPANCIES:
            kernel = cuda_kernels.Kernel("", 0, 0, registers, static, "", None)
            launch = cuda_occupancy_test.Launch("", "", threads, dynamic, 0, 0, 0)
            self.assertEqual(cuda_occupancy_test.blocks_of(kernel, launch)[0], blocks, (registers, threads, static, dynamic))

    def test_machine_code(self):
        found = cuda_sass_test.measure(cuda_sass_test.instructions_of(SASS)["_Z1fv"], "HMMA")
        self.assertEqual(found, cuda_sass_test.Found(count=1, share=32 / 36, copy=16, local=2))
        limit = cuda_sass_test.Limit("f", "HMMA", 1, 0.88, 16, 2)
        self.assertEqual(list(cuda_sass_test.why_over(limit, found)), [])
        for worse in (found._replace(count=0), found._replace(share=0.8), found._replace(copy=8), found._replace(copy=0),
                      found._replace(local=3)):
            self.assertEqual(len(list(cuda_sass_test.why_over(limit, worse))), 1, worse)

    def test_no_tensor_cores(self):
        found = cuda_sass_test.measure(cuda_sass_test.instructions_of(SASS.replace("HMMA.16816.F32.BF16", "FFMA"))["_Z1fv"], "HMMA")
        self.assertEqual((found.count, found.share), (0, 0.0))


if __name__ == "__main__":
    unittest.main()
