"""A chat with tools: function definitions, a call, and the tool's result.   python chat_tools.py [ADDRESS]

The model's own template renders all of it; a model without a template refuses chats.
"""
import sys

from hydrant import Client, HydrantError

TOOLS = [{
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city now",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}]

messages = [
    {"role": "user", "content": "Is it raining in Paris?"},
    {"role": "assistant", "tool_calls": [{"name": "get_weather", "arguments": {"city": "Paris"}}]},
    {"role": "tool", "name": "get_weather", "content": "rain, 12 degrees"},
]
with Client(*sys.argv[1:]) as client:
    try:
        print("The prompt:", client.tokenize(messages, tools=TOOLS).rendered_chat)
    except HydrantError as error:
        sys.exit(f"This model's template takes no such chat: {error.message}")
    answer = client.generate(messages, tools=TOOLS, max_tokens=40, temperature=0)
    print("The answer:", answer.text)
