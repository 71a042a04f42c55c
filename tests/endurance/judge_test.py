#!/usr/bin/env python3
"""Tests soak's detection of growth, on series with known growth."""
import random
import unittest

import judge

MIB = 2**20


def series(rss, descriptors=lambda at: 20, lines=lambda at: 0, seconds=120):
    return [judge.Sample(at, int(rss(at)), int(descriptors(at)), 0, 0, int(lines(at))) for at in range(seconds)]


def problems_of(samples):
    return judge.problems_of(samples, 16 * MIB, 12, 20)


class Judge(unittest.TestCase):
    def setUp(self):
        seed = random.SystemRandom().randrange(1 << 30)
        print("seed", seed)
        self.chance = random.Random(seed)

    def noise(self):
        return self.chance.uniform(-5, 5) * MIB

    def test_what_fills_and_then_stays_is_fine(self):
        self.assertEqual(problems_of(series(lambda at: min(at, 35) * 10 * MIB + self.noise())), [])

    def test_a_line_in_noise_is_found(self):
        found = problems_of(series(lambda at: 100 * MIB + at * MIB / 2 + self.noise()))
        self.assertEqual(len(found), 1)
        self.assertIn("memory: grew by", found[0])

    def test_peaks_that_pass_are_fine(self):
        self.assertEqual(problems_of(series(lambda at: 100 * MIB + (500 * MIB if at % 5 == 0 or at > 110 else 0))), [])

    def test_descriptors_and_lines(self):
        found = problems_of(series(lambda at: MIB, lambda at: 20 + at, lambda at: 100 * at))
        self.assertEqual([problem.split(":")[0] for problem in found], ["descriptors", "log"])

    def test_too_few_samples_are_no_pass(self):
        self.assertNotEqual(problems_of(series(lambda at: MIB, seconds=5)), [])

    def test_growth_is_that_of_the_whole_time(self):
        self.assertAlmostEqual(judge.growth([0, 1, 2, 10], [5, 7, 9, 25]), 20)


if __name__ == "__main__":
    unittest.main()
