"""Deadlines, priorities and latency targets.   python deadlines.py [ADDRESS]"""
import sys

from hydrant import Client, HydrantError

with Client(*sys.argv[1:]) as client:
    try:
        client.generate("Once upon a time", timeout=0.05, max_tokens=100_000, ignore_eos=True, cache_policy="streaming",
                        max_cache_tokens=64, params={"rolling": True})
    except HydrantError as error:
        print("50 ms were not enough:", error.code.name)

    # Scheduled before other waiting requests, and refused immediately if its first token would take
    # more than 5 s.
    answer = client.generate("Once upon a time", max_tokens=10, priority=-1, ttft_us=5_000_000, tenant="example")
    print(answer.text)
