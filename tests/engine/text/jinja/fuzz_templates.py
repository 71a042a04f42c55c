#!/usr/bin/env python3
"""Renders random templates with jinja2 (in transformers' environment) and with Hydrant's
interpreter, and prints differences.

usage: tests/engine/text/jinja/fuzz_templates.py [--cases 5000] [--seed 1] [--renderer build/ci/tests/engine/text/jinja/jinja_lines]

The interpreter must fail exactly if jinja2 fails; its error messages are its own. Left out:
features that the interpreter refuses by design: integers beyond 64 bits, and printed iterators.
Exit code 1 if anything differs.
"""
import argparse
import copy
import json
import random
import subprocess
import sys
import unittest.mock
import warnings

from jinja2 import nodes
from transformers.utils import chat_template_utils

VARIABLES = {
    "s": "Hello, <World> & \"Zürich\"", "t": "  two  words\n and\tmore \n", "u": "ǅ ßtraße ΑΣ. İx 世界 👍", "e": "", "n": None, "i": 7, "j": -3,
    "z": 0, "f": 2.5, "g": -0.1, "h": 1e22, "b": True, "l": [3, 1, 2], "m": ["b", "A", "c", "a"], "k": [],
    "d": {"a": 1, "b": [1, 2], "c": {"x": None}, "items": "own"}, "r": [{"n": "x", "v": 2}, {"n": "Y", "v": 1}, {"v": 1, "n": "x"}],
    "w": [[1, "a"], [2, "b"]], "q": {},
}
NAMES = list(VARIABLES) + ["nope"]
STRING_METHODS = ["upper()", "lower()", "title()", "capitalize()", "strip()", "lstrip()", "rstrip('e ')", "split()", "split(' ')", "split(None, 1)",
                  "rsplit(' ', 1)", "rsplit(None, 1)", "splitlines()", "splitlines(true)", "replace('l', 'L')", "replace('', '-')", "replace('o', '', 1)",
                  "startswith('He')", "endswith(('x', 'y'))", "find('o')", "rfind('o', 2)", "find('o', -3)", "count('l')", "count('')", "index('o')",
                  "join(m)", "join('abc')", "center(30)", "ljust(30, '.')", "rjust(30, '*')", "zfill(12)", "isdigit()", "isalpha()", "isupper()", "islower()",
                  "isspace()", "isalnum()", "swapcase()", "partition('o')", "rpartition('o')", "removeprefix('He')", "removesuffix('x')",
                  "format(1, x=2)", "expandtabs(4)", "isprintable()", "isascii()", "upper", "nope()"]
DICT_METHODS = ["items()", "keys()", "values()", "get('a')", "get('x', 5)", "get('b')", "copy()", "items", "pop('a')", "update({})", "a", "c.x", "nope"]
LIST_METHODS = ["count(1)", "index(2)", "append(1)", "0", "9", "copy()", "nope"]
FILTERS = ["upper", "lower", "title", "capitalize", "trim", "length", "count", "first", "last", "list", "string", "int", "float", "abs", "round", "round(1)",
           "round(2, 'floor')", "join", "join(', ')", "join('-', attribute='n')", "default('D')", "default('D', true)", "d", "reverse", "reverse|list",
           "sort", "sort(reverse=true)", "sort(attribute='n')", "sort(attribute='v,n')", "sort(case_sensitive=true)", "unique|list",
           "unique(attribute='n')|list", "map('upper')|list", "map(attribute='n')|list", "map(attribute='zz', default='?')|list", "map('string')|join('|')",
           "select|list", "reject|list", "select('number')|list", "select('gt', 1)|list", "selectattr('v', 'eq', 1)|list", "rejectattr('n')|list",
           "selectattr('n', 'equalto', 'x')|map(attribute='v')|list", "tojson", "tojson(indent=2)", "tojson(separators=(',', ':'))",
           "tojson(sort_keys=true)", "tojson(ensure_ascii=true)", "tojson(indent=0)", "items|list", "dictsort", "dictsort(reverse=true)", "dictsort(by='value')",
           "indent", "indent(2, true)", "indent('> ', blank=true)", "replace('l', 'L')", "replace('o', 0)", "safe", "e", "escape|upper", "wordcount",
           "truncate(9)", "truncate(9, true, '', 0)", "center(20)", "batch(2)|list", "batch(2, 'x')|list", "slice(2)|list", "sum", "sum(attribute='v')", "min",
           "max", "max(attribute='v')", "format(1)", "attr('upper')", "int(5)", "int(0, 16)", "float(1.5)", "min(case_sensitive=true)"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean", "true", "false", "odd",
         "even", "divisibleby 2", "divisibleby(3)", "eq 1", "equalto('x')", "ne 2", "gt 1", "lt(3)", "ge 0", "le 7", "in [1, 7]", "in 'Hello'", "lower",
         "upper", "callable", "sameas true", "sameas none", "escaped", "filter", "test"]
