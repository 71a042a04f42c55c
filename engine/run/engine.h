// The engine: weights, KV pool and the forward pass of one model on one backend. It has no threads
// of its own and is driven by one thread at a time; it decides nothing about memory (see
// engine/run/step/batch.h).
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

struct EngineOptions {
  std::string device = "cpu";  // "cpu", "cuda" or "reference"
  int num_threads = 1;
  bool batch_invariant = false;
  std::optional<WeightDType> dtype;     // unset: kBFloat16 on a GPU, kStored on a host
  std::optional<DType> kv_cache_dtype;  // one that IsPageDType (kernels/page_row.h); unset: f32
                                        // with kFloat32, bf16 with kBFloat16, f16 with the others
  int block_size = 16;
  int64_t kv_cache_memory_bytes = 0;       // pool size in bytes ...
  std::optional<int> num_blocks_override;  // ... or in pages, which wins. Neither: what
                                           // max_num_seqs full sequences can use, but no more than
  int64_t kv_cache_memory_limit = 0;       // on a host: this; 0: a quarter of the free memory
  int64_t host_memory_bytes = 0;           // what a pool that is asked for may take of the host's
                                           // memory; 0: all that the machine has
  // Of the host's memory, on every device: for the keys and values of prompts that have been read.
  int64_t prefix_cache_memory_bytes = 0;
  int64_t context_memory_bytes = 0;  // the same: for the caches of requests that have ended
  int64_t swap_space_bytes = 0;      // the same: for sequences whose pages others need
  // A folder with room for the two last: their memory is a file there, of which the system keeps in
  // memory what it likes. Empty: memory. Not on a GPU.
  std::string swap_directory;
  double gpu_memory_utilization = 0.9;  // on a GPU: what makes this share of its memory used
  int max_num_seqs = 64;
  // Tokens are drawn from the ids below it: models pad their vocabularies past what their
  // tokenizers know. Unset: all of the model's.
  std::optional<int> sampled_vocab;
  // Two steps in flight instead of one; unset: where the device works beside the host.
  std::optional<bool> async_scheduling;
  bool enforce_eager = false;        // enqueue every operation of every step, record none (GPU)
  std::optional<int> max_model_len;  // unset: the model's context
  int max_shared_statistics = 0;     // EngineLimits' own
  std::optional<int> prefill_arena_tokens;  // unset: 1.25 max_model_len, so that short prompts pass
                                            // a long one; at least 2048
};

// What an engine holds, in bytes. None of it grows later.
struct EngineMemory {
  // Of the device's memory.
  int64_t weights = 0;
  int64_t kv_pool = 0;
  int64_t workspace = 0;  // all else: prompts being read, activations, logits, tables
  // Of the host's.
  int64_t prefix_cache = 0;
  int64_t kept_caches = 0;
  int64_t swap_space = 0;

  int64_t Total() const {
    return weights + kv_pool + workspace + prefix_cache + kept_caches + swap_space;
  }
};

class KvState;

// The parts of an engine that hold caches and logits; borrowed from it.
struct EngineParts {
  Backend* backend = nullptr;
  const KvState* kv = nullptr;
  int num_layers = 0;
  int num_kv_heads = 0;
  const float* logits = nullptr;  // of the step enqueued last, on the device
  size_t num_logits = 0;
};

class Engine final : public StepExecutor {
 public:
  // Packs the weights and allocates the pool. `progress` (may be null) hears a fraction in [0, 1]
  // as the layers load. The source may be closed afterwards unless dtype is kStored: the engine
  // keeps it alive.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(
      std::shared_ptr<const ModelSource> source, const EngineOptions& options,
      const std::function<void(double)>& progress);
  ~Engine() override;

  const EngineLimits& limits() const override;
  KeptMemory kept_memory() const override;
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
