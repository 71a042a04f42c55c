// A weight matrix in the form its backend multiplies by. Made once at load, immutable, shared by
// all steps.
#ifndef HYDRANT_KERNELS_WEIGHT_H_
#define HYDRANT_KERNELS_WEIGHT_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/dtype.h"
#include "kernels/normals.h"

namespace hydrant {

// How weights are kept in memory and multiplied.
enum class WeightDType : uint8_t {
  kFloat32,   // dequantised to fp32
  kBFloat16,  // rounded to bf16, fp32 accumulation
  kStored,  // the file's own blocks, dequantised in registers: the same values as kFloat32, in the
            // file's size
};

// Rows of a weight matrix: as a file stores them, or drawn. Borrowed: with kStored the bytes must
// outlive the Weight.
struct WeightPart {
  DType dtype = DType::kF32;
  const void* data = nullptr;  // [rows, cols], rows contiguous, cols a whole number of blocks; null
                               // where they are drawn
  int rows = 0;
  int cols = 0;
  std::optional<NormalStream> normals = {};  // element (r, c) is value r * cols + c, rounded to
                                             // dtype: f32 or bf16
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