BINARY = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
LITERALS = ["1", "0", "-2", "3", "2.5", "1e3", "0.1", "100000000000000000.0", "1.5e-7", "0x1F", "1_000", "'x'", "\"it's\"", "'a\\tb\\n'", "'\\u00e9\\x41\\101\\q'",
            "''", "'%s and %r'", "'%05.2f|%-6d|%+d'", "'%(a)s'", "'{}-{x}'", "'{:>8}|{x!r}'", "'{0:05.1f}'", "true", "false", "none", "None", "True", "[]",
            "[1, 'a', none]", "(1, 2)", "(1,)", "()", "{}", "{'a': 1, 'b': [2]}", "{1: 'x', 'y': 2.0, none: true}", "range(4)", "range(5, 0, -2)", "'0b101'",
            "' 12 '", "'3.7'", "'1_0'", "'nan'"]


class Maker:
    def __init__(self, rng):
        self.rng = rng

    def pick(self, options):
        return self.rng.choice(options)

    def expression(self, depth):
        if depth <= 0 or self.rng.random() < 0.12:
            return self.pick(NAMES) if self.rng.random() < 0.6 else self.pick(LITERALS)
        kind = self.rng.randrange(15)
        inner = lambda: self.expression(depth - 1)
        if kind < 3:
            return f"({inner()} {self.pick(BINARY)} {inner()})"
        if kind < 6:
            return f"({inner()})|{self.pick(FILTERS)}"
        if kind == 6:
            return f"({inner()} is {self.pick(['', '', 'not '])}{self.pick(TESTS)})"
        if kind == 7:
            return f"({inner()} if {inner()} else {inner()})"
        if kind == 8:
            parts = [self.pick(["", "0", "1", "-1", "2", "-3", "9", "z"]) for _ in range(3)]
            return f"({inner()})[{self.pick([':', ':'.join(parts[:2]), ':'.join(parts), '1:', ':-1', '::-1', '::2'])}]"
        if kind == 9:
            return f"({inner()})[{self.pick(['0', '-1', '1', '99', repr('a'), repr('items'), repr('n'), 'i', inner()])}]"
        if kind == 10:
            return f"({self.pick(['s', 't', 'u', 'e', inner()])}).{self.pick(STRING_METHODS)}"
        if kind == 11:
            return f"({self.pick(['d', 'q', inner()])}).{self.pick(DICT_METHODS)}"
        if kind == 12:
            return f"({self.pick(['l', 'm', 'w', 'r', inner()])}).{self.pick(LIST_METHODS)}"
        if kind == 13:
            return f"(not {inner()})" if self.rng.random() < 0.5 else f"(-{inner()})"
        return f"[{inner()}, {inner()}]" if self.rng.random() < 0.5 else f"{{'k': {inner()}, {inner()}: {inner()}}}"

    def space(self):
        return self.pick(["", "", " ", "\n", "\n  ", "  \n", " x ", "\ty\n\n"])

    def tag(self, inside):
        return f"{self.space()}{{%{self.pick(['', '', '-', '+'])} {inside} {self.pick(['', '', '-', '+'])}%}}{self.space()}"

    def output(self):
        return f"{self.space()}{{{{{self.pick(['', '', '-'])} {self.expression(3)} {self.pick(['', '', '-'])}}}}}{self.space()}"

    def statement(self, depth):
        kind = self.rng.randrange(16) if depth > 0 else 0
        body = lambda: self.body(depth - 1)
        if kind < 3:
            return self.output()
        if kind < 5:
            other = self.tag("else") + body() if self.rng.random() < 0.5 else ""
            return self.tag(f"if {self.expression(2)}") + body() + other + self.tag("endif")
        if kind < 8:
            target = self.pick(["x", "x", "x, y", "(x, y)"])
            items = self.pick(["l", "m", "w", "d", "d.items()", "r", "range(3)", "s", "w|sort", self.expression(2)])
            condition = self.pick(["", "", f" if {self.pick(['x', 'loop is defined', 'x != 1'])}"])
            inner = body() + self.pick(["", "{{ loop.index }}{{ loop.last }}", "{{ loop.previtem }}|{{ loop.nextitem }}", "{{ loop.cycle('p', 'q') }}",
                                        "{{ loop.revindex0 }}/{{ loop.length }}", "{% if loop.index > 2 %}{% break %}{% endif %}",
                                        "{% if loop.first %}{% continue %}{% endif %}{{ x }}", "{{ loop.changed(x) }}"])
            other = self.tag("else") + body() if self.rng.random() < 0.3 else ""
            return self.tag(f"for {target} in {items}{condition}") + inner + other + self.tag("endfor")
        if kind < 10:
            return self.tag(f"set {self.pick(['x', 'y', 'i', 's', 'v, x'])} = {self.expression(3)}")
        if kind == 10:
            return self.tag("set x") + body() + self.tag("endset") + "{{ x|length }}"
        if kind == 11:
            return self.tag("set ns = namespace(a=1, b='x')") + self.tag(f"set ns.a = {self.expression(2)}") + "{{ ns.a }}{{ ns.b }}{{ ns.c }}"
        if kind == 12:
            return self.tag("macro mm(x, y=2)") + "{{ x }}/{{ y }}{{ varargs }}" + body() + self.tag("endmacro") + \
                f"{{{{ mm({self.expression(1)}) }}}}{{{{ mm(1, y={self.expression(1)}) }}}}"
        if kind == 13:
            return self.tag(f"filter {self.pick(['upper', 'trim', 'indent(2)', 'replace(1, 2)|upper'])}") + body() + self.tag("endfilter")
        if kind == 14:
            return self.tag(f"with x = {self.expression(2)}, y = 3") + body() + self.tag("endwith")
        return self.pick(["{# note #}", "\n  {#- note -#}\n", "{% raw %}{{ x }}{% endraw %}\n", "\n {%- raw -%} {% x {%- endraw %}\n", "{% generation %}G{% endgeneration %}"])

    def body(self, depth):
        return "".join(self.statement(depth) for _ in range(self.rng.randrange(1, 4)))


