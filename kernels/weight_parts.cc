#include "kernels/weight_parts.h"

#include <cstring>
#include <limits>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/float16.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

absl::Status CheckPart(const WeightPart& part) {
  if (part.rows < 1 || part.cols < 1 || (part.data == nullptr && !part.normals.has_value())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a weight part is ", part.rows, " x ", part.cols, (part.data ? "" : " without data"),
        "; it needs at least one row and one column of data"));
  }
  if (part.normals.has_value() && part.dtype != DType::kF32 && part.dtype != DType::kBF16) {
    return absl::InvalidArgumentError(absl::StrCat("a weight part cannot be drawn as ",
                                                   std::string(DTypeName(part.dtype)),
                                                   ", only as f32 or bf16"));
  }
  if (part.cols % BlockElements(part.dtype) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a weight part has ", part.cols, " columns; ", std::string(DTypeName(part.dtype)),
        " needs a multiple of ", BlockElements(part.dtype)));
  }
  return absl::OkStatus();
}

void Draw(const NormalStream& normals, DType dtype, uint64_t count, uint8_t* out) {
  for (uint64_t i = 0; i < count; ++i) {
    const float value = NormalAt(normals.key, i) * normals.stddev;
    if (dtype == DType::kF32) {
      std::memcpy(out + i * sizeof(value), &value, sizeof(value));
    } else {
      const uint16_t bits = FloatToBF16(value);
      std::memcpy(out + i * sizeof(bits), &bits, sizeof(bits));
    }
  }
}

}  // namespace

absl::Status CheckWeightParts(std::span<const WeightPart> parts) {
  if (parts.empty()) return absl::InvalidArgumentError("a weight needs at least one part");
  int64_t rows = 0;
  for (const WeightPart& part : parts) {
    HYDRANT_RETURN_IF_ERROR(CheckPart(part));
    if (part.cols != parts[0].cols) {
      return absl::InvalidArgumentError(absl::StrCat("stacked weight parts have ", parts[0].cols,
                                                     " and ", part.cols,
                                                     " columns; they must be equal"));
    }
    rows += part.rows;
  }
  if (rows > std::numeric_limits<int>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("stacked weight parts have ", rows, " rows; at most 2^31 - 1 fit"));
  }
  return absl::OkStatus();
}

absl::StatusOr<StoredParts> StoredParts::Make(std::span<const WeightPart> parts) {
  HYDRANT_RETURN_IF_ERROR(CheckWeightParts(parts));
  StoredParts stored;
  stored.parts_.assign(parts.begin(), parts.end());
  for (WeightPart& part : stored.parts_) {
    if (!part.normals.has_value()) continue;
    const uint64_t count = static_cast<uint64_t>(part.rows) * part.cols;
    const size_t size = BytesOf(part.dtype, count);
    stored.drawn_.emplace_back(new (std::nothrow) uint8_t[size]);
    if (stored.drawn_.back() == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for a drawn weight of ", size, " bytes"));
    }
    Draw(*part.normals, part.dtype, count, stored.drawn_.back().get());
    part.data = stored.drawn_.back().get();
    part.normals.reset();
  }
  return stored;
}

}  // namespace hydrant
