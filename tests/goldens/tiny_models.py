#!/usr/bin/env python3
"""Makes the tiny Hugging Face folders in tests/data/engine/tiny_* and transformers' results with
them.

Each is a model of seeded random weights (its text is nonsense, but any error in the arithmetic
shows):

  tiny_llama3_rope  tied, 4 query / 2 KV heads of 16, rope_scaling "llama3", bf16, two shards with an index
  tiny_linear_rope  untied, 4 query / 1 KV head of 32 (head_dim is not hidden / heads), linear scaling written as
                    rope_parameters, f16, one file
  tiny_mha          tied, 4 / 4 heads of 8, no scaling, f32, one file
  tiny_opt          OPT: 4 heads of 16, f16, one file
  tiny_neox         GPT-NeoX: 4 heads of 16 of which 4 elements are rotated (rotary_pct), gelu, bf16, two shards
  tiny_neox_serial  without the parallel residual, 3 heads of 12 of which 6 are rotated (rope_parameters), gelu_new, f32, with
                    the buffers of older files
  tiny_llama_bias   Llama with every bias it may have
  tiny_mistral      Mistral without a window, head_dim is not hidden / heads
  tiny_qwen2        biases of queries, keys and values, tied
  tiny_qwen2_yarn   with YaRN, its own beta_fast and beta_slow
  tiny_qwen3        norms of each head, head_dim is not hidden / heads
  tiny_granite      four scales
  tiny_granite4     the same under the name of its hybrids, fused projections
  tiny_smollm3      8 layers, of which two are not rotated
  tiny_phi3         fused projections, three quarters of a head rotated by LongRoPE's long factors
  tiny_phi3_short   LongRoPE's short factors, whole heads
  tiny_gemma        wide heads, scaled embeddings, GELU in the gate, norms less 1
  tiny_gemma2       4 layers, of which two have a window; bounded logits, norms on both sides
  tiny_gemma3       4 layers, of which three have a window and a RoPE of their own, norms on both sides and of each head
  tiny_mistral_window  a window in every layer
  tiny_ministral    a window in one of two layers
  tiny_olmo3        4 layers, of which three have a window; the fourth has YaRN
  tiny_gpt_oss      experts with biases, sink logits, a window in every other layer, YaRN that is not truncated
  tiny_gpt_oss_mxfp4  the same, experts in MXFP4
  tiny_olmo2        norms after attention and feed-forward, of all queries and of all keys
  tiny_mixtral      two of four experts
  tiny_qwen3_moe    three of eight experts, whose weights sum to 1
  tiny_qwen3_moe_dense  one of four layers is dense by mlp_only_layers, one by decoder_sparse_step; weights of all experts
  tiny_granite_moe  two of four experts in fused tensors
  tiny_granite_moe_shared  the same beside a shared feed-forward
  tiny_granite4_moe  the same under the name of the hybrids, not rotated

Windows are shorter than the inputs of the goldens. Those after tiny_neox_serial are bf16, and but for tiny_ministral, tiny_qwen3_moe_dense and
tiny_granite4_moe have the same model as model.gguf, too, written by the gguf package.

goldens.json in each folder, computed in fp32 from the stored values:
  inputs        [{ids, rows: [{position, logits[vocab]}]}]   logits after reading ids[0..position]
  greedy        {prompt_ids, output_ids, top1, top2}         greedy tokens with the two highest logits of each step

  .venv/bin/pip install torch transformers tokenizers safetensors numpy gguf
  .venv/bin/python tests/goldens/tiny_models.py [FOLDER]...     writes into tests/data/engine/; without names, all
"""

import json
import math
import pathlib
import shutil
import sys

import gguf
import numpy
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

# For the newer families: a common shape besides the family's additions.
SHAPE = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "hidden_act": "silu",
         "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None, "max_position_embeddings": 512,
         "rope_theta": 10000.0, "tie_word_embeddings": False}


def family(architecture, model_type, seed, config, gguf=True, **more):
    return dict(dtype="bfloat16", shards=1, seed=seed, common=SHAPE, greedy=64, gguf=gguf, **more,
                config={"architectures": [architecture], "model_type": model_type, **config})


LESS_ONE = {"gemma", "gemma2", "gemma3_text"}  # families with norm weights stored minus 1; GGUF files hold them whole


