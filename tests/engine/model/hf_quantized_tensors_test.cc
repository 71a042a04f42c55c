// Compares quantised matrices with the inverse of their layout: the test packs known quants, scales
// and zero points, and computes each value in double. tests/engine/run/golden_test.cc compares
// whole models with transformers.
#include "engine/model/hf_quantized_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kernels/dequantize.h"
#include "kernels/float16.h"

namespace hydrant {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using Method = HfQuantization::Method;

constexpr uint32_t kSeed = 20261123;

// Tensors by name, their bytes at an odd address.
class Tensors {
 public:
  template <typename T>
  void Add(const std::string& name, const std::string& type, std::vector<int64_t> shape,
           const std::vector<T>& values) {
    std::vector<uint8_t>& bytes = bytes_[name];
    bytes.resize(1 + values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(bytes.data() + 1, values.data(), values.size() * sizeof(T));
    tensors_[name] = {type, std::move(shape), std::span(bytes).subspan(1)};
  }
  RawTensor& at(const std::string& name) { return tensors_.at(name); }
  void Remove(const std::string& name) { tensors_.erase(name); }
  RawTensors raw() const {
    return {.has = [this](const std::string& name) { return tensors_.contains(name); },
            .find = [this](const std::string& name) -> absl::StatusOr<RawTensor> {
              if (!tensors_.contains(name))
                return absl::NotFoundError("tensor '" + name + "' is missing");
              return tensors_.at(name);
            }};
  }
  absl::StatusOr<TensorView> Find(const HfQuantization& q) const {
    return FindTensorOf(q, raw(), "x.weight");
  }
  std::string Message(const HfQuantization& q) const {
    return std::string(Find(q).status().message());
  }

 private:
  std::map<std::string, std::vector<uint8_t>> bytes_;
  std::map<std::string, RawTensor> tensors_;
};

std::vector<float> MadeRows(const TensorView& view, int64_t first, int64_t count) {
  const int64_t cols = view.shape[1];
  std::vector<float> values(count * cols);
  std::vector<uint8_t> row(BytesOf(view.dtype, cols));
  for (int64_t i = 0; i < count; ++i) {
    view.maker->Make(view.first_made + first + i, row.data());
    DequantizeRow(view.dtype, row.data(), cols, &values[i * cols]);
  }
  return values;
}

// --- four bits

struct Int4Case {
  std::string name;
  Method method = Method::kGptq;
  int64_t rows = 24, cols = 96;
  int group_size = 32;
  int zero_offset = 1;
  bool symmetric = false;
  bool shuffled = false;   // groups in random column order
  bool odd_scale = false;  // one that half precision cannot represent
  DType dtype = DType::kQ5_0;
};

std::vector<Int4Case> Int4Cases() {
  return {{.name = "Gptq"},
          {.name = "GptqSymmetric", .symmetric = true, .dtype = DType::kQ4_0},
          {.name = "GptqV2", .zero_offset = 0},
          {.name = "GptqV2Symmetric", .zero_offset = 0, .symmetric = true, .dtype = DType::kQ4_0},
          {.name = "GptqOneGroup", .group_size = 0},
          {.name = "GptqShortLastGroup", .group_size = 64},
          {.name = "GptqShuffled", .shuffled = true, .dtype = DType::kF32},
          {.name = "GptqOddScale", .odd_scale = true, .dtype = DType::kF32},
          {.name = "GptqSmallGroups", .group_size = 16, .dtype = DType::kF32},
          {.name = "GptqShortRow", .cols = 72, .group_size = 0, .dtype = DType::kF32},
          {.name = "Awq", .method = Method::kAwq, .zero_offset = 0},
          {.name = "AwqSymmetric",
           .method = Method::kAwq,
           .zero_offset = 0,
           .symmetric = true,
           .dtype = DType::kQ4_0},
          {.name = "AwqLargeGroups",
           .method = Method::kAwq,
           .cols = 256,
           .group_size = 128,
           .zero_offset = 0}};
}

// A random matrix of the case, in packed form, and its values.
struct Int4Fixture {
  HfQuantization quantization;
  Tensors tensors;
  std::vector<double> values;

