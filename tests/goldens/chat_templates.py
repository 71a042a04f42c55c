#!/usr/bin/env python3
"""Makes tests/data/jinja: templates and their results in transformers and jinja2.

usage: tests/goldens/chat_templates.py [--data DIR]      (from the repository's root; DIR is the optional data folder)

Made with transformers 5.23 and jinja2 3.1.6 on Python 3.11. goldens.json has the templates below,
written for the project, and random ones of tests/engine/text/jinja/fuzz_templates.py.
published.json has 64-bit FNV-1a hashes of the templates of DIR/templates rendered with the
conversations of tests/engine/text/jinja/compare_templates.py; the templates themselves are not
committed.
"""
import argparse
import json
import pathlib
import random
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "engine/text/jinja"))
import compare_templates
import fuzz_templates
from transformers.utils import chat_template_utils

OUT = pathlib.Path("tests/data/jinja")

TEMPLATES = [
    # White space: trim_blocks, lstrip_blocks, signs, comments, raw, the last newline, \r\n.
    "a\n  {% if b %}\n  yes\n  {% endif %}\n  z\n", "a\n  {%- if b -%}\n  yes\n  {%- endif -%}\n  z\n", "a\n  {%+ if b +%}\n  yes\n  {%+ endif +%}\n z",
    "a  {{- i -}}  z\n\n", "  {{ i }}  \n  {{ j }}", "a\n  {# note #}\n  b {#- x -#} c\n", "\r\na\r\n{% if b %}\r\nc\r{% endif %}d\r\n",
    "{% raw %}\n{{ x }} {% y %}\n{% endraw %}\nz", " {%- raw -%} {% x {%- endraw -%} \n z", "x {% if b %}  {% endif %} y\t{% if b %}\n\n{% endif %}",
    "\n\n{% for x in l %}\n{{ x }}\n{% endfor %}\n", "{{ '{{ x }}' }}{{ \"%}\" }}", "{%if b%}1{%else%}2{%endif%}", "\u3000{%- if b -%}\u00a0x\u2003{%- endif %}",
    # Literals and precedence.
    "{{ 1 + 2 * 3 - 4 / 2 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7.5 // -2 }} {{ 7.5 % -2 }}",
    "{{ 1.0 }} {{ 1e16 }} {{ 1e15 }} {{ 1.5e-5 }} {{ 0.0001 }} {{ 100 / 3 }} {{ 1_000 }} {{ 0x1f }} {{ 0b11 }} {{ 0o17 }} {{ -0.0 }}",
    "{{ 'a\\tb\\n\\x41\\u00e9\\U0001F44D\\'\\q' }}{{ \"x\" 'y' }}{{ 'a' 'b' ~ 1 ~ none ~ true ~ [1, 'x', 2.0, {'k': none}] }}",
    "{{ true and false or true }} {{ not true == false }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 3 in l and 9 not in l }} {{ 'a' in d }} {{ 'el' in s }}",
    "{{ 'x' if b else 'y' }}{{ 'x' if not b }}{{ ('x' if z else 'y') if b else 'q' }}", "{{ (1, 2) }} {{ (1,) }} {{ () }} {{ 1, 2 }} {{ [1, 2,] }} {{ {'a': 1,} }}",
    "{{ l == [3, 1, 2] }} {{ (1, 2) == [1, 2] }} {{ 1 == 1.0 == true }} {{ {'a': 1} == {'a': 1.0} }} {{ [1, 2] < [1, 3] }} {{ 'a' < 'b' }}",
    "{{ u[0] }}{{ u[-1] }}{{ u[2:5] }}{{ u[::-1] }}{{ u|length }} {{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ l[5:] }} {{ m[-2:][0] }} {{ range(9)[2:8:3] }}",
    "{{ d.a }} {{ d['a'] }} {{ d.items }}"[:30], "{{ d['items'] }} {{ d.get('zz', 3) }} {{ d.get('zz') }} {{ d.b.1 }} {{ d.c.x }} {{ nope is defined }}",
    "{{ 'a' * 3 }}{{ 2 * 'b' }}{{ [0] * 2 }}{{ 'z' * -1 }}", "{{ '%s|%5d|%-5s|%05.1f|%r|%%|%x' % (s, 42, 'ab', 2.25, 'q', 255) }} {{ '%(a)s-%(b)s' % d }}",
    # Statements.
    "{% for k, v in d.items() %}{{ loop.index }}/{{ loop.length }} {{ k }}={{ v }}{{ ', ' if not loop.last }}{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index0 }}{{ x }}{{ loop.previtem }}{{ loop.nextitem }};{% else %}none{% endfor %}{% for x in k %}x{% else %}none{% endfor %}",
    "{% for x in range(6) %}{% if x == 1 %}{% continue %}{% elif x == 4 %}{% break %}{% endif %}{{ x }}{{ loop.cycle('a', 'b') }}{{ loop.revindex }}{% endfor %}",
    "{% for x in l %}{% for y in w %}{{ loop.index }}{{ y[1] }}{% endfor %}{{ loop.first }}{% endfor %}", "{% for x in nope %}{% endfor %}{% for x in s[:3] %}[{{ x }}]{% endfor %}",
    "{% set x = 1 %}{% for y in l %}{% set x = x + y %}{{ x }}{% endfor %}{{ x }}", "{% set ns = namespace(n=0, l=[]) %}{% for y in l %}{% set ns.n = ns.n + y %}"
    "{% set ns.l = ns.l + [y] %}{% endfor %}{{ ns.n }}{{ ns.l }}", "{% set a, (c, e) = 1, (2, 3) %}{{ a }}{{ c }}{{ e }}", "{% set x %}<{{ s }}>{% endset %}{{ x|length }}{{ x }}",
    "{% set x | upper | replace('L', '_') %}hello{% endset %}{{ x }}", "{% if false %}{% set x = 1 %}{% endif %}{{ x is defined }}{% if true %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% macro f(a, c=2, e=c) %}({{ a }},{{ c }},{{ e }}){% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(a=4, e=5) }}{{ f() }}{{ f.name }}",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, x=3) }}{% macro g(n) %}{{ n }}{% if n > 0 %}{{ g(n - 1) }}{% endif %}{% endmacro %}{{ g(3) }}",
    "{% macro box(t) %}[{{ t }}:{{ caller(1) }}]{% endmacro %}{% call(x) box('T') %}in {{ x }}{% endcall %}{% macro o() %}{{ later }}{% endmacro %}{% set later = 'L' %}{{ o() }}",
    "{% filter upper|trim %} a {{ s }} {% endfilter %}", "{% with a = 1, c = 2 %}{{ a + c }}{% endwith %}{{ a is defined }}", "{% generation %}G {{ i }}{% endgeneration %}",
    "{% print i, j %}", "{{ joiner is defined }}{% set j2 = joiner('; ') %}{{ j2() }}a{{ j2() }}b{% set c2 = cycler('x', 'y') %}{{ c2.next() }}{{ c2.next() }}{{ c2.current }}",
    "{{ dict(a=1, **{'c': 2}) }} {{ dict([('x', 1)]) }} {{ [1, 2]|join(*[', ']) }}",
    # Filters and tests.
    "{{ d|tojson }}|{{ d|tojson(indent=2) }}|{{ r|tojson(separators=(',', ':')) }}|{{ {'b': 1, 'a': 'é<&\"\\\\\\n\\u0001'}|tojson(sort_keys=true) }}|"
    "{{ u|tojson(ensure_ascii=true) }}|{{ [1.0, 1e30, none, true, (), {1: 2, none: 3}]|tojson }}",
    "{{ m|sort }} {{ m|sort(case_sensitive=true) }} {{ r|sort(attribute='v,n')|map(attribute='n')|join }} {{ r|map(attribute='n')|unique|list }} {{ d|dictsort|first }}",
    "{{ r|selectattr('v', 'gt', 1)|list|length }} {{ r|rejectattr('n', 'equalto', 'x')|map(attribute='v')|list }} {{ [0, 1, '', 'a']|select|list }} {{ l|reject('odd')|list }}",
    "{{ 2.5|round }} {{ 3.5|round|int }} {{ 2.675|round(2) }} {{ -1.5|round(0, 'floor') }} {{ '42'|int + 1 }} {{ '4.7'|int }} {{ 'x'|int(9) }} {{ 'ff'|int(0, 16) }} {{ '1e2'|float }}",
    "{{ t|trim }}|{{ t|wordcount }}|{{ s|title }}|{{ u|upper }}|{{ u|lower }}|{{ u|capitalize }}|{{ 'don\\'t-stop (now) [x]'|title }}|{{ \"don't\".title() }}",
    "{{ 'a\\nb\\n\\nc'|indent(2) }}|{{ 'a\\nb'|indent('> ', first=true) }}|{{ s|replace('l', 'L', 1) }}|{{ s|truncate(8) }}|{{ s|center(30) }}|{{ '<' | e }}|{{ '<'|safe + '&' }}",
    "{{ l|sum }} {{ l|max }} {{ m|min }} {{ r|sum(attribute='v') }} {{ l|batch(2, 0)|list }} {{ l|slice(2)|list }} {{ l|reverse|list }} {{ s|reverse }} {{ nope|default('D') }} {{ e|d('E', true) }}",
    "{{ n is none }} {{ s is string }} {{ d is mapping }} {{ l is sequence }} {{ d is iterable }} {{ i is number }} {{ b is number }} {{ b is integer }} {{ f is float }} {{ i is odd }} "
    "{{ i is divisibleby 7 }} {{ i is not eq 7 }} {{ nope is undefined }} {{ 'a' is in m }} {{ range is callable }} {{ 'A' is upper }} {{ d.items() is sequence }} {{ l|map('string') is iterable }}",
    "{{ s.split(', ') }} {{ t.split() }} {{ 'a-b-c'.rsplit('-', 1) }} {{ 'a\\nb'.splitlines() }} {{ s.startswith(('x', 'He')) }} {{ 'abcabc'.find('c', 3) }} {{ '--x-'.strip('-') }} "
    "{{ 'k: v'.partition(': ') }} {{ '{}-{x:>4}-{!r}'.format('a', 'b', x=3) }} {{ '7'.zfill(3) }} {{ ','.join(m) }} {{ 'Ab'.swapcase() }} {{ '１２'.isdigit() }}",
    "{{ strftime_now('%Y') is string }}", "{{ nope }}{{ nope ~ 'x' }}{{ nope|length }}{{ nope == nope2 }}{{ [nope] }}",
    # Errors.
    "{{ raise_exception('Roles must alternate: ' ~ s) }}", "{{ nope.x }}", "{{ nope + 1 }}", "{{ n.x.y }}", "{{ l.append(4) }}", "{{ d.update({}) }}", "{{ 1 + 'a' }}", "{{ 1 / 0 }}",
    "{% for a, c in l %}{% endfor %}", "{{ s|nofilter }}", "{% if false %}{{ s|nofilter }}{% endif %}ok", "{{ s is notest }}", "{% if b %}", "{% endif %}", "{{ 1 +", "{{ (1 }}", "{% wobble %}",
    "{{ range(100001) }}", "{% set d.a = 1 %}", "{{ {[]: 1} }}", "{{ nope|tojson }}", "{{ n|sort }}", "{{ 'x' < 1 }}", "{{ s.nope() }}", "{# open", "{{ '", "{% macro f(a=1, c) %}{% endmacro %}",
    "{% break %}", "{{ d|join(',', 'n') }}", "{{ namespace(_x=1) }}", "{{ f() }}", "{{ ''.format }}"[:12] + "(0) }}", "{{ '{}'.format() }}", "{{ '%d' % 'x' }}", "{{ '{}{0}'.format(1) }}",
]


