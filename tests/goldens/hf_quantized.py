#!/usr/bin/env python3
"""Makes tiny Hugging Face folders with quantised weights in tests/data/engine/tiny_*, as their publishers lay them out.

  tiny_fp8          e4m3fn, a scale for each block of 128 x 128 (weight_scale_inv); 160 columns in one matrix
  tiny_fp8_channel  e4m3fn, a bf16 scale for each row (compressed-tensors, "float-quantized")
  tiny_gptq         GPTQ, 4 bits, symmetric, groups of 32, zeros for the biases that llama does not have
  tiny_gptq_act     GPTQ, 4 bits, with zero points, groups of 32 in the order of g_idx (desc_act)
  tiny_gptq_v2      GPTQ, 4 bits, with zero points, one group, checkpoint_format gptq_v2
  tiny_awq          AWQ, 4 bits, with zero points, groups of 32

Each has goldens.json as made by tests/goldens/tiny_models.py: results of transformers in fp32 with
the weights dequantised by torch: element * scale, and scale * (quant - zero).

  .venv/bin/pip install torch transformers tokenizers safetensors numpy
  .venv/bin/python tests/goldens/hf_quantized.py           writes into tests/data/engine/
"""

import json
import shutil

import safetensors.torch
import torch
import transformers

from tiny_models import COMMON, OUT, VOCAB, make_goldens, make_tokenizer, random_weights

LLAMA = {**COMMON, "tie_word_embeddings": True, "rope_theta": 10000.0, "torch_dtype": "bfloat16"}
SMALL = {**LLAMA, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2}
WIDE = {**LLAMA, "hidden_size": 128, "intermediate_size": 160, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2}
# Positions of eight outputs in a word of AWQ: output AWQ_ORDER[i] in nibble i (AutoAWQ's
# WQLinear_GEMM.from_linear).
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def blocks_of(tensor, rows, cols):
    """Splits [r, c] into blocks of rows x cols; the last may be short."""
    for r in range(0, tensor.shape[0], rows):
        for c in range(0, tensor.shape[1], cols):
            yield slice(r, r + rows), slice(c, c + cols)