def expected(template):
    # Slices are not folded at compile time: jinja2 turns those that fail at execution into
    # undefined.
    try:
        with unittest.mock.patch.object(nodes.Slice, "as_const", side_effect=nodes.Impossible()):
            compiled = chat_template_utils._compile_jinja_template.__wrapped__(template)
        # A copy of the variables: jinja2's indent appends to a list argument.
        return {"text": compiled.render(**copy.deepcopy(VARIABLES))}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def has_address(answer):
    text = answer.get("text", "").lower()
    return " object at 0x" in text or "<built-in" in text or "<generator" in text or "<bound method" in text or "<function" in text or "<reversed" in text \
        or "reverseiterator" in text or "0x7" in text


def left_out(wanted, got):
    error = got.get("error", "")
    return "64 bits" in error or has_address(wanted) or "prints an iterator" in error or "int too large" in wanted.get("error", "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--renderer", default="build/ci/tests/engine/text/jinja/jinja_lines")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    warnings.simplefilter("ignore", SyntaxWarning)
    maker = Maker(random.Random(options.seed))
    templates = []
    for case in range(options.cases):
        templates.append(f"{{{{ {maker.expression(4)} }}}}" if case % 2 else maker.body(2))
    variables = json.dumps(VARIABLES)
    lines = [json.dumps({"template": template, "variables": variables}) for template in templates]
    answers = subprocess.run([options.renderer], input="\n".join(lines) + "\n", capture_output=True, text=True,
                             check=True).stdout.splitlines()
    assert len(answers) == len(templates), (len(answers), len(templates))
    different = rendered = skipped = 0
    for template, line in zip(templates, answers):
        wanted, got = expected(template), json.loads(line)
        if left_out(wanted, got):
            skipped += 1
            continue
        rendered += "text" in wanted
        if wanted.get("text") != got.get("text"):
            different += 1
            if different <= 40:
                print(f"{template!r}\n  jinja2:  {wanted!r:.600}\n  hydrant: {got!r:.600}")
    print(f"{len(templates)} templates ({rendered} rendered, {skipped} left out): {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
