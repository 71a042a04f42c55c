#include "kernels/dequantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "kernels/float16.h"
#include "kernels/quantize.h"

namespace hydrant {
namespace {

// Values computed by the PyPI package gguf; tests/goldens/gguf_quants.py describes the file layout.
class DequantizeGoldenTest : public testing::TestWithParam<DType> {};

TEST_P(DequantizeGoldenTest, EqualsGgufPackageBitForBit) {
  const DType dtype = GetParam();
  const std::string path = "tests/data/model/quants/" + std::string(DTypeName(dtype)) + ".bin";
  std::ifstream file(path, std::ios::binary);
  ASSERT_TRUE(file) << path;
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  uint32_t num_blocks = 0;
  ASSERT_GE(bytes.size(), sizeof num_blocks);
  std::memcpy(&num_blocks, bytes.data(), sizeof num_blocks);
  const size_t count = size_t{num_blocks} * BlockElements(dtype);
  ASSERT_GT(count, 0u);
  ASSERT_EQ(bytes.size(), sizeof num_blocks + BytesOf(dtype, count) + count * sizeof(float));
  const uint8_t* blocks = reinterpret_cast<const uint8_t*>(bytes.data()) + sizeof num_blocks;
  std::vector<float> want(count);
  std::memcpy(want.data(), blocks + BytesOf(dtype, count), count * sizeof(float));

  // One extra value, to detect writes past the end.
  std::vector<float> got(count + 1, 12345.0f);
  DequantizeRow(dtype, blocks, static_cast<int64_t>(count), got.data());
  EXPECT_EQ(got.back(), 12345.0f);
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(got[i], want[i]) << "value " << i << " of block " << i / BlockElements(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, DequantizeGoldenTest,
                         testing::Values(DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1,
                                         DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ4_K,
                                         DType::kQ5_K, DType::kQ6_K, DType::kQ2_K, DType::kQ3_K,
                                         DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST(DequantizeTest, F8BlocksAreScaledValues) {
  std::vector<uint8_t> bytes(2 * 132);
  const float scales[2] = {0.0078125f, -3.3e-5f};
  for (int block = 0; block < 2; ++block) {
    std::memcpy(&bytes[block * 132], &scales[block], sizeof(float));
    for (int j = 0; j < 128; ++j)
      bytes[block * 132 + 4 + j] = static_cast<uint8_t>(j == 127 ? 0 : j + 128 * block);
  }
  float got[256];
  DequantizeRow(DType::kF8_E4M3, bytes.data(), 256, got);
  for (int i = 0; i < 256; ++i)
    ASSERT_EQ(got[i], E4M3ToFloat(bytes[i / 128 * 132 + 4 + i % 128]) * scales[i / 128]) << i;
}

// Blocks computed by the PyPI package gguf; tests/goldens/gguf_quants.py.
class QuantizeGoldenTest : public testing::TestWithParam<DType> {};

TEST_P(QuantizeGoldenTest, EqualsGgufPackageBitForBit) {
  const DType dtype = GetParam();
  const std::string path =
      "tests/data/model/quants/quantize_" + std::string(DTypeName(dtype)) + ".bin";
  std::ifstream file(path, std::ios::binary);
  ASSERT_TRUE(file) << path;
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  uint32_t count = 0;
  ASSERT_GE(bytes.size(), sizeof count);
  std::memcpy(&count, bytes.data(), sizeof count);
  ASSERT_EQ(bytes.size(), sizeof count + count * sizeof(float) + BytesOf(dtype, count));
  std::vector<float> values(count);
  std::memcpy(values.data(), bytes.data() + sizeof count, count * sizeof(float));
  const auto* want =
      reinterpret_cast<const uint8_t*>(bytes.data()) + sizeof count + count * sizeof(float);

  std::vector<uint8_t> got(BytesOf(dtype, count) + 1, 0xab);
  QuantizeRow(dtype, values.data(), count, got.data());
  EXPECT_EQ(got.back(), 0xab);
  const int block_bytes = TraitsOf(dtype).block_bytes;
  for (size_t i = 0; i + 1 < got.size(); ++i) {
    ASSERT_EQ(got[i], want[i]) << "byte " << i % block_bytes << " of block " << i / block_bytes;
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, QuantizeGoldenTest, testing::Values(DType::kQ8_0, DType::kQ4_0),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST(QuantizeTest, NonFiniteValuesSpoilTheirBlocksScale) {
  constexpr float kBad[] = {std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(), 1e30f};
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_0}) {
    for (const float bad : kBad) {
      std::vector<float> values(96, 0.5f);
      values[40] = bad;
      std::vector<uint8_t> blocks(BytesOf(dtype, values.size()));
      QuantizeRow(dtype, values.data(), 96, blocks.data());
      for (int block = 0; block < 3; ++block) {
        uint16_t scale;
        std::memcpy(&scale, &blocks[block * TraitsOf(dtype).block_bytes], sizeof scale);
        EXPECT_EQ(std::isfinite(F16ToFloat(scale)), block != 1) << DTypeName(dtype) << ", " << bad;
      }
    }
  }
}

// Brute force: no e4m3 value is nearer; ties go to the even one.
TEST(Float8Test, NarrowingTakesTheNearest) {
  const auto nearest = [](float value) {
    int best = 0;
    for (int bits = 1; bits < 0x7f; ++bits) {
      const double now = std::abs(double{E4M3ToFloat(static_cast<uint8_t>(bits))} - value);
      const double before = std::abs(double{E4M3ToFloat(static_cast<uint8_t>(best))} - value);
      if (now < before || (now == before && bits % 2 == 0)) best = bits;
    }
    return best;
  };
  std::vector<float> values = {0.0f, 448.0f, 463.9f, 464.0f, 1e9f, 1e-9f, 0x1p-9f, 0x1p-10f};
  for (int bits = 0; bits < 0x7e; ++bits) {
    const float low = E4M3ToFloat(static_cast<uint8_t>(bits));
    const float high = E4M3ToFloat(static_cast<uint8_t>(bits + 1));
    const float middle = (low + high) / 2;
    values.insert(values.end(), {low, middle, std::nextafter(middle, low),
                                 std::nextafter(middle, high), low + (high - low) / 3});
  }
  for (const float value : values) {
    EXPECT_EQ(FloatToE4M3(value), nearest(value)) << value;
    EXPECT_EQ(FloatToE4M3(-value), nearest(value) | 0x80) << -value;
  }
  EXPECT_TRUE(std::isnan(E4M3ToFloat(FloatToE4M3(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(QuantizeTest, F8BlocksHaveTheirLargestAtTheEndOfTheRange) {
  std::vector<float> values(256);
  for (int i = 0; i < 256; ++i)
    values[i] = std::sin(static_cast<float>(i * i)) * (i < 128 ? 1e-3f : 30);
  std::vector<uint8_t> blocks(2 * 132);
  QuantizeRow(DType::kF8_E4M3, values.data(), 256, blocks.data());
  std::vector<float> got(256);
  DequantizeRow(DType::kF8_E4M3, blocks.data(), 256, got.data());
  for (int block = 0; block < 2; ++block) {
    float peak = 0;
    for (int i = 0; i < 128; ++i) peak = std::max(peak, std::abs(values[block * 128 + i]));
    for (int i = block * 128; i < block * 128 + 128; ++i) {
      // Half of the last of three mantissa bits, or of the subnormal step.
      const float bound = std::max(std::abs(values[i]) / 16, peak / 448 / 1024) * 1.001f;
      EXPECT_NEAR(got[i], values[i], bound) << i;
      if (std::abs(values[i]) == peak) {
        EXPECT_NEAR(got[i], values[i], peak * 1e-6) << i;
      }
    }
  }
  std::vector<float> zeros(128, 0.0f);
  QuantizeRow(DType::kF8_E4M3, zeros.data(), 128, blocks.data());
  DequantizeRow(DType::kF8_E4M3, blocks.data(), 128, got.data());
  EXPECT_EQ(got[5], 0.0f);
  zeros[7] = std::numeric_limits<float>::infinity();
  QuantizeRow(DType::kF8_E4M3, zeros.data(), 128, blocks.data());
  float scale;
  std::memcpy(&scale, blocks.data(), sizeof(scale));
  EXPECT_FALSE(std::isfinite(scale));
}

TEST(DequantizeTest, F32IsCopiedFromAnyAlignment) {
  const float values[] = {1.5f, -0.0f, 3e38f};
  std::vector<uint8_t> bytes(1 + sizeof values);
  std::memcpy(bytes.data() + 1, values, sizeof values);
  float got[3];
  DequantizeRow(DType::kF32, bytes.data() + 1, 3, got);
  EXPECT_EQ(std::memcmp(got, values, sizeof values), 0);
}

// Value of a half by the definition of binary16, in double.
double HalfByDefinition(uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int mantissa = half & 1023;
  const double sign = half & 0x8000 ? -1.0 : 1.0;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Float16Test, EveryHalfWidensExactlyAndReturns) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    const float value = F16ToFloat(half);
    if ((half & 0x7c00) == 0x7c00) {
      EXPECT_EQ(std::isnan(value), (half & 0x3ff) != 0);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(F16ToFloat(FloatToF16(value))));
        continue;
      }
    } else {
      ASSERT_EQ(value, HalfByDefinition(half)) << bits;
    }
    ASSERT_EQ(FloatToF16(value), half) << bits;
  }
}

TEST(Float16Test, NarrowingRoundsToNearestEven) {
  // Between each pair of neighbours: just below the middle, the middle, just above it.
  for (uint16_t half = 0; half < 0x7bff; ++half) {
    const float low = F16ToFloat(half);
    const float high = F16ToFloat(half + 1);
    const float middle = (low + high) / 2;  // exact: floats have 13 more bits
    const uint16_t even = half % 2 == 0 ? half : half + 1;
    ASSERT_EQ(FloatToF16(std::nextafter(middle, 0.0f)), half);
    ASSERT_EQ(FloatToF16(middle), even);
    ASSERT_EQ(FloatToF16(-middle), even | 0x8000);
    ASSERT_EQ(FloatToF16(std::nextafter(middle, 1e9f)), half + 1);
  }
  EXPECT_EQ(FloatToF16(65519.99f), 0x7bff);
  EXPECT_EQ(FloatToF16(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToF16(1e30f), 0x7c00);
  EXPECT_EQ(FloatToF16(-std::numeric_limits<float>::infinity()), 0xfc00);
}

// Value of an e4m3fn by its definition, in double.
TEST(Float8Test, E4M3EqualsItsDefinition) {
  for (int bits = 0; bits < 256; ++bits) {
    const float value = E4M3ToFloat(static_cast<uint8_t>(bits));
    const int exponent = bits >> 3 & 15;
    const int mantissa = bits & 7;
    if (exponent == 15 && mantissa == 7) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    const double sign = bits & 0x80 ? -1.0 : 1.0;
    const double want =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    EXPECT_EQ(value, sign * want) << bits;
  }
}

TEST(BFloat16Test, WidensExactlyAndRoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = BF16ToFloat(static_cast<uint16_t>(bits));
    ASSERT_EQ(std::bit_cast<uint32_t>(value), bits << 16);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(BF16ToFloat(FloatToBF16(value))));
    } else {
      ASSERT_EQ(FloatToBF16(value), bits);
    }
  }
  EXPECT_EQ(FloatToBF16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // a tie, down to even
  EXPECT_EQ(FloatToBF16(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // a tie, up to even
  EXPECT_EQ(FloatToBF16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(FloatToBF16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(BF16ToFloat(FloatToBF16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace hydrant
