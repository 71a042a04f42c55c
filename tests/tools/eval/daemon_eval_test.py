#!/usr/bin/env python3
"""hydrant-eval over a daemon gives the results of hydrant-eval in process: the same answers, from as many entries.

    HYDRANTD=... daemon_eval_test.py HYDRANT_EVAL
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "client"))
from daemon import Daemon  # noqa: E402

EVAL = sys.argv.pop()
MODEL = ROOT / "models" / "hydrant-retrieval.gguf"
COMMON = ["--text", ROOT / "LICENSE", "--length", "400", "--dtype", "stored", "--kv-cache-dtype", "float16", "--memory-gb", "0.2"]
ASKED = ["--tasks", "lines,lines-unseen", "--policies", "echo,h2o,auto,h2o:recall_tokens=32", "--budgets", "0.1,0.4"]


def run(out, *flags, model=MODEL, cases=4):
    command = [EVAL, *COMMON, "--model", model, "--cases", cases, "--out", out, *flags]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


def results(out):
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()[1:]]
    return {(line["task"], line["case"], line["question"], line["arm"], line["budget"]): line for line in lines}


class OverADaemon(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(MODEL, "--batch-invariant", "--context-memory-bytes", "64M")
        cls.daemon.__enter__()
        cls.addClassCleanup(cls.daemon.__exit__)
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.out = pathlib.Path(folder.name)

    def refused(self, says, *flags, model=MODEL):
        ended = run(self.out / "refused", *flags, model=model)
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn(says, ended.stderr)

    def test_answers_are_those_of_the_engine(self):
        for place, flags in ((self.out / "engine", []), (self.out / "daemon", ["--address", self.daemon.address])):
            ended = run(place, *ASKED, *flags)
            self.assertEqual(ended.returncode, 0, ended.stderr)
        engine, daemon = results(self.out / "engine"), results(self.out / "daemon")
        self.assertEqual(engine.keys(), daemon.keys())
        self.assertEqual(len(engine), 4 * 2 * (1 + 4 * 2))
        for key, line in engine.items():
            self.assertEqual([daemon[key][field] for field in ("text", "found", "entries")], [line[field] for field in ("text", "found", "entries")], key)
        self.assertIn("finds", run(self.out / "daemon", *ASKED, "--address", self.daemon.address, "--report-only").stdout)
        # Results of the two are not mixed.
        ended = run(self.out / "daemon", *ASKED)
        self.assertEqual(ended.returncode, 2)
        self.assertIn("was made with other settings", ended.stderr)

    def test_no_context_is_left(self):
        self.assertEqual(run(self.out / "some", *ASKED, "--address", self.daemon.address, cases=1).returncode, 0)
        client = pathlib.Path(EVAL).parents[2] / "client" / "hydrant"
        listed = subprocess.run([client, "--address", self.daemon.address, "context", "list", "--json"], capture_output=True, text=True)
        self.assertEqual(listed.returncode, 0, listed.stderr)
        self.assertNotIn("handle", listed.stdout)

    def test_what_a_daemon_does_not_report_is_refused(self):
        at = ["--address", self.daemon.address]
        self.refused("--address: task perplexity is judged by likelihoods", "--tasks", "perplexity", "--policies", "h2o", *at)
        self.refused("--address: a daemon has no oracle", "--tasks", "lines", "--policies", "h2o,oracle", *at)
        self.refused("--address: does not go with --append", "--tasks", "lines", "--policies", "h2o", "--append", *at)
        self.refused("--model has 4 and 3072", "--tasks", "lines", "--policies", "h2o", *at, model=ROOT / "models" / "hydrant-tiny.gguf")

    def test_no_daemon(self):
        self.refused("--address: DEADLINE_EXCEEDED: no server at 127.0.0.1:1", "--tasks", "lines", "--policies", "h2o", "--address", "127.0.0.1:1", "--wait", "0.5")
        self.refused("--address: ", "--tasks", "lines", "--policies", "h2o", "--address", "http://127.0.0.1:1")


if __name__ == "__main__":
    unittest.main()
