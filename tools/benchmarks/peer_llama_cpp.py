#!/usr/bin/env python3
"""Measures llama.cpp on the cases of engine_benchmark and prints the same JSON lines. See scripts/bench.

Low-level API of llama-cpp-python: a decode step is one llama_batch with one row, and one seq_id,
per sequence; every row requests logits, which are computed but neither fetched nor sampled. The
prompt is one batch (n_ubatch 512, llama.cpp's default, as is flash attention's "auto"), and its
last row requests logits. The fastest of the repeats counts.
"""

import ctypes
import itertools
import random
import time

import llama_cpp

import peer_cases
from peer_cases import best, report, report_memory


def fill(batch, rows):
    """rows: (token, position, sequence, wants logits)."""
    batch.n_tokens = len(rows)
    for i, (token, position, sequence, logits) in enumerate(rows):
        batch.token[i] = token
        batch.pos[i] = position
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = sequence
        batch.logits[i] = logits


class Peer:
    def __init__(self, path, threads, n_ctx, sequences):
        @llama_cpp.llama_log_callback
        def silent(level, text, data):
            pass

        self.silent = silent
        llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        parameters = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
        assert self.model, f"llama.cpp cannot load {path}"
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = n_ctx
        context.n_batch = 2048
        context.n_ubatch = 512
        context.n_seq_max = sequences
        context.n_threads = context.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        assert self.context, "llama.cpp cannot make a context"
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(2048, 0, 1)

    def close(self):
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def decode(self, rows):
        fill(self.batch, rows)
        status = llama_cpp.llama_decode(self.context, self.batch)
        assert status == 0, f"llama_decode: {status}"
        llama_cpp.llama_synchronize(self.context)

    def prefill(self, sequence, tokens):
        self.decode([(t, i, sequence, i + 1 == len(tokens)) for i, t in enumerate(tokens)])


def main():
    parser = peer_cases.parser("Speed of llama.cpp on the cases of engine_benchmark.")
    parser.add_argument("--check", action="store_true", help="only read a short prompt: does it run on this machine?")
    args = parser.parse_args()
    rng = random.Random(1)

    if args.check:
        peer = Peer(args.model, args.threads, 256, 1)
        peer.prefill(0, [rng.randrange(peer.vocab) for _ in range(64)])
        return

    peer = Peer(args.model, args.threads, 2048, 1)
    for n in args.prompts:
        tokens = [rng.randrange(peer.vocab) for _ in range(n)]

        def prefill():
            peer.clear()
            start = time.perf_counter()
            peer.prefill(0, tokens)
            return time.perf_counter() - start

        report("prefill", 1, n, n / best(args.repeat, prefill))
    peer.close()

    for context in args.contexts:
        for batch in args.batches:
            steps = 2 * args.steps if batch == 1 else args.steps
            peer = Peer(args.model, args.threads, batch * (context + args.repeat * steps + 16), batch)
            for sequence in range(batch if context else 0):
                peer.prefill(sequence, [rng.randrange(peer.vocab) for _ in range(context)])
            positions = itertools.count(context)  # shared by consecutive repeats

            def decode():
                start = time.perf_counter()
                for step in range(steps):
                    position = next(positions)
                    peer.decode([(1 + step, position, sequence, True) for sequence in range(batch)])
                return time.perf_counter() - start

            report("decode", batch, context, batch * steps / best(args.repeat, decode))
            peer.close()
    report_memory()


if __name__ == "__main__":
    main()
