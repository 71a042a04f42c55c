#include "engine/model/hf_int4.h"

#include <algorithm>
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

using Method = HfQuantization::Method;

constexpr int kBlock = 32;  // columns of a q4_0 or q5_0 block
constexpr int kPacked = 8;  // quants per word

// Position of each of the eight rows in an AWQ word, an order chosen for unpacking on a GPU.
constexpr int kAwqPlaces[kPacked] = {0, 4, 1, 5, 2, 6, 3, 7};

uint32_t WordAt(std::span<const uint8_t> words, int64_t i) {
  uint32_t word;
  std::memcpy(&word, words.data() + i * sizeof(word), sizeof(word));
  return word;
}

// Quants, scales and zero points of a matrix [rows, cols].
struct Int4Matrix {
  Method method;
  int zero_offset;
  int64_t rows, cols, groups;
  std::span<const uint8_t> qweight, qzeros;
  std::vector<float> scales;       // [groups, rows]
  std::vector<int32_t> groups_of;  // [cols]

  int Quant(int64_t row, int64_t col) const {
    if (method == Method::kGptq)
      return WordAt(qweight, col / kPacked * rows + row) >> col % kPacked * 4 & 15;
    const uint32_t word = WordAt(qweight, col * (rows / kPacked) + row / kPacked);
    return word >> kAwqPlaces[row % kPacked] * 4 & 15;
  }
  // In the first format of GPTQ, 16 is 0, as in AutoGPTQ.
  int Zero(int64_t group, int64_t row) const {
    const int64_t place = row % kPacked;
    const uint32_t word = WordAt(qzeros, group * (rows / kPacked) + row / kPacked);
    const uint32_t zero = word >> (method == Method::kGptq ? place : kAwqPlaces[place]) * 4;
    return static_cast<int>((zero + zero_offset) & 15);
  }
  float Scale(int64_t group, int64_t row) const { return scales[group * rows + row]; }
};

class Int4Rows final : public RowMaker {
 public:
  Int4Rows(Int4Matrix matrix, DType dtype) : matrix_(std::move(matrix)), dtype_(dtype) {}

  void Make(int64_t row, uint8_t* out) const override {
    if (dtype_ == DType::kF32) return MakeFloats(row, out);
    for (int64_t col = 0; col < matrix_.cols; col += kBlock) {
      MakeBlock(row, col, out);
      out += TraitsOf(dtype_).block_bytes;
    }
  }

 private:
  void MakeFloats(int64_t row, uint8_t* out) const {
    for (int64_t col = 0; col < matrix_.cols; ++col, out += sizeof(float)) {
      const int32_t group = matrix_.groups_of[col];
      const int steps = matrix_.Quant(row, col) - matrix_.Zero(group, row);
      const float value = matrix_.Scale(group, row) * static_cast<float>(steps);
      std::memcpy(out, &value, sizeof(value));
    }
  }

  // q4_0 is d * (quant - 8), q5_0 d * (quant - 16) (kernels/dequantize.cc).
  void MakeBlock(int64_t row, int64_t first, uint8_t* out) const {
    const bool five = dtype_ == DType::kQ5_0;
    const int32_t group = matrix_.groups_of[first];
    const int shift = five ? 16 - matrix_.Zero(group, row) : 0;
    const uint16_t scale = FloatToF16(matrix_.Scale(group, row));
    std::memcpy(out, &scale, sizeof(scale));
    uint8_t* nibbles = out + (five ? 6 : 2);
    uint32_t fifth = 0;
    for (int j = 0; j < kBlock / 2; ++j) {
      const int low = matrix_.Quant(row, first + j) + shift;
      const int high = matrix_.Quant(row, first + j + kBlock / 2) + shift;
      nibbles[j] = static_cast<uint8_t>((low & 15) | (high & 15) << 4);
      fifth |= static_cast<uint32_t>(low >> 4) << j | static_cast<uint32_t>(high >> 4) << (j + 16);
    }
    if (five) std::memcpy(out + 2, &fifth, sizeof(fifth));
  }

  const Int4Matrix matrix_;
  const DType dtype_;
};

absl::Status WantWords(const RawTensor& tensor, const std::vector<int64_t>& shape,
                       const std::string& name) {
  if (tensor.type != "I32") {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Quoted(name), " has dtype ", tensor.type, ", wanted I32"));
  }
  if (tensor.shape == shape) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name), " has shape ",
                                                 ShapeText(tensor.shape), ", wanted ",
                                                 ShapeText(shape)));
}

