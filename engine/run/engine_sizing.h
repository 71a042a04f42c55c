// The sizes that are fixed when an engine is created: those of its tables and activations, and the
// number of pages in its pool.
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

// The dtype of the weights, or its default where options.dtype is unset.
WeightDType DefaultedDType(const EngineOptions& options);

// InvalidArgument names the option, its value and the range. The pool's own sizes stay 0.
absl::StatusOr<KvLayout> PlanLayout(const EngineOptions& options, const ModelConfig& config);
absl::StatusOr<EngineLimits> PlanLimits(const EngineOptions& options, const ModelConfig& config);

// [layers] the cache group of each layer.
std::vector<GroupKind> GroupsOfLayers(const ModelConfig& config, const EngineLimits& limits);

// Sets the numbers of prefix blocks, host pages and offloaded caches from the options' memory
// sizes. InvalidArgument where a size is negative, ResourceExhausted where it exceeds the host's
// memory.
absl::Status PlanHostMemory(const EngineOptions& options, const KvLayout& layout,
                            EngineLimits* limits);

// Pages of the pool that the options set; nullopt: sized automatically.
std::optional<int64_t> RequestedBlocks(const EngineOptions& options, const KvLayout& layout);

// ResourceExhausted, with the option, its value and the limit, where a pool that the options set
// would not fit into memory with its tables and the host's bookkeeping. Called before the pool and
// the weights are allocated. REQUIRES: SetPool
absl::Status CheckPoolFits(const EngineOptions& options, const KvLayout& layout,
                           const EngineLimits& limits, Backend* backend);

// Pages for max_num_seqs full sequences, limited by the device's memory. Called after everything
// else is allocated. The limit is kv_cache_memory_limit on a host; on a GPU the memory that
// gpu_memory_utilization leaves, other GPU users included. ResourceExhausted if none is left.
absl::StatusOr<int64_t> AutomaticBlocks(const EngineOptions& options, const KvLayout& layout,
                                        const EngineLimits& limits, Backend* backend);

// Sets the pool's number of pages and the size of the table arena. InvalidArgument for too few
// pages, ResourceExhausted for more than page and state ids can number.
absl::Status SetPool(const EngineOptions& options, int64_t blocks, KvLayout* layout,
                     EngineLimits* limits);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_ENGINE_SIZING_H_