def fp8(weight, rows, cols, scale_dtype):
    """Elements, scales [ceil, ceil], and the dequantised values."""
    quants, values = torch.empty_like(weight, dtype=torch.float8_e4m3fn), torch.empty_like(weight)
    scales = []
    for block in blocks_of(weight, rows, cols):
        scale = (weight[block].abs().max() / 448).to(scale_dtype)
        scales.append(scale)
        quants[block] = (weight[block] / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
        values[block] = quants[block].float() * scale.float()
    return quants, torch.stack(scales).reshape(-(-weight.shape[0] // rows), -1), values


def fp8_block(name, weight):
    quants, scales, values = fp8(weight, 128, 128, torch.float32)
    return {f"{name}.weight": quants, f"{name}.weight_scale_inv": scales}, values


def fp8_channel(name, weight):
    quants, scales, values = fp8(weight, 1, weight.shape[1], torch.bfloat16)
    return {f"{name}.weight": quants, f"{name}.weight_scale": scales,
            f"{name}.input_scale": torch.ones(1)}, values


def int4(weight, groups, symmetric):
    """Quants [out, in], scales and zero points [groups, out], and the values; groups: the group of each input."""
    out, count = weight.shape[0], int(groups.max()) + 1
    scales, zeros = torch.zeros(count, out, dtype=torch.float16), torch.zeros(count, out, dtype=torch.int32)
    quants = torch.zeros_like(weight, dtype=torch.int32)
    for g in range(count):
        part = weight[:, groups == g]
        if symmetric:
            scale = part.abs().amax(1) / 7.5
            zero = torch.full((out,), 8.0)
        else:
            scale = (part.amax(1).clamp(min=0) - part.amin(1).clamp(max=0)) / 15
            zero = (-part.amin(1).clamp(max=0) / scale).round().clamp(1, 15)
        scales[g], zeros[g] = scale.half(), zero.int()
        quants[:, groups == g] = (part / scales[g].float()[:, None] + zero[:, None]).round().clamp(0, 15).int()
    values = scales.float()[groups].T * (quants - zeros[groups].T).float()
    return quants, scales, zeros, values


def pack(nibbles, dim, order=range(8)):
    """Eight nibbles along `dim` to a word: element order[i] of the eight in nibble i."""
    nibbles = nibbles.movedim(dim, -1).long()
    words = nibbles.reshape(*nibbles.shape[:-1], -1, 8)
    packed = sum(words[..., element] << (4 * place) for place, element in enumerate(order))
    packed = torch.where(packed >= 1 << 31, packed - (1 << 32), packed).int()
    return packed.movedim(-1, dim).contiguous()


def gptq(name, weight, group_size, symmetric, shuffled, version, biases):
    columns = weight.shape[1]
    groups = torch.arange(columns) // (group_size if group_size > 0 else columns)
    if shuffled:
        groups = groups[torch.randperm(columns, generator=torch.Generator().manual_seed(3))]
    quants, scales, zeros, values = int4(weight, groups, symmetric)
    tensors = {f"{name}.qweight": pack(quants.T, 0), f"{name}.scales": scales, f"{name}.g_idx": groups.int(),
               f"{name}.qzeros": pack(zeros - (1 if version == 1 else 0), 1)}
    if biases:
        tensors[f"{name}.bias"] = torch.zeros(weight.shape[0], dtype=torch.float16)
    return tensors, values


def awq(name, weight):
    quants, scales, zeros, values = int4(weight, torch.arange(weight.shape[1]) // 32, False)
    return {f"{name}.qweight": pack(quants.T, 1, AWQ_ORDER), f"{name}.scales": scales,
            f"{name}.qzeros": pack(zeros, 1, AWQ_ORDER)}, values


def gptq_config(**fields):
    return {"bits": 4, "damp_percent": 0.01, "quant_method": "gptq", "static_groups": False, "true_sequential": True,
            "model_name_or_path": None, **fields}


FOLDERS = {
    "tiny_fp8": (WIDE, 31, fp8_block, {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm"]}),
    "tiny_fp8_channel": ({**WIDE, "intermediate_size": 128}, 32, fp8_channel, {
        "config_groups": {"group_0": {
            "input_activations": {"dynamic": True, "num_bits": 8, "strategy": "token", "symmetric": True, "type": "float"},
            "output_activations": None, "targets": ["Linear"],
            "weights": {"actorder": None, "block_structure": None, "dynamic": False, "group_size": None, "num_bits": 8,
                        "observer": "minmax", "observer_kwargs": {}, "strategy": "channel", "symmetric": True,
                        "type": "float"}}},
        "format": "float-quantized", "global_compression_ratio": 1.46, "ignore": ["lm_head"], "kv_cache_scheme": None,
        "quant_method": "compressed-tensors", "quantization_status": "compressed"}),
    "tiny_gptq": (SMALL, 33, lambda n, w: gptq(n, w, 32, True, False, 1, True),
                  gptq_config(group_size=32, desc_act=False, sym=True)),
    "tiny_gptq_act": (SMALL, 34, lambda n, w: gptq(n, w, 32, False, True, 1, False),
                      gptq_config(group_size=32, desc_act=True, sym=False)),
    "tiny_gptq_v2": (SMALL, 35, lambda n, w: gptq(n, w, -1, False, False, 2, False),
                     gptq_config(group_size=-1, desc_act=False, sym=False, checkpoint_format="gptq_v2",
                                 pack_dtype="int32", meta={"quantizer": ["gptqmodel:2.0.0"]})),
    "tiny_awq": (SMALL, 36, awq, {
        "bits": 4, "group_size": 32, "modules_to_not_convert": None, "quant_method": "awq", "version": "gemm",
        "zero_point": True}),
}


def main():
    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    for folder_name, (config, seed, quantise, quantization_config) in FOLDERS.items():
        folder = OUT / folder_name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.LlamaConfig(**{k: v for k, v in config.items() if k != "torch_dtype"}),
            dtype=torch.float32, attn_implementation="eager")
        tensors, values = {}, {}
        for name, weight in random_weights(model, seed).items():
            if name.endswith("_proj.weight"):
                parts, values[name] = quantise(name.removesuffix(".weight"), weight)
                tensors.update(parts)
            else:
                tensors[name] = weight.to(torch.bfloat16)
                values[name] = tensors[name].float()
        (folder / "config.json").write_text(
            json.dumps({**config, "quantization_config": quantization_config}, indent=1) + "\n")
        tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        missing, unexpected = model.load_state_dict(values, strict=False)
        assert missing == ["lm_head.weight"] and not unexpected, (missing, unexpected)  # tied
        goldens = make_goldens(model.eval(), VOCAB)
        (folder / "goldens.json").write_text(json.dumps(goldens, separators=(",", ":")) + "\n")
        margins = [a - b for a, b in zip(goldens["greedy"]["top1"], goldens["greedy"]["top2"])]
        size = sum(f.stat().st_size for f in folder.iterdir())
        print(f"{folder_name}: {size / 1e3:.0f} kB, least greedy margin {min(margins):.4f}")


if __name__ == "__main__":
    main()
