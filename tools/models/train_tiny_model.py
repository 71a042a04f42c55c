#!/usr/bin/env python3
"""Trains models/hydrant-tiny.gguf, the small model that the repository carries.

It is a Llama-architecture model of 3.1 million parameters (4 layers, hidden 256, 8 query and 4 KV
heads of 32, byte-level BPE of 3,072 tokens, tied embeddings, context 2,048), stored as Q8_0. The
demonstration falls back to it if no package registry can be reached, and tests use it as a real,
trained model without a download. It continues a sentence in the style of its single book.

Source and licence: trained from random weights on the text of Herman Melville's "Moby-Dick" (1851), which is in the
public domain; the text is an argument and is not in the repository. The weights are this project's own (Apache-2.0).

  python3 -m venv .venv && .venv/bin/pip install torch transformers tokenizers gguf numpy
  .venv/bin/python tools/models/train_tiny_model.py moby_dick.txt models/hydrant-tiny.gguf

Everything is seeded; the same versions on the same machine give the same file (floating-point sums differ between
machines). With the default steps it takes about half an hour on one core with AVX-512.
"""

import argparse
import json
import math
import pathlib
import re
import time

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

END_OF_TEXT = "<|endoftext|>"
VOCAB = 3072
CONTEXT = 2048
CONFIG = dict(
    vocab_size=VOCAB, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
    num_key_value_heads=4, head_dim=32, max_position_embeddings=CONTEXT, rms_norm_eps=1e-5,
    tie_word_embeddings=True, bos_token_id=0, eos_token_id=0, attention_bias=False, mlp_bias=False,
)


def read_paragraphs(path):
    """The book without line breaks inside paragraphs: one paragraph a line, blank lines between."""
    text = pathlib.Path(path).read_text(encoding="utf-8").replace("\r\n", "\n")
    paragraphs = [re.sub(r"\s*\n\s*", " ", p).strip() for p in re.split(r"\n\s*\n", text)]
    return [p.replace("_", "") for p in paragraphs if p]


def train_tokenizer(paragraphs):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=[END_OF_TEXT], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["\n\n".join(paragraphs)], trainer)
    assert tokenizer.get_vocab_size() == VOCAB, "the text is too short for the vocabulary"
    return tokenizer


def learning_rate(step, steps, peak):
    warmup = 50
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup))))


def sample_rows(ids, rows, length, generator):
    starts = torch.randint(0, len(ids) - length - 1, (rows,), generator=generator)
    return torch.stack([ids[s:s + length + 1] for s in starts])


def train(model, ids, steps, seed):
    """Short rows first; the last eighth of the steps uses whole contexts, so that every position is
    trained."""
    generator = torch.Generator().manual_seed(seed)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}],
                                  betas=(0.9, 0.97))
    long_from = steps - steps // 8
    started, mean = time.time(), None
    for step in range(steps):
        rows, length = (8, 256) if step < long_from else (1, CONTEXT)
        batch = sample_rows(ids, rows, length, generator)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, 2.5e-3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.item() if mean is None else 0.95 * mean + 0.05 * loss.item()
        if step % 25 == 0 or step + 1 == steps:
            print(f"step {step:5d}/{steps} loss {mean:.3f} {time.time() - started:7.0f} s", flush=True)
    return mean


def interleave_rope(weight, heads):
    """Hugging Face rotates (i, i + d/2) together, the llama layout of GGUF (2i, 2i + 1): reorders
    the rows."""
    out, columns = weight.shape
    return weight.reshape(heads, 2, out // heads // 2, columns).swapaxes(1, 2).reshape(out, columns)


def write_gguf(model, tokenizer, path):
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("hydrant-tiny")
    writer.add_description("A 3.1M-parameter Llama trained from scratch on Moby-Dick (1851, public domain)")
    writer.add_license("apache-2.0")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)

    parsed = json.loads(tokenizer.to_str())
    vocab = sorted(parsed["model"]["vocab"].items(), key=lambda item: item[1])
    merges = [m if isinstance(m, str) else " ".join(m) for m in parsed["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in vocab])
    writer.add_token_types([gguf.TokenType.CONTROL if token == END_OF_TEXT else gguf.TokenType.NORMAL
                            for token, _ in vocab])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)

    def add(name, tensor, heads=None):
        data = tensor.detach().float().numpy()
        if heads:
            data = interleave_rope(data, heads)
        data = np.ascontiguousarray(data)
        if data.ndim == 1:
            writer.add_tensor(name, data)
            return
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)

    add("token_embd.weight", model.model.embed_tokens.weight)
    for i, layer in enumerate(model.model.layers):
        prefix = f"blk.{i}."
        add(prefix + "attn_norm.weight", layer.input_layernorm.weight)
        add(prefix + "attn_q.weight", layer.self_attn.q_proj.weight, config.num_attention_heads)
        add(prefix + "attn_k.weight", layer.self_attn.k_proj.weight, config.num_key_value_heads)
        add(prefix + "attn_v.weight", layer.self_attn.v_proj.weight)
        add(prefix + "attn_output.weight", layer.self_attn.o_proj.weight)
        add(prefix + "ffn_norm.weight", layer.post_attention_layernorm.weight)
        add(prefix + "ffn_gate.weight", layer.mlp.gate_proj.weight)
        add(prefix + "ffn_up.weight", layer.mlp.up_proj.weight)
        add(prefix + "ffn_down.weight", layer.mlp.down_proj.weight)
    add("output_norm.weight", model.model.norm.weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description="Trains the small model that the repository carries.")
    parser.add_argument("text", help="plain text of a public-domain book, UTF-8")
    parser.add_argument("out", help="the GGUF file to write")
    parser.add_argument("--steps", type=int, default=2600)
    parser.add_argument("--seed", type=int, default=1851)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", help="also keep the trained model as a Hugging Face folder here")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    paragraphs = read_paragraphs(args.text)
    tokenizer = train_tokenizer(paragraphs)
    ids = torch.tensor(tokenizer.encode("\n\n".join(paragraphs)).ids)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG, attn_implementation="sdpa"))
    print(f"{len(ids)} tokens, {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    train(model, ids, args.steps, args.seed)
    write_gguf(model, tokenizer, args.out)
    if args.keep:
        model.save_pretrained(args.keep)
        tokenizer.save(str(pathlib.Path(args.keep) / "tokenizer.json"))
    print(f"wrote {args.out}: {pathlib.Path(args.out).stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
