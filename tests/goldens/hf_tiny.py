#!/usr/bin/env python3
"""Two tiny Hugging Face folders written by the PyPI package `safetensors`: tests/data/model/hf_single (F32, untied,
one file) and tests/data/model/hf_sharded (F16, tied, two files and an index).

Element i of the n-th tensor in alphabetical order is ((31 n + i) mod 257 - 128) / 64, which every type holds exactly.

    pip install safetensors numpy && python3 tests/goldens/hf_tiny.py
"""
import json
import pathlib

import numpy as np
from safetensors.numpy import save_file

HIDDEN, INTER, HEADS, KV_HEADS, LAYERS, VOCAB = 16, 24, 2, 1, 2, 20
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
    "intermediate_size": INTER, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": LAYERS, "vocab_size": VOCAB, "max_position_embeddings": 128, "hidden_act": "silu",
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "rope_scaling": None, "attention_bias": False,
}  # fmt: skip


def shapes(tied):
    kv = HIDDEN // HEADS * KV_HEADS
    result = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not tied:
        result["lm_head.weight"] = (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        p = f"model.layers.{layer}."
        result |= {
            p + "input_layernorm.weight": (HIDDEN,), p + "post_attention_layernorm.weight": (HIDDEN,),
            p + "self_attn.q_proj.weight": (HIDDEN, HIDDEN), p + "self_attn.k_proj.weight": (kv, HIDDEN),
            p + "self_attn.v_proj.weight": (kv, HIDDEN), p + "self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            p + "mlp.gate_proj.weight": (INTER, HIDDEN), p + "mlp.up_proj.weight": (INTER, HIDDEN),
            p + "mlp.down_proj.weight": (HIDDEN, INTER),
        }  # fmt: skip
    return dict(sorted(result.items()))


def tensors(tied, dtype):
    return {
        name: (((31 * n + np.arange(np.prod(shape))) % 257 - 128) / 64).astype(dtype).reshape(shape)
        for n, (name, shape) in enumerate(shapes(tied).items())
    }


def main():
    root = pathlib.Path(__file__).resolve().parents[2] / "tests/data/model"
    single, sharded = root / "hf_single", root / "hf_sharded"
    for folder, tied, kind in ((single, False, "float32"), (sharded, True, "float16")):
        folder.mkdir(parents=True, exist_ok=True)
        config = CONFIG | {"tie_word_embeddings": tied, "torch_dtype": kind}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(tensors(False, np.float32), single / "model.safetensors", metadata={"format": "pt"})
    weights = tensors(True, np.float16)
    parts = {"model-00001-of-00002.safetensors": {}, "model-00002-of-00002.safetensors": {}}
    for name, value in weights.items():
        parts[list(parts)[1 if ".layers.1." in name else 0]][name] = value
    for file, part in parts.items():
        save_file(part, sharded / file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": sum(v.nbytes for v in weights.values())},
             "weight_map": {name: file for file, part in parts.items() for name in part}}  # fmt: skip
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


if __name__ == "__main__":
    main()
