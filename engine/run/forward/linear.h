// A projection of the model: a matrix on a backend, and its bias. Immutable once loaded. Every
// product with one goes by Apply(), whatever else the backend fuses with it.
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

  // As `product` says; its weight and bias are these.
  void Apply(Backend* backend, MatmulArgs product) const {
    product.weight = weight.get();
    product.bias = bias.data();
    backend->Matmul(product);
  }
  // The same of experts' matrices, one above the other.
  void Apply(Backend* backend, ExpertMatmulArgs product) const {
    product.weight = weight.get();
    product.bias = bias.data();
    backend->ExpertMatmul(product);
  }
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_FORWARD_LINEAR_H_
