// The limits of a simulated engine: from a model's shape, with the daemon's memory sizing
// (engine/run/engine_sizing.h).
#ifndef HYDRANT_TOOLS_SIMULATOR_MODEL_SHAPE_H_
#define HYDRANT_TOOLS_SIMULATOR_MODEL_SHAPE_H_

#include "absl/status/statusor.h"
#include "engine/cache/engine_limits.h"
#include "engine/model/model_config.h"
#include "engine/run/engine.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant::sim {

// Defaults are SmolLM2-135M's.
struct ModelShape {
  int num_layers = 30;
  int num_heads = 9;
  int num_kv_heads = 3;
  int head_dim = 64;
  int max_context = 8192;
  TokenId vocab_size = 49152;
};

struct SimulatedLimits {
  EngineLimits engine = {};
  TokenId vocab_size = 0;
  // Number of heads represented by one simulated head. If all heads of a cache hold equally many
  // entries, this changes only the number of pages, and saves time and memory.
  int heads_alike = 1;
};

// `fold_heads`: one head represents all heads of the model. InvalidArgument and ResourceExhausted
// name the option, its value and the limit. The pool's size must be given in `options`.
absl::StatusOr<SimulatedLimits> LimitsOf(const ModelShape& shape, const EngineOptions& options,
                                         bool fold_heads);

}  // namespace hydrant::sim

#endif  // HYDRANT_TOOLS_SIMULATOR_MODEL_SHAPE_H_
