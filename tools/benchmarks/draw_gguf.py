#!/usr/bin/env python3
"""Writes a GGUF file with the shape of a published model and random weights, for speed
measurements. The tokenizer comes from another GGUF file; a vocabulary longer than its tokens is
padded.

  .venv/bin/pip install gguf numpy
  .venv/bin/python tools/benchmarks/draw_gguf.py qwen3-4b /tmp/qwen3-4b.gguf --type q4_0 \\
      --tokenizer .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf

Shapes: qwen2.5-0.5b, qwen2.5-1.5b, llama-3.2-1b, qwen3-4b, gemma-3-1b, qwen3-30b-a3b (--layers 4 of its 48 take 1.6 GB in
q4_0 with the embedding).
"""

import argparse

import gguf
import numpy

# architecture, layers, width, feed-forward, heads, KV heads, head_dim, vocabulary, context, RoPE base
SHAPES = {
    "qwen2.5-0.5b": ("qwen2", 24, 896, 4864, 14, 2, 64, 151936, 32768, 1e6),
    "qwen2.5-1.5b": ("qwen2", 28, 1536, 8960, 12, 2, 128, 151936, 32768, 1e6),
    "llama-3.2-1b": ("llama", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 5e5),
    "qwen3-4b": ("qwen3", 36, 2560, 9728, 32, 8, 128, 151936, 40960, 1e6),
    "gemma-3-1b": ("gemma3", 26, 1152, 6912, 4, 1, 256, 262144, 32768, 1e6),
    "qwen3-30b-a3b": ("qwen3moe", 48, 2048, 768, 32, 4, 128, 151936, 40960, 1e6),  # feed-forward: of an expert
}
EXPERTS = {"qwen3moe": (128, 8)}  # per layer, and per token
WINDOW = {"gemma3": 512}
COPIED = ("tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type",
          "tokenizer.ggml.merges", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
          "tokenizer.ggml.add_bos_token", "tokenizer.chat_template")


def copy_tokenizer(path, vocabulary, writer):
    for key, field in gguf.GGUFReader(path).fields.items():
        if key not in COPIED:
            continue
        value = field.contents()
        if key == "tokenizer.ggml.tokens":
            value += [f"<|pad_{i}|>" for i in range(len(value), vocabulary)]
        if key == "tokenizer.ggml.token_type":
            value += [int(gguf.TokenType.UNUSED)] * (vocabulary - len(value))
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, field.types[0])


