#include "engine/model/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace hydrant {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json Base() {
  return json::parse(
      R"({"architectures":["LlamaForCausalLM"],"hidden_size":64,"intermediate_size":128,
    "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":100,
    "max_position_embeddings":512,"hidden_act":"silu","rms_norm_eps":1e-5,"rope_theta":10000.0})");
}

absl::StatusOr<HfConfig> ParseWith(const std::string& patch) {
  json root = Base();
  root.merge_patch(json::parse(patch));  // null removes a field
  return ParseHfConfig(root.dump());
}

TEST(HfConfigTest, ReadsLlama32) {
  // The fields of Llama 3.2 1B's config.json.
  const auto config = ParseHfConfig(R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,
    "attention_dropout":0.0,"bos_token_id":128000,"eos_token_id":128001,"head_dim":64,"hidden_act":"silu",
    "hidden_size":2048,"initializer_range":0.02,"intermediate_size":8192,"max_position_embeddings":131072,
    "mlp_bias":false,"model_type":"llama","num_attention_heads":32,"num_hidden_layers":16,"num_key_value_heads":8,
    "pretraining_tp":1,"rms_norm_eps":1e-05,"rope_scaling":{"factor":32.0,"high_freq_factor":4.0,
    "low_freq_factor":1.0,"original_max_position_embeddings":8192,"rope_type":"llama3"},"rope_theta":500000.0,
    "tie_word_embeddings":true,"torch_dtype":"bfloat16","use_cache":true,"vocab_size":128256})");
  ASSERT_TRUE(config.ok()) << config.status();
  const ModelConfig& m = config->model;
  EXPECT_EQ(m.architecture, "llama");
  EXPECT_EQ(m.num_layers, 16);
  EXPECT_EQ(m.num_kv_heads, 8);
  EXPECT_EQ(m.head_dim, 64);
  EXPECT_EQ(m.max_context, 131072);
  EXPECT_EQ(m.norm_eps, 1e-5);
  EXPECT_EQ(m.rope.theta, 500000);
  EXPECT_TRUE(m.rope.llama3.enabled);
  EXPECT_EQ(m.rope.llama3.factor, 32);
  EXPECT_EQ(m.rope.llama3.low_freq_factor, 1);
  EXPECT_EQ(m.rope.llama3.high_freq_factor, 4);
  EXPECT_EQ(m.rope.llama3.original_context, 8192);
  EXPECT_TRUE(m.tied_embeddings);
  EXPECT_EQ(m.rope_pairing, RopePairing::kHalfSplit);
  EXPECT_EQ(config->weight_dtype, DType::kBF16);
}

TEST(HfConfigTest, ReadsRopeParametersOfTransformers5) {
  auto config = ParseWith(
      R"({"rope_theta":null,"dtype":"bfloat16","rope_parameters":{"rope_type":"default","rope_theta":250000}})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model.rope.theta, 250000);
  EXPECT_EQ(config->weight_dtype, DType::kBF16);
  config = ParseWith(
      R"({"rope_theta":null,"rope_parameters":{"rope_type":"llama3","rope_theta":500000,"factor":8,
    "low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":8192}})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->model.rope.llama3.enabled);
  EXPECT_EQ(config->model.rope.theta, 500000);
}

TEST(HfConfigTest, ReadsLinearScalingUnderBothNames) {
  EXPECT_EQ(ParseWith(R"({"rope_scaling":{"type":"linear","factor":4}})")->model.rope.linear_factor,
            4);
  EXPECT_EQ(ParseWith(R"({"rope_scaling":{"rope_type":"linear","factor":2.5}})")
                ->model.rope.linear_factor,
            2.5);
  EXPECT_EQ(ParseWith(R"({"rope_scaling":null})")->model.rope.linear_factor, 1);
}

TEST(HfConfigTest, DefaultsAreThoseOfTransformers) {
  const auto config =
      ParseWith(R"({"num_key_value_heads":null,"rms_norm_eps":null,"max_position_embeddings":null,
    "rope_theta":null,"hidden_act":null})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model.num_kv_heads, 4);
  EXPECT_EQ(config->model.head_dim, 16);
  EXPECT_EQ(config->model.norm_eps, 1e-6);
  EXPECT_EQ(config->model.max_context, 2048);
  EXPECT_EQ(config->model.rope.theta, 10000);
  EXPECT_FALSE(config->model.tied_embeddings);
  EXPECT_EQ(config->weight_dtype, DType::kF32);
}

// The default window is 4096; a window of the context's length means none.
TEST(HfConfigTest, SlidingWindowOfMistral) {
  json root = Base();
  root["architectures"] = {"MistralForCausalLM"};
  root["num_key_value_heads"] = 2;
  EXPECT_EQ(ParseHfConfig(root.dump())->model.KindOf(1).window, 0);
  root["max_position_embeddings"] = 8192;
  EXPECT_EQ(ParseHfConfig(root.dump())->model.KindOf(1).window, 4096);
  root["sliding_window"] = 100;
  EXPECT_EQ(ParseHfConfig(root.dump())->model.Window(), 100);
  root["sliding_window"] = nullptr;
  EXPECT_EQ(ParseHfConfig(root.dump())->model.Window(), 0);
  root["sliding_window"] = 0;
  EXPECT_THAT(std::string(ParseHfConfig(root.dump()).status().message()),
              HasSubstr("sliding_window is 0, wanted null or at least 1"));
}

