#include "kernels/dequantize.h"

#include <cstring>

#include "kernels/codebooks.h"
#include "kernels/float16.h"

namespace hydrant {
namespace {

template <typename T>
T Load(const uint8_t* src) {
  T value;
  std::memcpy(&value, src, sizeof(T));
  return value;
}

float LoadF16(const uint8_t* src) { return F16ToFloat(Load<uint16_t>(src)); }

// Each Decode function converts one block to its values. Nibble formats of 32 hold value j in the
// low half of byte j and value j + 16 in the high half.

void DecodeQ4_0(const uint8_t* block, float* out) {  // f16 d | 16 bytes of nibbles
  const float d = LoadF16(block);
  const uint8_t* quants = block + 2;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>((quants[j] & 15) - 8);
    out[j + 16] = d * static_cast<float>((quants[j] >> 4) - 8);
  }
}

void DecodeQ4_1(const uint8_t* block, float* out) {  // f16 d | f16 m | 16 bytes of nibbles
  const float d = LoadF16(block);
  const float m = LoadF16(block + 2);
  const uint8_t* quants = block + 4;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(quants[j] & 15) + m;
    out[j + 16] = d * static_cast<float>(quants[j] >> 4) + m;
  }
}

// The fifth bits of a q5 block: bit j of `high` belongs to value j.
int FiveBits(int low, uint32_t high, int j) { return low | static_cast<int>(high >> j & 1u) << 4; }

void DecodeQ5_0(const uint8_t* block, float* out) {  // f16 d | u32 fifth bits | 16 bytes of nibbles
  const float d = LoadF16(block);
  const uint32_t high = Load<uint32_t>(block + 2);
  const uint8_t* quants = block + 6;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(FiveBits(quants[j] & 15, high, j) - 16);
    out[j + 16] = d * static_cast<float>(FiveBits(quants[j] >> 4, high, j + 16) - 16);
  }
}

// f16 d | f16 m | u32 fifth bits | 16 bytes of nibbles
void DecodeQ5_1(const uint8_t* block, float* out) {
  const float d = LoadF16(block);
  const float m = LoadF16(block + 2);
  const uint32_t high = Load<uint32_t>(block + 4);
  const uint8_t* quants = block + 8;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(FiveBits(quants[j] & 15, high, j)) + m;
    out[j + 16] = d * static_cast<float>(FiveBits(quants[j] >> 4, high, j + 16)) + m;
  }
}

void DecodeQ8_0(const uint8_t* block, float* out) {  // f16 d | 32 int8
  const float d = LoadF16(block);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(static_cast<int8_t>(block[2 + j]));
}

struct ScaleAndMin {
  int scale;  // 0..63
  int min;    // 0..63
};

// q4_k and q5_k keep eight 6-bit scales and eight 6-bit minima in 12 bytes: bytes 0-3 and 4-7 hold
// the first four of each, and in their two upper bits the upper bits of the last four; the
// nibbles of those are in bytes 8-11.
ScaleAndMin UnpackScale(const uint8_t* packed, int j) {
  if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
  return {(packed[j + 4] & 15) | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4};
}

// f16 d | f16 dmin | 12 bytes of scales | 128 bytes of nibbles
void DecodeQ4_K(const uint8_t* block, float* out) {
  const float d = LoadF16(block);
  const float dmin = LoadF16(block + 2);
  const uint8_t* scales = block + 4;
  const uint8_t* quants = block + 16;
  for (int group = 0; group < 8; ++group) {  // 32 values each; groups 2i and 2i + 1 share 32 bytes
    const ScaleAndMin packed = UnpackScale(scales, group);
    const float scale = d * static_cast<float>(packed.scale);
    const float offset = dmin * static_cast<float>(packed.min);
    const uint8_t* bytes = quants + group / 2 * 32;
    const int shift = group % 2 * 4;
    for (int j = 0; j < 32; ++j) {
      out[group * 32 + j] = scale * static_cast<float>(bytes[j] >> shift & 15) - offset;
    }
  }
}

