#include "kernels/weight_parts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/dequantize.h"
#include "kernels/float16.h"
#include "kernels/quantize.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

absl::Status CheckPart(const WeightPart& part) {
  const bool has_rows = part.data != nullptr || part.normals.has_value() || part.maker != nullptr;
  if (part.rows < 1 || part.cols < 1 || !has_rows) {
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

// Writes values first, first + 1, ... of a stream.
void Draw(const NormalStream& normals, DType dtype, uint64_t first, int count, uint8_t* out) {
  for (int i = 0; i < count; ++i) {
    const float value = NormalAt(normals.key, first + i) * normals.stddev;
    if (dtype == DType::kF32) {
      std::memcpy(out + i * sizeof(value), &value, sizeof(value));
    } else {
      const uint16_t bits = FloatToBF16(value);
      std::memcpy(out + i * sizeof(bits), &bits, sizeof(bits));
    }
  }
}

// The row in the part's dtype.
const uint8_t* StoredRow(const WeightPart& part, int row, uint8_t* scratch) {
  if (part.data != nullptr)
    return static_cast<const uint8_t*>(part.data) + row * BytesOf(part.dtype, part.cols);
  if (part.normals.has_value()) {
    Draw(*part.normals, part.dtype, static_cast<uint64_t>(row) * part.cols, part.cols, scratch);
  } else {
    part.maker->Make(part.first_made + row, scratch);
  }
  return scratch;
}

// Upper bound of a row's bytes in any dtype; a multiple of 64.
size_t MaxRowBytes(int cols) { return (BytesOf(DType::kF32, cols) + 63) / 64 * 64; }

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

absl::StatusOr<WeightRows> WeightRows::Make(std::span<const WeightPart> parts, WeightDType dtype) {
  HYDRANT_RETURN_IF_ERROR(CheckWeightParts(parts));
  WeightRows rows;
  rows.parts_.assign(parts.begin(), parts.end());
  rows.dtype_ = dtype;
  for (const WeightPart& part : parts) rows.rows_ += part.rows;
  return rows;
}

// The stored row; if it is quantised, also its floats and its blocks.
size_t WeightRows::scratch_bytes() const {
  return (Quantises(dtype_) ? 3 : 1) * MaxRowBytes(cols());
}

WeightRows::Row WeightRows::Get(int row, uint8_t* scratch) const {
  size_t i = 0;
  while (row >= parts_[i].rows) row -= parts_[i++].rows;
  const WeightPart& part = parts_[i];
  const uint8_t* stored = StoredRow(part, row, scratch);
  const DType kept = KeptDType(part.dtype, dtype_, part.cols);
  if (!Quantises(dtype_) || kept == part.dtype) return {part.dtype, stored};
  auto* floats = reinterpret_cast<float*>(scratch + MaxRowBytes(part.cols));
  uint8_t* blocks = scratch + 2 * MaxRowBytes(part.cols);
  DequantizeRow(part.dtype, stored, part.cols, floats);
  QuantizeRow(kept, floats, part.cols, blocks);
  return {kept, blocks};
}

absl::Status WeightRows::CheckFinite(int row) const {
  std::vector<float> scratch(scratch_bytes() / sizeof(float)), values(cols());
  const Row bytes = Get(row, reinterpret_cast<uint8_t*>(scratch.data()));
  DequantizeRow(bytes.dtype, bytes.bytes, cols(), values.data());
  const auto bad =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (bad == values.end()) return absl::OkStatus();
  size_t i = 0;
  while (row >= parts_[i].rows) row -= parts_[i++].rows;
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", std::string(parts_[i].name), "': the value in row ", row,
                   ", column ", bad - values.begin(), " is ", *bad, " as ",
                   std::string(DTypeName(bytes.dtype)), "; weights must be finite"));
}

}  // namespace hydrant