TEST(HfConfigTest, ASlidingLayerWantsAWindow) {
  json root = Base();
  root["architectures"] = {"Olmo3ForCausalLM"};
  EXPECT_TRUE(ParseHfConfig(root.dump()).ok()) << ParseHfConfig(root.dump()).status();
  root["sliding_window"] = nullptr;
  EXPECT_THAT(std::string(ParseHfConfig(root.dump()).status().message()),
              HasSubstr("layer 0 is one of sliding_attention, but the file has no sliding_window"));
}

// transformers 5: a non-empty rope_scaling replaces rope_parameters as a whole.
TEST(HfConfigTest, RopeScalingReplacesRopeParameters) {
  auto config = ParseWith(
      R"({"rope_theta":null,"rope_scaling":{"rope_type":"linear","factor":4},
          "rope_parameters":{"rope_type":"default","rope_theta":250000}})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model.rope.linear_factor, 4);
  EXPECT_EQ(config->model.rope.theta, 10000);
  config = ParseWith(
      R"({"rope_theta":30000,"rope_scaling":{"rope_type":"linear","factor":4},
          "rope_parameters":{"rope_type":"default","rope_theta":250000}})");
  EXPECT_EQ(config->model.rope.theta, 30000);
  config = ParseWith(
      R"({"rope_scaling":{},"rope_parameters":{"rope_type":"linear","factor":2,"rope_theta":500}})");
  EXPECT_EQ(config->model.rope.linear_factor, 2);
  EXPECT_EQ(config->model.rope.theta, 500);
}

// Complete config.json files as published.
TEST(HfConfigTest, PublishedFilesLoad) {
  for (const char* text :
       {// TinyLlama 1.1B chat
        R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,"bos_token_id":1,
    "eos_token_id":2,"hidden_act":"silu","hidden_size":2048,"initializer_range":0.02,
    "intermediate_size":5632,"max_position_embeddings":2048,"model_type":"llama",
    "num_attention_heads":32,"num_hidden_layers":22,"num_key_value_heads":4,"pretraining_tp":1,
    "rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":10000.0,"tie_word_embeddings":false,
    "torch_dtype":"bfloat16","transformers_version":"4.35.0","use_cache":true,"vocab_size":32000})",
        // SmolLM2 135M instruct
        R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,
    "bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","hidden_size":576,
    "initializer_range":0.041666666666666664,"intermediate_size":1536,"is_llama_config":true,
    "max_position_embeddings":8192,"mlp_bias":false,"model_type":"llama","num_attention_heads":9,
    "num_hidden_layers":30,"num_key_value_heads":3,"pad_token_id":2,"pretraining_tp":1,
    "rms_norm_eps":1e-05,"rope_interleaved":false,"rope_scaling":null,"rope_theta":100000,
    "tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers.js_config":
    {"kv_cache_dtype":{"q4f16":"float16","fp16":"float16"}},"transformers_version":"4.42.3",
    "use_cache":true,"vocab_size":49152})",
        // Mistral 7B v0.3
        R"({"architectures":["MistralForCausalLM"],"attention_dropout":0.0,"bos_token_id":1,
    "eos_token_id":2,"hidden_act":"silu","hidden_size":4096,"initializer_range":0.02,
    "intermediate_size":14336,"max_position_embeddings":32768,"model_type":"mistral",
    "num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,"rms_norm_eps":1e-05,
    "rope_theta":1000000.0,"sliding_window":null,"tie_word_embeddings":false,
    "torch_dtype":"bfloat16","transformers_version":"4.42.0.dev0","use_cache":true,
    "vocab_size":32768})",
        // OPT 125m
        R"({"_name_or_path":"facebook/opt-125m","_remove_final_layer_norm":false,
    "activation_dropout":0.0,"activation_function":"relu","architectures":["OPTForCausalLM"],
    "attention_dropout":0.0,"bos_token_id":2,"do_layer_norm_before":true,"dropout":0.1,
    "eos_token_id":2,"ffn_dim":3072,"hidden_size":768,"init_std":0.02,"layerdrop":0.0,
    "max_position_embeddings":2048,"model_type":"opt","num_attention_heads":12,
    "num_hidden_layers":12,"pad_token_id":1,"prefix":"</s>","torch_dtype":"float16",
    "transformers_version":"4.21.0.dev0","use_cache":true,"vocab_size":50272,
    "word_embed_proj_dim":768})",
        // GPT-NeoX 20B
        R"({"architectures":["GPTNeoXForCausalLM"],"attention_probs_dropout_prob":0,
    "bos_token_id":0,"eos_token_id":0,"hidden_act":"gelu_fast","hidden_dropout_prob":0,
    "hidden_size":6144,"initializer_range":0.02,"intermediate_size":24576,"layer_norm_eps":1e-05,
    "max_position_embeddings":2048,"model_type":"gpt_neox","num_attention_heads":64,
    "num_hidden_layers":44,"rotary_emb_base":10000,"rotary_pct":0.25,"tie_word_embeddings":false,
    "torch_dtype":"float16","transformers_version":"4.19.0.dev0","use_cache":true,
    "vocab_size":50432})"}) {
    EXPECT_EQ(ParseHfConfig(text).status(), absl::OkStatus()) << text;
  }
}

struct BadConfig {
  const char* patch;
  const char* message;
};

class BadHfConfigTest : public testing::TestWithParam<BadConfig> {};

