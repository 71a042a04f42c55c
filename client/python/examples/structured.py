"""Structured output: one of several texts, a regular expression, JSON by a schema.   python structured.py [ADDRESS]

If max_tokens cuts the output, it is a valid beginning of the form, such as the start of a JSON text.
"""
import sys

from hydrant import Client

SCHEMA = {
    "type": "object",
    "properties": {"ship": {"enum": ["Pequod", "Rachel"]}, "boats": {"enum": [3, 4]}},
    "required": ["ship", "boats"],
}

with Client(*sys.argv[1:]) as client:
    print(client.generate("Was the sea calm? Answer:", choice=["yes", "no"], temperature=0).text)
    print(client.generate("The year was", regex="18[0-9]{2}", temperature=0).text)
    answer = client.generate("The ship and its boats, as JSON:", json_schema=SCHEMA, max_tokens=60, temperature=0)
    print(answer.text, f"({answer.finish_reason})")
