// A typed view of a tensor: bytes in a model file, random values, or rows made at packing time.
// Borrows the bytes from the object that made it.
#ifndef HYDRANT_ENGINE_MODEL_TENSOR_H_
#define HYDRANT_ENGINE_MODEL_TENSOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/normals.h"
#include "kernels/weight.h"

namespace hydrant {

struct TensorView {
  DType dtype = DType::kF32;
  std::vector<int64_t>
      shape;  // outermost first: a weight is [rows (outputs), cols (inputs)], rows contiguous
  std::span<const uint8_t> bytes;            // exactly BytesOf(dtype, number of elements), or none
  std::optional<NormalStream> normals = {};  // without bytes: draws the elements, in order
  std::shared_ptr<const RowMaker> maker = {};  // or makes the rows
  int64_t first_made = 0;                      // the maker's index of the first row
  std::string name = {};                       // for messages

  int64_t NumElements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
  // False for an optional tensor that the model lacks.
  bool Exists() const { return !shape.empty(); }
  // Rows `first` to `first` + `count` - 1. REQUIRES: the view has bytes or a maker; a row is a
  // whole number of blocks
  TensorView Rows(int64_t first, int64_t count) const {
    TensorView rows = *this;
    rows.shape[0] = count;
    rows.first_made += first;
    if (maker != nullptr) return rows;
    const size_t row_bytes = bytes.size() / shape[0];
    rows.bytes = bytes.subspan(first * row_bytes, count * row_bytes);
    return rows;
  }
};

// A matrix in the form that backends take. Borrows the view.
inline WeightPart PartOf(const TensorView& tensor) {
  return {.dtype = tensor.dtype,
          .data = tensor.bytes.data(),
          .rows = static_cast<int>(tensor.shape[0]),
          .cols = static_cast<int>(tensor.shape[1]),
          .normals = tensor.normals,
          .maker = tensor.maker.get(),
          .first_made = tensor.first_made,
          .name = tensor.name};
}

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_TENSOR_H_