TEST_P(BadHfConfigTest, IsRefusedWithItsReason) {
  const auto config = ParseWith(GetParam().patch);
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(std::string(config.status().message()), HasSubstr(GetParam().message));
  EXPECT_EQ(std::string(config.status().message()).find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadHfConfigTest,
    testing::Values(
        BadConfig{R"({"architectures":["Qwen2MoeForCausalLM"]})",
                  "architectures is 'Qwen2MoeForCausalLM'"},
        BadConfig{R"({"architectures":null})", "architectures is missing"},
        BadConfig{R"({"architectures":["Gemma2ForCausalLM"],"attn_logit_softcapping":0})",
                  "attn_logit_softcapping is 0, wanted null or more than 0"},
        BadConfig{R"({"architectures":["GptOssForCausalLM"],"swiglu_limit":5.0})",
                  "'swiglu_limit' is '5.0'"},
        BadConfig{R"({"architectures":null,"model_type":"gpt2"})", "model_type is 'gpt2'"},
        BadConfig{R"({"architectures":"LlamaForCausalLM"})", "wanted an array of one string"},
        BadConfig{R"({"hidden_size":null})", "hidden_size is missing"},
        BadConfig{R"({"hidden_size":"64"})", "hidden_size is '\\\"64\\\"', wanted an integer"},
        BadConfig{R"({"hidden_size":-64})", "hidden_size is '-64'"},
        BadConfig{R"({"hidden_size":64.0})", "hidden_size is '64.0'"},
        BadConfig{R"({"hidden_size":18446744073709551615})",
                  "hidden_size is '18446744073709551615'"},
        BadConfig{R"({"hidden_size":{"a":["b\n"]}})", "wanted an integer"},
        BadConfig{R"({"hidden_size":66})",
                  "num_attention_heads is 4, it must divide hidden_size, which is 66"},
        BadConfig{R"({"num_attention_heads":0})", "num_attention_heads is 0"},
        BadConfig{R"({"num_key_value_heads":3})", "must be a multiple of num_kv_heads, which is 3"},
        BadConfig{R"({"head_dim":7})", "head_dim is 7, it must be even"},
        BadConfig{R"({"vocab_size":100000000})",
                  "vocab_size is 100000000, the limit is 1 to 4194304"},
        BadConfig{R"({"mlp_bias":1})", "mlp_bias is '1', wanted true or false"},
        BadConfig{R"({"hidden_act":"mish"})", "hidden_act is 'mish'; supported are"},
        BadConfig{R"({"rms_norm_eps":"x"})", "rms_norm_eps is"},
        BadConfig{R"({"rms_norm_eps":2})", "norm_eps is 2, the limit is"},
        BadConfig{R"({"partial_rotary_factor":0.5})", "partial_rotary_factor is 0.5"},
        BadConfig{R"({"quantization_config":{"bits":4}})",
                  "quantization_config: quant_method is ''"},
        BadConfig{R"({"rope_scaling":{"rope_type":"dynamic","factor":4}})",
                  "rope_scaling: rope_type is 'dynamic'"},
        BadConfig{R"({"rope_scaling":{"rope_type":"yarn"}})", "rope_scaling: factor is missing"},
        BadConfig{R"({"rope_scaling":{"rope_type":"longrope","short_factor":[1]}})",
                  "rope_scaling: long_factor is missing"},
        BadConfig{R"({"rope_scaling":{"rope_type":"longrope","short_factor":[1,"x"]}})",
                  "rope_scaling: short_factor is"},
        BadConfig{R"({"rope_scaling":{"rope_type":"longrope","short_factor":[1],
                  "long_factor":[2]}})",
                  "rope short_factor has 1 values, half of rotary_dim is 8"},
        BadConfig{R"({"rope_scaling":{"rope_type":"linear"}})", "rope_scaling: factor is missing"},
        BadConfig{R"({"rope_scaling":{"rope_type":"llama3","factor":8}})",
                  "rope_scaling: low_freq_factor is missing"},
        BadConfig{R"({"model_type":"granite","attention_multiplier":0.0078125})",
                  "model_type is 'granite', but architectures is 'LlamaForCausalLM', of model_type "
                  "'llama'"},
        BadConfig{R"({"logits_scaling":8})", "'logits_scaling' is '8'"},
        BadConfig{R"({"is_encoder_decoder":true})", "'is_encoder_decoder' is 'true'"},
        BadConfig{R"({"rope_interleaved":true})", "'rope_interleaved' is 'true'"},
        BadConfig{R"({"rotary_emb_base":500})", "'rotary_emb_base' is '500'"},
        BadConfig{R"({"rope_scaling":{"rope_type":"linear","factor":2,"temperature":2}})",
                  "rope_scaling: 'temperature' is '2'"},
        BadConfig{R"({"rope_scaling":7})", "rope_scaling is '7', wanted an object"},
        BadConfig{R"({"rope_parameters":{"full_attention":{"rope_type":"default"}}})",
                  "differs by kind of layer"},
        BadConfig{R"({"initializer_range":0})", "initializer_range is 0"}));

