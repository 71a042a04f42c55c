// The engine: weights, KV pool and the forward pass of one model on one backend. It has no threads
// of its own and is called by one thread at a time; it decides nothing about memory
// (engine/run/step/batch.h).
#ifndef HYDRANT_ENGINE_RUN_ENGINE_H_
#define HYDRANT_ENGINE_RUN_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_source.h"
#include "engine/run/step/batch.h"
#include "kernels/backend.h"

namespace hydrant {

struct ScorePredictor;  // engine/run/forward/score_predictor.h

struct EngineOptions {
  std::string device = "cpu";  // "cpu", "cuda" or "reference"
  int num_threads = 1;
  bool batch_invariant = false;
  std::optional<WeightDType> dtype;     // unset: kBFloat16 on a GPU, kStored on a host
  std::optional<DType> kv_cache_dtype;  // IsPageDType() holds (kernels/page_row.h); unset: f32 with
                                        // kFloat32, bf16 with kBFloat16, else f16
  int block_size = 16;
  int64_t kv_cache_memory_bytes = 0;       // pool size in bytes
  std::optional<int> num_blocks_override;  // pool size in pages, overrides the bytes. With neither:
                                           // enough for max_num_seqs full sequences, within ...
  int64_t kv_cache_memory_limit = 0;       // ... this on a host; 0: a quarter of the free memory
  int64_t host_memory_bytes = 0;           // host memory that a pool of a given size may take; 0:
                                           // all memory of the machine
  // Host memory, on every device, for the prefix cache: keys and values of prefilled prompts.
  int64_t prefix_cache_memory_bytes = 0;
  int64_t context_memory_bytes = 0;  // host memory for contexts: caches of finished requests
  int64_t swap_space_bytes = 0;      // host memory for swapped-out sequences
  // A folder with room for contexts and swap space, which are then a memory-mapped file there.
  // Empty: ordinary memory. Not on a GPU.
  std::string swap_directory;
  double gpu_memory_utilization = 0.9;  // on a GPU: the pool fills memory up to this share
  int max_num_seqs = 64;
  // Only ids below it are sampled: models pad their vocabularies past the tokenizer's. Unset: all
  // of the model's.
  std::optional<int> sampled_vocab;
  // Two steps in flight instead of one; unset: if the device is asynchronous.
  std::optional<bool> async_scheduling;
  bool enforce_eager = false;        // enqueue all operations of each step, record no graphs (GPU)
  std::optional<int> max_model_len;  // unset: the model's context
  int max_shared_statistics = 0;     // EngineLimits::max_shared_statistics
  int max_held_tokens = 0;           // EngineLimits::max_held_tokens
  // The model's; null: none.
  std::shared_ptr<const ScorePredictor> score_predictor = nullptr;
  std::optional<int> prefill_arena_tokens;  // unset: 1.25 max_model_len, so that short prompts pass
                                            // a long one; at least 2048
};

// Memory of an engine in bytes; constant after Create().
struct EngineMemory {
  // On the device.
  int64_t weights = 0;
  int64_t kv_pool = 0;
  int64_t workspace = 0;  // the rest: prefill arena, activations, logits, tables
  // On the host.
  int64_t prefix_cache = 0;
  int64_t offloaded_caches = 0;
  int64_t swap_space = 0;
  bool pinned_host = false;  // the host's memory is held from the start, not as it fills

  int64_t Total() const {
    return weights + kv_pool + workspace + prefix_cache + offloaded_caches + swap_space;
  }
};

class Forward;
class KvState;
class Transformer;

// The parts of an engine that hold caches and logits; borrowed from it.
struct EngineParts {
  Backend* backend = nullptr;
  const KvState* kv = nullptr;
  const Transformer* model = nullptr;
  int num_layers = 0;
  int num_kv_heads = 0;
  Forward* forward = nullptr;
  const float* logits = nullptr;  // of the last enqueued step, on the device
  size_t num_logits = 0;
};

class Engine final : public StepExecutor {
 public:
  // Packs the weights and allocates the pool. `progress` (may be null) is called with a fraction in
  // [0, 1] as the layers load. The source may be closed afterwards unless dtype is kStored: then
  // the engine keeps it alive.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(
      std::shared_ptr<const ModelSource> source, const EngineOptions& options,
      const std::function<void(double)>& progress);
  ~Engine() override;

  const EngineLimits& limits() const override;
  OffloadMemory offload_memory() const override;
  PrefixMemory prefix_memory() const override;
  void Enqueue(const Batch& batch) override;
  absl::Status Collect(StepResult* result) override;

  const ModelConfig& config() const;
  const KvLayout& kv_layout() const;
  EngineMemory memory() const;
  std::string Description() const;  // one line: device, threads, dtypes

  // For EngineProbe (engine/run/engine_probe.h).
  EngineParts Parts() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_ENGINE_H_