# One layer in two has a window, and the family uses YaRN.
GPT_OSS = {"num_hidden_layers": 4, "head_dim": 8, "sliding_window": 24, "num_local_experts": 4, "num_experts_per_tok": 2,
           "attention_bias": True, "rope_theta": 150000.0,
           "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                            "original_max_position_embeddings": 64}}


def factors(first, count):
    return [first + 0.25 * i for i in range(count)]


FOLDERS |= {
    "tiny_llama_bias": family("LlamaForCausalLM", "llama", 31,
                              {"attention_bias": True, "mlp_bias": True}),
    "tiny_mistral": family("MistralForCausalLM", "mistral", 32, {"sliding_window": None, "head_dim": 12}),
    "tiny_qwen2": family("Qwen2ForCausalLM", "qwen2", 33,
                         {"tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": 64,
                          "max_window_layers": 1}),
    "tiny_qwen2_yarn": family(
        "Qwen2ForCausalLM", "qwen2", 34,
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
                          "beta_fast": 24.0, "beta_slow": 2.0}}),
    "tiny_qwen3": family("Qwen3ForCausalLM", "qwen3", 35, {"head_dim": 16, "tie_word_embeddings": True}),
    "tiny_granite": family("GraniteForCausalLM", "granite", 36,
                           {"attention_multiplier": 0.15, "embedding_multiplier": 4.0, "residual_multiplier": 0.5,
                            "logits_scaling": 3.0}),
    "tiny_granite4": family(
        "GraniteMoeHybridForCausalLM", "granitemoehybrid", 42,
        {"attention_multiplier": 0.15, "embedding_multiplier": 4.0, "residual_multiplier": 0.5, "logits_scaling": 3.0,
         "layer_types": ["attention"] * 2, "num_local_experts": 0, "num_experts_per_tok": 0,
         "shared_intermediate_size": 48, "position_embedding_type": "rope", "mamba_n_heads": 4,
         "tie_word_embeddings": True}),
    "tiny_smollm3": family("SmolLM3ForCausalLM", "smollm3", 37,
                           {"num_hidden_layers": 8, "tie_word_embeddings": True,
                            "no_rope_layer_interval": 4}),
    "tiny_phi3": family(
        "Phi3ForCausalLM", "phi3", 38,
        {"original_max_position_embeddings": 48, "partial_rotary_factor": 0.75,
         "rope_scaling": {"type": "longrope", "short_factor": factors(1.0, 3), "long_factor": factors(1.5, 3)}},
        lengths=(70, 300)),
    "tiny_phi3_short": family(
        "Phi3ForCausalLM", "phi3", 39,
        {"original_max_position_embeddings": 512,
         "rope_scaling": {"type": "longrope", "short_factor": factors(1.0, 4), "long_factor": factors(1.5, 4)}}),
    "tiny_gemma": family("GemmaForCausalLM", "gemma", 41,
                         {"head_dim": 16, "tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"}),
    "tiny_gemma2": family(
        "Gemma2ForCausalLM", "gemma2", 47,
        {"num_hidden_layers": 4, "head_dim": 16, "tie_word_embeddings": True, "query_pre_attn_scalar": 16,
         "hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 40,
         "attn_logit_softcapping": 3.0, "final_logit_softcapping": 20.0}),
    "tiny_gemma3": family(
        "Gemma3ForCausalLM", "gemma3_text", 43,
        {"num_hidden_layers": 4, "head_dim": 16, "tie_word_embeddings": True, "query_pre_attn_scalar": 16,
         "hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 48, "sliding_window_pattern": 4,
         "rope_theta": 20000.0, "rope_local_base_freq": 500.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "tiny_mistral_window": family("MistralForCausalLM", "mistral", 44, {"sliding_window": 100}),
    "tiny_ministral": family(
        "MinistralForCausalLM", "ministral", 46,
        {"head_dim": 8, "sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]}, gguf=False),
    "tiny_olmo3": family(
        "Olmo3ForCausalLM", "olmo3", 45,
        {"num_hidden_layers": 4, "sliding_window": 33, "rope_theta": 500000.0,
         "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
                          "beta_fast": 32, "beta_slow": 1}}),
    "tiny_gpt_oss": family(
        "GptOssForCausalLM", "gpt_oss", 57, GPT_OSS),
    "tiny_gpt_oss_mxfp4": family(
        "GptOssForCausalLM", "gpt_oss", 60,
        GPT_OSS | {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 16,
                   "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}, gguf=False),
    "tiny_olmo2": family("Olmo2ForCausalLM", "olmo2", 40, {}),
}


GRANITE = {"attention_multiplier": 0.15, "embedding_multiplier": 4.0, "residual_multiplier": 0.5, "logits_scaling": 3.0}
GRANITE_MOE = GRANITE | {"intermediate_size": 16, "num_local_experts": 4, "num_experts_per_tok": 2,
                         "tie_word_embeddings": True}
QWEN3_MOE = {"head_dim": 8, "tie_word_embeddings": True, "num_experts": 8, "num_experts_per_tok": 3,
             "moe_intermediate_size": 16, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
             "use_sliding_window": False}

FOLDERS |= {
    "tiny_mixtral": family("MixtralForCausalLM", "mixtral", 51,
                           {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None,
                            "tie_word_embeddings": True}),
    "tiny_qwen3_moe": family("Qwen3MoeForCausalLM", "qwen3_moe", 52, QWEN3_MOE),
    "tiny_qwen3_moe_dense": family(
        "Qwen3MoeForCausalLM", "qwen3_moe", 53,
        QWEN3_MOE | {"num_hidden_layers": 6, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": False,
                     "decoder_sparse_step": 2, "mlp_only_layers": [1]}, gguf=False),
    "tiny_granite_moe": family("GraniteMoeForCausalLM", "granitemoe", 54, GRANITE_MOE),
    "tiny_granite_moe_shared": family("GraniteMoeSharedForCausalLM", "granitemoeshared", 55,
                                      GRANITE_MOE | {"shared_intermediate_size": 48}),
    "tiny_granite4_moe": family(
        "GraniteMoeHybridForCausalLM", "granitemoehybrid", 56,
        GRANITE_MOE | {"shared_intermediate_size": 48, "layer_types": ["attention"] * 2, "mamba_n_heads": 4}, gguf=False),
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
    """Wide enough that attention is neither flat nor concentrated on one entry, and norms are not
    all ones."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if model.config.model_type == "gpt_neox":
            name = name.replace("lm_head.", "embed_out.")  # as files have it
        if name.endswith(".sinks"):
            weights[name] = 1.5 * noise
        elif ".experts." in name and name.endswith("_bias"):
            weights[name] = 0.5 * noise
        elif model.config.model_type == "gpt_oss" and name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            # Transposed; sometimes beyond the clamp.
            weights[name] = 3.0 * noise / parameter.shape[1] ** 0.5
        elif parameter.dim() == 1:
            offset = 0.0 if model.config.model_type in LESS_ONE or name.endswith(".bias") else 1.0
            weights[name] = offset + (0.1 if name.endswith(".bias") else 0.2) * noise
        elif "embed" in name or "lm_head" in name:
            weights[name] = embedding * noise
        elif any(part in name for part in ("q_proj", "k_proj", "query_key_value", "qkv_proj")):
            weights[name] = noise * 1.4 / parameter.shape[1] ** 0.5
        else:
            weights[name] = noise / parameter.shape[-1] ** 0.5
    return published(weights, model.config.model_type)


def published(weights, model_type):
    """With the names of published files: transformers 5 holds experts in other tensors than it
    stores."""
    if model_type == "gpt_oss":
        return weights
    prefix, (gate, up, down) = {
        "mixtral": ("block_sparse_moe.", ("w1", "w3", "w2")),
        "qwen3_moe": ("mlp.", ("gate_proj", "up_proj", "down_proj")),
    }.get(model_type, ("", ("", "", "")))
    stored = {}
    for name, weight in weights.items():
        if prefix:
            name = name.replace("mlp.gate.weight", prefix + "gate.weight")
        else:
            name = name.replace("experts.gate_up_proj", "input_linear.weight").replace(
                "experts.down_proj", "output_linear.weight").replace("router.weight", "router.layer.weight")
        if weight.dim() != 3 or not prefix:
            stored[name] = weight
            continue
        layer = name.split("mlp.")[0] + prefix + "experts."
        for expert, own in enumerate(weight):
            if "gate_up" in name:
                stored[f"{layer}{expert}.{gate}.weight"], stored[f"{layer}{expert}.{up}.weight"] = own.chunk(2)
            else:
                stored[f"{layer}{expert}.{down}.weight"] = own
    return stored


def add_buffers(weights, config):
    """Tensors that older transformers store beside the weights."""
    for layer in range(config.num_hidden_layers):
        prefix = f"gpt_neox.layers.{layer}.attention."
        weights[prefix + "bias"] = torch.ones(1, 1, 16, 16, dtype=torch.bool).tril()
        weights[prefix + "masked_bias"] = torch.tensor(-1e9)
        weights[prefix + "rotary_emb.inv_freq"] = torch.ones(3)


def to_mxfp4(weights, seed):
    """Draws blocks and scales for the experts' matrices, and adds transformers' dequantised values."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    generator = torch.Generator().manual_seed(seed)
    stored = {}
    for name, weight in list(weights.items()):
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[name] = weight
            continue
        experts, inputs, outputs = weight.shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(122, 126, blocks.shape[:3], generator=generator, dtype=torch.uint8)
        stored[name + "_blocks"], stored[name + "_scales"] = blocks, scales
        weights[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16).contiguous()
        assert weights[name].shape == weight.shape
    return stored


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


def interleaved(weight, heads):
    """The rows of a projection from the two halves of each head to neighbouring pairs."""
    rows = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, rows, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


# Per architecture in GGUF files: whether RoPE's pairs are neighbours.
INTERLEAVED = {"llama": True, "qwen2": False, "qwen3": False, "granite": True, "smollm3": True, "phi3": False,
               "olmo2": False, "gemma": False, "gemma2": False, "gemma3": False, "gpt-oss": False, "qwen3moe": False, "granitemoe": True}


def add_metadata(writer, config):
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if rope["rope_type"] == "longrope":
        original = rope["original_max_position_embeddings"]
        stretch = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors((1 + math.log(stretch) / math.log(original)) ** 0.5 if stretch > 1 else 1.0)
        writer.add_tensor("rope_factors_long.weight", numpy.array(rope["long_factor"], dtype=numpy.float32))
        writer.add_tensor("rope_factors_short.weight", numpy.array(rope["short_factor"], dtype=numpy.float32))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if getattr(config, "sliding_window", None) and config.model_type in ("gemma2", "gemma3_text", "gpt_oss", "olmo3", "mistral"):
        writer.add_sliding_window(config.sliding_window)
    if config.model_type == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.model_type == "gemma3_text":
        writer.add_sliding_window_pattern(4)
        writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", 0)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if config.model_type == "qwen3_moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.model_type == "granitemoeshared":
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    if config.model_type.startswith("granite"):
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)


def gguf_weights(weights, with_experts):
    """The matrices that these files split or fuse, or store under names that the package knows."""
    apart = {}
    for key, weight in weights.items():
        if key.endswith(("experts.gate_up_proj", "experts.gate_up_proj_bias")):
            turned = weight.transpose(1, 2) if weight.dim() == 3 else weight
            kind = "bias" if key.endswith("_bias") else "weight"
            stem = key.split("gate_up_proj")[0]
            apart[f"{stem}gate_proj.{kind}"], apart[f"{stem}up_proj.{kind}"] = turned[:, ::2], turned[:, 1::2]
        elif key.endswith(("experts.down_proj", "experts.down_proj_bias")):
            apart[key.replace("_proj_bias", "_proj.bias") if key.endswith("_bias") else key + ".weight"] = (
                weight if weight.dim() == 2 else weight.transpose(1, 2))
        elif key.endswith("block_sparse_moe.input_linear.weight"):
            gate, up = weight.chunk(2, dim=1)
            apart[key.replace("block_sparse_moe.input_linear", "mlp.experts.gate_proj")] = gate
            apart[key.replace("block_sparse_moe.input_linear", "mlp.experts.up_proj")] = up
        elif ".experts." in key:
            stem, rest = key.split(".experts.")
            part = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}.get(rest.split(".")[1], rest.split(".")[1])
            apart.setdefault(f"{stem.replace('block_sparse_moe', 'mlp')}.experts.{part}.weight", []).append(weight)
        elif with_experts and key.endswith("shared_mlp.input_linear.weight"):
            gate, up = weight.chunk(2)
            apart[key.replace("shared_mlp.input_linear", "mlp.shared_expert.gate_proj")] = gate
            apart[key.replace("shared_mlp.input_linear", "mlp.shared_expert.up_proj")] = up
        elif key.endswith("shared_mlp.input_linear.weight"):
            gate, up = weight.chunk(2)
            apart[key.replace("shared_mlp.input_linear", "mlp.gate_proj")] = gate
            apart[key.replace("shared_mlp.input_linear", "mlp.up_proj")] = up
        else:
            shared = "mlp.shared_expert.down_proj" if with_experts else "mlp.down_proj"
            key = key.replace("block_sparse_moe.output_linear", "mlp.experts.down_proj")
            apart[key.replace("shared_mlp.output_linear", shared)] = weight
    return {key: torch.stack(weight) if isinstance(weight, list) else weight for key, weight in apart.items()}


def save_gguf(weights, config, path):
    """With the package's names, matrices in bf16: the values of the folder."""
    name = {"mistral": "llama", "granitemoehybrid": "granite", "gemma3_text": "gemma3", "olmo3": "olmo2",
            "mixtral": "llama", "gpt_oss": "gpt-oss", "qwen3_moe": "qwen3moe", "granitemoeshared": "granitemoe"}.get(config.model_type, config.model_type)
    architecture = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == name)
    writer = gguf.GGUFWriter(path, name)
    add_metadata(writer, config)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for key, weight in gguf_weights(weights, "moe" in name).items():
        values = weight.float().numpy() + (1.0 if "norm" in key and config.model_type in LESS_ONE else 0.0)
        for projection, count in heads.items():
            if projection in key and INTERLEAVED[name]:
                values = interleaved(values, count)
        if key.endswith(".sinks"):
            key += ".weight"
        target = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert target, key
        if values.ndim >= 2 and not key.endswith(".bias"):
            bf16 = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)
            writer.add_tensor(target, bf16, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(target, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def numbers(values):
    return [float(f"{v:.7g}") for v in values]


@torch.no_grad()
def make_goldens(model, vocab, lengths=(40, 300), greedy=32):
    generator = torch.Generator().manual_seed(7)
    inputs = []
    for length, positions in zip(lengths, ((0, 1, 17, lengths[0] - 1), (0, 15, 16, 63, 64, 150, 299))):
        ids = torch.randint(1, vocab, (1, length), generator=generator)
        logits = model(input_ids=ids, use_cache=False).logits[0]
        inputs.append({"ids": ids[0].tolist(),
                       "rows": [{"position": p, "logits": numbers(logits[p].tolist())} for p in positions]})
    ids, outputs, top1, top2 = inputs[0]["ids"][:lengths[0] - 20], [], [], []
    for _ in range(greedy):
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
    for name in sys.argv[1:] or FOLDERS:
        spec = FOLDERS[name]
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
        quantized = "quantization_config" in spec["config"]
        stored = to_mxfp4(weights, spec["seed"]) if quantized else weights
        save_shards(stored, folder, spec["shards"])
        if spec.get("gguf"):
            save_gguf(weights, blank.config, folder / "model.gguf")
        if quantized:  # the goldens use the dequantised blocks
            model = transformers.AutoModelForCausalLM.from_config(
                blank.config, dtype=torch.float32, attn_implementation="eager")
            model.load_state_dict({k: v.float() for k, v in weights.items()})
        else:
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager")
        goldens = make_goldens(model.eval(), VOCAB, spec.get("lengths", (40, 300)), spec.get("greedy", 32))
        (folder / "goldens.json").write_text(json.dumps(goldens, separators=(",", ":")) + "\n")
        margins = [a - b for a, b in zip(goldens["greedy"]["top1"], goldens["greedy"]["top2"])]
        size = sum(f.stat().st_size for f in folder.iterdir())
        print(f"{name}: {size / 1e3:.0f} kB, rope {getattr(model.config, 'rope_parameters', None)}, least greedy margin {min(margins):.4f}")


if __name__ == "__main__":
    main()
