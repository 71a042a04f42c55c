#!/usr/bin/env python3
"""Results of transformers when one field of a tiny model's config.json is changed.

Each case takes a folder of tests/data/engine/tiny_*, with its weights, and changes, removes or adds
a field. A field that transformers reads changes the logits; an unread field does not; a case that
it cannot load, or loads with weights missing in the file, has none. Hydrant must refuse a case or
compute the same.

tests/data/engine/mutated_configs.json: {made_with, ids, cases: [{folder, patch, logits}]}
  patch   a JSON merge patch (RFC 7396) of config.json; a field that is null there is taken out
  set     fields that are set to null instead
  logits  every 25th of the logits after the last id, or null

  .venv/bin/pip install torch transformers safetensors
  .venv/bin/python tests/goldens/mutated_configs.py
"""

import json
import pathlib
import random
import shutil
import tempfile

import torch
import transformers

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "engine"
CASES = 600
SEED = 2020
STRIDE = 25

# Fields of some families, with values that would change the result.
FOREIGN = {
    "attention_bias": [True, False], "mlp_bias": [True, False], "head_dim": [16, 8], "hidden_act": ["gelu", "relu", "silu"],
    "sliding_window": [4, 4096], "use_sliding_window": [True, False], "max_window_layers": [0, 1],
    "layer_types": [["sliding_attention", "full_attention"], ["full_attention", "full_attention"]],
    "rope_theta": [500.0, 10000], "partial_rotary_factor": [0.5, 1.0], "rms_norm_eps": [0.01],
    "attention_multiplier": [0.5], "embedding_multiplier": [2.0], "residual_multiplier": [0.25], "logits_scaling": [2.0],
    "no_rope_layers": [[0, 1], [1] * 8], "no_rope_layer_interval": [2, 1], "tie_word_embeddings": [True, False],
    "attn_logit_softcapping": [30.0], "final_logit_softcapping": [20.0], "query_pre_attn_scalar": [64],
    "num_key_value_heads": [1, 2, 4], "use_qk_norm": [True], "clip_qkv": [0.5], "logit_scale": [0.5],
    "original_max_position_embeddings": [64, 512], "max_position_embeddings": [256, 1024],
    "num_local_experts": [2], "num_experts": [2], "num_experts_per_tok": [1, 2, 3, 5], "norm_topk_prob": [True, False],
    "moe_intermediate_size": [32], "shared_intermediate_size": [16], "mlp_only_layers": [[0], [1, 7]],
    "decoder_sparse_step": [1, 2], "use_parallel_residual": [False], "rotary_pct": [0.5], "rotary_emb_base": [500],
    "do_layer_norm_before": [False], "enable_bias": [False], "layer_norm_eps": [0.01], "pretraining_tp": [2],
    "rope_scaling": [{"rope_type": "linear", "factor": 2.0}, {"type": "dynamic", "factor": 2.0},
                     {"rope_type": "yarn", "factor": 2.0}, {"type": "yarn", "factor": 4.0, "attention_factor": 1.5},
                     {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "truncate": False},
                     {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.3},
                     {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 64},
                     {"rope_type": "default", "rope_theta": 700.0}, {"rope_type": "proportional"}],
}
# Fields without effect on these models' logits get fewer cases.
DULL = {"architectures", "torch_dtype", "dtype"}
# Fields of the tokenizer and of absent layers, or needed only by transformers, where Hydrant uses
# `architectures`.
LEFT_ALONE = {"pad_token_id", "bos_token_id", "eos_token_id", "model_type", "mamba_n_heads"}


def changed(value, rng):
    if isinstance(value, bool):
        return rng.choice([not value, not value, "true", 1])
    if isinstance(value, (int, float)):
        return rng.choice([value * 2, value / 2, value + 1, 0, -value, str(value), None])
    if isinstance(value, str):
        return rng.choice(["gelu", "llama", "", 3, None])
    if isinstance(value, dict):
        key = rng.choice(sorted(value))
        return {key: changed(value[key], rng)}
    if isinstance(value, list):
        return rng.choice([value[:-1], value + value[:1], [v + 1 if isinstance(v, (int, float)) else v for v in value]])
    return rng.choice([4, 4.0, True, "x"])


def mutate(config, rng):
    """A merge patch, and fields to set to null."""
    kind = rng.random()
    fields = [f for f in sorted(config) if f not in LEFT_ALONE and (f not in DULL or rng.random() < 0.1)]
    if kind < 0.15:
        return {rng.choice(fields): None}, []
    if kind < 0.2:
        return {}, [rng.choice(fields)]
    if kind < 0.55:
        field = rng.choice(fields)
        value = changed(config[field], rng)
        return ({}, [field]) if value is None else ({field: value}, [])
    field = rng.choice(sorted(FOREIGN))
    return {field: rng.choice(FOREIGN[field])}, []


def apply(config, patch):
    for key, value in patch.items():
        if value is None:
            config.pop(key, None)
        elif isinstance(value, dict) and isinstance(config.get(key), dict):
            apply(config[key], value)
        else:
            config[key] = value
    return config


@torch.no_grad()
def logits_of(folder, ids):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    if info["missing_keys"] or info["mismatched_keys"]:
        return None
    logits = model.eval()(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
    return [float(f"{v:.6g}") for v in logits.tolist()[::STRIDE]] if torch.isfinite(logits).all() else None


def attempt(folder, ids):
    try:
        return logits_of(folder, ids)
    except Exception:  # any failure: transformers has no result
        return None


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rng = random.Random(SEED)
    folders = sorted(p.parent.name for p in OUT.glob("tiny_*/config.json") if "quantization_config" not in p.read_text())
    ids = [rng.randrange(1, 300) for _ in range(90)]  # beyond every window and original context of the cases
    cases, seen = [], set()
    while len(cases) < CASES:
        folder = folders[len(cases) % len(folders)]
        config = json.loads((OUT / folder / "config.json").read_text())
        patch, nulls = mutate(config, rng)
        key = json.dumps([folder, patch, nulls])
        if key in seen:
            continue
        seen.add(key)
        with tempfile.TemporaryDirectory() as scratch:
            copy = pathlib.Path(scratch) / folder
            shutil.copytree(OUT / folder, copy)
            mutated = apply(config, patch) | {name: None for name in nulls}
            (copy / "config.json").write_text(json.dumps(mutated))
            logits = attempt(copy, ids)
            if nulls and logits is None:  # transformers may refuse a null; here it counts as missing
                (copy / "config.json").write_text(json.dumps({k: v for k, v in mutated.items() if k not in nulls}))
                logits = attempt(copy, ids)
        case = {"folder": folder, "patch": patch, "logits": logits}
        if nulls:
            case["set"] = nulls
        cases.append(case)
    made_with = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], "seed": SEED}
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    (OUT / "mutated_configs.json").write_text(
        f'{{"made_with":{json.dumps(made_with)},"stride":{STRIDE},"ids":{json.dumps(ids)},"cases":[\n{lines}\n]}}\n')
    print(f"{len(cases)} cases, {sum(c['logits'] is not None for c in cases)} of which transformers computes")


if __name__ == "__main__":
    main()
