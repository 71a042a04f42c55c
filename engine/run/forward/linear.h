// A matrix on a backend, and its bias. Immutable once loaded.
#ifndef HYDRANT_ENGINE_RUN_FORWARD_LINEAR_H_
#define HYDRANT_ENGINE_RUN_FORWARD_LINEAR_H_

#include <memory>

#include "kernels/device_array.h"
#include "kernels/weight.h"

namespace hydrant {

struct Linear {
  std::unique_ptr<Weight> weight;
  DeviceArray<float> bias;  // [weight's rows], or empty
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_FORWARD_LINEAR_H_
