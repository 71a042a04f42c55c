#!/usr/bin/env python3
"""Tests soak's detection of growth, on series with known growth, and hostile's judgement of a flood."""
import collections
import random
import time
import unittest
from unittest import mock

import attacks
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


class RapidReset(unittest.TestCase):
    NAME = "rapid resets, no token"

    def problems_of(self, resets_per_second):
        """Of a flood of 0.2 s that the server does not end."""
        def flood(target, until, frames_of):
            time.sleep(0.2)
            return collections.Counter(frames=int(2 * 0.2 * resets_per_second), left=1)

        with mock.patch.object(attacks, "flood", flood):
            return attacks.problems_of(self.NAME, attacks.rapid_reset(None, 0, None))

    def test_a_flood_below_the_allowed_rate_may_stay(self):
        self.assertEqual(self.problems_of(0.9 * attacks.FAILED_CALLS_PER_SECOND), [])

    def test_a_fast_one_may_not(self):
        self.assertEqual(self.problems_of(20 * attacks.FAILED_CALLS_PER_SECOND), [f"{self.NAME}: never met with 'closed'"])


if __name__ == "__main__":
    unittest.main()
