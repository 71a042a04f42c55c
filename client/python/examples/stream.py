"""A streamed answer, and its usage.   python stream.py [ADDRESS]"""
import sys

from hydrant import Client

with Client(*sys.argv[1:]) as client:
    with client.stream("Once upon a time", max_tokens=40, temperature=0.8, seed=7) as stream:
        for piece in stream.texts():
            print(piece, end="", flush=True)
    usage = stream.answer.usage
    print(f"\n{usage.prompt_tokens} + {usage.completion_tokens} tokens in {(usage.prefill_us + usage.decode_us) / 1e6:.2f} s")
