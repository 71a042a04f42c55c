#!/usr/bin/env python3
"""Checks that the output of `hydrant` has the requested form (--json-schema and the others).

usage: forms_test.py HYDRANT; HYDRANTD names the server's program. jsonschema validates; if it is missing, JSON is only parsed.
Exit status: 0 passed, 1 failed, 77 skipped: hydrantd was built without structured output.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from daemon import ROOT, Daemon

try:
    import jsonschema
except ImportError:
    jsonschema = None

HYDRANT = pathlib.Path(sys.argv[1]).resolve()
SKIPPED = 77
SCHEMA = {"type": "object", "required": ["name", "age", "tags"], "additionalProperties": False,
          "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                         "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3}}}


class Forms(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.daemon = cls.enterClassContext(Daemon(ROOT / "models" / "hydrant-tiny.gguf"))
        if "not in this build" in cls.ask("--choice", "yes").stderr:
            raise unittest.SkipTest("hydrantd was built without structured output")

    @classmethod
    def ask(cls, *flags: str, seed: int = 1) -> subprocess.CompletedProcess[str]:
        # A penalty: JSON allows any space between its tokens, and this model tends to repeat
        # itself.
        return subprocess.run([HYDRANT, "--address", cls.daemon.address, "generate", "--prompt", "A person:", "--max-tokens", "400",
                               "--frequency-penalty", "2", "--seed", str(seed), *flags], capture_output=True, text=True, check=False)

    def file(self, text: str) -> str:
        file = self.enterContext(tempfile.NamedTemporaryFile("w", encoding="utf-8"))
        file.write(text)
        file.flush()
        return file.name

    def test_answers_are_of_the_form(self) -> None:
        schema = self.file(json.dumps(SCHEMA))
        for seed in range(6):
            done = self.ask("--json-schema", schema, seed=seed)
            self.assertEqual(done.returncode, 0, done.stderr)
            person = json.loads(done.stdout)
            self.assertEqual(sorted(person), ["age", "name", "tags"])
            if jsonschema is not None:
                jsonschema.validate(person, SCHEMA)
        self.assertRegex(self.ask("--regex", "[a-c]{3}").stdout.strip(), r"\A[a-c]{3}\Z")
        self.assertIn(self.ask("--choice", "yes", "--choice", "no").stdout.strip(), ("yes", "no"))
        self.assertRegex(self.ask("--grammar", self.file('root ::= "x" [0-9] "y"')).stdout.strip(), r"\Ax[0-9]y\Z")

    def test_what_is_wrong_is_named(self) -> None:
        for flags, words in ((("--json-schema", self.file('{"type": ')), "structured_output.json_schema: not valid JSON"),
                             (("--json-schema", self.file('{"$ref": "#"}')), "structured_output.json_schema: no text"),
                             (("--json-schema", self.file(json.dumps(SCHEMA)), "--json-object"), "at most 1"),
                             (("--json-schema", "/nowhere/schema.json"), "does not exist"), (("--regex", "("), "structured_output.regex")):
            done = self.ask(*flags)
            self.assertNotEqual(done.returncode, 0, flags)
            self.assertEqual(done.stdout, "", flags)
            self.assertTrue(re.search(re.escape(words), done.stderr), done.stderr)


if __name__ == "__main__":
    result = unittest.main(argv=sys.argv[:1], exit=False).result
    sys.exit(1 if not result.wasSuccessful() else SKIPPED if result.skipped else 0)