// Rows and columns follow from qweight; the other tensors must fit.
absl::StatusOr<Int4Matrix> Gather(const HfQuantization& q, const std::string& name,
                                  const Int4Tensors& t) {
  const std::vector<int64_t>& packed = t.qweight.shape;
  if (packed.size() != 2 || packed[0] < 1 || packed[1] < 1) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name + ".qweight"),
                                                   " has shape ", ShapeText(packed),
                                                   ", wanted a matrix"));
  }
  Int4Matrix m{};
  m.method = q.method;
  m.zero_offset = q.zero_offset;
  m.rows = q.method == Method::kGptq ? packed[1] : packed[1] * kPacked;
  m.cols = q.method == Method::kGptq ? packed[0] * kPacked : packed[0];
  const int64_t group_size = q.group_size > 0 ? q.group_size : m.cols;
  m.groups = (m.cols + group_size - 1) / group_size;
  if (m.rows % kPacked != 0) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name + ".qweight"), " has ",
                                                   m.rows, " outputs, wanted a multiple of 8"));
  }
  HYDRANT_RETURN_IF_ERROR(WantWords(t.qweight, packed, name + ".qweight"));
  HYDRANT_RETURN_IF_ERROR(WantWords(t.qzeros, {m.groups, m.rows / kPacked}, name + ".qzeros"));
  m.qweight = t.qweight.bytes;
  m.qzeros = t.qzeros.bytes;
  absl::StatusOr<std::vector<float>> scales = FloatsOf(t.scales);
  if (!scales.ok())
    return WithContext(scales.status(), absl::StrCat("tensor ", Quoted(name + ".scales")));
  const std::vector<int64_t> wanted = {m.groups, m.rows};
  if (t.scales.shape != wanted) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name + ".scales"),
                                                   " has shape ", ShapeText(t.scales.shape),
                                                   ", wanted ", ShapeText(wanted)));
  }
  m.scales = *std::move(scales);
  m.groups_of.resize(m.cols);
  for (int64_t col = 0; col < m.cols; ++col)
    m.groups_of[col] = static_cast<int32_t>(col / group_size);
  return m;
}

absl::Status ReadGroups(const std::string& name, const RawTensor& g_idx, Int4Matrix* m) {
  HYDRANT_RETURN_IF_ERROR(WantWords(g_idx, {m->cols}, name + ".g_idx"));
  for (int64_t col = 0; col < m->cols; ++col) {
    const auto group = static_cast<int32_t>(WordAt(g_idx.bytes, col));
    if (group < 0 || group >= m->groups) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name + ".g_idx"), " holds ",
                                                     group, ", the limit is 0 to ", m->groups - 1));
    }
    m->groups_of[col] = group;
  }
  return absl::OkStatus();
}

bool BlocksAreOfOneGroup(const Int4Matrix& m) {
  if (m.cols % kBlock != 0) return false;
  for (int64_t col = 0; col < m.cols; ++col) {
    if (m.groups_of[col] != m.groups_of[col / kBlock * kBlock]) return false;
  }
  return true;
}

bool ZerosAreEight(const Int4Matrix& m) {
  // The eight zero points of a word are equal, so their order does not matter.
  const uint32_t wanted = 0x11111111u * static_cast<uint32_t>(8 - m.zero_offset);
  for (int64_t i = 0; i < m.groups * m.rows / kPacked; ++i) {
    if (WordAt(m.qzeros, i) != wanted) return false;
  }
  return true;
}

DType ExactDType(const Int4Matrix& m) {
  const auto fits = [](float scale) { return F16ToFloat(FloatToF16(scale)) == scale; };
  if (!BlocksAreOfOneGroup(m) || !std::all_of(m.scales.begin(), m.scales.end(), fits))
    return DType::kF32;
  return ZerosAreEight(m) ? DType::kQ4_0 : DType::kQ5_0;
}

}  // namespace

absl::StatusOr<TensorView> Int4View(const HfQuantization& quantization, const std::string& name,
                                    const Int4Tensors& tensors) {
  HYDRANT_ASSIGN_OR_RETURN(Int4Matrix matrix, Gather(quantization, name, tensors));
  if (tensors.g_idx.has_value()) HYDRANT_RETURN_IF_ERROR(ReadGroups(name, *tensors.g_idx, &matrix));
  TensorView view;
  view.dtype = ExactDType(matrix);
  view.shape = {matrix.rows, matrix.cols};
  view.maker = std::make_shared<Int4Rows>(std::move(matrix), view.dtype);
  return view;
}

}  // namespace hydrant
