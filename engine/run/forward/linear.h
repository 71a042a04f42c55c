// A projection of the model: a matrix on a backend, and its bias. Immutable once loaded. All
// products with it use Apply(), fused or not.
#ifndef HYDRANT_ENGINE_RUN_FORWARD_LINEAR_H_
#define HYDRANT_ENGINE_RUN_FORWARD_LINEAR_H_

#include <memory>

#include "kernels/backend.h"
#include "kernels/device_array.h"
#include "kernels/weight.h"

namespace hydrant {

struct Linear {
  std::unique_ptr<Weight> weight;
  DeviceArray<float> bias;  // [weight's rows], or empty

  // Runs `product` with this weight and bias.
  void Apply(Backend* backend, MatmulArgs product) const {
    product.weight = weight.get();
    product.bias = bias.data();
    backend->Matmul(product);
  }
  // As above, with the experts' matrices stacked.
  void Apply(Backend* backend, ExpertMatmulArgs product) const {
    product.weight = weight.get();
    product.bias = bias.data();
    backend->ExpertMatmul(product);
  }
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_FORWARD_LINEAR_H_
