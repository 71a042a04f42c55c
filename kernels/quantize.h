// Floats to blocks, one row at a time, for weights that are quantised while loading: bit-equal to
// the ggml project's reference quantisers. Stateless; any thread may call.
#ifndef HYDRANT_KERNELS_QUANTIZE_H_
#define HYDRANT_KERNELS_QUANTIZE_H_

#include <cstdint>

#include "kernels/dtype.h"

namespace hydrant {

// A block with a value that is not finite, or too large for its scale, gets a scale that is not
// finite. kQ8_0 and kQ4_0 are bit-equal to the gguf package. In kF8_E4M3 the largest magnitude
// of a block becomes 448, the largest e4m3 value, and the others the nearest value. REQUIRES:
// dtype is one of the three; count is a whole number of blocks; dst takes BytesOf(dtype, count)
// bytes, of any alignment.
void QuantizeRow(DType dtype, const float* src, int64_t count, uint8_t* dst);

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_QUANTIZE_H_
