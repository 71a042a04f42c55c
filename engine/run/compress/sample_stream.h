// Caches with samples as entries (kernels/ops/subgen.h): keeps the rule of each slot, builds
// samples and streams tokens into them. Used by the engine's thread.
#ifndef HYDRANT_ENGINE_RUN_COMPRESS_SAMPLE_STREAM_H_
#define HYDRANT_ENGINE_RUN_COMPRESS_SAMPLE_STREAM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/cache/cache_updates.h"
#include "engine/cache/engine_limits.h"
#include "engine/cache/prompt_scorer.h"
#include "engine/run/pool/kv_state.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"

namespace hydrant {

class SampleStream {
 public:
  // Borrows the backend.
  absl::Status Allocate(Backend* backend, const EngineLimits& limits);

  // Stores the rules of all slots that the updates set up.
  void SetUp(const CacheUpdates& updates);
  // Builds samples of a prefilled layer of a prompt in the slot's pages.
  void BuildLayer(const SubGenRule& rule, const PromptLayer& layer, const KvState& kv);
  // Replaces the `tokens` entries in the slot's pages by samples of them.
  void BuildPages(const SubGenRule& rule, int slot, int32_t tokens, const KvState& kv);
  // Streams the tokens that leave the windows of a step's rows into the samples, before the new
  // entries are written.
  void Insert(int num_rows, const int32_t* slots, const int32_t* positions, int layer,
              const KvState& kv);

 private:
  Backend* backend_ = nullptr;
  int num_layers_ = 0;
  DeviceArray<SubGenRule> rules_;  // [max_num_seqs]
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_COMPRESS_SAMPLE_STREAM_H_
