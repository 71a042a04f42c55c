"""Many prompts in one call, one of them invalid.   python batch.py [ADDRESS]"""
import sys

from hydrant import Client, GenerateRequest, HydrantError

with Client(*sys.argv[1:]) as client:
    starts = ["The old captain", "The sea", "In the morning"]
    wrong = GenerateRequest(text="Three days before", sampling={"top_p": 2})
    for start, result in zip([*starts, "?"], client.generate_batch([*starts, wrong], max_tokens=20, temperature=0)):
        if isinstance(result, HydrantError):
            print(f"{result.reason}: {result.field}")
        else:
            print(start + result.text)
