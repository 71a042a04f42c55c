#include "engine/model/hf_fp8.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/model/text.h"
#include "kernels/float16.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr int kSharedByScale = BlockElements(DType::kF8_E4M3);

// A scale for each block of block_rows x block_cols.
struct Scales {
  std::vector<float> values;  // [ceil(rows / block_rows), per_row]
  int64_t block_rows = 1;
  int64_t block_cols = 1;
  int64_t per_row = 1;

  float At(int64_t row, int64_t col) const {
    return values[row / block_rows * per_row + col / block_cols];
  }
};

class Fp8Rows final : public RowMaker {
 public:
  Fp8Rows(std::span<const uint8_t> elements, int64_t cols, bool blocks, Scales scales)
      : elements_(elements), cols_(cols), blocks_(blocks), scales_(std::move(scales)) {}

  void Make(int64_t row, uint8_t* out) const override {
    const uint8_t* elements = elements_.data() + row * cols_;
    if (blocks_) return MakeBlocks(row, elements, out);
    for (int64_t col = 0; col < cols_; ++col) {
      const float value = E4M3ToFloat(elements[col]) * scales_.At(row, col);
      std::memcpy(out + col * sizeof(value), &value, sizeof(value));
    }
  }

 private:
  void MakeBlocks(int64_t row, const uint8_t* elements, uint8_t* out) const {
    for (int64_t col = 0; col < cols_; col += kSharedByScale) {
      const float scale = scales_.At(row, col);
      std::memcpy(out, &scale, sizeof(scale));
      std::memcpy(out + sizeof(scale), elements + col, kSharedByScale);
      out += TraitsOf(DType::kF8_E4M3).block_bytes;
    }
  }

  const std::span<const uint8_t> elements_;  // [rows, cols]
  const int64_t cols_;
  const bool blocks_;  // kF8_E4M3 blocks, else floats
  const Scales scales_;
};

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Derives the block size from the shape of the scales.
absl::Status FitScales(const HfQuantization& q, const RawTensor& weight, const RawTensor& scale,
                       Scales* scales) {
  const int64_t rows = weight.shape[0], cols = weight.shape[1];
  const auto count = static_cast<int64_t>(scales->values.size());
  if (q.block_rows > 0) {
    scales->block_rows = q.block_rows;
    scales->block_cols = q.block_cols;
    scales->per_row = CeilDiv(cols, q.block_cols);
    const std::vector<int64_t> wanted = {CeilDiv(rows, q.block_rows), scales->per_row};
    if (scale.shape == wanted) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the shape is ", ShapeText(scale.shape),
                                                   ", for ", ShapeText(weight.shape),
                                                   " it must be ", ShapeText(wanted)));
  }
  scales->block_cols = cols;
  const bool by_row = count == rows && !scale.shape.empty() && scale.shape[0] == rows;
  scales->block_rows = by_row ? 1 : rows;
  if (by_row || count == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the shape is ", ShapeText(scale.shape), ", for ",
                                                 ShapeText(weight.shape),
                                                 " it must hold one number, or one for each row"));
}

}  // namespace

absl::StatusOr<TensorView> Fp8View(const HfQuantization& quantization, const RawTensor& weight,
                                   const std::string& scale_name, const RawTensor& scale) {
  const std::string context = absl::StrCat("tensor ", Quoted(scale_name));
  if (weight.shape.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat("beside ", context, " lies a tensor of shape ",
                                                   ShapeText(weight.shape), ", not a matrix"));
  }
  absl::StatusOr<std::vector<float>> values = FloatsOf(scale);
  if (!values.ok()) return WithContext(values.status(), context);
  constexpr float kLimit = 1e30f;  // times 448, and times 256 (kernels/cpu), is finite
  for (const float value : *values) {
    if (std::abs(value) <= kLimit) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(context, " holds ", value, ", the limit is ", kLimit));
  }
  Scales scales;
  scales.values = *std::move(values);
  if (absl::Status s = FitScales(quantization, weight, scale, &scales); !s.ok())
    return WithContext(s, context);
  const int64_t cols = weight.shape[1];
  const bool blocks = cols % kSharedByScale == 0 &&
                      (scales.per_row == 1 || scales.block_cols % kSharedByScale == 0);
  TensorView view;
  view.dtype = blocks ? DType::kF8_E4M3 : DType::kF32;
  view.shape = weight.shape;
  view.maker = std::make_shared<Fp8Rows>(weight.bytes, cols, blocks, std::move(scales));
  return view;
}

}  // namespace hydrant
