// The masks and biases of a step's sampled rows (SampledRow) in device memory, and their
// application to the logits. Used by the engine's thread.
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
  // Borrows the backend. max_rows: sampled rows of a step.
  absl::Status Allocate(Backend* backend, int max_rows, int vocab);

  // Copies masks and biases of the sampled rows.
  void Write(const Batch& batch);
  // Edits rows [begin, end) of `logits`. logits: [rows, vocab] of all sampled rows.
  void Apply(int begin, int end, float* logits) const;

 private:
  Backend* backend_ = nullptr;
  int vocab_ = 0;
  // Data of the current step, by ascending rows, on the host and on the device.
  std::vector<int32_t> bias_rows_, mask_rows_;
  std::vector<TokenBias> biases_;  // [bias_rows]
  std::vector<uint32_t> masks_;    // [mask_rows, MaskWords(vocab)]
  DeviceArray<int32_t> device_bias_rows_, device_mask_rows_;
  DeviceArray<TokenBias> device_biases_;
  DeviceArray<uint32_t> device_masks_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_LOGIT_EDITS_H_
