"""A text that is prefilled and compressed once, for many questions.   python contexts.py [ADDRESS]"""
import pathlib
import sys

from hydrant import Client

TEXT = (pathlib.Path(__file__).resolve().parents[2] / "examples" / "continue.txt").read_text()

with Client(*sys.argv[1:]) as client:
    made = client.contexts.compress(TEXT, cache_policy="echo", cache_ratio=0.3, min_cache_tokens=16, ttl_s=600)
    context = made.context
    print(f"{context.handle}: {context.tokens} tokens in {context.memory_bytes} bytes")
    for question in [" The captain said", " The sea was", " In the morning"]:
        answer = client.generate(question, context=context.handle, max_tokens=20, temperature=0)
        print(f"{answer.usage.cached_tokens} of {answer.usage.prompt_tokens} tokens were there:{question}{answer.text}")
    client.contexts.delete(context.handle)
    print("left:", [each.handle for each in client.contexts.list()])