  explicit Int4Fixture(const Int4Case& c) {
    std::mt19937 random(kSeed);
    quantization.method = c.method;
    quantization.group_size = c.group_size;
    quantization.zero_offset = c.zero_offset;
    const int64_t size = c.group_size > 0 ? c.group_size : c.cols;
    const int64_t groups = (c.cols + size - 1) / size;
    std::vector<int32_t> group_of(c.cols);
    for (int64_t k = 0; k < c.cols; ++k) group_of[k] = static_cast<int32_t>(k / size);
    if (c.shuffled) std::shuffle(group_of.begin(), group_of.end(), random);
    std::vector<int> zeros(groups * c.rows);
    std::vector<float> scales(groups * c.rows);
    for (int& zero : zeros) zero = c.symmetric ? 8 : static_cast<int>(random() % 16);
    for (float& scale : scales)
      scale = F16ToFloat(FloatToF16(0.001f * static_cast<float>(1 + random() % 100)));
    if (c.odd_scale) scales[1] = 0.1f;
    std::vector<int> quants(c.rows * c.cols);
    for (int& quant : quants) quant = static_cast<int>(random() % 16);
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t k = 0; k < c.cols; ++k) {
        const int64_t at = group_of[k] * c.rows + r;
        values.push_back(double{scales[at]} * (quants[r * c.cols + k] - zeros[at]));
      }
    }
    Pack(c, groups, quants, zeros, scales, group_of);
  }

 private:
  // Element i of eight goes into nibble Place(i).
  static int Place(Method method, int64_t i) {
    constexpr int kAwq[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    return method == Method::kAwq ? kAwq[i] : static_cast<int>(i);
  }

  void Pack(const Int4Case& c, int64_t groups, const std::vector<int>& quants,
            const std::vector<int>& zeros, const std::vector<float>& scales,
            const std::vector<int32_t>& group_of) {
    std::vector<uint32_t> qweight(c.rows * c.cols / 8), qzeros(groups * c.rows / 8);
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t k = 0; k < c.cols; ++k) {
        const auto quant = static_cast<uint32_t>(quants[r * c.cols + k]);
        if (c.method == Method::kGptq) {
          qweight[k / 8 * c.rows + r] |= quant << 4 * (k % 8);
        } else {
          qweight[k * (c.rows / 8) + r / 8] |= quant << 4 * Place(c.method, r % 8);
        }
      }
      for (int64_t g = 0; g < groups; ++g) {
        const auto zero = static_cast<uint32_t>(zeros[g * c.rows + r] - c.zero_offset) & 15;
        qzeros[g * (c.rows / 8) + r / 8] |= zero << 4 * Place(c.method, r % 8);
      }
    }
    const bool gptq = c.method == Method::kGptq;
    tensors.Add("x.qweight", "I32",
                gptq ? std::vector{c.cols / 8, c.rows} : std::vector{c.cols, c.rows / 8}, qweight);
    tensors.Add("x.qzeros", "I32", {groups, c.rows / 8}, qzeros);
    tensors.Add("x.scales", "F32", {groups, c.rows}, scales);
    if (gptq) tensors.Add("x.g_idx", "I32", {c.cols}, group_of);
  }
};

class Int4Test : public testing::TestWithParam<Int4Case> {};

TEST_P(Int4Test, EveryValueIsExact) {
  const Int4Case& c = GetParam();
  std::cout << "seed " << kSeed << std::endl;
  const Int4Fixture fixture(c);
  const auto view = fixture.tensors.Find(fixture.quantization);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->dtype, c.dtype);
  EXPECT_THAT(view->shape, ElementsAre(c.rows, c.cols));
  const std::vector<float> rows = MadeRows(*view, 0, c.rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(rows[i], static_cast<float>(fixture.values[i])) << i / c.cols << ", " << i % c.cols;
  }
  // As parts of a fused matrix.
  const std::vector<float> part = MadeRows(view->Rows(5, 7).Rows(2, 3), 0, 3);
  EXPECT_EQ(part, std::vector<float>(rows.begin() + 7 * c.cols, rows.begin() + 10 * c.cols));
}