TEST(HfConfigTest, BadExpertsAreNamed) {
  const auto message = [](const char* architecture, const char* patch) {
    json root = Base();
    root["architectures"] = {architecture};
    root.merge_patch(json::parse(patch));
    return std::string(ParseHfConfig(root.dump()).status().message());
  };
  constexpr char kMixtral[] = "MixtralForCausalLM", kQwen[] = "Qwen3MoeForCausalLM";
  EXPECT_EQ(message(kMixtral, "{}"), "");
  EXPECT_EQ(message(kQwen, "{}"), "");
  EXPECT_THAT(message(kMixtral, R"({"num_local_experts":0})"),
              HasSubstr("num_experts is 0, the limit is 1 to 1024"));
  EXPECT_THAT(message(kMixtral, R"({"num_local_experts":4,"num_experts_per_tok":5})"),
              HasSubstr("num_experts_per_tok is 5, the limit is 1 to 4"));
  EXPECT_THAT(message(kMixtral, R"({"num_experts":4})"), HasSubstr("'num_experts' is '4'"));
  EXPECT_THAT(message(kMixtral, R"({"attention_bias":true})"),
              HasSubstr("'attention_bias' is 'true'"));
  EXPECT_THAT(message(kQwen, R"({"num_experts":100000})"), HasSubstr("num_experts is 100000"));
  EXPECT_THAT(message(kQwen, R"({"num_local_experts":100000})"),
              HasSubstr("num_experts is 100000"));
  EXPECT_THAT(message(kQwen, R"({"num_experts":4,"num_local_experts":8})"),
              HasSubstr("num_experts is 4, but num_local_experts is 8"));
  EXPECT_THAT(message(kQwen, R"({"moe_intermediate_size":100})"),
              HasSubstr("intermediate_size is 100, beside experts it must be a multiple of 16"));
  EXPECT_THAT(message(kQwen, R"({"decoder_sparse_step":0})"),
              HasSubstr("decoder_sparse_step is 0, the limit is 1"));
  EXPECT_THAT(message(kQwen, R"({"mlp_only_layers":[0,"1"]})"),
              HasSubstr("wanted an array of numbers of layers"));
  EXPECT_THAT(message(kQwen, R"({"norm_topk_prob":1})"), HasSubstr("norm_topk_prob is '1'"));
  EXPECT_THAT(message(kQwen, R"({"shared_expert_intermediate_size":64})"),
              HasSubstr("'shared_expert_intermediate_size' is '64'"));
}

TEST(HfConfigTest, DenseLayersOfQwen3Moe) {
  json root = Base();
  root["architectures"] = {"Qwen3MoeForCausalLM"};
  root["num_hidden_layers"] = 6;
  root["decoder_sparse_step"] = 2;
  root["mlp_only_layers"] = {3};
  const auto config = ParseHfConfig(root.dump());
  ASSERT_TRUE(config.ok()) << config.status();
  for (int layer = 0; layer < 6; ++layer)
    EXPECT_EQ(config->model.HasExperts(layer), layer == 1 || layer == 5) << layer;
  EXPECT_EQ(config->model.experts->weights, ExpertWeights::kOfAll);
}

struct Published {
  const char* name;
  const char* json;
  std::function<void(const ModelConfig&)> check;
};

