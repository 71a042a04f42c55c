#!/usr/bin/env python3
"""Checks random texts that grammar_walks generates for random schemas and regular expressions with
json, jsonschema and re.

usage: judge_walks.py GRAMMAR_WALKS [--cases N] [--seed N]

Exit status: 0 all texts are valid, 1 some are not, 77 skipped: no jsonschema (apt-get install
python3-jsonschema).
"""
import argparse
import collections
import datetime
import json
import random
import re
import subprocess
import sys
from typing import Any

try:
    import jsonschema
except ImportError:
    print("skipped: jsonschema is not installed (apt-get install python3-jsonschema)")
    sys.exit(77)

Schema = dict[str, Any]

FORMATS = ["date", "time", "date-time", "duration", "uuid", "ipv4", "ipv6", "email", "hostname", "uri", "uri-reference", "json-pointer"]
CHECKER = jsonschema.FormatChecker(formats=["uuid", "ipv4", "ipv6"])
# ECMAScript's white space and line terminators.
SPACES = r"\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"


@CHECKER.checks("date", raises=ValueError)
@CHECKER.checks("date-time", raises=ValueError)
def has_its_days(text: Any) -> bool:
    """Check that the day exists in its month. The year 0 is skipped, because Python does not have it."""
    if isinstance(text, str) and not text.startswith("0000"):
        datetime.date.fromisoformat(text[:10])
    return True


class Schemas:
    """Random schemas of supported features."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.read_as: dict[str, str] = {}  # patterns, and their form for Python's re
        self.names = [f"d{i}" for i in range(draw.randint(0, 2))]

    def make(self) -> Schema:
        schema = self.schema(3)
        if self.names:
            schema["$defs"] = {name: self.schema(2) for name in self.names}
        return schema

    def schema(self, depth: int) -> Schema:
        leaves = [self.string, self.integer, self.number, self.enum, self.const, lambda _: {"type": "boolean"}, lambda _: {"type": "null"}]
        inner = [self.object, self.object, self.array, self.any_of, self.types, self.any]
        if self.names:
            inner.append(lambda _: {"$ref": f"#/$defs/{self.draw.choice(self.names)}"})
        return self.draw.choice(inner + leaves if depth > 0 else leaves)(depth)

    def some(self, *pairs: tuple[str, Any]) -> Schema:
        return {key: value for key, value in pairs if self.draw.random() < 0.5}

    def string(self, _: int) -> Schema:
        kind = self.draw.randint(0, 3)
        if kind == 0:
            least = self.draw.randint(0, 3)
            return {"type": "string", **self.some(("minLength", least), ("maxLength", least + self.draw.randint(0, 6)))}
        if kind == 1:
            pattern, python = Patterns(self.draw).make(2)
            begin, end = self.draw.choice(["", "^"]), self.draw.choice(["", "$"])
            pattern = f"{begin}{pattern}{end}"
            self.read_as[pattern] = f"{begin}(?s:{python})" + (r"\Z" if end else "")
            return {"type": "string", "pattern": pattern}
        if kind == 2:
            return {"type": "string", "format": self.draw.choice(FORMATS)}
        return {"type": "string"}

    def integer(self, _: int) -> Schema:
        low, high = sorted(self.draw.choice([-1, 1]) * self.draw.randint(0, 10 ** self.draw.randint(0, 8)) for _ in range(2))
        if self.draw.random() < 0.2:
            return {"type": "integer", "multipleOf": self.draw.randint(1, 20)}
        return {"type": "integer", **self.some(("minimum", low), ("maximum", high))}

    def number(self, _: int) -> Schema:
        low, high = sorted(round(self.draw.uniform(-1000, 1000), self.draw.randint(0, 3)) for _ in range(2))
        if low == high or self.draw.random() < 0.3:
            return {"type": "number"}
        if self.draw.random() < 0.3:
            return {"type": "number", **self.some(("exclusiveMinimum", low), ("exclusiveMaximum", high))}
        return {"type": "number", **self.some(("minimum", low), ("maximum", high))}

    def value(self) -> Any:
        return self.draw.choice([0, -3, 1.5, True, None, "a", "é\"\\/\n", "", ["a", 1], {"a": {"b": [None]}}])

    def enum(self, _: int) -> Schema:
        return {"enum": [self.value() for _ in range(self.draw.randint(1, 4))]}

    def const(self, _: int) -> Schema:
        return {"const": self.value()}

    def object(self, depth: int) -> Schema:
        names = self.draw.sample(["a", "b", "c", "long name", "é", "q\"", "ab"], self.draw.randint(0, 4))
        required = [name for name in names if self.draw.random() < 0.5]
        schema: Schema = {"type": "object", "properties": {name: self.schema(depth - 1) for name in names}}
        if required:
            schema["required"] = required
        if self.draw.random() < 0.4:
            schema["additionalProperties"] = self.draw.choice([True, False, self.schema(depth - 1)])
        return schema

    def array(self, depth: int) -> Schema:
        schema: Schema = {"type": "array"}
        least = self.draw.randint(0, 2)
        if self.draw.random() < 0.3:
            schema["prefixItems"] = [self.schema(depth - 1) for _ in range(self.draw.randint(1, 3))]
            schema["items"] = self.draw.choice([False, self.schema(depth - 1)])
            return schema
        return {**schema, "items": self.schema(depth - 1), **self.some(("minItems", least), ("maxItems", least + self.draw.randint(0, 3)))}

    def any_of(self, depth: int) -> Schema:
        return {self.draw.choice(["anyOf", "anyOf", "oneOf"]): [self.schema(depth - 1) for _ in range(self.draw.randint(1, 3))]}

    def types(self, depth: int) -> Schema:
        return {**self.object(depth), "type": self.draw.sample(["object", "string", "integer", "null", "boolean"], 2)}

    def any(self, _: int) -> Schema:
        return self.draw.choice([{}, {"type": "object"}, {"type": "array"}, {"description": "anything"}])


class Patterns:
    """Random expressions: as sent, and in the form for Python's re."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def make(self, depth: int) -> tuple[str, str]:
        draw = self.draw
        atoms = [("a", "a"), ("b", "b"), ("é", "é"), ("世", "世"), ("\\.", "\\."), ("[a-c]", "[a-c]"), ("[^a-c]", "[^a-c]"),
                 ("\\d", "[0-9]"), ("\\w", "[a-zA-Z0-9_]"), ("\\s", f"[{SPACES}]"), (".", "."), ("[\\d-]", "[0-9-]"),
                 ("\\S", f"[^{SPACES}]"), ("\\D", "[^0-9]"), ("\\x41", "A"), ("\\u00e9", "é"), ("\\n", "\\n"), ("[\\n\\]é]", "[\\n\\]é]"), ("[\\u00e9a]", "[éa]"), ("[\\x01b]", "[\\x01b]"),
                 ("\\x1Bb", "\\x1Bb"), ("(?<n>a|)", "(?:a|)")]
        kind = draw.randint(0, 5 if depth > 0 else 1)
        if kind <= 1:
            return draw.choice(atoms)
        one, other = self.make(depth - 1), self.make(depth - 1)
        if kind == 2:
            return one[0] + other[0], one[1] + other[1]
        if kind == 3:
            return f"({one[0]}|{other[0]})", f"(?:{one[1]}|{other[1]})"
        least = draw.randint(0, 2)
        mark = draw.choice(["*", "+", "?", f"{{{least}}}", f"{{{least},}}", f"{{{least},{least + draw.randint(0, 3)}}}"])
        return f"(?:{one[0]}){mark}", f"(?:{one[1]}){mark}"