INSTANTIATE_TEST_SUITE_P(All, Int4Test, testing::ValuesIn(Int4Cases()),
                         [](const auto& info) { return info.param.name; });

TEST(HfInt4Test, HalfAndBrainScalesAreRead) {
  Int4Fixture fixture({});
  const RawTensor floats = fixture.tensors.at("x.scales");
  std::vector<uint16_t> halves(3 * 24);
  for (size_t i = 0; i < halves.size(); ++i) {
    float scale;
    std::memcpy(&scale, floats.bytes.data() + 4 * i, sizeof scale);
    halves[i] = FloatToF16(scale);
  }
  fixture.tensors.Add("x.scales", "F16", {3, 24}, halves);
  const auto view = fixture.tensors.Find(fixture.quantization);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(MadeRows(*view, 3, 1)[4], static_cast<float>(fixture.values[3 * 96 + 4]));
  for (uint16_t& half : halves) half = FloatToBF16(F16ToFloat(half));
  fixture.tensors.Add("x.scales", "BF16", {3, 24}, halves);
  EXPECT_EQ(fixture.tensors.Find(fixture.quantization)->dtype, DType::kQ5_0);
}

TEST(HfInt4Test, MismatchedTensorsAreNamed) {
  const auto message = [](const std::function<void(Int4Fixture&)>& spoil) {
    Int4Fixture fixture({});
    spoil(fixture);
    return fixture.tensors.Message(fixture.quantization);
  };
  EXPECT_THAT(message([](Int4Fixture& f) { f.tensors.Remove("x.qzeros"); }),
              HasSubstr("tensor 'x.qzeros' is missing"));
  EXPECT_THAT(message([](Int4Fixture& f) {
                f.tensors.at("x.qzeros").shape = {3, 4};
              }),
              HasSubstr("tensor 'x.qzeros' has shape [3, 4], wanted [3, 3]"));
  EXPECT_THAT(message([](Int4Fixture& f) { f.tensors.at("x.qweight").type = "F32"; }),
              HasSubstr("tensor 'x.qweight' has dtype F32, wanted I32"));
  EXPECT_THAT(message([](Int4Fixture& f) { f.tensors.at("x.qweight").shape = {288}; }),
              HasSubstr("tensor 'x.qweight' has shape [288], wanted a matrix"));
  EXPECT_THAT(message([](Int4Fixture& f) {
                f.tensors.at("x.qweight").shape = {24, 12};
              }),
              HasSubstr("has 12 outputs, wanted a multiple of 8"));
  EXPECT_THAT(message([](Int4Fixture& f) {
                f.tensors.at("x.scales").shape = {24, 3};
              }),
              HasSubstr("tensor 'x.scales' has shape [24, 3], wanted [3, 24]"));
  EXPECT_THAT(message([](Int4Fixture& f) { f.tensors.at("x.scales").type = "I32"; }),
              HasSubstr("tensor 'x.scales': dtype I32"));
  EXPECT_THAT(message([](Int4Fixture& f) { f.quantization.group_size = 128; }),
              HasSubstr("tensor 'x.qzeros' has shape [3, 3], wanted [1, 3]"));
  EXPECT_THAT(message([](Int4Fixture& f) {
                f.tensors.Add<int32_t>("x.g_idx", "I32", {96}, std::vector<int32_t>(96, 3));
              }),
              HasSubstr("tensor 'x.g_idx' holds 3, the limit is 0 to 2"));
}

// --- eight bits

struct Fp8Case {
  std::string name;
  int64_t rows, cols;
  int block_rows, block_cols;  // 0: from the shape
  std::vector<int64_t> scale_shape;
  std::string scale_name = "x.weight_scale";
  DType dtype = DType::kF8_E4M3;
};

