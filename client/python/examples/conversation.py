"""Keeps the cache of an answer, and continues from it.   python conversation.py [ADDRESS]"""
import sys

from hydrant import Client

with Client(*sys.argv[1:]) as client:
    answer = client.generate("Call me Ishmael. Some years ago", max_tokens=20, temperature=0, keep=True)
    print(answer.text)
    for more in [" But the whale", " And so"]:
        answer = client.generate(more, context=answer.context, max_tokens=20, temperature=0, keep=True)
        print(f"[{answer.usage.cached_tokens} tokens were not read again]{more}{answer.text}")
