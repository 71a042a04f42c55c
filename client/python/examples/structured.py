"""Answers of a form: one of several texts, an expression, JSON of a schema.   python structured.py [ADDRESS]"""
import json
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
    print(json.loads(client.generate("The ship and its boats, as JSON:", json_schema=SCHEMA, temperature=0).text))
