// Quantises floats: round to nearest with a scale from the largest value. For tests only.
#ifndef HYDRANT_TESTS_ENGINE_MODEL_QUANTIZE_H_
#define HYDRANT_TESTS_ENGINE_MODEL_QUANTIZE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/dtype.h"

namespace hydrant {

// True for f32, f16, bf16, q4_0, q4_1 and q8_0.
bool CanQuantize(DType dtype);

// The bytes of one or more rows. REQUIRES: CanQuantize(dtype); values.size() is a multiple of
// BlockElements(dtype).
std::vector<uint8_t> Quantize(DType dtype, std::span<const float> values);

// Blocks of any type with random quants and fixed scales, so that the values have a standard
// deviation of about `std_dev` and a mean near zero. Depends on its arguments alone.
std::vector<uint8_t> RandomBlocks(DType dtype, int64_t count, float std_dev, uint64_t seed);

}  // namespace hydrant

#endif  // HYDRANT_TESTS_ENGINE_MODEL_QUANTIZE_H_
