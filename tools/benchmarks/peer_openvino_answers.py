#!/usr/bin/env python3
"""Greedy answers of OpenVINO GenAI to prompts of token ids, whole cache or its own eviction; prints one JSON list of texts. See
tools/benchmarks/eviction_quality.

  .venv/bin/pip install openvino-genai
"""

import argparse
import json
import pathlib

import numpy
import openvino
import openvino_genai as genai

BLOCK = 32  # entries; the sizes below are multiples of it


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", type=pathlib.Path, required=True, help="a JSON list of lists of ids")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--cache-entries", type=int, default=0, help="0: all")
    args = parser.parse_args()

    prompts = json.loads(args.prompts.read_text(encoding="utf-8"))
    scheduler = genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = max(map(len, prompts)) + 1
    scheduler.dynamic_split_fuse = False
    scheduler.enable_prefix_caching = False
    if args.cache_entries > 0:
        scheduler.use_cache_eviction = True
        scheduler.cache_eviction_config = genai.CacheEvictionConfig(
            BLOCK, 2 * BLOCK, args.cache_entries // BLOCK * BLOCK, genai.AggregationMode.NORM_SUM)
    pipeline = genai.ContinuousBatchingPipeline(args.model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": args.threads})
    tokenizer = pipeline.get_tokenizer()
    config = genai.GenerationConfig()
    config.max_new_tokens = args.max_tokens
    config.ignore_eos = True
    config.do_sample = False
    texts = []
    for number, prompt in enumerate(prompts):
        handle = pipeline.add_request(number, openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)), config)
        ids = []
        while pipeline.has_non_finished_requests():
            pipeline.step()
        for output in handle.read_all():
            ids += output.generated_ids
        texts.append(tokenizer.decode(ids))
    print(json.dumps(texts))


if __name__ == "__main__":
    main()
