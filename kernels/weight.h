// A weight matrix in the form its backend multiplies by. Made once at load, immutable, shared by
// all steps.
#ifndef HYDRANT_KERNELS_WEIGHT_H_
#define HYDRANT_KERNELS_WEIGHT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/dtype.h"
#include "kernels/normals.h"

namespace hydrant {

// How weights are kept in memory and multiplied.
enum class WeightDType : uint8_t {
  kFloat32,   // dequantised to fp32
  kBFloat16,  // rounded to bf16, fp32 accumulation
  kStored,  // the file's own blocks, dequantised in registers: the same values as kFloat32, in the
            // file's size
  kQ8_0,    // as kStored, but rows of floats are quantised first (KeptDType)
  kQ4_0,
  kFp8  // e4m3 with a scale for 128 values of a row
};

// Whether rows of floats are quantised.
constexpr bool Quantises(WeightDType dtype) {
  return dtype == WeightDType::kQ8_0 || dtype == WeightDType::kQ4_0 || dtype == WeightDType::kFp8;
}

// What a backend that multiplies from blocks keeps rows of `stored` as. Rows of floats become
// blocks where these are smaller and a row is a whole number of them; blocks stay what they are.
constexpr DType KeptDType(DType stored, WeightDType dtype, int cols) {
  const bool is_float = BlockElements(stored) == 1;
  switch (dtype) {
    case WeightDType::kFloat32:
      return DType::kF32;
    case WeightDType::kBFloat16:
      return DType::kBF16;
    case WeightDType::kStored:
      return stored;
    case WeightDType::kQ8_0:
      return is_float && cols % BlockElements(DType::kQ8_0) == 0 ? DType::kQ8_0 : stored;
    case WeightDType::kQ4_0:
      return (is_float || stored == DType::kF8_E4M3) && cols % BlockElements(DType::kQ4_0) == 0
                 ? DType::kQ4_0
                 : stored;
    case WeightDType::kFp8:
      return is_float && cols % BlockElements(DType::kF8_E4M3) == 0 ? DType::kF8_E4M3 : stored;
  }
  return stored;
}

// Makes the rows of a matrix that no file has in a form of kernels/dtype.h, when they are packed.
// Immutable; any thread may call.
class RowMaker {
 public:
  virtual ~RowMaker() = default;
  // Writes row `row`, BytesOf() its dtype and columns.
  virtual void Make(int64_t row, uint8_t* out) const = 0;
};

// Rows of a weight matrix: as a file stores them, drawn or made. Borrowed: with kStored the bytes
// must outlive the Weight.
struct WeightPart {
  DType dtype = DType::kF32;
  const void* data = nullptr;  // [rows, cols], rows contiguous, cols a whole number of blocks; null
                               // where they are drawn or made
  int rows = 0;
  int cols = 0;
  std::optional<NormalStream> normals = {};  // element (r, c) is value r * cols + c, rounded to
                                             // dtype: f32 or bf16
  const RowMaker* maker = nullptr;
  int64_t first_made = 0;      // the maker's number of row 0
  std::string_view name = {};  // for messages: the tensor's
};

class Weight {
 public:
  virtual ~Weight() = default;
  int rows() const { return rows_; }       // outputs
  int cols() const { return cols_; }       // inputs
  size_t bytes() const { return bytes_; }  // memory it occupies, mapped file pages included

 protected:
  Weight(int rows, int cols, size_t bytes) : rows_(rows), cols_(cols), bytes_(bytes) {}

 private:
  int rows_;
  int cols_;
  size_t bytes_;
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_WEIGHT_H_