std::vector<Fp8Case> Fp8Cases() {
  return {{"Blocks", 130, 384, 128, 128, {2, 3}, "x.weight_scale_inv"},
          {"WideBlocks", 20, 512, 8, 256, {3, 2}},
          {"NarrowBlocks", 20, 256, 8, 64, {3, 4}, "x.weight_scale", DType::kF32},
          {"ShortRow", 20, 160, 128, 128, {1, 2}, "x.weight_scale_inv", DType::kF32},
          {"Rows", 20, 128, 0, 0, {20, 1}},
          {"FlatRows", 20, 256, 0, 0, {20}},
          {"One", 20, 128, 0, 0, {1}},
          {"Scalar", 20, 128, 0, 0, {}},
          {"OneOfOneRow", 1, 128, 0, 0, {1, 1}}};
}

class Fp8Test : public testing::TestWithParam<Fp8Case> {};

TEST_P(Fp8Test, EveryValueIsElementTimesScale) {
  const Fp8Case& c = GetParam();
  std::cout << "seed " << kSeed << std::endl;
  std::mt19937 random(kSeed);
  std::vector<uint8_t> elements(c.rows * c.cols);
  for (uint8_t& element : elements)
    element = static_cast<uint8_t>(random() % 127 + random() % 2 * 128);
  int64_t count = 1;
  for (const int64_t dim : c.scale_shape) count *= dim;
  std::vector<float> scales(count);
  for (float& scale : scales) scale = 1e-5f * static_cast<float>(1 + random() % 1000);
  Tensors tensors;
  tensors.Add("x.weight", "F8_E4M3", {c.rows, c.cols}, elements);
  tensors.Add(c.scale_name, "F32", c.scale_shape, scales);
  HfQuantization quantization;
  quantization.method = Method::kFp8;
  quantization.block_rows = c.block_rows;
  quantization.block_cols = c.block_cols;
  const auto view = tensors.Find(quantization);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->dtype, c.dtype);
  const std::vector<float> rows = MadeRows(*view, 0, c.rows);
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t k = 0; k < c.cols; ++k) {
      const int64_t scale = c.block_rows > 0
                                ? r / c.block_rows * c.scale_shape[1] + k / c.block_cols
                                : (count == 1 ? 0 : r);
      ASSERT_EQ(rows[r * c.cols + k], E4M3ToFloat(elements[r * c.cols + k]) * scales[scale])
          << r << ", " << k;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Fp8Test, testing::ValuesIn(Fp8Cases()),
                         [](const auto& info) { return info.param.name; });

TEST(HfFp8Test, MismatchedTensorsAreNamed) {
  HfQuantization q;
  q.method = Method::kFp8;
  Tensors tensors;
  tensors.Add("x.weight", "F8_E4M3", {4, 128}, std::vector<uint8_t>(512));
  EXPECT_THAT(tensors.Message(q), HasSubstr("tensor 'x.weight_scale' is missing"));
  tensors.Add("x.weight_scale", "F32", {3, 1}, std::vector<float>(3, 1.0f));
  EXPECT_THAT(tensors.Message(q), HasSubstr("tensor 'x.weight_scale': the shape is [3, 1], for "
                                            "[4, 128] it must hold one number"));
  q.block_rows = q.block_cols = 128;
  EXPECT_THAT(tensors.Message(q), HasSubstr("for [4, 128] it must be [1, 1]"));
  for (const float bad : {1e31f, INFINITY, NAN}) {
    tensors.Add("x.weight_scale", "F32", {1, 1}, std::vector<float>(1, bad));
    EXPECT_THAT(tensors.Message(q), HasSubstr("the limit is 1e+30"));
  }
  tensors.Add("x.weight_scale", "I32", {1, 1}, std::vector<int32_t>(1, 1));
  EXPECT_THAT(tensors.Message(q), HasSubstr("tensor 'x.weight_scale': dtype I32"));
  tensors.Add("x.weight_scale", "F32", {1, 1}, std::vector<float>(1, 1.0f));
  tensors.at("x.weight").shape = {512};
  EXPECT_THAT(tensors.Message(q), HasSubstr("[512], not a matrix"));
  // Without quantization_config.
  EXPECT_THAT(tensors.Message({}), HasSubstr("tensor 'x.weight' has dtype F8_E4M3; F32, F16"));
}

