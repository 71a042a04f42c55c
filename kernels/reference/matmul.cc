#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/dequantize.h"
#include "kernels/float16.h"
#include "kernels/page_element.h"
#include "kernels/reference/dot.h"
#include "kernels/reference/ops.h"
#include "kernels/status_macros.h"
#include "kernels/weight_parts.h"

namespace hydrant::reference {
namespace {

class ReferenceWeight : public Weight {
 public:
  ReferenceWeight(int rows, int cols, std::vector<float> values, bool bf16)
      : Weight(rows, cols, values.size() * sizeof(float)),
        values_(std::move(values)),
        bf16_(bf16) {}
  const float* Row(size_t row) const { return values_.data() + row * cols(); }
  bool bf16() const { return bf16_; }

 private:
  std::vector<float> values_;  // [rows, cols]
  bool bf16_;
};

float RoundToBF16(float value) { return BF16ToFloat(FloatToBF16(value)); }

}  // namespace

absl::StatusOr<std::unique_ptr<Weight>> PackWeight(std::span<const WeightPart> parts,
                                                   WeightDType dtype) {
  HYDRANT_ASSIGN_OR_RETURN(const WeightRows weight, WeightRows::Make(parts, dtype));
  const int rows = weight.rows(), cols = weight.cols();
  std::vector<float> values(static_cast<size_t>(rows) * cols);
  std::vector<uint8_t> scratch(weight.scratch_bytes());
  for (int i = 0; i < rows; ++i) {
    const WeightRows::Row row = weight.Get(i, scratch.data());
    const std::span<float> out(values.data() + static_cast<size_t>(i) * cols, cols);
    DequantizeRow(row.dtype, row.bytes, cols, out.data());
    if (!AllFinite(out)) HYDRANT_RETURN_IF_ERROR(weight.CheckFinite(i));
  }
  const bool bf16 = dtype == WeightDType::kBFloat16;
  if (bf16) {
    for (float& value : values) value = RoundToBF16(value);
  }
  return std::make_unique<ReferenceWeight>(rows, cols, std::move(values), bf16);
}

namespace {

// Row `row` of x, rounded to bf16 if the weight is bf16.
void TakeRow(const ReferenceWeight& weight, DType dtype, const void* rows, size_t row,
             std::vector<float>* x) {
  const size_t cols = weight.cols();
  x->resize(cols);
  for (size_t c = 0; c < cols; ++c) {
    const float value = LoadPageElement(dtype, rows, row * cols + c);
    (*x)[c] = weight.bf16() ? RoundToBF16(value) : value;
  }
}

}  // namespace

void Matmul(const MatmulArgs& args) {
  const auto& weight = static_cast<const ReferenceWeight&>(*args.weight);
  const int rows = weight.rows();
  std::vector<float> x;
  for (int i = 0; i < args.m; ++i) {
    TakeRow(weight, args.x_dtype, args.x, i, &x);
    for (int r = 0; r < rows; ++r) {
      float& y = args.y[static_cast<size_t>(i) * rows + r];
      double sum = (args.accumulate ? y : 0.0) + Dot(x.data(), weight.Row(r), weight.cols());
      if (args.bias != nullptr) sum += args.bias[r];
      y = static_cast<float>(sum);
    }
  }
}

void ExpertMatmul(const ExpertMatmulArgs& args) {
  if (args.places == 0) return;
  const auto& weight = static_cast<const ReferenceWeight&>(*args.weight);
  const size_t n = weight.rows() / args.experts;
  std::vector<float> x;
  for (int e = 0; e < args.experts; ++e) {
    for (int place = args.offsets[e]; place < args.offsets[e + 1]; ++place) {
      TakeRow(weight, args.x_dtype, args.x, args.sources == nullptr ? place : args.sources[place],
              &x);
      for (size_t j = 0; j < n; ++j) {
        double sum = Dot(x.data(), weight.Row(e * n + j), weight.cols());
        if (args.bias != nullptr) sum += args.bias[e * n + j];
        args.y[place * n + j] = static_cast<float>(sum);
      }
    }
  }
}

void Embed(const EmbedArgs& args) {
  const auto& table = static_cast<const ReferenceWeight&>(*args.table);
  for (int i = 0; i < args.m; ++i) {
    const float* row = table.Row(args.ids[i]);
    float* out = args.out + static_cast<size_t>(i) * table.cols();
    for (int c = 0; c < table.cols(); ++c)
      out[c] = (args.accumulate ? out[c] : 0.0f) + args.scale * row[c];
  }
}

}  // namespace hydrant::reference