def with_patterns(value: Any, read_as: dict[str, str]) -> Any:
    """The schema with Python's patterns."""
    if isinstance(value, dict):
        return {key: read_as.get(below, below) if key == "pattern" and isinstance(below, str) else with_patterns(below, read_as)
                for key, below in value.items()}
    return [with_patterns(below, read_as) for below in value] if isinstance(value, list) else value


def schema_fault(schema: Schema, text: str) -> str | None:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        value = json.loads(text, parse_constant=refuse)
    except ValueError as error:
        return f"no JSON: {error}"
    error = next(jsonschema.Draft202012Validator(schema, format_checker=CHECKER).iter_errors(value), None)
    return None if error is None else f"no member: {error.message[:200]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("walks", help="the program")
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1, help="of the first case")
    arguments = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    with subprocess.Popen([arguments.walks], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        assert process.stdin and process.stdout
        for seed in range(arguments.seed, arguments.seed + arguments.cases):
            draw = random.Random(seed)
            request: dict[str, Any] = {"seed": seed, "walks": 4}
            if seed % 2:
                schemas = Schemas(draw)
                schema = schemas.make()
                request |= {"kind": "json_schema", "text": json.dumps(schema, ensure_ascii=bool(seed % 4 == 1))}
                judged = with_patterns(schema, schemas.read_as)
                judge = lambda text, schema=judged: schema_fault(schema, text)
            else:
                pattern, python = Patterns(draw).make(3)
                compiled = re.compile(python, re.DOTALL)
                request |= {"kind": "regex", "text": pattern}
                judge = lambda text, compiled=compiled: None if compiled.fullmatch(text) else "no match"
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                print(f"seed {seed}: the program ended on {request}")
                return 1
            answer = json.loads(line)
            if answer["error"]:
                counts["refused: " + re.sub(r"'[^']*'|\d+", "_", answer["error"])[:90]] += 1
                continue
            for text in answer["texts"]:
                end = text["end"]
                counts[request["kind"] + " " + end] += 1
                fault = "a token of the mask was refused" if end == "refused" else None
                if end == "complete":
                    try:
                        fault = judge(bytes.fromhex(text["hex"]).decode("utf-8"))
                    except UnicodeDecodeError as error:
                        fault = str(error)
                    except RecursionError:  # of jsonschema, for a schema that is one of its own alternatives
                        counts["not judged"] += 1
                if fault:
                    counts["WRONG"] += 1
                    print(f"seed {seed}: {request['text']}\n  gave {bytes.fromhex(text['hex'])!r}\n  {fault}")
        process.stdin.close()
    for what, count in sorted(counts.items()):
        print(f"{count:6} {what}")
    complete = counts["json_schema complete"] + counts["regex complete"]
    return 1 if counts["WRONG"] or complete < arguments.cases else 0


if __name__ == "__main__":
    sys.exit(main())