// --- matrices of all experts

TEST(HfStackedExpertsTest, MismatchedTensorsAreNamed) {
  HfQuantization q;
  q.method = Method::kMxfp4;
  Tensors tensors;
  tensors.Add("x_blocks", "U8", {2, 3, 1, 16}, std::vector<uint8_t>(96));
  EXPECT_THAT(tensors.Message(q), HasSubstr("tensor 'x_scales' is missing"));
  tensors.Add("x_scales", "U8", {2, 3, 2}, std::vector<uint8_t>(12));
  EXPECT_THAT(tensors.Message(q), HasSubstr("tensor 'x_scales' has shape [2, 3, 2] of U8, wanted"));
  tensors.Add("x_scales", "F32", {2, 3, 1}, std::vector<float>(6));
  EXPECT_THAT(tensors.Message(q), HasSubstr("tensor 'x_scales' has shape [2, 3, 1] of F32"));
  tensors.Add("x_scales", "U8", {2, 3, 1}, std::vector<uint8_t>(6));
  EXPECT_EQ(tensors.Find(q)->shape, (std::vector<int64_t>{2, 3, 32}));
  for (const std::vector<int64_t>& bad : {std::vector<int64_t>{2, 3, 16}, {2, 3, 2, 8}}) {
    tensors.at("x_blocks").shape = bad;
    EXPECT_THAT(tensors.Message(q), HasSubstr("tensor 'x_blocks' has shape [2, 3, "));
  }
  // Without quantization_config they are not such a matrix.
  EXPECT_THAT(tensors.Message({}), HasSubstr("tensor 'x.weight' is missing"));
  tensors.Add("a.experts.down_proj", "F32", {4, 4}, std::vector<float>(16));
  EXPECT_THAT(
      std::string(FindTensorOf({}, tensors.raw(), "a.experts.down_proj.weight").status().message()),
      HasSubstr("tensor 'a.experts.down_proj' has shape [4, 4] of F32, wanted [experts, inputs"));
}

// --- names

TEST(HfQuantizedNamesTest, AMatrixHasOneName) {
  Int4Fixture fixture({});
  Tensors& tensors = fixture.tensors;
  tensors.Add("norm.weight", "F32", {1}, std::vector<float>(1));
  tensors.Add("x.bias", "F16", {2}, std::vector<uint16_t>(2));
  tensors.Add("y.bias", "F16", {2}, std::vector<uint16_t>(2));
  tensors.Add("z.scales", "F32", {1}, std::vector<float>(1));
  const std::vector<std::string> present = {"norm.weight", "x.g_idx", "x.qweight", "x.qzeros",
                                            "x.scales",    "x.bias",  "y.bias",    "z.scales"};
  const auto names = FamilyNames(fixture.quantization, tensors.raw(), present);
  ASSERT_TRUE(names.ok());
  EXPECT_THAT(*names, UnorderedElementsAre("norm.weight", "x.weight", "y.bias", "z.scales"));
  EXPECT_TRUE(HasTensor(fixture.quantization, tensors.raw(), "x.weight"));
  EXPECT_FALSE(HasTensor({}, tensors.raw(), "x.weight"));
  // A nonzero bias is kept, and refused later if the family has none.
  tensors.Add("x.bias", "F16", {2}, std::vector<uint16_t>{0, 1});
  EXPECT_THAT(*FamilyNames(fixture.quantization, tensors.raw(), present),
              testing::Contains("x.bias"));
  EXPECT_EQ(*FamilyNames({}, tensors.raw(), present), present);

  HfQuantization fp8;
  fp8.method = Method::kFp8;
  tensors.Add("v.weight", "F8_E4M3", {1, 1}, std::vector<uint8_t>(1));
  EXPECT_THAT(*FamilyNames(fp8, tensors.raw(),
                           {"v.weight", "v.weight_scale_inv", "v.input_scale", "v.k_scale",
                            "w.weight_scale"}),
              UnorderedElementsAre("v.weight", "v.k_scale", "w.weight_scale"));
}

}  // namespace
}  // namespace hydrant
