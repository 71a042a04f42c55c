#include "tools/simulator/model_shape.h"

#include <utility>

#include "engine/run/engine_sizing.h"
#include "fmt/format.h"
#include "kernels/device_choice.h"
#include "kernels/status_macros.h"

namespace hydrant::sim {
namespace {

// As in the engine for a device with its own memory (engine/run/engine.cc); the default is for a
// host.
constexpr int kDevicePrefillRows = 2048;

absl::Status Check(const ModelShape& shape) {
  const std::pair<const char*, int> sizes[] = {{"num-layers", shape.num_layers},
                                               {"num-heads", shape.num_heads},
                                               {"num-kv-heads", shape.num_kv_heads},
                                               {"head-dim", shape.head_dim}};
  constexpr int kLimit = 4096;
  for (const auto& [name, value] : sizes) {
    if (value < 1 || value > kLimit)
      return absl::InvalidArgumentError(
          fmt::format("{}: {} is outside [1, {}]", name, value, kLimit));
  }
  constexpr int kLongest = 1 << 30;
  if (shape.max_context < 2 || shape.max_context > kLongest) {
    return absl::InvalidArgumentError(
        fmt::format("max-model-len: {} is outside [2, {}]", shape.max_context, kLongest));
  }
  if (shape.num_heads % shape.num_kv_heads == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("num-heads: {} is no multiple of num-kv-heads {}",
                                                shape.num_heads, shape.num_kv_heads));
}

// Replaces all heads by one; SetPool sizes the tables.
void Fold(int heads, EngineLimits* limits) {
  limits->num_layers = limits->num_kv_heads = 1;
  limits->num_host_pages /= heads;
  limits->num_swap_pages /= heads;
}

}  // namespace

absl::StatusOr<SimulatedLimits> LimitsOf(const ModelShape& shape, const EngineOptions& options,
                                         bool fold_heads) {
  HYDRANT_RETURN_IF_ERROR(Check(shape));
  ModelConfig config;
  config.num_layers = shape.num_layers;
  config.num_heads = shape.num_heads;
  config.num_kv_heads = shape.num_kv_heads;
  config.head_dim = shape.head_dim;
  config.max_context = shape.max_context;
  SimulatedLimits limits{.vocab_size = shape.vocab_size};
  HYDRANT_ASSIGN_OR_RETURN(KvLayout layout, PlanLayout(options, config));
  HYDRANT_ASSIGN_OR_RETURN(limits.engine, PlanLimits(options, config));
  if (IsGpu(options.device)) limits.engine.prefill_rows = kDevicePrefillRows;
  limits.engine.max_steps_in_flight =
      options.async_scheduling.value_or(IsGpu(options.device)) ? 2 : 1;
  HYDRANT_RETURN_IF_ERROR(PlanHostMemory(options, layout, &limits.engine));
  int64_t blocks = RequestedBlocks(options, layout).value_or(0);
  if (fold_heads) {
    limits.heads_alike = shape.num_layers * shape.num_kv_heads;
    Fold(limits.heads_alike, &limits.engine);
    blocks /= limits.heads_alike;
  }
  HYDRANT_RETURN_IF_ERROR(SetPool(options, blocks, &layout, &limits.engine));
  return limits;
}

}  // namespace hydrant::sim