// The fields of published files that describe the model.
TEST(HfConfigTest, PublishedFilesOfManyFamiliesAreRead) {
  const Published files[] = {
      {"Qwen2.5-0.5B-Instruct", R"({"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,
        "bos_token_id":151643,"eos_token_id":151645,"hidden_act":"silu","hidden_size":896,
        "initializer_range":0.02,"intermediate_size":4864,"max_position_embeddings":32768,
        "max_window_layers":21,"model_type":"qwen2","num_attention_heads":14,"num_hidden_layers":24,
        "num_key_value_heads":2,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"sliding_window":32768,
        "tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers_version":"4.43.1",
        "use_cache":true,"use_sliding_window":false,"vocab_size":151936})",
       [](const ModelConfig& m) {
         EXPECT_TRUE(m.biases.qkv && !m.biases.attention_output && !m.biases.feed_forward);
         EXPECT_EQ(m.rope.theta, 1e6);
         EXPECT_TRUE(m.tied_embeddings);
       }},
      {"DeepSeek-R1-Distill-Qwen-1.5B", R"({"architectures":["Qwen2ForCausalLM"],
        "attention_dropout":0.0,"bos_token_id":151643,"eos_token_id":151643,"hidden_act":"silu",
        "hidden_size":1536,"initializer_range":0.02,"intermediate_size":8960,
        "max_position_embeddings":131072,"max_window_layers":21,"model_type":"qwen2",
        "num_attention_heads":12,"num_hidden_layers":28,"num_key_value_heads":2,"rms_norm_eps":1e-06,
        "rope_theta":10000,"sliding_window":4096,"tie_word_embeddings":false,"torch_dtype":"bfloat16",
        "transformers_version":"4.44.0","use_cache":true,"use_mrope":false,"use_sliding_window":false,
        "vocab_size":151936})",
       [](const ModelConfig& m) { EXPECT_EQ(m.KindOf(27).window, 0); }},
      {"Qwen3-4B", R"({"architectures":["Qwen3ForCausalLM"],"attention_bias":false,
        "attention_dropout":0.0,"bos_token_id":151643,"eos_token_id":151645,"head_dim":128,
        "hidden_act":"silu","hidden_size":2560,"initializer_range":0.02,"intermediate_size":9728,
        "max_position_embeddings":40960,"max_window_layers":36,"model_type":"qwen3",
        "num_attention_heads":32,"num_hidden_layers":36,"num_key_value_heads":8,"rms_norm_eps":1e-06,
        "rope_scaling":null,"rope_theta":1000000,"sliding_window":null,"tie_word_embeddings":true,
        "torch_dtype":"bfloat16","transformers_version":"4.51.0","use_cache":true,
        "use_sliding_window":false,"vocab_size":151936})",
       [](const ModelConfig& m) {
         EXPECT_EQ(m.qk_norm, QkNorm::kHead);
         EXPECT_EQ(m.QDim(), 4096);
         EXPECT_FALSE(m.biases.qkv);
       }},
      {"Mixtral-8x7B-Instruct-v0.1", R"({"architectures":["MixtralForCausalLM"],
        "attention_dropout":0.0,"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu",
        "hidden_size":4096,"initializer_range":0.02,"intermediate_size":14336,
        "max_position_embeddings":32768,"model_type":"mixtral","num_attention_heads":32,
        "num_experts_per_tok":2,"num_hidden_layers":32,"num_key_value_heads":8,
        "num_local_experts":8,"output_router_logits":false,"rms_norm_eps":1e-05,
        "rope_theta":1000000.0,"router_aux_loss_coef":0.02,"sliding_window":null,
        "tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.36.0.dev0",
        "use_cache":true,"vocab_size":32000})",
       [](const ModelConfig& m) {
         EXPECT_EQ(m.experts->count, 8);
         EXPECT_EQ(m.experts->per_token, 2);
         EXPECT_EQ(m.experts->intermediate_size, 14336);
         EXPECT_EQ(m.experts->weights, ExpertWeights::kOfChosen);
         EXPECT_FALSE(m.HasDense());
       }},
      {"Qwen3-30B-A3B", R"({"architectures":["Qwen3MoeForCausalLM"],"attention_bias":false,
        "attention_dropout":0.0,"bos_token_id":151643,"decoder_sparse_step":1,
        "eos_token_id":151645,"head_dim":128,"hidden_act":"silu","hidden_size":2048,
        "initializer_range":0.02,"intermediate_size":6144,"max_position_embeddings":40960,
        "max_window_layers":48,"mlp_only_layers":[],"model_type":"qwen3_moe",
        "moe_intermediate_size":768,"norm_topk_prob":true,"num_attention_heads":32,
        "num_experts":128,"num_experts_per_tok":8,"num_hidden_layers":48,"num_key_value_heads":4,
        "output_router_logits":false,"rms_norm_eps":1e-06,"rope_scaling":null,
        "rope_theta":1000000.0,"router_aux_loss_coef":0.001,"sliding_window":null,
        "tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.51.0",
        "use_cache":true,"use_sliding_window":false,"vocab_size":151936})",
       [](const ModelConfig& m) {
         EXPECT_EQ(m.qk_norm, QkNorm::kHead);
         EXPECT_EQ(m.experts->count, 128);
         EXPECT_EQ(m.experts->per_token, 8);
         EXPECT_EQ(m.experts->intermediate_size, 768);
         EXPECT_EQ(m.experts->weights, ExpertWeights::kOfChosen);
         EXPECT_FALSE(m.HasDense());
       }},
      // As transformers 5.2 saves it.
      {"Qwen3-MoE of transformers 5", R"({"architectures":["Qwen3MoeForCausalLM"],
        "attention_bias":false,"attention_dropout":0.0,"bos_token_id":null,
        "decoder_sparse_step":1,"dtype":"float32","eos_token_id":null,"head_dim":16,
        "hidden_act":"silu","hidden_size":32,"initializer_range":0.02,"intermediate_size":64,
        "max_position_embeddings":256,"mlp_only_layers":[],"model_type":"qwen3_moe",
        "moe_intermediate_size":32,"norm_topk_prob":false,"num_attention_heads":4,
        "num_experts_per_tok":2,"num_hidden_layers":2,"num_key_value_heads":2,
        "num_local_experts":4,"output_router_logits":false,"pad_token_id":null,
        "rms_norm_eps":1e-06,"rope_parameters":{"rope_theta":10000.0,"rope_type":"default"},
        "router_aux_loss_coef":0.001,"sliding_window":null,"tie_word_embeddings":false,
        "transformers_version":"5.2.0","use_cache":true,"use_sliding_window":false,
        "vocab_size":64})",
       [](const ModelConfig& m) {
         EXPECT_EQ(m.experts->count, 4);
         EXPECT_EQ(m.experts->per_token, 2);
         EXPECT_EQ(m.experts->weights, ExpertWeights::kOfAll);
       }},
      {"granite-3.1-1b-a400m-instruct", R"({"architectures":["GraniteMoeForCausalLM"],
        "attention_bias":false,"attention_dropout":0.1,"attention_multiplier":0.015625,
        "bos_token_id":0,"embedding_multiplier":12.0,"eos_token_id":0,"hidden_act":"silu",
        "hidden_size":1024,"initializer_range":0.02,"intermediate_size":512,"logits_scaling":6.0,
        "max_position_embeddings":131072,"model_type":"granitemoe","num_attention_heads":16,
        "num_experts_per_tok":8,"num_hidden_layers":24,"num_key_value_heads":8,
        "num_local_experts":32,"output_router_logits":false,"pad_token_id":0,
        "residual_multiplier":0.22,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":1500000.0,
        "router_aux_loss_coef":0.0,"tie_word_embeddings":true,"torch_dtype":"bfloat16",
        "transformers_version":"4.46.0","use_cache":true,"vocab_size":49155})",
       [](const ModelConfig& m) {
         EXPECT_EQ(m.experts->count, 32);
         EXPECT_EQ(m.experts->per_token, 8);
         EXPECT_EQ(m.experts->intermediate_size, 512);
         EXPECT_EQ(m.residual_scale, 0.22);
         EXPECT_FALSE(m.HasDense());
       }},
      {"granite-3.3-2b-instruct", R"({"architectures":["GraniteForCausalLM"],"attention_bias":false,
        "attention_dropout":0.0,"attention_multiplier":0.015625,"bos_token_id":0,
        "embedding_multiplier":12.0,"eos_token_id":0,"hidden_act":"silu","hidden_size":2048,
        "initializer_range":0.02,"intermediate_size":8192,"logits_scaling":8.0,
        "max_position_embeddings":131072,"mlp_bias":false,"model_type":"granite",
        "num_attention_heads":32,"num_hidden_layers":40,"num_key_value_heads":8,"pad_token_id":0,
        "residual_multiplier":0.22,"rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":10000000.0,
        "tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers_version":"4.49.0",
        "use_cache":true,"vocab_size":49159})",
       [](const ModelConfig& m) {
         EXPECT_EQ(m.AttentionScale(), 0.015625);
         EXPECT_EQ(m.embedding_scale, 12);
         EXPECT_EQ(m.residual_scale, 0.22);
         EXPECT_EQ(m.logit_scale, 0.125);
       }},
      {"SmolLM3-3B, its first four layers",
       R"({"architectures":["SmolLM3ForCausalLM"],"attention_bias":false,
        "attention_dropout":0.0,"bos_token_id":null,"eos_token_id":128012,"hidden_act":"silu",
        "hidden_size":2048,"initializer_range":0.02,"intermediate_size":11008,
        "layer_types":["full_attention","full_attention","full_attention","full_attention"],
        "max_position_embeddings":65536,"max_window_layers":28,"mlp_bias":false,
        "model_type":"smollm3","no_rope_layer_interval":4,"no_rope_layers":[1,1,1,0],
        "num_attention_heads":16,"num_hidden_layers":4,"num_key_value_heads":4,"pad_token_id":128004,
        "pretraining_tp":2,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":5000000.0,
        "sliding_window":null,"torch_dtype":"bfloat16","transformers_version":"4.54.0.dev0",
        "use_cache":false,"use_sliding_window":false,"vocab_size":128256})",
       [](const ModelConfig& m) {
         EXPECT_EQ(m.RotaryDimOf(2), 128);
         EXPECT_EQ(m.RotaryDimOf(3), 0);
         EXPECT_TRUE(m.tied_embeddings);
       }},
      {"Phi-4-mini-instruct, its factors shortened", R"({"architectures":["Phi3ForCausalLM"],
        "attention_bias":false,"attention_dropout":0.0,"auto_map":{"AutoConfig":"x"},
        "bos_token_id":199999,"embd_pdrop":0.0,"eos_token_id":199999,"full_attn_mod":1,
        "hidden_act":"silu","hidden_size":128,"initializer_range":0.02,"intermediate_size":8192,
        "interpolate_factor":1,"lm_head_bias":false,"max_position_embeddings":131072,"mlp_bias":false,
        "model_type":"phi3","num_attention_heads":8,"num_hidden_layers":32,"num_key_value_heads":4,
        "original_max_position_embeddings":4096,"pad_token_id":199999,"partial_rotary_factor":0.75,
        "resid_pdrop":0.0,"rms_norm_eps":1e-05,"rope_scaling":{"long_factor":[1,1.25,1.5,2,3,4],
        "short_factor":[1,1,1,1,1,1],"type":"longrope"},"rope_theta":10000.0,"sliding_window":262144,
        "tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers_version":"4.45.0",
        "use_cache":true,"vocab_size":200064})",
       [](const ModelConfig& m) {
         EXPECT_EQ(m.RotaryDim(), 12);
         EXPECT_EQ(m.KindOf(0).window, 0);
         EXPECT_EQ(m.rope.long_rope.original_context, 4096);
         // sqrt(1 + ln 32 / ln 4096)
         EXPECT_NEAR(m.rope.attention_factor, 1.1902380714238083, 1e-12);
       }},
      {"OLMo-2-0425-1B", R"({"architectures":["Olmo2ForCausalLM"],"attention_bias":false,
        "attention_dropout":0.0,"eos_token_id":100257,"hidden_act":"silu","hidden_size":2048,
        "initializer_range":0.02,"intermediate_size":8192,"max_position_embeddings":4096,
        "model_type":"olmo2","num_attention_heads":16,"num_hidden_layers":16,
        "num_key_value_heads":16,"pad_token_id":100277,"rms_norm_eps":1e-06,"rope_scaling":null,
        "rope_theta":500000,"tie_word_embeddings":false,"torch_dtype":"float32",
        "transformers_version":"4.47.0","use_cache":false,"vocab_size":100352})",
       [](const ModelConfig& m) {
         EXPECT_EQ(m.norm_placement, NormPlacement::kAfter);
         EXPECT_EQ(m.qk_norm, QkNorm::kWhole);
       }},
      {"gemma-3-1b-it", R"({"architectures":["Gemma3ForCausalLM"],"attention_bias":false,
        "attention_dropout":0.0,"attn_logit_softcapping":null,"bos_token_id":2,
        "cache_implementation":"hybrid","eos_token_id":[1,106],"final_logit_softcapping":null,
        "head_dim":256,"hidden_activation":"gelu_pytorch_tanh","hidden_size":1152,
        "initializer_range":0.02,"intermediate_size":6912,"max_position_embeddings":32768,
        "model_type":"gemma3_text","num_attention_heads":4,"num_hidden_layers":26,
        "num_key_value_heads":1,"pad_token_id":0,"query_pre_attn_scalar":256,"rms_norm_eps":1e-06,
        "rope_local_base_freq":10000,"rope_scaling":null,"rope_theta":1000000,"sliding_window":512,
        "sliding_window_pattern":6,"torch_dtype":"bfloat16","transformers_version":"4.50.0.dev0",
        "use_cache":true,"vocab_size":262144})",
       [](const ModelConfig& m) {
         EXPECT_EQ(m.KindOf(4).window, 512);
         EXPECT_EQ(m.KindOf(5).window, 0);
         EXPECT_EQ(m.RopeOf(4).theta, 10000);
         EXPECT_EQ(m.RopeOf(5).theta, 1000000);
         EXPECT_EQ(m.AttentionScale(), 1.0 / 16);
         EXPECT_EQ(m.activation, Activation::kGeluTanh);
         EXPECT_EQ(m.Window(), 512);
       }},
      {"OLMo-3-1025-7B, its first four layers", R"({"architectures":["Olmo3ForCausalLM"],
        "attention_bias":false,"attention_dropout":0.0,"eos_token_id":100257,"hidden_act":"silu",
        "hidden_size":4096,"initializer_range":0.02,"intermediate_size":11008,
        "layer_types":["sliding_attention","sliding_attention","sliding_attention","full_attention"],
        "max_position_embeddings":65536,"model_type":"olmo3","num_attention_heads":32,
        "num_hidden_layers":4,"num_key_value_heads":32,"pad_token_id":100277,"rms_norm_eps":1e-06,
        "rope_scaling":{"attention_factor":1.2079441541679836,"beta_fast":32,"beta_slow":1,
        "factor":8.0,"original_max_position_embeddings":8192,"rope_type":"yarn"},"rope_theta":500000,
        "sliding_window":4096,"tie_word_embeddings":false,"torch_dtype":"bfloat16",
        "transformers_version":"4.57.0","use_cache":false,"vocab_size":100278})",
       [](const ModelConfig& m) {
         EXPECT_FALSE(m.RopeOf(0).yarn.enabled);
         EXPECT_TRUE(m.RopeOf(3).yarn.enabled);
         EXPECT_EQ(m.RopeOf(3).attention_factor, 1.2079441541679836);
         EXPECT_EQ(m.KindOf(2).window, 4096);
       }},
  };
  for (const Published& file : files) {
    SCOPED_TRACE(file.name);
    const absl::StatusOr<HfConfig> config = ParseHfConfig(file.json);
    ASSERT_TRUE(config.ok()) << config.status();
    file.check(config->model);
  }
}

