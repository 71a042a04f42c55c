"""One prompt under several cache policies, side by side.   python policies.py [ADDRESS]"""
import pathlib
import sys

from hydrant import Client

TEXT = (pathlib.Path(__file__).resolve().parents[2] / "examples" / "continue.txt").read_text()

with Client(*sys.argv[1:]) as client:
    for cache in [
        {"cache_policy": "full"},
        {"cache_policy": "h2o", "cache_ratio": 0.2, "min_cache_tokens": 16},
        {"cache_policy": "streaming", "cache_ratio": 0.2, "min_cache_tokens": 16, "sink_tokens": 4},
        {"cache_policy": "auto", "min_retained_mass": 0.9},
    ]:
        answer = client.generate(TEXT, max_tokens=40, temperature=0, **cache)
        usage = answer.usage
        seen = usage.kv_tokens_kept_mean + usage.kv_tokens_evicted_mean
        print(f"{cache['cache_policy']:10} kept {usage.kv_tokens_kept_mean:4.0f} of {seen:4.0f} entries a head, "
              f"{usage.kv_bytes >> 10:5} KiB where full would hold {usage.kv_bytes_of_full >> 10}: {answer.text!r}")
