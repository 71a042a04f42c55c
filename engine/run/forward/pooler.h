// Embeddings of prompts: their final hidden states, after the last norm, pooled into one vector.
// Used by the engine's thread.
#ifndef HYDRANT_ENGINE_RUN_FORWARD_POOLER_H_
#define HYDRANT_ENGINE_RUN_FORWARD_POOLER_H_

#include "absl/status/status.h"
#include "engine/run/forward/transformer.h"
#include "engine/run/step/batch.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"

namespace hydrant {

class Pooler {
 public:
  // Borrows backend and model. max_prompts: prompts that end in one step.
  absl::Status Allocate(Backend* backend, const Transformer* model, int max_prompts);

  // Writes the step's embedding `index`. hidden: [n, hidden] of a whole prompt.
  void Pool(EmbeddingPooling pooling, const float* hidden, int n, int index);
  // [hidden]
  const float* embedding(int index) const;

 private:
  Backend* backend_ = nullptr;
  const Transformer* model_ = nullptr;
  DeviceArray<float> normed_;      // [kRowsAtOnce, hidden]
  DeviceArray<float> embeddings_;  // [max_prompts, hidden]
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_FORWARD_POOLER_H_
