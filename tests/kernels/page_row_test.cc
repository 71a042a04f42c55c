// Rows of keys and values in pages: the plain functions against their definition, and the vector
// functions against the plain ones, bit for bit.
#include "kernels/page_row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/pages/page_rows.h"
#include "kernels/float16.h"

namespace hydrant {
namespace {

constexpr DType kDTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16,
                             DType::kE4M3, DType::kQ8_0, DType::kQ4_0};
constexpr uint32_t kSeed = 20261126;

std::vector<float> Normals(size_t count, float scale, std::mt19937* rng) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(*rng);
  return values;
}

std::vector<float> Rounded(DType dtype, std::vector<float> row) {
  RoundPageRow(dtype, row.size(), row.data());
  return row;
}

double SquaredError(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return sum;
}

TEST(PageRowTest, TheTransformIsHadamards) {
  std::mt19937 rng(kSeed);
  const std::vector<float> x = Normals(64, 1.0f, &rng);
  std::vector<float> transformed = x;
  HadamardTransform(x.size(), transformed.data());
  for (int i = 0; i < 64; ++i) {
    double sum = 0;
    for (int j = i / 32 * 32; j < i / 32 * 32 + 32; ++j)
      sum += std::popcount(static_cast<unsigned>(i & j & 31)) % 2 == 0 ? x[j] : -x[j];
    EXPECT_NEAR(transformed[i], sum, 1e-5) << i;
  }
  HadamardTransform(x.size(), transformed.data());
  for (int i = 0; i < 64; ++i) EXPECT_NEAR(transformed[i], 32 * x[i], 1e-4) << i;
}

TEST(PageRowTest, ErrorsAreWithinHalfAStep) {
  std::mt19937 rng(kSeed);
  for (int trial = 0; trial < 100; ++trial) {
    const std::vector<float> x = Normals(32, 3.0f, &rng);
    float peak = 0;
    for (const float value : x) peak = std::max(peak, std::abs(value));
    const std::vector<float> eight = Rounded(DType::kQ8_0, x);
    // The scale is rounded too, by up to 2^-11 of itself.
    for (int i = 0; i < 32; ++i) EXPECT_NEAR(eight[i], x[i], peak / 127 * 0.5 + peak / 2048);
    // The transform preserves sums of squares up to a factor of 32; a step is an eighth of the
    // peak, and so is the clipping at the end of the range with one step less.
    std::vector<float> transformed = x;
    HadamardTransform(32, transformed.data());
    float largest = 0;
    for (const float value : transformed) largest = std::max(largest, std::abs(value));
    EXPECT_LE(SquaredError(Rounded(DType::kQ4_0, x), x), std::pow(largest / 8, 2.0) * 1.01)
        << "seed " << kSeed << " trial " << trial;
  }
}

// The purpose of the transform: a large channel does not set the scale alone.
TEST(PageRowTest, ALargeChannelCostsTheOthersLittle) {
  std::mt19937 rng(kSeed);
  double with = 0, without = 0;
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<float> x = Normals(32, 1.0f, &rng);
    x[7] = 30.0f;
    with += SquaredError(Rounded(DType::kQ4_0, x), x);
    for (int i = 0; i < 32; ++i) {
      const double step = 30.0 / 8;
      without += i == 7 ? 0 : std::pow(x[i] - step * std::round(x[i] / step), 2.0);
    }
  }
  EXPECT_LT(with, 0.2 * without);
}

TEST(PageRowTest, RoundingIsIdempotent) {
  std::mt19937 rng(kSeed);
  for (const DType dtype : kDTypes) {
    for (int trial = 0; trial < 500; ++trial) {
      const float scale = std::exp2(static_cast<float>(trial % 34 - 20));
      const std::vector<float> once = Rounded(dtype, Normals(64, scale, &rng));
      std::vector<uint8_t> stored(BytesOf(dtype, 64)), again = stored;
      StorePageRow(dtype, once.data(), 64, stored.data(), 0);
      std::vector<float> twice(64);
      LoadPageRow(dtype, stored.data(), 0, 64, twice.data());
      EXPECT_EQ(once, twice) << DTypeName(dtype) << " seed " << kSeed << " trial " << trial;
      StorePageRow(dtype, twice.data(), 64, again.data(), 0);
      EXPECT_EQ(stored, again) << DTypeName(dtype) << " seed " << kSeed << " trial " << trial;
    }
  }
}

TEST(PageRowTest, RowsLieSideBySide) {
  std::mt19937 rng(kSeed);
  for (const DType dtype : kDTypes) {
    std::vector<uint8_t> page(BytesOf(dtype, 3 * 64), 0xAB);
    const std::vector<float> row = Normals(64, 1.0f, &rng);
    StorePageRow(dtype, row.data(), 64, page.data(), 64);
    const size_t bytes = BytesOf(dtype, 64);
    for (size_t i = 0; i < page.size(); ++i) {
      if (i < bytes || i >= 2 * bytes) {
        ASSERT_EQ(page[i], 0xAB) << DTypeName(dtype) << " " << i;
      }
    }
    std::vector<float> read(64);
    LoadPageRow(dtype, page.data(), 64, 64, read.data());
    EXPECT_EQ(read, Rounded(dtype, row));
  }
}

TEST(PageRowTest, DTypesOfPages) {
  EXPECT_TRUE(IsPageDType(DType::kF16, 80));
  EXPECT_TRUE(IsPageDType(DType::kE4M3, 80));
  EXPECT_FALSE(IsPageDType(DType::kE4M3, 8));
  EXPECT_FALSE(IsPageDType(DType::kF8_E4M3, 128));
  EXPECT_TRUE(IsPageDType(DType::kQ8_0, 96));
  EXPECT_FALSE(IsPageDType(DType::kQ8_0, 80));
  EXPECT_FALSE(IsPageDType(DType::kQ4_0, 48));
  EXPECT_FALSE(IsPageDType(DType::kQ4_K, 256));
}

