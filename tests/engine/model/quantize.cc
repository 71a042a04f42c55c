#include "tests/engine/model/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "engine/model/dummy_source.h"
#include "kernels/float16.h"

namespace hydrant {
namespace {

template <typename T>
void Put(std::vector<uint8_t>& out, T value) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}

int RoundTo(float value, int low, int high) {
  return std::clamp(static_cast<int>(std::lround(value)), low, high);
}

// The scale as read back, and its inverse, 0 for an all-zero block.
struct Scale {
  uint16_t half;
  float inverse;
};
Scale MakeScale(float d) {
  const uint16_t half = FloatToF16(d);
  const float stored = F16ToFloat(half);
  return {half, stored != 0 ? 1.0f / stored : 0.0f};
}

void PutNibbles(std::vector<uint8_t>& out, const int* quants) {
  for (int j = 0; j < 16; ++j) out.push_back(static_cast<uint8_t>(quants[j] | quants[j + 16] << 4));
}

void QuantizeBlock(DType dtype, std::span<const float> block, std::vector<uint8_t>& out) {
  float largest = 0;
  for (const float v : block) largest = std::max(largest, std::fabs(v));
  const auto [low, high] = std::minmax_element(block.begin(), block.end());
  int quants[32];
  if (dtype == DType::kQ8_0) {
    const Scale d = MakeScale(largest / 127);
    Put(out, d.half);
    for (const float v : block) Put(out, static_cast<int8_t>(RoundTo(v * d.inverse, -127, 127)));
  } else if (dtype == DType::kQ4_0) {
    const Scale d = MakeScale(largest / 7);
    for (int j = 0; j < 32; ++j) quants[j] = RoundTo(block[j] * d.inverse, -8, 7) + 8;
    Put(out, d.half);
    PutNibbles(out, quants);
  } else {  // q4_1
    const Scale d = MakeScale((*high - *low) / 15);
    const uint16_t m = FloatToF16(*low);
    for (int j = 0; j < 32; ++j) quants[j] = RoundTo((block[j] - F16ToFloat(m)) * d.inverse, 0, 15);
    Put(out, d.half);
    Put(out, m);
    PutNibbles(out, quants);
  }
}

// Codes have a deviation of 5.85, scales are powers of two: one too large, compensated by some zero
// values.
void SetMxfp4(float std_dev, std::mt19937_64& random, uint8_t* block) {
  const float wanted = std_dev / 5.85f;
  const int exponent = static_cast<int>(std::ceil(std::log2(wanted)));
  const double kept = std::pow(wanted / std::ldexp(1.0, exponent), 2);
  std::bernoulli_distribution keep(kept);
  block[0] = static_cast<uint8_t>(exponent + 128);
  for (int j = 1; j < 17; ++j) {
    if (!keep(random)) block[j] &= 0xf0;
    if (!keep(random)) block[j] &= 0x0f;
  }
}

}  // namespace

bool CanQuantize(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
      return true;
    default:
      return false;
  }
}

std::vector<uint8_t> Quantize(DType dtype, std::span<const float> values) {
  std::vector<uint8_t> out;
  out.reserve(BytesOf(dtype, values.size()));
  if (BlockElements(dtype) == 32) {
    for (size_t i = 0; i + 32 <= values.size(); i += 32)
      QuantizeBlock(dtype, values.subspan(i, 32), out);
    return out;
  }
  for (const float v : values) {
    if (dtype == DType::kF32) Put(out, v);
    if (dtype == DType::kF16) Put(out, FloatToF16(v));
    if (dtype == DType::kBF16) Put(out, FloatToBF16(v));
  }
  return out;
}

std::vector<uint8_t> RandomBlocks(DType dtype, int64_t count, float std_dev, uint64_t seed) {
  if (CanQuantize(dtype)) {
    std::vector<float> values(count);
    DummyNormals(seed, "random blocks", 0, values);
    for (float& v : values) v *= std_dev;
    return Quantize(dtype, values);
  }
  const DTypeTraits traits = TraitsOf(dtype);
  std::vector<uint8_t> out(BytesOf(dtype, count));
  std::mt19937_64 random(seed);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(random() >> 32);
  const auto put_half = [](uint8_t* at, float value) {
    const uint16_t half = FloatToF16(value);
    std::memcpy(at, &half, sizeof half);
  };
  for (uint8_t* block = out.data(); block < out.data() + out.size(); block += traits.block_bytes) {
    // Standard deviations of uniform quants: 9.2 for five bits, 4.6 for four, 18.5 for six, 1.12
    // for two, 2.3 for three, 67 through iq4_nl's codebook; sub-scales are set to 32 (6 bits), 8 (4
    // bits) or 16 (signed).
    if (dtype == DType::kQ5_0) {
      put_half(block, std_dev / 9.2f);
    } else if (dtype == DType::kQ5_1) {
      put_half(block, std_dev / 9.2f);
      put_half(block + 2, -15.5f * std_dev / 9.2f);
    } else if (dtype == DType::kQ6_K) {
      std::memset(block + 192, 32, 16);
      put_half(block + 208, std_dev / 18.5f / 32);
    } else if (dtype == DType::kQ2_K) {
      std::memset(block, 0x88, 16);
      put_half(block + 80, std_dev / 1.12f / 8);
      put_half(block + 82, 1.5f * std_dev / 1.12f / 8);
    } else if (dtype == DType::kQ3_K) {  // 48 - 32: nibbles 0 and pairs 3
      std::memset(block + 96, 0, 8);
      std::memset(block + 104, 0xff, 4);
      put_half(block + 108, std_dev / 2.3f / 16);
    } else if (dtype == DType::kIQ4_NL) {
      put_half(block, std_dev / 67.0f);
    } else if (dtype == DType::kIQ4_XS) {  // as q3_k
      put_half(block, std_dev / 67.0f / 16);
      std::memset(block + 2, 0xff, 2);
      std::memset(block + 4, 0, 4);
    } else if (dtype == DType::kMXFP4) {
      SetMxfp4(std_dev, random, block);
    } else {  // q4_k, q5_k: every 6-bit scale and minimum 32, which is byte 32 (top bits 00) and
              // nibbles 0 over top bits 10
      const bool five = dtype == DType::kQ5_K;
      const float d = std_dev / (five ? 9.2f : 4.6f) / 32;
      put_half(block, d);
      put_half(block + 2, d * (five ? 15.5f : 7.5f));
      std::memset(block + 4, 32 | 2 << 6, 8);
      std::memset(block + 12, 0, 4);
    }
  }
  return out;
}

}  // namespace hydrant