// The fields of facebook/opt-125m's config.json that affect the arithmetic.
json Opt() {
  return json::parse(R"({"_remove_final_layer_norm":false,"activation_function":"relu",
    "architectures":["OPTForCausalLM"],"bos_token_id":2,"do_layer_norm_before":true,"eos_token_id":2,
    "ffn_dim":3072,"hidden_size":768,"init_std":0.02,"max_position_embeddings":2048,"model_type":"opt",
    "num_attention_heads":12,"num_hidden_layers":12,"pad_token_id":1,"torch_dtype":"float16",
    "vocab_size":50272,"word_embed_proj_dim":768})");
}

// The same for EleutherAI/pythia-1b.
json Neox() {
  return json::parse(R"({"architectures":["GPTNeoXForCausalLM"],"bos_token_id":0,"eos_token_id":0,
    "hidden_act":"gelu","hidden_size":2048,"initializer_range":0.02,"intermediate_size":8192,
    "layer_norm_eps":1e-05,"max_position_embeddings":2048,"model_type":"gpt_neox","num_attention_heads":8,
    "num_hidden_layers":16,"rotary_emb_base":10000,"rotary_pct":0.25,"tie_word_embeddings":false,
    "torch_dtype":"float16","use_parallel_residual":true,"vocab_size":50304})");
}

