// Normal random numbers computed from (stream, index) alone, for weights of untrained models: the
// same on every machine and device, in any order of evaluation.
#ifndef HYDRANT_KERNELS_NORMALS_H_
#define HYDRANT_KERNELS_NORMALS_H_

#include <cstdint>

#include "kernels/random.h"

namespace hydrant {

struct NormalStream {
  uint64_t key = 0;
  float stddev = 1.0f;
};

// Value `index` of the stream before scaling: mean 0, standard deviation 1. The sum of twelve
// 16-bit uniforms needs integer arithmetic only, so rounding does not differ by machine; no value
// is beyond 6, the excess kurtosis is -0.1.
constexpr float NormalAt(uint64_t key, uint64_t index) {
  const uint64_t counter = key + index * 3 * kRandomStep;
  uint32_t sum = 0;
  for (int draw = 0; draw < 3; ++draw) {
    const uint64_t bits = MixBits(counter + draw * kRandomStep);
    sum += static_cast<uint32_t>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) +
                                 (bits >> 48));
  }
  // Twelve uniforms on {0..65535} have mean 12 * 65535 / 2 and, up to one
  // part in 2^32, variance 2^32.
  return static_cast<float>(static_cast<int32_t>(sum) - 6 * 65535) * (1.0f / 65536.0f);
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_NORMALS_H_
