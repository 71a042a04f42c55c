#include "engine/model/hf_stacked_experts.h"

#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/model/text.h"

namespace hydrant {
namespace {

constexpr int kSharedByScale = BlockElements(DType::kMXFP4);

// Blocks of a row in GGUF's layout: the exponent, then bytes that each hold two elements 16 apart.
class Mxfp4Rows final : public RowMaker {
 public:
  Mxfp4Rows(const RawTensor& blocks, const RawTensor& scales)
      : blocks_(blocks.bytes), scales_(scales.bytes), per_row_(blocks.shape[2]) {}

  void Make(int64_t row, uint8_t* out) const override {
    for (int64_t block = row * per_row_; block < (row + 1) * per_row_; ++block) {
      *out++ = scales_[block];
      const uint8_t* pairs = blocks_.data() + block * (kSharedByScale / 2);
      const auto element = [pairs](int i) { return pairs[i / 2] >> (i % 2 * 4) & 15; };
      for (int i = 0; i < kSharedByScale / 2; ++i)
        *out++ = static_cast<uint8_t>(element(i) | element(i + kSharedByScale / 2) << 4);
    }
  }

 private:
  const std::span<const uint8_t> blocks_, scales_;
  const int64_t per_row_;
};

class TransposedRows final : public RowMaker {
 public:
  TransposedRows(const RawTensor& tensor, size_t element_bytes)
      : bytes_(tensor.bytes),
        inputs_(tensor.shape[1]),
        outputs_(tensor.shape[2]),
        element_bytes_(element_bytes) {}

  void Make(int64_t row, uint8_t* out) const override {
    const int64_t first = row / outputs_ * inputs_ * outputs_ + row % outputs_;
    for (int64_t i = 0; i < inputs_; ++i) {
      std::memcpy(out + i * element_bytes_, bytes_.data() + (first + i * outputs_) * element_bytes_,
                  element_bytes_);
    }
  }

 private:
  const std::span<const uint8_t> bytes_;
  const int64_t inputs_, outputs_;
  const size_t element_bytes_;
};

absl::Status BadShape(const std::string& name, const RawTensor& tensor, const char* wanted) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name), " has shape ",
                                                 ShapeText(tensor.shape), " of ", tensor.type,
                                                 ", wanted ", wanted));
}

}  // namespace

absl::StatusOr<TensorView> Mxfp4View(const std::string& name, const RawTensor& blocks,
                                     const RawTensor& scales) {
  if (blocks.type != "U8" || blocks.shape.size() != 4 || blocks.shape[3] != kSharedByScale / 2)
    return BadShape(name + "_blocks", blocks, "[experts, rows, blocks, 16] of U8");
  const std::vector<int64_t> wanted(blocks.shape.begin(), blocks.shape.end() - 1);
  if (scales.type != "U8" || scales.shape != wanted)
    return BadShape(name + "_scales", scales, "that of the blocks without the last, of U8");
  TensorView view;
  view.dtype = DType::kMXFP4;
  view.shape = {wanted[0], wanted[1], wanted[2] * kSharedByScale};
  view.maker = std::make_shared<Mxfp4Rows>(blocks, scales);
  return view;
}

absl::StatusOr<TensorView> TransposedView(const std::string& name, const RawTensor& tensor) {
  const std::optional<DType> dtype = FloatTypeOf(tensor);
  if (!dtype.has_value() || tensor.shape.size() != 3)
    return BadShape(name, tensor, "[experts, inputs, outputs] of floats");
  TensorView view;
  view.dtype = *dtype;
  view.shape = {tensor.shape[0], tensor.shape[2], tensor.shape[1]};
  view.maker = std::make_shared<TransposedRows>(tensor, BytesOf(*dtype, 1));
  return view;
}

}  // namespace hydrant
