"""An interrupted answer, resumed by another client.   python resume.py [ADDRESS]

A client resumes lost streams automatically, with their seed and the received ids.
"""
import sys

from hydrant import Client, Delta

PROMPT = "Once upon a time"

with Client(*sys.argv[1:]) as client:
    with client.stream(PROMPT, max_tokens=200, temperature=0.8) as stream:
        for event in stream:
            if isinstance(event, Delta) and len(stream.answer.token_ids) >= 10:
                break
    begun = stream.answer
    print(f"{len(begun.token_ids)} tokens, then nobody listened: {begun.text!r}")

with Client(*sys.argv[1:]) as client:
    rest = client.generate(PROMPT, max_tokens=200, temperature=0.8, seed=begun.seed, resume_token_ids=begun.token_ids)
    print(f"the other {len(rest.token_ids)}: {rest.text!r}")
