// A weight matrix in the form in which its backend multiplies. Made once at load,
// immutable, shared by all steps.
#ifndef HYDRANT_KERNELS_WEIGHT_H_
#define HYDRANT_KERNELS_WEIGHT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/dtype.h"
#include "kernels/normals.h"

namespace hydrant {

// Storage and arithmetic of weights.
enum class WeightDType : uint8_t {
  kFloat32,   // dequantised to fp32
  kBFloat16,  // rounded to bf16, fp32 accumulation
  kStored,    // the file's blocks and size, dequantised in registers: the values of kFloat32
  kQ8_0,      // as kStored, but float rows are quantised first (KeptDType)
  kQ4_0,
  kFp8  // e4m3 with one scale per 128 values of a row
};

// Whether float rows are quantised.
constexpr bool Quantises(WeightDType dtype) {
  return dtype == WeightDType::kQ8_0 || dtype == WeightDType::kQ4_0 || dtype == WeightDType::kFp8;
}

// The dtype in which a backend that multiplies from blocks keeps rows of `stored`.
// Float rows become blocks where blocks are smaller and a row is a whole number of
// them; block rows keep their dtype.
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

// Generates, while packing, rows of a matrix that is stored in no file in a dtype of
// kernels/dtype.h. Immutable; any thread may call.
class RowMaker {
 public:
  virtual ~RowMaker() = default;
  // Writes row `row`: BytesOf(the part's dtype, its cols) bytes.
  virtual void Make(int64_t row, uint8_t* out) const = 0;
};

// Rows of a weight matrix: stored in a file, drawn at random or generated. Borrowed: with kStored
// the bytes must outlive the Weight.
struct WeightPart {
  DType dtype = DType::kF32;
  const void* data = nullptr;  // [rows, cols], rows contiguous, cols a whole number of blocks; null
                               // for drawn or generated rows
  int rows = 0;
  int cols = 0;
  std::optional<NormalStream> normals = {};  // element (r, c) is value r * cols + c, rounded to
                                             // dtype: f32 or bf16
  const RowMaker* maker = nullptr;
  int64_t first_made = 0;      // the maker's index of row 0
  std::string_view name = {};  // the tensor's, for messages
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
