#!/usr/bin/env python3
"""Renders every chat template of a folder with transformers and with Hydrant's interpreter, and
prints differences.

usage: tests/engine/text/jinja/compare_templates.py FOLDER [--renderer build/ci/tests/engine/text/jinja/jinja_lines] [--verbose]

FOLDER holds *.jinja files, and JSON files {name: template}. Needs transformers and jinja2. A
template that fails must fail in both; raise_exception()'s messages must be equal. The date is
fixed. Exit code 1 if anything differs.
"""
import argparse
import datetime
import json
import pathlib
import subprocess
import sys

from transformers.utils import chat_template_utils

NOW = datetime.datetime(2024, 7, 26, 13, 45, 6)
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class FixedDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


SYSTEM = {"role": "system", "content": "Be brief.  "}
USER = {"role": "user", "content": " What's 1 < 2 in \"Zürich\"? 世界 👍\n"}
ANSWER = {"role": "assistant", "content": "It is true.\n\nYes."}
AGAIN = {"role": "user", "content": "And 2 < 1?"}
TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather of a <city> & its \"surroundings\".\nIn °C.",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "Its name"},
            "days": {"type": "integer", "default": 3, "minimum": 1, "description": "How many"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "description": "Unit"},
            "tags": {"type": "array", "items": {"type": "string"}, "description": "Tags"},
            "where": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": ["number", "null"]}},
                      "required": ["lat"], "description": "Place"}},
            "required": ["city"]}, "return": {"type": "string", "description": "Text"}}},
    {"type": "function", "function": {"name": "now", "description": "The time.",
                                      "parameters": {"type": "object", "properties": {}}}},
]
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"id": "call_0001", "type": "function",
     "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "deep": {"a": [1, 2.5, None, True]}}}}]}
TWO_CALLS = {"role": "assistant", "content": "Let me see.", "tool_calls": [
    {"id": "call00001", "type": "function", "function": {"name": "now", "arguments": {}}},
    {"id": "call00002", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "O'Hare"}}}]}
RESULT = {"role": "tool", "tool_call_id": "call_0001", "name": "get_weather", "content": "{\"t\": 21.5, \"ok\": true}"}
RESULTS = [{"role": "tool", "tool_call_id": "call00001", "name": "now", "content": "12:00"},
           {"role": "tool", "tool_call_id": "call00002", "name": "get_weather", "content": "rain"}]
THOUGHT = {"role": "assistant", "content": "It is true.", "reasoning_content": "One is less than two.\nSo yes."}
INLINE = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nYes."}
BARE_CALL = {"role": "assistant", "tool_calls": CALL["tool_calls"]}
PARTS = {"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "text", "text": "this."}]}


def conversations():
    """(name, messages, tools, extra variables)"""
    talk = [USER, ANSWER, AGAIN]
    yield "user", [USER], None, {}
    yield "system", [SYSTEM, USER], None, {}
    yield "talk", talk, None, {}
    yield "system talk", [SYSTEM] + talk, None, {}
    yield "ends with answer", [USER, ANSWER], None, {}
    yield "two users", [USER, AGAIN], None, {}
    yield "late system", [USER, ANSWER, SYSTEM, AGAIN], None, {}
    yield "assistant first", [ANSWER, USER], None, {}
    yield "unknown role", [USER, {"role": "critic", "content": "Bad."}, AGAIN], None, {}
    yield "developer", [{"role": "developer", "content": "Be terse."}, USER], None, {}
    yield "empty content", [{"role": "user", "content": ""}], None, {}
    yield "tools", [USER], TOOLS, {}
    yield "system tools", [SYSTEM, USER], TOOLS, {}
    yield "empty tools", [SYSTEM, USER], [], {}
    yield "call", [USER, CALL], TOOLS, {}
    yield "result", [SYSTEM, USER, CALL, RESULT], TOOLS, {}
    yield "result then talk", [USER, CALL, RESULT, ANSWER, AGAIN], TOOLS, {}
    yield "bare call", [USER, BARE_CALL, RESULT], TOOLS, {}
    yield "two calls", [SYSTEM, USER, TWO_CALLS] + RESULTS + [ANSWER], TOOLS, {}
    yield "calls without tools", [USER, CALL, RESULT], None, {}
    yield "reasoning", [USER, THOUGHT, AGAIN], None, {}
    yield "reasoning last", [USER, THOUGHT], None, {}
    yield "inline reasoning", [USER, INLINE, AGAIN], None, {}
    yield "reasoning and call", [USER, {**CALL, "reasoning_content": "I need data."}, RESULT], TOOLS, {}
    yield "thinking off", [USER, THOUGHT, AGAIN], None, {"enable_thinking": False, "thinking": False}
    yield "thinking on", [SYSTEM, USER], None, {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}
    yield "parts", [PARTS], None, {}
    yield "date", [SYSTEM, USER], TOOLS, {"date_string": "26 Jul 2024"}
    yield "documents", [USER], None, {"documents": [{"title": "A", "text": "B"}]}


def cases():
    for name, messages, tools, extra in conversations():
        for prompt in (True, False):
            yield f"{name}{' +' if prompt else ''}", messages, tools, {**extra, "add_generation_prompt": prompt}


def variables_of(messages, tools, extra):
    messages = chat_template_utils._alias_reasoning_fields(messages)
    return {"messages": messages, "tools": tools, "documents": None, **SPECIALS, **extra}


def expected(template, messages, tools, extra):
    """{"text"} or {"error", "raised"}: whether the message is the template's own."""
    extra = dict(extra)
    try:
        text = chat_template_utils.render_jinja_template(
            [messages], chat_template=template, tools=tools, documents=extra.pop("documents", None), **SPECIALS, **extra)[0][0]
        return {"text": text}
    except Exception as error:  # any error of a template
        return {"error": str(error), "raised": type(error).__name__ == "TemplateError"}


def templates_of(folder):
    for path in sorted(pathlib.Path(folder).iterdir()):
        if path.suffix == ".jinja":
            with open(path, encoding="utf-8", newline="") as file:
                yield path.name, file.read()
        elif path.suffix == ".json":
            yield from json.loads(path.read_text(encoding="utf-8")).items()


def same(wanted, got):
    if "text" in wanted or "text" in got:
        return wanted.get("text") == got.get("text")
    return not wanted["raised"] or wanted["error"] == got["error"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--renderer", default="build/ci/tests/engine/text/jinja/jinja_lines")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    chat_template_utils.datetime = FixedDatetime

    work = [(name, template, case) for name, template in templates_of(options.folder) for case in cases()]
    lines = [json.dumps({"template": template, "variables": json.dumps(variables_of(*case[1:]))})
             for _, template, case in work]
    answers = subprocess.run([options.renderer], input="\n".join(lines) + "\n", capture_output=True, text=True,
                             check=True).stdout.splitlines()
    assert len(answers) == len(work), (len(answers), len(work))
    names, different, failing = {}, 0, 0
    for (name, template, case), line in zip(work, answers):
        wanted, got = expected(template, *case[1:]), json.loads(line)
        names[name] = names.get(name, True) and same(wanted, got)
        failing += "error" in wanted
        if same(wanted, got):
            continue
        different += 1
        print(f"{name}: {case[0]}\n  transformers: {wanted!r:.1500}\n  hydrant:      {got!r:.1500}" if options.verbose else
              f"{name}: {case[0]}: {wanted.get('error', '')!r:.120} | {got.get('error', '')!r:.160}")
    print(f"{len(names)} templates, {len(work)} renderings ({failing} of them errors in transformers): {different} differ, "
          f"in {sum(not ok for ok in names.values())} templates")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