def fnv(text):
    value = 0xCBF29CE484222325
    for byte in text.encode("utf-8"):
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return f"{value:016x}"


def goldens():
    templates = list(TEMPLATES)
    maker = fuzz_templates.Maker(random.Random(20240726))
    while len(templates) < len(TEMPLATES) + 600:
        template = f"{{{{ {maker.expression(4)} }}}}" if len(templates) % 2 else maker.body(2)
        wanted = fuzz_templates.expected(template)
        if len(template) < 300 and not fuzz_templates.left_out(wanted, {}) and ("text" in wanted or maker.rng.random() < 0.1):
            templates.append(template)
    cases = []
    for template in templates:
        wanted = fuzz_templates.expected(template)
        raised = wanted.get("error", "").startswith("TemplateError: ")
        cases.append({"template": template, "text": wanted.get("text")} | ({"raised": wanted["error"][15:]} if raised else {}))
    (OUT / "goldens.json").write_text(json.dumps({"variables": fuzz_templates.VARIABLES, "cases": cases}, separators=(",", ":")))


def published(folder):
    toolsets = [None, [], compare_templates.TOOLS]
    conversations = [{"name": name, "variables": compare_templates.variables_of(messages, None, extra), "tools": toolsets.index(tools)}
                     for name, messages, tools, extra in compare_templates.conversations()]
    templates = []
    for name, template in compare_templates.templates_of(folder):
        hashes = []
        for _, messages, tools, extra in compare_templates.cases():
            wanted = compare_templates.expected(template, messages, tools, extra)
            hashes.append(fnv("text:" + wanted["text"] if "text" in wanted else "error:" + (wanted["error"] if wanted["raised"] else "")))
        templates.append({"name": name, "template": fnv(template), "renderings": "".join(hashes)})
    (OUT / "published.json").write_text(json.dumps(
        {"toolsets": toolsets, "conversations": conversations, "templates": templates}, separators=(",", ":")))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="../shared/data")
    options = parser.parse_args()
    warnings.simplefilter("ignore", SyntaxWarning)
    chat_template_utils.datetime = compare_templates.FixedDatetime
    OUT.mkdir(exist_ok=True)
    goldens()
    published(pathlib.Path(options.data) / "templates")


if __name__ == "__main__":
    main()
