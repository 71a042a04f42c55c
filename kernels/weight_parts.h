// What backends do first with the parts of a weight.
#ifndef HYDRANT_KERNELS_WEIGHT_PARTS_H_
#define HYDRANT_KERNELS_WEIGHT_PARTS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/weight.h"

namespace hydrant {

// InvalidArgument where the parts cannot be stacked, or are neither stored nor drawn.
absl::Status CheckWeightParts(std::span<const WeightPart> parts);

// Checked parts with bytes behind every one: those that are drawn have been.
class StoredParts {
 public:
  // The errors of CheckWeightParts(), and ResourceExhausted.
  static absl::StatusOr<StoredParts> Make(std::span<const WeightPart> parts);
  // Valid as long as this is; `normals` is empty in all.
  std::span<const WeightPart> get() const { return parts_; }

 private:
  std::vector<WeightPart> parts_;
  std::vector<std::unique_ptr<uint8_t[]>> drawn_;
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_WEIGHT_PARTS_H_
