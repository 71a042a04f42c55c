#!/usr/bin/env python3
"""Makes the tiny Hugging Face folders in tests/data/engine/tiny_* and what transformers computes with them.

Each is a model of seeded random weights (so it speaks nonsense, but any error in the arithmetic shows):

  tiny_llama3_rope  tied, 4 query / 2 KV heads of 16, rope_scaling "llama3", bf16, two shards with an index
  tiny_linear_rope  untied, 4 query / 1 KV head of 32 (head_dim is not hidden / heads), linear scaling written as
                    rope_parameters, f16, one file
  tiny_mha          tied, 4 / 4 heads of 8, no scaling, f32, one file
  tiny_opt          OPT: 4 heads of 16, f16, one file
  tiny_neox         GPT-NeoX: 4 heads of 16 of which 4 elements turn (rotary_pct), gelu, bf16, two shards
  tiny_neox_serial  without the parallel residual, 3 heads of 12 of which 6 turn (rope_parameters), gelu_new, f32, with
                    the buffers of older files

goldens.json in each folder, computed in fp32 from the stored values:
  inputs        [{ids, rows: [{position, logits[vocab]}]}]   logits after reading ids[0..position]
  greedy        {prompt_ids, output_ids, top1, top2}         32 greedy tokens with the two highest logits of each step

  .venv/bin/pip install torch transformers tokenizers safetensors numpy
  .venv/bin/python scripts/goldens/tiny_models.py            writes into tests/data/engine/
"""

import json
import pathlib
import shutil

import safetensors.torch
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "data" / "engine"
END_OF_TEXT = "<|endoftext|>"
VOCAB = 300
TEXT = (
    "The pump at the end of the lane gave water from the well to the houses and to the horses. "
    "When the fire came the men ran with leather buckets, hand to hand, and the water in the well went down. "
    "Later the town laid pipes of iron under the street, and at every corner stood a hydrant, painted red, "
    "with a cap and a chain, so that the hose could be joined to the main and the water would not run out. "
) * 2

