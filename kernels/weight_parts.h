// Checks and row access that backends share when they pack a weight's parts.
#ifndef HYDRANT_KERNELS_WEIGHT_PARTS_H_
#define HYDRANT_KERNELS_WEIGHT_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/weight.h"

namespace hydrant {

// InvalidArgument where the parts cannot be stacked, or are neither stored nor drawn nor generated.
absl::Status CheckWeightParts(std::span<const WeightPart> parts);

// The rows of a weight's parts, numbered consecutively, in the dtype to pack: in place where
// the file stores that dtype, otherwise drawn, generated or quantised into scratch.
// Immutable, so any thread may read.
class WeightRows {
 public:
  struct Row {
    DType dtype;
    const uint8_t* bytes;  // valid as long as the parts' data and the scratch
  };

  // Errors as CheckWeightParts().
  static absl::StatusOr<WeightRows> Make(std::span<const WeightPart> parts, WeightDType dtype);

  int rows() const { return rows_; }
  int cols() const { return parts_.front().cols; }
  std::span<const WeightPart> parts() const { return parts_; }

  // Bytes of scratch for one row; a multiple of 64.
  size_t scratch_bytes() const;
  Row Get(int row, uint8_t* scratch) const;
  // InvalidArgument, with the tensor's name and the index, where a value of the row is not finite.
  absl::Status CheckFinite(int row) const;

 private:
  WeightRows() = default;

  std::vector<WeightPart> parts_;
  WeightDType dtype_ = WeightDType::kStored;
  int rows_ = 0;
};

// Whether all values are finite; the loop has no branch and vectorises.
inline bool AllFinite(std::span<const float> values) {
  float sum = 0.0f;  // a sum of zeros, or NaN
  for (const float value : values) sum += value * 0.0f;
  return sum == 0.0f;
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_WEIGHT_PARTS_H_
