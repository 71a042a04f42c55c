#include "engine/model/model_config.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// Several times what any published model has; they keep products of fields far from overflow and a
// damaged header from asking for absurd memory.
constexpr int kMaxLayers = 1024;
constexpr int kMaxHidden = 1 << 16;
constexpr int kMaxIntermediate = 1 << 20;
constexpr int kMaxHeads = 1024;
constexpr int kMaxHeadDim = 1024;
constexpr int kMaxVocab = 1 << 22;
constexpr int kMaxContext = 1 << 27;

absl::Status CheckInt(const char* field, int value, int low, int high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", the limit is ", low, " to ", high));
}

// Written so that NaN fails.
absl::Status CheckReal(const char* field, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", the limit is ", low, " to ", high));
}

absl::Status CheckSizes(const ModelConfig& c) {
  const struct {
    const char* field;
    int value, low, high;
  } fields[] = {
      {"num_layers", c.num_layers, 1, kMaxLayers},
      {"hidden_size", c.hidden_size, 1, kMaxHidden},
      {"intermediate_size", c.intermediate_size, 1, kMaxIntermediate},
      {"num_heads", c.num_heads, 1, kMaxHeads},
      {"num_kv_heads", c.num_kv_heads, 1, c.num_heads},
      {"head_dim", c.head_dim, 2, kMaxHeadDim},
      {"vocab_size", c.vocab_size, 1, kMaxVocab},
      {"max_context", c.max_context, 1, kMaxContext},
  };
  for (const auto& f : fields) {
    HYDRANT_RETURN_IF_ERROR(CheckInt(f.field, f.value, f.low, f.high));
  }
  if (c.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim is ", c.head_dim, ", it must be even: RoPE turns pairs"));
  }
  if (c.RotaryDim() < 0 || c.RotaryDim() > c.head_dim || c.RotaryDim() % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("rotary_dim is ", c.RotaryDim(),
                                                   ", it must be even and from 0 to head_dim, "
                                                   "which is ",
                                                   c.head_dim));
  }
  if (c.num_heads % c.num_kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_heads is ", c.num_heads,
                     ", it must be a multiple of num_kv_heads, which is ", c.num_kv_heads));
  }
  return absl::OkStatus();
}

absl::Status CheckLlama3(const Llama3RopeScaling& scaling) {
  if (!scaling.enabled) return absl::OkStatus();
  HYDRANT_RETURN_IF_ERROR(CheckReal("llama3 rope factor", scaling.factor, 1.0, 1e6));
  HYDRANT_RETURN_IF_ERROR(
      CheckReal("llama3 rope low_freq_factor", scaling.low_freq_factor, 1e-6, 1e6));
  HYDRANT_RETURN_IF_ERROR(
      CheckReal("llama3 rope high_freq_factor", scaling.high_freq_factor, 1e-6, 1e6));
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    return absl::InvalidArgumentError(
        absl::StrCat("llama3 rope high_freq_factor is ", scaling.high_freq_factor,
                     ", it must be above low_freq_factor, which is ", scaling.low_freq_factor));
  }
  return CheckInt("llama3 rope original_context", scaling.original_context, 1, kMaxContext);
}

absl::Status CheckRope(const ModelConfig& c) {
  HYDRANT_RETURN_IF_ERROR(CheckReal("rope_theta", c.rope_theta, 1.0, 1e12));
  HYDRANT_RETURN_IF_ERROR(CheckReal("rope_linear_factor", c.rope_linear_factor, 1e-3, 1e6));
  HYDRANT_RETURN_IF_ERROR(CheckLlama3(c.llama3));
  if (c.rope_freq_factors.empty()) return absl::OkStatus();
  if (c.rope_freq_factors.size() != static_cast<size_t>(c.RotaryDim() / 2)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope_freq_factors has ", c.rope_freq_factors.size(),
                     " values, half of rotary_dim is ", c.RotaryDim() / 2));
  }
  for (size_t i = 0; i < c.rope_freq_factors.size(); ++i) {
    const std::string field = absl::StrCat("rope_freq_factors[", i, "]");
    HYDRANT_RETURN_IF_ERROR(CheckReal(field.c_str(), c.rope_freq_factors[i], 1e-6, 1e9));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateConfig(const ModelConfig& config) {
  if (config.architecture != "llama" && config.architecture != "opt" &&
      config.architecture != "gpt_neox") {
    return absl::UnimplementedError(absl::StrCat("architecture is ", Quoted(config.architecture),
                                                 ", llama, opt and gpt_neox are supported"));
  }
  HYDRANT_RETURN_IF_ERROR(CheckSizes(config));
  HYDRANT_RETURN_IF_ERROR(CheckReal("norm_eps", config.norm_eps, 1e-12, 0.1));
  return CheckRope(config);
}

}  // namespace hydrant
