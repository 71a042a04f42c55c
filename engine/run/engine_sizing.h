// The sizes that are fixed when an engine is made: what its tables and activations must hold, and
// how many pages its pool has.
#ifndef HYDRANT_ENGINE_RUN_ENGINE_SIZING_H_
#define HYDRANT_ENGINE_RUN_ENGINE_SIZING_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "engine/run/engine.h"
#include "engine/run/step/batch.h"
#include "kernels/backend.h"
#include "kernels/kv_pages.h"

namespace hydrant {

// The dtype of the weights, chosen where the options leave it open.
WeightDType DefaultedDType(const EngineOptions& options);

// InvalidArgument names the option, its value and the range. The pool's own sizes are left 0.
absl::StatusOr<KvLayout> PlanLayout(const EngineOptions& options, const ModelConfig& config);
absl::StatusOr<EngineLimits> PlanLimits(const EngineOptions& options, const ModelConfig& config);

// [layers] of the group of each.
std::vector<GroupKind> GroupsOfLayers(const ModelConfig& config, const EngineLimits& limits);

// The prefix blocks and kept caches that the options' memory holds. InvalidArgument where it is
// negative, ResourceExhausted where it is more than the host has.
absl::Status PlanHostMemory(const EngineOptions& options, const KvLayout& layout,
                            EngineLimits* limits);

// What the options ask for; none where they leave it to the device.
std::optional<int64_t> AskedBlocks(const EngineOptions& options, const KvLayout& layout);

// ResourceExhausted, with the option, its value and the limit, where the pool that is asked for
// would not fit into memory with its tables and the host's bookkeeping. To be asked before any of
// it, or a weight, is allocated. REQUIRES: SetPool
absl::Status CheckPoolFits(const EngineOptions& options, const KvLayout& layout,
                           const EngineLimits& limits, Backend* backend);

// What max_num_seqs full sequences can use, or what the device can give, whichever is less. To be
// asked when all else is allocated. A host can give kv_cache_memory_limit; a GPU what
// gpu_memory_utilization leaves, all other users of the GPU counted. ResourceExhausted where that
// is nothing.
absl::StatusOr<int64_t> AutomaticBlocks(const EngineOptions& options, const KvLayout& layout,
                                        const EngineLimits& limits, Backend* backend);

// Gives the pool its pages, and the tables the room to name them. InvalidArgument where they are
// too few, ResourceExhausted where they are more than can be told apart.
absl::Status SetPool(const EngineOptions& options, int64_t blocks, KvLayout* layout,
                     EngineLimits* limits);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_ENGINE_SIZING_H_
