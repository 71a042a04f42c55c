#!/usr/bin/env python3
"""Converts a llama2.c checkpoint (version 0, float32) and its tokenizer to GGUF (F32). Needs only Python 3.

    tools/models/convert_llama2c.py stories15M.bin tokenizer.bin stories15M.gguf

Checkpoint: int32 dim, hidden, layers, heads, kv_heads, vocab (negative: the output is not tied), context; then
float32 arrays in the order written below. llama2.c rotates interleaved pairs (2i, 2i + 1), and so do GGUF files of
the llama architecture: nothing is permuted.
Tokenizer: int32 max_token_length, then per token float32 score, int32 length, bytes.
"""
import array
import os
import re
import struct
import sys

ALIGNMENT = 32
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9  # GGUF value types
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # SentencePiece token types
BYTE_TOKEN = re.compile(rb"<0x([0-9A-F]{2})>\Z")


def read_checkpoint(path):
    """The header as a dict, and [(GGUF name, dims innermost first, offset in the file)]."""
    with open(path, "rb") as file:
        header = struct.unpack("<7i", file.read(28))
    names = ("dim", "hidden", "layers", "heads", "kv_heads", "vocab", "context")
    c = dict(zip(names, header))
    tied, c["vocab"] = c["vocab"] > 0, abs(c["vocab"])
    for name in names:
        if not 0 < c[name] <= 1 << 24:
            sys.exit(f"{path}: {name} is {c[name]}: not a llama2.c version 0 checkpoint")
    if c["dim"] % c["heads"] or c["heads"] % c["kv_heads"]:
        sys.exit(f"{path}: heads {c['heads']} must divide dim {c['dim']}; kv_heads {c['kv_heads']} must divide heads")
    head_dim = c["dim"] // c["heads"]
    kv_dim = head_dim * c["kv_heads"]
    dim, hidden, layers = c["dim"], c["hidden"], c["layers"]
    tensors, offset = [], 28

    def take(name, *dims, count=1):
        nonlocal offset
        for layer in range(count):
            tensors.append((name.format(layer), dims, offset))
            size = 4
            for d in dims:
                size *= d
            offset += size

    take("token_embd.weight", dim, c["vocab"])
    for name, *dims in (
        ("attn_norm", dim), ("attn_q", dim, dim), ("attn_k", dim, kv_dim), ("attn_v", dim, kv_dim),
        ("attn_output", dim, dim), ("ffn_norm", dim), ("ffn_gate", dim, hidden), ("ffn_down", hidden, dim),
        ("ffn_up", dim, hidden),
    ):  # fmt: skip
        take("blk.{}." + name + ".weight", *dims, count=layers)
    take("output_norm.weight", dim)
    offset += 4 * c["context"] * head_dim  # the RoPE tables, which are computed instead
    if not tied:
        take("output.weight", dim, c["vocab"])
    if os.path.getsize(path) != offset:
        sys.exit(f"{path}: {os.path.getsize(path)} bytes, the header asks for {offset}")
    return c, tensors


def read_tokenizer(path, vocab):
    tokens, scores, types = [], [], []
    with open(path, "rb") as file:
        data = file.read()
    position = 4
    for i in range(vocab):
        if position + 8 > len(data):
            sys.exit(f"{path}: ends at token {i} of {vocab}")
        score, length = struct.unpack_from("<fi", data, position)
        position += 8
        if length < 0 or position + length > len(data):
            sys.exit(f"{path}: token {i} has length {length}, {len(data) - position} bytes are left")
        piece = data[position : position + length]
        position += length
        # llama2.c prints "\n<s>\n" and "\n</s>\n" for the two control tokens.
        kind = {0: UNKNOWN, 1: CONTROL, 2: CONTROL}.get(i, BYTE if BYTE_TOKEN.match(piece) else NORMAL)
        tokens.append({0: b"<unk>", 1: b"<s>", 2: b"</s>"}.get(i, piece.replace(b" ", "\u2581".encode())))
        scores.append(score)
        types.append(kind)
    return tokens, scores, types


def text(value):
    value = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(value)) + value


def pair(key, kind, value):
    if kind == STRING:
        body = text(value)
    elif isinstance(value, list):
        element = {STRING: text}.get(kind, lambda v: struct.pack("<f" if kind == FLOAT32 else "<i", v))
        body = struct.pack("<IQ", kind, len(value)) + b"".join(map(element, value))
        kind = ARRAY
    else:
        body = struct.pack({UINT32: "<I", FLOAT32: "<f", BOOL: "<?"}[kind], value)
    return text(key) + struct.pack("<I", kind) + body


def string_list(key, values):
    return text(key) + struct.pack("<IIQ", ARRAY, STRING, len(values)) + b"".join(map(text, values))


def metadata(c, name, tokenizer):
    tokens, scores, types = tokenizer
    head_dim = c["dim"] // c["heads"]
    return [
        pair("general.architecture", STRING, "llama"),
        pair("general.name", STRING, name),
        pair("general.file_type", UINT32, 0),
        pair("llama.context_length", UINT32, c["context"]),
        pair("llama.embedding_length", UINT32, c["dim"]),
        pair("llama.block_count", UINT32, c["layers"]),
        pair("llama.feed_forward_length", UINT32, c["hidden"]),
        pair("llama.attention.head_count", UINT32, c["heads"]),
        pair("llama.attention.head_count_kv", UINT32, c["kv_heads"]),
        pair("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        pair("llama.rope.freq_base", FLOAT32, 10000.0),
        pair("llama.rope.dimension_count", UINT32, head_dim),
        pair("llama.vocab_size", UINT32, c["vocab"]),
        pair("tokenizer.ggml.model", STRING, "llama"),
        pair("tokenizer.ggml.pre", STRING, "default"),
        string_list("tokenizer.ggml.tokens", tokens),
        pair("tokenizer.ggml.scores", FLOAT32, scores),
        pair("tokenizer.ggml.token_type", INT32, types),
        pair("tokenizer.ggml.unknown_token_id", UINT32, 0),
        pair("tokenizer.ggml.bos_token_id", UINT32, 1),
        pair("tokenizer.ggml.eos_token_id", UINT32, 2),
        pair("tokenizer.ggml.add_bos_token", BOOL, True),
        pair("tokenizer.ggml.add_eos_token", BOOL, False),
        pair("tokenizer.ggml.add_space_prefix", BOOL, True),
    ]


def size_of(dims):
    size = 4
    for d in dims:
        size *= d
    return size


def convert(checkpoint, tokenizer, target):
    c, tensors = read_checkpoint(checkpoint)
    name = os.path.splitext(os.path.basename(checkpoint))[0]
    pairs = metadata(c, name, read_tokenizer(tokenizer, c["vocab"]))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs)
    offset = 0
    for tensor, dims, _ in tensors:
        head += text(tensor) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 0, offset)
        offset += -(-size_of(dims) // ALIGNMENT) * ALIGNMENT
    with open(checkpoint, "rb") as source, open(target + ".part", "wb") as out:
        out.write(head + bytes(-len(head) % ALIGNMENT))
        for _, dims, position in tensors:
            source.seek(position)
            values = array.array("f")
            values.fromfile(source, size_of(dims) // 4)
            if sys.byteorder == "big":
                values.byteswap()
            out.write(values.tobytes() + bytes(-size_of(dims) % ALIGNMENT))
    os.replace(target + ".part", target)
    print(f"{target}: {len(tensors)} tensors, {len(pairs)} metadata keys")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    convert(*sys.argv[1:])
