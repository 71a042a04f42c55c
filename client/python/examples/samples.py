"""Several samples of one prompt, with one prefill.   python samples.py [ADDRESS]"""
import sys

from hydrant import Client

with Client(*sys.argv[1:]) as client:
    answer = client.generate("The old captain", n=3, max_tokens=20, temperature=1, seed=7)
    for index, sample in enumerate(answer.samples):
        print(f"{index} (seed {answer.seed + index}, {sample.finish_reason}): {sample.text!r}")
