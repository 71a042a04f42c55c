// What backends do first with the parts of a weight.
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

// InvalidArgument where the parts cannot be stacked, or are neither stored nor drawn nor made.
absl::Status CheckWeightParts(std::span<const WeightPart> parts);

// The rows of a weight's parts, counted through, as they are to be packed: where a file has them
// so, or drawn, made or quantised in scratch. Immutable, so any thread may read.
class WeightRows {
 public:
  struct Row {
    DType dtype;
    const uint8_t* bytes;  // valid as long as the parts' data and the scratch
  };

  // The errors of CheckWeightParts().
  static absl::StatusOr<WeightRows> Make(std::span<const WeightPart> parts, WeightDType dtype);

  int rows() const { return rows_; }
  int cols() const { return parts_.front().cols; }
  std::span<const WeightPart> parts() const { return parts_; }

  // Bytes of scratch for one row; a multiple of 64.
  size_t scratch_bytes() const;
  Row Get(int row, uint8_t* scratch) const;
  // InvalidArgument, with the tensor's name and the place, where a value of the row is not finite.
  absl::Status CheckFinite(int row) const;

 private:
  WeightRows() = default;

  std::vector<WeightPart> parts_;
  WeightDType dtype_ = WeightDType::kStored;
  int rows_ = 0;
};

// Whether all are; `values` may be scanned fast, as no branch depends on them.
inline bool AllFinite(std::span<const float> values) {
  float sum = 0.0f;  // of zeros, or NaN
  for (const float value : values) sum += value * 0.0f;
  return sum == 0.0f;
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_WEIGHT_PARTS_H_