COMMON = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "bos_token_id": 0, "eos_token_id": 0,
    "max_position_embeddings": 512,
}
OPT = {
    "architectures": ["OPTForCausalLM"], "model_type": "opt", "vocab_size": VOCAB, "activation_function": "relu",
    "do_layer_norm_before": True, "_remove_final_layer_norm": False, "bos_token_id": 0, "eos_token_id": 0,
    "pad_token_id": 0, "max_position_embeddings": 320,
}
NEOX = {
    "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "vocab_size": VOCAB, "layer_norm_eps": 1e-5,
    "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0, "max_position_embeddings": 512,
}
FOLDERS = {
    "tiny_llama3_rope": dict(
        dtype="bfloat16", shards=2, seed=11,
        config={"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "tie_word_embeddings": True, "rope_theta": 10000.0,
                "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                 "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}),
    "tiny_linear_rope": dict(
        dtype="float16", shards=1, seed=12,
        config={"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 1, "head_dim": 32, "tie_word_embeddings": False,
                "rope_parameters": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 2.0}}),
    "tiny_mha": dict(
        dtype="float32", shards=1, seed=13,
        config={"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 4, "tie_word_embeddings": True, "rope_theta": 10000.0}),
    "tiny_opt": dict(
        dtype="float16", shards=1, seed=22, common=OPT, embedding=0.1,
        config={"hidden_size": 64, "word_embed_proj_dim": 64, "ffn_dim": 96, "num_hidden_layers": 2,
                "num_attention_heads": 4}),
    "tiny_neox": dict(
        dtype="bfloat16", shards=2, seed=20, common=NEOX,
        config={"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                "hidden_act": "gelu", "use_parallel_residual": True, "rotary_pct": 0.25, "rotary_emb_base": 5000}),
    "tiny_neox_serial": dict(
        dtype="float32", shards=1, seed=17, common=NEOX, buffers=True,
        config={"hidden_size": 36, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 3,
                "hidden_act": "gelu_new", "use_parallel_residual": False,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}),
}


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=[END_OF_TEXT], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    assert tokenizer.get_vocab_size() == VOCAB
    return tokenizer


def random_weights(model, seed, embedding=0.5):
    """Wide enough that attention is neither flat nor stuck on one entry, and norms are not all ones."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if model.config.model_type == "gpt_neox":
            name = name.replace("lm_head.", "embed_out.")  # as files have it
        if parameter.dim() == 1:
            weights[name] = 0.1 * noise if name.endswith(".bias") else 1.0 + 0.2 * noise
        elif "embed" in name or "lm_head" in name:
            weights[name] = embedding * noise
        elif "q_proj" in name or "k_proj" in name or "query_key_value" in name:
            weights[name] = noise * 1.4 / parameter.shape[1] ** 0.5
        else:
            weights[name] = noise / parameter.shape[1] ** 0.5
    return weights


def add_buffers(weights, config):
    """What files of older transformers hold beside the weights."""
    for layer in range(config.num_hidden_layers):
        prefix = f"gpt_neox.layers.{layer}.attention."
        weights[prefix + "bias"] = torch.ones(1, 1, 16, 16, dtype=torch.bool).tril()
        weights[prefix + "masked_bias"] = torch.tensor(-1e9)
        weights[prefix + "rotary_emb.inv_freq"] = torch.ones(3)


def save_shards(weights, folder, shards):
    if shards == 1:
        safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(weights)
    index = {"metadata": {"total_size": sum(w.numel() * w.element_size() for w in weights.values())}, "weight_map": {}}
    for s in range(shards):
        file = f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: weights[name] for name in names[s::shards]}
        safetensors.torch.save_file(part, folder / file, metadata={"format": "pt"})
        index["weight_map"].update({name: file for name in part})
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")


def numbers(values):
    return [float(f"{v:.7g}") for v in values]


@torch.no_grad()
def make_goldens(model, vocab):
    generator = torch.Generator().manual_seed(7)
    inputs = []
    for length, positions in ((40, (0, 1, 17, 39)), (300, (0, 15, 16, 63, 64, 150, 299))):
        ids = torch.randint(1, vocab, (1, length), generator=generator)
        logits = model(input_ids=ids, use_cache=False).logits[0]
        inputs.append({"ids": ids[0].tolist(),
                       "rows": [{"position": p, "logits": numbers(logits[p].tolist())} for p in positions]})
    ids, outputs, top1, top2 = inputs[0]["ids"][:20], [], [], []
    for _ in range(32):
        logits = model(input_ids=torch.tensor([ids + outputs]), use_cache=False).logits[0, -1]
        best = torch.topk(logits, 2)
        outputs.append(int(best.indices[0]))
        top1.append(best.values[0].item())
        top2.append(best.values[1].item())
    return {"made_with": {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]},
            "inputs": inputs,
            "greedy": {"prompt_ids": ids, "output_ids": outputs, "top1": numbers(top1), "top2": numbers(top2)}}


def main():
    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    for name, spec in FOLDERS.items():
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        config = {**spec.get("common", COMMON), **spec["config"], "torch_dtype": spec["dtype"]}
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        blank = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
        weights = {k: v.to(getattr(torch, spec["dtype"])).contiguous()
                   for k, v in random_weights(blank, spec["seed"], spec.get("embedding", 0.5)).items()}
        if spec.get("buffers"):
            add_buffers(weights, blank.config)
        save_shards(weights, folder, spec["shards"])
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager")
        goldens = make_goldens(model.eval(), VOCAB)
        (folder / "goldens.json").write_text(json.dumps(goldens, separators=(",", ":")) + "\n")
        margins = [a - b for a, b in zip(goldens["greedy"]["top1"], goldens["greedy"]["top2"])]
        size = sum(f.stat().st_size for f in folder.iterdir())
        print(f"{name}: {size / 1e3:.0f} kB, rope {getattr(model.config, 'rope_parameters', None)}, least greedy margin {min(margins):.4f}")


if __name__ == "__main__":
    main()