// f16 d | f16 dmin | 12 bytes of scales | 32 bytes of fifth bits | 128 bytes of nibbles
void DecodeQ5_K(const uint8_t* block, float* out) {
  const float d = LoadF16(block);
  const float dmin = LoadF16(block + 2);
  const uint8_t* scales = block + 4;
  const uint8_t* high = block + 16;  // bit g of byte j: the fifth bit of value j of group g
  const uint8_t* quants = block + 48;
  for (int group = 0; group < 8; ++group) {
    const ScaleAndMin packed = UnpackScale(scales, group);
    const float scale = d * static_cast<float>(packed.scale);
    const float offset = dmin * static_cast<float>(packed.min);
    const uint8_t* bytes = quants + group / 2 * 32;
    const int shift = group % 2 * 4;
    for (int j = 0; j < 32; ++j) {
      const int quant = (bytes[j] >> shift & 15) | (high[j] >> group & 1) << 4;
      out[group * 32 + j] = scale * static_cast<float>(quant) - offset;
    }
  }
}

// 128 bytes of low nibbles | 64 bytes of upper bit pairs | 16 int8 scales | f16 d. Two halves of
// 128 values; in a half, quarter q holds values 32q..32q+31: nibbles in bytes (q % 2) * 32.., low
// for q < 2; bit pair q of byte j.
void DecodeQ6_K(const uint8_t* block, float* out) {
  const float d = LoadF16(block + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = block + half * 64;
    const uint8_t* high = block + 128 + half * 32;
    const uint8_t* scales = block + 192 + half * 8;
    for (int quarter = 0; quarter < 4; ++quarter) {
      for (int j = 0; j < 32; ++j) {
        const int nibble = low[quarter % 2 * 32 + j] >> quarter / 2 * 4 & 15;
        const int quant = (nibble | (high[j] >> quarter * 2 & 3) << 4) - 32;
        const float scale =
            d * static_cast<float>(static_cast<int8_t>(scales[quarter * 2 + j / 16]));
        out[half * 128 + quarter * 32 + j] = scale * static_cast<float>(quant);
      }
    }
  }
}

