#!/usr/bin/env python3
"""Configures as `scripts/build` does on a machine that has only the packages of scripts/demo.

The test does not remove packages: it tells CMake not to find those that only tests need. Exit status: 0 passed, 1 failed.
"""
import subprocess
import tempfile
import unittest

from small_setup import ROOT, hidden, left_out, listed


def configure(*options):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["cmake", "--preset", "release", "-B", folder, *hidden(), *options], cwd=ROOT, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        named = subprocess.run(["ninja", "-C", folder, "-t", "targets", "all"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout
    return done.returncode, " ".join(done.stdout.split()), named


class DemoPackages(unittest.TestCase):
    def test_build_all_but_the_tests(self):
        status, said, named = configure()
        self.assertEqual(status, 0, said)
        self.assertIn("No GTest: the tests are not built (scripts/setup installs what they need)", said)
        self.assertIn("\nserver/hydrantd:", named)
        self.assertNotIn("_test:", named)

    def test_are_too_few_for_tests_that_are_asked_for(self):
        status, said, _ = configure("-DHYDRANT_TESTS=ON")
        self.assertNotEqual(status, 0)
        self.assertIn("HYDRANT_TESTS is on, but GTest is not installed: run scripts/setup", said)

    def test_are_listed_apart(self):
        self.assertLessEqual({"libgtest-dev", "libgmock-dev", "libbenchmark-dev"}, left_out())
        self.assertIn("ccache", listed("--runtime-of-demo"))


if __name__ == "__main__":
    unittest.main()
