// The feed-forward of a mixture of experts (kernels/ops/experts.h): a layer's weights on a backend,
// the work space, and the forward pass, the same for prefill and decode.
#ifndef HYDRANT_ENGINE_RUN_FORWARD_EXPERTS_H_
#define HYDRANT_ENGINE_RUN_FORWARD_EXPERTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/model/model_config.h"
#include "engine/run/forward/linear.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"

namespace hydrant {

// Immutable once loaded. The experts' matrices are stacked.
struct ExpertLayer {
  Linear router;   // [experts, hidden]
  Linear gate_up;  // [experts, 2 inter, hidden]: an expert's gate, then its up
  Linear down;     // [experts, hidden, inter]

  bool Exists() const { return router.weight != nullptr; }
};

// Work space for up to `rows` rows; a place is a (row, choice) pair. Empty for models without
// experts.
struct ExpertSpace {
  absl::Status Allocate(Backend& backend, const ModelConfig& config, DType input_dtype, int rows);

  DeviceArray<float> logits;     // [rows, experts]
  DeviceArray<int32_t> chosen;   // [rows, per_token]
  DeviceArray<float> weights;    // [rows, per_token]
  DeviceArray<int32_t> offsets;  // [experts + 1]
  DeviceArray<int32_t> sources;  // [places]
  DeviceArray<int32_t> places;   // [rows, per_token]
  DeviceArray<float> gate_up;    // [places, 2 inter]
  DeviceArray<uint8_t> gated;    // [places, inter], in the dtype of inputs
  DeviceArray<float> out;        // [places, hidden]
};

// Input rows of the experts: [rows, hidden].
struct ExpertInput {
  const void* x = nullptr;
  DType dtype = DType::kF32;
  int rows = 0;
};

// hidden += weighted sum of the outputs of each row's experts. hidden: [rows, hidden].
void AddExperts(Backend* backend, const ModelConfig& config, const ExpertLayer& layer,
                const ExpertInput& input, const ExpertSpace& space, float* hidden);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_FORWARD_EXPERTS_H_