// The two low bits of value i of a q2_k or q3_k block: two halves of 128 values in 32 bytes each,
// four values to a byte, 32 apart.
int LowPair(const uint8_t* quants, int i) {
  return quants[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

// 16 bytes of scales (low nibbles) and minima (high nibbles) | 64 bytes of bit
// pairs | f16 d | f16 dmin
void DecodeQ2_K(const uint8_t* block, float* out) {
  const float d = LoadF16(block + 80);
  const float dmin = LoadF16(block + 82);
  for (int i = 0; i < 256; ++i) {
    const uint8_t packed = block[i / 16];
    const float scale = d * static_cast<float>(packed & 15);
    const float offset = dmin * static_cast<float>(packed >> 4);
    out[i] = scale * static_cast<float>(LowPair(block + 16, i)) - offset;
  }
}

// 32 bytes of third bits | 64 bytes of bit pairs | 12 bytes of scales | f16 d. Bit i / 32 of byte i
// % 32 is the third bit of value i. Sixteen 6-bit scales: nibbles in bytes 0-7, low ones first, and
// their upper bit pairs in bytes 8-11.
void DecodeQ3_K(const uint8_t* block, float* out) {
  const float d = LoadF16(block + 108);
  const uint8_t* packed = block + 96;
  for (int i = 0; i < 256; ++i) {
    const int s = i / 16;
    const int nibble = packed[s % 8] >> s / 8 * 4 & 15;
    const int pair = packed[8 + s % 4] >> s / 4 * 2 & 3;
    const float scale = d * static_cast<float>((nibble | pair << 4) - 32);
    const int quant = LowPair(block + 32, i) | (block[i % 32] >> i / 32 & 1) << 2;
    out[i] = scale * static_cast<float>(quant - 4);
  }
}

// Nibble layout of the formats of 32, through a codebook.
void DecodeCodes(const uint8_t* nibbles, const int (&values)[16], float scale, float* out) {
  for (int j = 0; j < 16; ++j) {
    out[j] = scale * static_cast<float>(values[nibbles[j] & 15]);
    out[j + 16] = scale * static_cast<float>(values[nibbles[j] >> 4]);
  }
}

void DecodeIQ4_NL(const uint8_t* block, float* out) {  // f16 d | 16 bytes of nibbles
  DecodeCodes(block + 2, kIq4NlValues, LoadF16(block), out);
}

// f16 d | u16 upper bit pairs of the scales | 4 bytes of their nibbles | 8 x 16 bytes of nibbles
void DecodeIQ4_XS(const uint8_t* block, float* out) {
  const float d = LoadF16(block);
  const uint16_t pairs = Load<uint16_t>(block + 2);
  for (int group = 0; group < 8; ++group) {
    const int nibble = block[4 + group / 2] >> group % 2 * 4 & 15;
    const float scale = d * static_cast<float>((nibble | (pairs >> 2 * group & 3) << 4) - 32);
    DecodeCodes(block + 8 + group * 16, kIq4NlValues, scale, out + group * 32);
  }
}

void DecodeMXFP4(const uint8_t* block, float* out) {  // u8 exponent | 16 bytes of nibbles
  DecodeCodes(block + 1, kMxfp4Values, HalfE8M0ToFloat(block[0]), out);
}

void DecodeF8_E4M3(const uint8_t* block, float* out) {  // f32 scale | 128 e4m3fn
  const float scale = Load<float>(block);
  for (int j = 0; j < 128; ++j) out[j] = E4M3ToFloat(block[4 + j]) * scale;
}

template <void (*Decode)(const uint8_t*, float*)>
void DecodeBlocks(DType dtype, const uint8_t* src, int64_t count, float* dst) {
  const DTypeTraits traits = TraitsOf(dtype);
  for (int64_t block = 0; block < count / traits.block_elements; ++block) {
    Decode(src + block * traits.block_bytes, dst + block * traits.block_elements);
  }
}

}  // namespace

void DequantizeRow(DType dtype, const uint8_t* src, int64_t count, float* dst) {
  switch (dtype) {
    case DType::kF32:
      if (count > 0) std::memcpy(dst, src, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i) dst[i] = F16ToFloat(Load<uint16_t>(src + 2 * i));
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) dst[i] = BF16ToFloat(Load<uint16_t>(src + 2 * i));
      return;
    case DType::kQ4_0:
      return DecodeBlocks<DecodeQ4_0>(dtype, src, count, dst);
    case DType::kQ4_1:
      return DecodeBlocks<DecodeQ4_1>(dtype, src, count, dst);
    case DType::kQ5_0:
      return DecodeBlocks<DecodeQ5_0>(dtype, src, count, dst);
    case DType::kQ5_1:
      return DecodeBlocks<DecodeQ5_1>(dtype, src, count, dst);
    case DType::kQ8_0:
      return DecodeBlocks<DecodeQ8_0>(dtype, src, count, dst);
    case DType::kQ4_K:
      return DecodeBlocks<DecodeQ4_K>(dtype, src, count, dst);
    case DType::kQ5_K:
      return DecodeBlocks<DecodeQ5_K>(dtype, src, count, dst);
    case DType::kQ6_K:
      return DecodeBlocks<DecodeQ6_K>(dtype, src, count, dst);
    case DType::kQ2_K:
      return DecodeBlocks<DecodeQ2_K>(dtype, src, count, dst);
    case DType::kQ3_K:
      return DecodeBlocks<DecodeQ3_K>(dtype, src, count, dst);
    case DType::kIQ4_NL:
      return DecodeBlocks<DecodeIQ4_NL>(dtype, src, count, dst);
    case DType::kIQ4_XS:
      return DecodeBlocks<DecodeIQ4_XS>(dtype, src, count, dst);
    case DType::kMXFP4:
      return DecodeBlocks<DecodeMXFP4>(dtype, src, count, dst);
    case DType::kF8_E4M3:
      return DecodeBlocks<DecodeF8_E4M3>(dtype, src, count, dst);
    case DType::kE4M3:
      for (int64_t i = 0; i < count; ++i) dst[i] = E4M3ToFloat(src[i]);
      return;
  }
}

}  // namespace hydrant
