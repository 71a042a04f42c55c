// A typed view of a tensor in a model file, or of one that is drawn. Borrows the bytes from the
// file that made it.
#ifndef HYDRANT_ENGINE_MODEL_TENSOR_H_
#define HYDRANT_ENGINE_MODEL_TENSOR_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/normals.h"

namespace hydrant {

struct TensorView {
  DType dtype = DType::kF32;
  std::vector<int64_t>
      shape;  // outermost first: a weight is [rows (outputs), cols (inputs)], rows contiguous
  std::span<const uint8_t> bytes;  // exactly BytesOf(dtype, number of elements), or none
  std::optional<NormalStream> normals =
      {};  // where there are no bytes: what the elements are, in order

  int64_t NumElements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
  // A model need not have every tensor that some model has.
  bool Exists() const { return !shape.empty(); }
  // Rows `first` to `first` + `count` - 1. REQUIRES: it has bytes; a row is a whole number of
  // blocks
  TensorView Rows(int64_t first, int64_t count) const {
    TensorView rows = *this;
    rows.shape[0] = count;
    const size_t row_bytes = bytes.size() / shape[0];
    rows.bytes = bytes.subspan(first * row_bytes, count * row_bytes);
    return rows;
  }
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_TENSOR_H_