absl::StatusOr<HfConfig> ParsePatched(json root, const std::string& patch) {
  root.merge_patch(json::parse(patch));
  return ParseHfConfig(root.dump());
}

TEST(HfConfigTest, ReadsOpt) {
  for (const char* patch : {"{}", R"({"architectures":null})"}) {  // model_type is enough
    const auto config = ParsePatched(Opt(), patch);
    ASSERT_TRUE(config.ok()) << config.status();
    const ModelConfig& m = config->model;
    EXPECT_EQ(m.architecture, "opt");
    EXPECT_EQ(m.num_layers, 12);
    EXPECT_EQ(m.hidden_size, 768);
    EXPECT_EQ(m.intermediate_size, 3072);
    EXPECT_EQ(m.num_heads, 12);
    EXPECT_EQ(m.num_kv_heads, 12);
    EXPECT_EQ(m.head_dim, 64);
    EXPECT_EQ(m.max_context, 2048);
    EXPECT_EQ(m.norm, NormKind::kLayer);
    EXPECT_EQ(m.norm_eps, 1e-5);
    EXPECT_EQ(m.RotaryDim(), 0);
    EXPECT_TRUE(m.learned_positions);
    EXPECT_TRUE(m.tied_embeddings);
    EXPECT_FALSE(m.parallel_residual);
    EXPECT_EQ(m.activation, Activation::kRelu);
    EXPECT_EQ(config->weight_dtype, DType::kBF16);
  }
  EXPECT_EQ(ParsePatched(Opt(), R"({"init_std":0.006})")->initializer_range, 0.006);
  EXPECT_EQ(ParsePatched(Opt(), R"({"word_embed_proj_dim":null})")->model.hidden_size, 768);
  EXPECT_FALSE(ParsePatched(Opt(), R"({"tie_word_embeddings":false})")->model.tied_embeddings);
}

