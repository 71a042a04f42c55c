#!/usr/bin/env python3
"""Runs concurrent requests through OpenVINO GenAI's continuous batching pipeline, in process;
prints one JSON line. See tools/benchmarks/end_to_end.

  .venv/bin/pip install openvino-genai

A closed loop: whenever a request ends, the next is added. Prompts are random token ids, all answers
have the requested length. --cache-entries N: its own eviction, to N entries per sequence.
"""

import argparse
import json
import random
import time

import numpy
import openvino
import openvino_genai as genai

BLOCK = 32  # entries; the sizes below are multiples of it


def scheduler_config(args):
    config = genai.SchedulerConfig()
    config.max_num_seqs = args.concurrency
    config.enable_prefix_caching = False
    config.dynamic_split_fuse = args.split_prompts
    config.max_num_batched_tokens = 256 if args.split_prompts else args.input_len + args.concurrency
    if args.cache_entries > 0:
        config.use_cache_eviction = True
        config.cache_eviction_config = genai.CacheEvictionConfig(
            BLOCK, 2 * BLOCK, args.cache_entries // BLOCK * BLOCK, genai.AggregationMode.NORM_SUM)
    return config


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--input-len", type=int, default=512)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--num-prompts", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--cache-entries", type=int, default=0, help="0: all")
    parser.add_argument("--split-prompts", action="store_true", help="read 256 tokens of prompts a step, not one prompt")
    args = parser.parse_args()

    pipeline = genai.ContinuousBatchingPipeline(args.model, scheduler_config(args), "CPU", {"INFERENCE_NUM_THREADS": args.threads})
    vocab = len(pipeline.get_tokenizer().get_vocab())
    rng = random.Random(1)

    def add(number, input_len, output_len):
        config = genai.GenerationConfig()
        config.max_new_tokens = output_len
        config.ignore_eos = True
        config.do_sample = False
        tokens = [rng.randrange(100, vocab - 100) for _ in range(input_len)]
        return pipeline.add_request(number, openvino.Tensor(numpy.array([tokens], dtype=numpy.int64)), config)

    warm_up = add(0, args.input_len, 8)
    while pipeline.has_non_finished_requests():
        pipeline.step()
    warm_up.read_all()

    start = time.perf_counter()
    waiting, running, tokens = args.num_prompts, [], 0
    while waiting or running:
        while waiting and len(running) < args.concurrency:
            running.append(add(waiting, args.input_len, args.output_len))
            waiting -= 1
        pipeline.step()
        ended = [handle for handle in running if handle.get_status() != genai.GenerationStatus.RUNNING]
        for handle in ended:
            tokens += sum(len(output.generated_ids) for output in handle.read_all())
            running.remove(handle)
    seconds = time.perf_counter() - start
    print(json.dumps({"tokens": tokens, "seconds": round(seconds, 2), "output_throughput": round(tokens / seconds, 1)}))


if __name__ == "__main__":
    main()