def k_blocks(kind, rng, rows, cols):
    """Rows of Q4_K or Q6_K of random bytes, because gguf's Python does not quantise to these. Their mean is about 0, their
    deviation about 1 / sqrt(cols)."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows, cols // elements, size), dtype=numpy.uint8)
    # Six bits of a scale and four of a weight, minus 7.5 of them on average; eight bits of a scale and six of a weight.
    q4_k = kind == gguf.GGMLQuantizationType.Q4_K
    scale = 1 / cols**0.5 / (250 if q4_k else 1350)
    scales = numpy.array([scale, 7.5 * scale] if q4_k else [scale], dtype=numpy.float16).view(numpy.uint8)
    blocks[:, :, slice(0, 4) if q4_k else slice(208, 210)] = scales
    return blocks.reshape(rows, -1)


class Matrices:
    """Quantised rows of random numbers; a few rows are repeated, because drawing is slower than
    writing."""

    def __init__(self, seed=7, rows=64):
        self.rows, self.rng, self.made = rows, numpy.random.default_rng(seed), {}

    def draw(self, kind, *sizes):
        *outer, rows, cols = sizes
        if outer:
            return numpy.tile(self.draw(kind, rows, cols), (*outer, 1, 1))
        if (kind, cols) not in self.made:
            if kind in (gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q6_K):
                self.made[kind, cols] = k_blocks(kind, self.rng, self.rows, cols)
            else:
                values = self.rng.standard_normal((self.rows, cols), dtype=numpy.float32) / cols**0.5
                self.made[kind, cols] = gguf.quants.quantize(values, kind)
        few = self.made[kind, cols]
        return numpy.tile(few, (-(-rows // self.rows), 1))[:rows]


def kind_of(file_type, tensor, layer, layers):
    """Of q4_k_m llama.cpp's mixture: Q6_K for the vocabulary, and for values and the last matrix of the feed-forward in half
    of the layers; else Q4_K."""
    if file_type != "q4_k_m":
        return gguf.GGMLQuantizationType[file_type.upper()]
    eighth = layers // 8
    more = layer is None or layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
    return gguf.GGMLQuantizationType.Q6_K if more and tensor in ("token_embd", "attn_v", "ffn_down") else gguf.GGMLQuantizationType.Q4_K


def layer_tensors(shape):
    architecture, _, width, inter, heads, kv_heads, head_dim, *_ = shape
    matrices = {"attn_q": (heads * head_dim, width), "attn_k": (kv_heads * head_dim, width),
                "attn_v": (kv_heads * head_dim, width), "attn_output": (width, heads * head_dim)}
    if architecture in EXPERTS:
        experts = EXPERTS[architecture][0]
        matrices |= {"ffn_gate_exps": (experts, inter, width), "ffn_up_exps": (experts, inter, width),
                     "ffn_down_exps": (experts, width, inter)}
    else:
        matrices |= {"ffn_gate": (inter, width), "ffn_up": (inter, width), "ffn_down": (width, inter)}
    vectors = {"attn_norm.weight": width, "ffn_norm.weight": width}
    if architecture == "qwen2":
        vectors |= {f"{name}.bias": matrices[name][0] for name in ("attn_q", "attn_k", "attn_v")}
    if architecture in ("qwen3", "qwen3moe", "gemma3"):
        vectors |= {"attn_q_norm.weight": head_dim, "attn_k_norm.weight": head_dim}
    if architecture == "gemma3":
        vectors |= {"post_attention_norm.weight": width, "post_ffw_norm.weight": width}
    return matrices, vectors


def add_metadata(shape, writer):
    architecture, layers, width, inter, heads, kv_heads, head_dim, _, context, base = shape
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inter)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(base)
    if architecture in WINDOW:
        writer.add_sliding_window(WINDOW[architecture])
    if architecture in EXPERTS:
        writer.add_expert_count(EXPERTS[architecture][0])
        writer.add_expert_used_count(EXPERTS[architecture][1])
        writer.add_expert_feed_forward_length(inter)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out")
    parser.add_argument("--type", default="q4_0", choices=["q4_0", "q4_1", "q4_k_m", "q8_0", "bf16"])
    parser.add_argument("--tokenizer", required=True, help="a GGUF file")
    parser.add_argument("--layers", type=int, help="fewer than the model has")
    args = parser.parse_args()
    shape = list(SHAPES[args.shape])
    shape[1] = args.layers or shape[1]
    architecture, layers, width, vocabulary = shape[0], shape[1], shape[2], shape[7]
    writer = gguf.GGUFWriter(args.out, architecture)
    writer.add_name(f"{args.shape}, drawn")
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{args.type.upper()}"])  # OpenVINO GenAI asks for it
    add_metadata(shape, writer)
    copy_tokenizer(args.tokenizer, vocabulary, writer)
    drawn = Matrices()
    matrices, vectors = layer_tensors(shape)

    def add_matrix(name, layer, full_name, *sizes):
        kind = kind_of(args.type, name, layer, layers)
        writer.add_tensor(full_name, drawn.draw(kind, *sizes), raw_dtype=kind)

    add_matrix("token_embd", None, "token_embd.weight", vocabulary, width)
    writer.add_tensor("output_norm.weight", numpy.ones(width, dtype=numpy.float32))
    for layer in range(layers):
        for name, sizes in matrices.items():
            add_matrix(name, layer, f"blk.{layer}.{name}.weight", *sizes)
        if architecture in EXPERTS:
            router = drawn.rng.standard_normal((EXPERTS[architecture][0], width), dtype=numpy.float32) / width**0.5
            writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", router)
        for name, size in vectors.items():
            values = numpy.zeros(size, dtype=numpy.float32) if name.endswith(".bias") else numpy.ones(size, dtype=numpy.float32)
            writer.add_tensor(f"blk.{layer}.{name}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()


if __name__ == "__main__":
    main()