TEST(HfConfigTest, ReadsGptNeox) {
  const auto config = ParseHfConfig(Neox().dump());
  ASSERT_TRUE(config.ok()) << config.status();
  const ModelConfig& m = config->model;
  EXPECT_EQ(m.architecture, "gpt_neox");
  EXPECT_EQ(m.num_kv_heads, 8);
  EXPECT_EQ(m.head_dim, 256);
  EXPECT_EQ(m.RotaryDim(), 64);
  EXPECT_EQ(m.rope_pairing, RopePairing::kHalfSplit);
  EXPECT_EQ(m.norm, NormKind::kLayer);
  EXPECT_EQ(m.norm_eps, 1e-5);
  EXPECT_FALSE(m.learned_positions);
  EXPECT_FALSE(m.tied_embeddings);
  EXPECT_TRUE(m.parallel_residual);
  EXPECT_EQ(m.activation, Activation::kGelu);
}

TEST(HfConfigTest, GptNeoxRotaryUnderBothNames) {
  const auto rotary = [](const char* patch) {
    const auto config = ParsePatched(Neox(), patch);
    EXPECT_TRUE(config.ok()) << config.status();
    return std::pair(config->model.RotaryDim(), config->model.rope.theta);
  };
  EXPECT_EQ(rotary(R"({"rotary_pct":1.0,"rotary_emb_base":25000})"), std::pair(256, 25000.0));
  EXPECT_EQ(rotary(R"({"rotary_pct":null,"rotary_emb_base":null})"), std::pair(64, 10000.0));
  EXPECT_EQ(rotary(R"({"rotary_pct":null,"rotary_emb_base":null,"rope_parameters":
                       {"rope_type":"default","rope_theta":500,"partial_rotary_factor":0.5}})"),
            std::pair(128, 500.0));
  EXPECT_EQ(rotary(R"({"rotary_pct":0})").first, 0);
  // transformers 4.4x wrote them beside the old names.
  EXPECT_EQ(rotary(R"({"rope_theta":10000,"partial_rotary_factor":0.25})"), std::pair(64, 10000.0));
}

TEST(HfConfigTest, ActivationsUnderTheirNames) {
  for (const auto& [name, activation] : {std::pair("gelu_new", Activation::kGeluTanh),
                                         {"gelu_fast", Activation::kGeluTanh},
                                         {"gelu_pytorch_tanh", Activation::kGeluTanh},
                                         {"relu", Activation::kRelu}}) {
    const json patch = {{"hidden_act", name}};
    EXPECT_EQ(ParsePatched(Neox(), patch.dump())->model.activation, activation) << name;
  }
}

struct BadFamilyConfig {
  json (*base)();
  const char* patch;
  const char* message;
};

TEST(HfConfigTest, UnsupportedFieldsOfOptAndGptNeoxAreNamed) {
  const BadFamilyConfig cases[] = {
      // OPT 350m.
      {Opt, R"({"hidden_size":1024,"num_attention_heads":16,"word_embed_proj_dim":512})",
       "word_embed_proj_dim is 512, hidden_size is 1024"},
      {Opt, R"({"do_layer_norm_before":false})", "do_layer_norm_before is false; normalisation"},
      {Opt, R"({"_remove_final_layer_norm":true})", "_remove_final_layer_norm is true"},
      {Opt, R"({"enable_bias":false})", "enable_bias is false"},
      {Opt, R"({"layer_norm_elementwise_affine":false})", "layer_norm_elementwise_affine is false"},
      {Opt, R"({"activation_function":"mish"})",
       "activation_function is 'mish'; supported are relu, gelu, gelu_new"},
      {Opt, R"({"ffn_dim":null})", "ffn_dim is missing"},
      {Opt, R"({"num_attention_heads":7})", "num_attention_heads is 7, it must divide hidden_size"},
      {Opt, R"({"max_position_embeddings":0})", "max_context is 0"},
      {Opt, R"({"init_std":0})", "initializer_range is 0"},
      {Opt, R"({"do_layer_norm_before":1})", "do_layer_norm_before is '1', wanted true or false"},
      {Opt, R"({"quantization_config":{"bits":4}})", "quantization_config: quant_method is ''"},
      {Neox, R"({"hidden_act":"quick_gelu"})", "hidden_act is 'quick_gelu'; supported are"},
      {Neox, R"({"attention_bias":false})", "attention_bias is false"},
      {Neox, R"({"rotary_pct":1.5})", "rotary_pct (partial_rotary_factor) is 1.5, the limit is"},
      {Neox, R"({"rotary_pct":-1})", "rotary_pct (partial_rotary_factor) is -1"},
      {Neox, R"({"rotary_pct":0.02})", "rotary_dim is 5, it must be even"},
      {Neox, R"({"rotary_pct":"x"})", "rotary_pct is '"},
      {Neox, R"({"rope_scaling":{"type":"dynamic","factor":2}})", "rope_type is 'dynamic'"},
      // transformers does not read this field.
      {Neox, R"({"rope_theta":25000})", "rope_theta is 25000, but transformers reads it in"},
      {Neox, R"({"partial_rotary_factor":0.5})", "partial_rotary_factor is 0.5, but transformers"},
      {Neox, R"({"num_key_value_heads":2})", "'num_key_value_heads' is '2'"},
      {Neox, R"({"layer_norm_eps":0})", "norm_eps is 0"},
      {Neox, R"({"intermediate_size":null})", "intermediate_size is missing"},
  };
  for (const BadFamilyConfig& c : cases) {
    const auto config = ParsePatched(c.base(), c.patch);
    ASSERT_FALSE(config.ok()) << c.patch;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(c.message));
  }
}

TEST(HfConfigTest, BrokenTextIsRefused) {
  for (const char* text : {"", "{", "[]", "null", "{\"a\":1,\"a\":2}", "\xff"}) {
    EXPECT_FALSE(ParseHfConfig(text).ok()) << text;
  }
}

}  // namespace
}  // namespace hydrant
