#!/usr/bin/env python3
"""Measures OpenVINO GenAI on the cases of engine_benchmark and prints the same JSON lines. See scripts/bench.

  .venv/bin/pip install openvino-genai

Its continuous batching pipeline, with its own defaults for weights and KV cache, is driven step by
step: a prompt is one request for one token; a decode step feeds a token to every request of the
batch, and samples greedily. Prefix caching is off, as every prompt is new. It reads the GGUF file
itself. The fastest of the repeats counts.
"""

import random
import time

import numpy
import openvino
import openvino_genai

import peer_cases
from peer_cases import best, report, report_memory


class Peer:
    def __init__(self, path, threads, tokens, sequences, rng):
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = tokens + 1
        scheduler.max_num_seqs = sequences
        scheduler.enable_prefix_caching = False
        scheduler.dynamic_split_fuse = False
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(
            path, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
        self.vocab = self.pipeline.get_tokenizer().get_vocab()
        self.rng, self.requests = rng, 0

    def add(self, prompt_tokens, new_tokens):
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = new_tokens
        config.ignore_eos = True
        config.do_sample = False
        tokens = [self.rng.randrange(100, len(self.vocab) - 100) for _ in range(prompt_tokens)]
        self.requests += 1
        return self.pipeline.add_request(self.requests, openvino.Tensor(numpy.array([tokens], dtype=numpy.int64)), config)

    def finish(self):
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()


def main():
    args = peer_cases.parser("Speed of OpenVINO GenAI on the cases of engine_benchmark.").parse_args()

    peer = Peer(args.model, args.threads, max(args.prompts + args.contexts), max(args.batches), random.Random(1))
    for n in args.prompts:
        def prefill():
            handle = peer.add(n, 1)
            start = time.perf_counter()
            peer.finish()
            seconds = time.perf_counter() - start
            handle.read_all()
            return seconds

        prefill()  # the first run of a length prepares its kernels
        report("prefill", 1, n, n / best(args.repeat, prefill))

    for context in args.contexts:
        for batch in args.batches:
            steps = 2 * args.steps if batch == 1 else args.steps
            # Separately: all prompts together would be one batch of tokens.
            handles = []
            for _ in range(batch):
                handles.append(peer.add(max(1, context), 1 << 20))
                peer.pipeline.step()
            for _ in range(2):
                peer.pipeline.step()

            def decode():
                start = time.perf_counter()
                for _ in range(steps):
                    peer.pipeline.step()
                return time.perf_counter() - start

            report("decode", batch, context, batch * steps / best(args.repeat, decode))
            for handle in handles:
                handle.stop()
            peer.finish()
    report_memory()


if __name__ == "__main__":
    main()
