"""The logprobs of each token, and of its likeliest alternatives.   python logprobs.py [ADDRESS]"""
import sys

from hydrant import Client

with Client(*sys.argv[1:]) as client:
    answer = client.generate("The old captain", max_tokens=8, temperature=0.8, seed=7, logprobs=3)
    for token in answer.logprobs:
        others = [f"{client.detokenize([other])!r} {logprob:.2f}" for other, logprob in zip(token.top_token_ids, token.top_logprobs)]
        print(f"{client.detokenize([token.token_id])!r:12} {token.logprob:6.2f}, rank {token.rank}; likeliest: {', '.join(others)}")