// Values of e4m3fn by the formula of the specification: sign, 4 exponent bits with bias
// 7, 3 mantissa bits.
double E4M3Value(int byte) {
  const int exponent = byte >> 3 & 15, fraction = byte & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return byte < 128 ? magnitude : -magnitude;
}

// All bytes, each with the values around the midpoint to its neighbour.
TEST(PageRowTest, E4M3IsTheNearestThereIs) {
  EXPECT_EQ(E4M3Value(0x7e), 448);
  EXPECT_EQ(E4M3Value(0x81), -std::exp2(-9));
  for (int byte = 0; byte < 0x7e; ++byte) {
    const auto low = static_cast<float>(E4M3Value(byte));
    const auto high = static_cast<float>(E4M3Value(byte + 1));
    const float middle = (low + high) / 2;
    const std::vector<float> x = {low, std::nextafter(middle, low), middle,
                                  std::nextafter(middle, high), high};
    const float even = byte % 2 == 0 ? low : high;
    EXPECT_EQ(Rounded(DType::kE4M3, x), (std::vector<float>{low, low, even, high, high})) << byte;
    EXPECT_EQ(Rounded(DType::kE4M3, {-x[1], -x[2], -x[3]}),
              (std::vector<float>{-low, -even, -high}))
        << byte;
  }
}

TEST(PageRowTest, E4M3PairsAreHalves) {
  for (uint32_t pair = 0; pair < 65536; ++pair) {
    const uint32_t halves = E4M3PairToHalves(pair);
    for (int i = 0; i < 2; ++i) {
      const auto value = static_cast<float>(E4M3Value(static_cast<int>(pair >> 8 * i & 255)));
      const float half = 256 * F16ToFloat(static_cast<uint16_t>(halves >> 16 * i));
      if (std::abs(value) > 448) {
        ASSERT_TRUE(std::isnan(half)) << pair;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(half), std::bit_cast<uint32_t>(value)) << pair;
      }
    }
  }
}

TEST(PageRowTest, E4M3HasNoInfinityButNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> large =
      Rounded(DType::kE4M3, {447, 448, 449, 464, 465, 1e30f, kInfinity, -480, -kInfinity});
  EXPECT_EQ(large, (std::vector<float>{448, 448, 448, 448, 448, 448, 448, -448, -448}));
  EXPECT_TRUE(std::isnan(Rounded(DType::kE4M3, {std::numeric_limits<float>::quiet_NaN()})[0]));
}

// Numbers of every size, ties, and NaN.
std::vector<float> Awkward(size_t count, int trial, std::mt19937* rng) {
  std::vector<float> x = Normals(count, std::exp2(static_cast<float>(trial % 60 - 30)), rng);
  const float specials[] = {0.0f,
                            -0.0f,
                            1.0f,
                            -1.0f,
                            0.5f,
                            127.0f,
                            -127.0f,
                            63.5f,
                            0.49999997f,
                            1e38f,
                            -3e38f,
                            1e-40f,
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()};
  if (trial % 3 == 0) {
    const size_t kinds = trial % 2 == 0 ? std::size(specials) : 9;
    for (size_t i = 0; i < count; i += 5) x[i] = specials[(*rng)() % kinds];
  }
  if (trial % 7 == 0) std::fill(x.begin(), x.begin() + 32, 0.0f);
  if (trial % 5 == 0) {  // halves of steps
    x[0] = 127.0f;
    for (size_t i = 1; i < 32; ++i) x[i] = static_cast<float>((*rng)() % 250) / 2.0f - 62.0f;
  }
  return x;
}

TEST(PageRowTest, VectorsHaveTheSameBits) {
  std::mt19937 rng(kSeed);
  for (const DType dtype : {DType::kE4M3, DType::kQ8_0, DType::kQ4_0}) {
    for (int trial = 0; trial < 2000; ++trial) {
      const std::vector<float> x = Awkward(128, trial, &rng);
      std::vector<uint8_t> plain(BytesOf(dtype, 128)), vectors = plain;
      StorePageRow(dtype, x.data(), 128, plain.data(), 0);
      cpu::StorePageRow(dtype, x.data(), 128, vectors.data(), 0);
      ASSERT_EQ(plain, vectors) << DTypeName(dtype) << " seed " << kSeed << " trial " << trial;
      std::vector<float> from_plain(128), from_vectors(128);
      LoadPageRow(dtype, plain.data(), 0, 128, from_plain.data());
      cpu::LoadPageRow(dtype, plain.data(), 0, 128, from_vectors.data());
      for (int i = 0; i < 128; ++i) {
        if (std::isnan(from_plain[i])) {
          ASSERT_TRUE(std::isnan(from_vectors[i])) << DTypeName(dtype) << " trial " << trial;
        } else {
          ASSERT_EQ(std::bit_cast<uint32_t>(from_plain[i]),
                    std::bit_cast<uint32_t>(from_vectors[i]))
              << DTypeName(dtype) << " seed " << kSeed << " trial " << trial << " element " << i;
        }
      }
      std::vector<float> transformed = x, by_vectors = x;
      HadamardTransform(128, transformed.data());
      cpu::HadamardTransform(128, by_vectors.data());
      for (int i = 0; i < 128; ++i) {
        if (std::isnan(transformed[i])) continue;
        ASSERT_EQ(transformed[i], by_vectors[i]) << "seed " << kSeed << " trial " << trial;
      }
    }
  }
}

}  // namespace
}  // namespace hydrant
