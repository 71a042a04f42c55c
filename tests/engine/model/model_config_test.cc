#include "engine/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "tests/engine/model/tiny_model.h"

namespace hydrant {
namespace {

using testing::HasSubstr;

struct Mistake {
  std::function<void(ModelConfig&)> make;
  std::string message;
};

// A change applied to a valid configuration with experts.
std::function<void(ModelConfig&)> WithExperts(std::function<void(Experts&, ModelConfig&)> change) {
  return [change = std::move(change)](ModelConfig& c) {
    c.experts = {.count = 8, .per_token = 2, .intermediate_size = 32};
    change(*c.experts, c);
  };
}

TEST(ValidateConfigTest, GoodExperts) {
  ModelConfig config = TinyLlamaConfig();
  WithExperts([](Experts& e, ModelConfig&) { e.per_token = 8; })(config);
  EXPECT_TRUE(ValidateConfig(config).ok()) << ValidateConfig(config);
  EXPECT_FALSE(config.HasDense());
  config.layer_kinds.resize(config.num_layers);
  config.layer_kinds[1].dense = true;
  EXPECT_TRUE(config.HasDense() && config.HasExperts(0) && !config.HasExperts(1));
  config.experts->shared = true;
  EXPECT_TRUE(config.HasDense(0) && config.HasDense(1));
}

TEST(ValidateConfigTest, MessagesNameFieldValueAndLimit) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Mistake mistakes[] = {
      {[](ModelConfig& c) { c.num_layers = 0; }, "num_layers is 0, the limit is 1 to 1024"},
      {[](ModelConfig& c) { c.num_layers = 1025; }, "num_layers is 1025"},
      {[](ModelConfig& c) { c.hidden_size = -1; }, "hidden_size is -1, the limit is 1 to 65536"},
      {[](ModelConfig& c) { c.intermediate_size = 1 << 21; },
       "intermediate_size is 2097152, the limit is 1 to 1048576"},
      {[](ModelConfig& c) { c.num_heads = 0; }, "num_heads is 0"},
      {[](ModelConfig& c) { c.num_kv_heads = 0; }, "num_kv_heads is 0, the limit is 1 to 4"},
      {[](ModelConfig& c) { c.num_kv_heads = 5; }, "num_kv_heads is 5, the limit is 1 to 4"},
      {[](ModelConfig& c) { c.num_kv_heads = 3; },
       "num_heads is 4, it must be a multiple of num_kv_heads, which is 3"},
      {[](ModelConfig& c) { c.head_dim = 15; }, "head_dim is 15, it must be even"},
      {[](ModelConfig& c) { c.head_dim = 2048; }, "head_dim is 2048, the limit is 2 to 1024"},
      {[](ModelConfig& c) { c.rotary_dim = 7; },
       "rotary_dim is 7, it must be even and from 0 to head_dim, which is 16"},
      {[](ModelConfig& c) { c.rotary_dim = 18; }, "rotary_dim is 18"},
      {[](ModelConfig& c) { c.rotary_dim = -2; }, "rotary_dim is -2"},
      {[](ModelConfig& c) { c.vocab_size = 0; }, "vocab_size is 0"},
      {[](ModelConfig& c) { c.max_context = 1 << 28; },
       "max_context is 268435456, the limit is 1 to 134217728"},
      {[=](ModelConfig& c) { c.norm_eps = nan; }, "norm_eps is nan"},
      {[=](ModelConfig& c) { c.attention_scale = nan; }, "attention_scale is nan"},
      {[](ModelConfig& c) { c.embedding_scale = 0; }, "embedding_scale is 0"},
      {[](ModelConfig& c) { c.residual_scale = -1; }, "residual_scale is -1"},
      {[](ModelConfig& c) { c.logit_scale = 1e10; }, "logit_scale is 1e+10"},
      {[](ModelConfig& c) {
         c.residual_scale = 0.5;
         c.norm_placement = NormPlacement::kAfter;
       },
       "residual_scale is 0.5 beside norms of what is added"},
      {WithExperts([](Experts& e, ModelConfig&) { e.count = 0; }),
       "num_experts is 0, the limit is 1 to 1024"},
      {WithExperts([](Experts& e, ModelConfig&) { e.count = 1025; }), "num_experts is 1025"},
      {WithExperts([](Experts& e, ModelConfig& c) {
         e.count = 1024;
         c.num_layers = 129;
       }),
       "num_experts is 1024 in 129 layers, the limit is 131072 in all"},
      {WithExperts([](Experts& e, ModelConfig&) { e.per_token = 0; }),
       "num_experts_per_tok is 0, the limit is 1 to 8"},
      {WithExperts([](Experts& e, ModelConfig&) { e.per_token = 9; }), "num_experts_per_tok is 9"},
      {WithExperts([](Experts& e, ModelConfig&) {
         e = {1024, 33, 32};
       }),
       "num_experts_per_tok is 33, the limit is 1 to 32"},
      {WithExperts([](Experts& e, ModelConfig&) { e.intermediate_size = 0; }),
       "experts' intermediate_size is 0, the limit is 1 to 1048576"},
      {WithExperts([](Experts& e, ModelConfig&) { e.intermediate_size = 40; }),
       "experts' intermediate_size is 40, beside experts it must be a multiple of 16"},
      {WithExperts([](Experts&, ModelConfig& c) { c.hidden_size = 72; }),
       "hidden_size is 72, beside experts it must be a multiple of 16"},
      {WithExperts([](Experts& e, ModelConfig&) {
         e = {1024, 2, 1 << 20};
       }),
       "num_experts is 1024, of 1048576 by 64 each: matrices of 2^31 rows and more"},
      {WithExperts([](Experts&, ModelConfig& c) { c.norm_placement = NormPlacement::kBoth; }),
       "experts are supported with a gate, and without a norm of what they add"},
      {WithExperts([](Experts&, ModelConfig& c) { c.gated = false; }),
       "experts are supported with a gate"},
      {[](ModelConfig& c) { c.layer_kinds.resize(3); }, "layer_kinds has 3 values, num_layers is"},
      {[](ModelConfig& c) {
         SetWindow(100, &c);
         c.layer_kinds[1].window = -1;
       },
       "sliding_window of layer 1 is -1"},
      {[](ModelConfig& c) {
         SetWindow(100, &c);
         c.layer_kinds[1].window = 50;
       },
       "sliding_window of layer 1: 50 beside 100; layers with different windows"},
      {[](ModelConfig& c) { c.attention_softcap = -1; }, "attn_logit_softcapping is -1"},
      {[](ModelConfig& c) { c.logit_softcap = 1e9; }, "final_logit_softcapping is 1e+09"},
      {[](ModelConfig& c) { c.sliding_rope = Rope::WithTheta(0); }, "rope_theta is 0"},
      {[](ModelConfig& c) { c.rope.yarn = {.enabled = true, .factor = 0.5}; },
       "yarn rope factor is 0.5"},
      {[](ModelConfig& c) { c.rope.yarn = {.enabled = true, .beta_fast = 0.5}; },
       "yarn rope beta_fast is 0.5, the limit is 1 to"},
      {[](ModelConfig& c) { c.rope.long_rope.long_factors.assign(8, 1); },
       "of the two sets of LongRoPE factors one is missing"},
      {[](ModelConfig& c) {
         c.rope.long_rope = {std::vector<float>(8, 1), std::vector<float>(7, 1), 64};
       },
       "rope long_factor has 7 values, half of rotary_dim is 8"},
      {[](ModelConfig& c) { c.rope.attention_factor = 0; }, "rope attention_factor is 0"},
      {[](ModelConfig& c) { c.norm_eps = 0; }, "norm_eps is 0"},
      {[](ModelConfig& c) { c.rope.theta = 0.5; }, "rope_theta is 0.5, the limit is 1 to"},
      {[](ModelConfig& c) { c.rope.linear_factor = 0; }, "rope_linear_factor is 0"},
      {[](ModelConfig& c) {
         c.rope.freq_factors = {1, 2};
       },
       "rope_freq_factors has 2 values, half of rotary_dim is 8"},
      {[](ModelConfig& c) { c.rope.freq_factors = {1, 1, 1, -2, 1, 1, 1, 1}; },
       "rope_freq_factors[3] is -2"},
      {[](ModelConfig& c) {
         c.rope.llama3 = {true, 0.5, 1, 4, 8192};
       },
       "llama3 rope factor is 0.5"},
      {[](ModelConfig& c) {
         c.rope.llama3 = {true, 8, 4, 4, 8192};
       },
       "high_freq_factor is 4, it must be above low_freq_factor"},
      {[](ModelConfig& c) {
         c.rope.llama3 = {true, 8, 1, 4, 0};
       },
       "llama3 rope original_context is 0"},
  };
  ASSERT_TRUE(ValidateConfig(TinyLlamaConfig()).ok());
  for (const Mistake& mistake : mistakes) {
    ModelConfig config = TinyLlamaConfig();
    mistake.make(config);
    const absl::Status status = ValidateConfig(config);
    EXPECT_FALSE(status.ok()) << mistake.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(mistake.message));
  }
}

}  // namespace
}  // namespace hydrant
