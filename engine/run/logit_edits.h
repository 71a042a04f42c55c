// What a step's rows say of single tokens (SampledRow's mask and biases), in device memory, and how
// it is done to their logits. Used by the engine's thread.
#ifndef HYDRANT_ENGINE_RUN_LOGIT_EDITS_H_
#define HYDRANT_ENGINE_RUN_LOGIT_EDITS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/run/step/batch.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"

namespace hydrant {

class LogitEdits {
 public:
  // Borrows the backend. max_rows: of a step.
  absl::Status Allocate(Backend* backend, int max_rows, int vocab);

  // Of the rows that are sampled, in the order of Batch::ForEachSampled().
  void Write(const Batch& batch, int num_layers);
  // To the logits [rows, vocab] of all rows that are sampled, where these are in [begin, end).
  void Apply(int begin, int end, float* logits) const;

 private:
  Backend* backend_ = nullptr;
  int vocab_ = 0;
  // Of the step at work, by ascending rows, and the same on the device.
  std::vector<int32_t> bias_rows_, mask_rows_;
  std::vector<TokenBias> biases_;  // [bias_rows]
  std::vector<uint32_t> masks_;    // [mask_rows, MaskWords(vocab)]
  DeviceArray<int32_t> device_bias_rows_, device_mask_rows_;
  DeviceArray<TokenBias> device_biases_;
  DeviceArray<uint32_t> device_masks_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_LOGIT_EDITS_H_
