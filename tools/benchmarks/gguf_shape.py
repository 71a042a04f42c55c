#!/usr/bin/env python3
"""Prints, as JSON, the sizes of a GGUF file that speed limits follow from. Needs only Python 3.

weight_bytes: bytes read by a decode step (every tensor, but the embedding only if it is the output
matrix too).
matmul_parameters: weights multiplied with each token, without the output matrix, which a prompt
needs once: output_parameters.
In both, only the experts selected for a token count.
"""

import json
import math
import struct
import sys

# (elements, bytes) of a block, by ggml type.
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
          11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 20: (32, 18), 23: (256, 136), 30: (1, 2),
          39: (32, 17)}
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def main():
    with open(sys.argv[1], "rb") as file:
        def take(fmt):
            return struct.unpack("<" + fmt, file.read(struct.calcsize("<" + fmt)))[0]

        def text():
            return file.read(take("Q")).decode("utf-8", "replace")

        def value(kind):
            if kind == 8:
                return text()
            if kind == 9:
                inner, count = take("I"), take("Q")
                return [value(inner) for _ in range(count)]
            return take(SCALARS[kind])

        assert file.read(4) == b"GGUF", "not a GGUF file"
        take("I")
        tensors, keys = take("Q"), take("Q")
        meta = {}
        for _ in range(keys):
            name = text()
            meta[name] = value(take("I"))
        def of(name, default=None):
            return meta.get(f"{meta['general.architecture']}.{name}", default)

        total = parameters = 0
        ends = {}  # elements and bytes of the embedding and the output matrix
        for _ in range(tensors):
            name = text()
            dims = [take("Q") for _ in range(take("I"))]
            kind = take("I")
            take("Q")
            used = math.prod(dims)
            if len(dims) == 3:
                used = used // of("expert_count") * of("expert_used_count")
            elements, size = BLOCKS[kind]
            if name in ("token_embd.weight", "output.weight"):
                ends[name] = (used, used // elements * size)
                continue
            total += used // elements * size
            if len(dims) > 1 and name.startswith("blk."):
                parameters += used
    heads, kv_heads = of("attention.head_count"), of("attention.head_count_kv")
    head_dim = of("attention.key_length", of("embedding_length") // heads)
    output, output_bytes = ends.get("output.weight", ends["token_embd.weight"])
    print(json.dumps({"weight_bytes": total + output_bytes, "matmul_parameters": parameters,
                      "output_parameters": output, "layers": of("block_count"), "q_dim": heads * head_dim,
                      "kv_dim": kv_heads * head_dim}))


main()
