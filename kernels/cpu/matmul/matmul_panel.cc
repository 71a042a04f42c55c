// Packing and unpacking of panels: the scalar code that defines the packed forms.
#include <cmath>
#include <cstring>

#include "kernels/cpu/matmul/matmul_weight.h"
#include "kernels/dequantize.h"
#include "kernels/float16.h"
#include "kernels/weight_parts.h"

namespace hydrant::cpu {
namespace {

size_t RoundUp(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// One block of a file, decoded: unsigned quants and the bits of the scale fields.
struct FileBlock {
  uint8_t quants[256] = {};
  uint16_t scale = 0;  // f16, or an e8m0 exponent
  uint16_t min = 0;
  uint8_t sub_scales[16] = {};
  uint8_t sub_mins[8] = {};
};

uint16_t Load16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

uint32_t Load32(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// Value j in the low half of byte j, value j + 16 in the high half; a fifth
// bit at bit j of `fifth`.
void Take32(const uint8_t* nibbles, uint32_t fifth, FileBlock* out) {
  for (int j = 0; j < 16; ++j) {
    out->quants[j] = static_cast<uint8_t>((nibbles[j] & 15) | (fifth >> j & 1) << 4);
    out->quants[j + 16] = static_cast<uint8_t>(nibbles[j] >> 4 | (fifth >> (j + 16) & 1) << 4);
  }
}

// The 6-bit scales and minima of q4_k and q5_k (packing: kernels/dequantize.cc).
void TakeSubScales(const uint8_t* packed, FileBlock* out) {
  for (int j = 0; j < 4; ++j) {
    out->sub_scales[j] = packed[j] & 63;
    out->sub_mins[j] = packed[j + 4] & 63;
    out->sub_scales[j + 4] = static_cast<uint8_t>((packed[j + 8] & 15) | packed[j] >> 6 << 4);
    out->sub_mins[j + 4] = static_cast<uint8_t>(packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4);
  }
}

void TakeK(const uint8_t* src, bool five_bits, FileBlock* out) {
  out->scale = Load16(src);
  out->min = Load16(src + 2);
  TakeSubScales(src + 4, out);
  const uint8_t* fifth = src + 16;
  const uint8_t* nibbles = src + (five_bits ? 48 : 16);
  for (int group = 0; group < 8; ++group) {
    for (int j = 0; j < 32; ++j) {
      int quant = nibbles[group / 2 * 32 + j] >> group % 2 * 4 & 15;
      if (five_bits) quant |= (fifth[j] >> group & 1) << 4;
      out->quants[group * 32 + j] = static_cast<uint8_t>(quant);
    }
  }
}

void TakeQ6K(const uint8_t* src, FileBlock* out) {
  out->scale = Load16(src + 208);
  std::memcpy(out->sub_scales, src + 192, 16);
  for (int group = 0; group < 8; ++group) {
    const uint8_t* low = src + group / 4 * 64 + group % 2 * 32;
    const uint8_t* high = src + 128 + group / 4 * 32;
    for (int j = 0; j < 32; ++j) {
      const int nibble = low[j] >> group % 4 / 2 * 4 & 15;
      const int pair = high[j] >> group % 4 * 2 & 3;
      out->quants[group * 32 + j] = static_cast<uint8_t>(nibble | pair << 4);
    }
  }
}

void TakeBitPairs(const uint8_t* src, FileBlock* out) {
  for (int i = 0; i < 256; ++i) out->quants[i] = src[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

void TakeQ2K(const uint8_t* src, FileBlock* out) {
  out->scale = Load16(src + 80);
  out->min = Load16(src + 82);
  std::memcpy(out->sub_scales, src, 16);
  TakeBitPairs(src + 16, out);
}

void TakeQ3K(const uint8_t* src, FileBlock* out) {
  out->scale = Load16(src + 108);
  TakeBitPairs(src + 32, out);
  for (int group = 0; group < 8; ++group) {
    for (int j = 0; j < 32; ++j) out->quants[group * 32 + j] |= (src[j] >> group & 1) << 2;
  }
  const uint8_t* packed = src + 96;
  for (int s = 0; s < 16; ++s) {
    const int nibble = packed[s % 8] >> s / 8 * 4 & 15;
    const int pair = packed[8 + s % 4] >> s / 4 * 2 & 3;
    out->sub_scales[s] = static_cast<uint8_t>((nibble | pair << 4) - 32);
  }
}

void TakeIQ4XS(const uint8_t* src, FileBlock* out) {
  out->scale = Load16(src);
  const uint16_t pairs = Load16(src + 2);
  for (int group = 0; group < 8; ++group) {
    const int nibble = src[4 + group / 2] >> group % 2 * 4 & 15;
    const int pair = pairs >> 2 * group & 3;
    out->sub_scales[group] = static_cast<uint8_t>((nibble | pair << 4) - 32);
    for (int j = 0; j < 16; ++j) {
      const uint8_t byte = src[8 + group * 16 + j];
      out->quants[group * 32 + j] = byte & 15;
      out->quants[group * 32 + 16 + j] = byte >> 4;
    }
  }
}

void TakeBlock(DType dtype, const uint8_t* src, FileBlock* out) {
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kIQ4_NL:
      out->scale = Load16(src);
      return Take32(src + 2, 0, out);
    case DType::kMXFP4:
      out->scale = src[0];
      return Take32(src + 1, 0, out);
    case DType::kQ4_1:
      out->scale = Load16(src);
      out->min = Load16(src + 2);
      return Take32(src + 4, 0, out);
    case DType::kQ5_0:
      out->scale = Load16(src);
      return Take32(src + 6, Load32(src + 2), out);
    case DType::kQ5_1:
      out->scale = Load16(src);
      out->min = Load16(src + 2);
      return Take32(src + 8, Load32(src + 4), out);
    case DType::kQ8_0:
      out->scale = Load16(src);
      for (int j = 0; j < 32; ++j) out->quants[j] = src[2 + j] ^ 0x80;
      return;
    case DType::kQ4_K:
      return TakeK(src, false, out);
    case DType::kQ5_K:
      return TakeK(src, true, out);
    case DType::kQ6_K:
      return TakeQ6K(src, out);
    case DType::kQ2_K:
      return TakeQ2K(src, out);
    case DType::kQ3_K:
      return TakeQ3K(src, out);
    case DType::kIQ4_XS:
      return TakeIQ4XS(src, out);
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF8_E4M3:
    case DType::kE4M3:
      return;  // no integers
  }
}

// The position of the bits of the quant of value k of a block, row r of the group.
struct QuantPlace {
  size_t low_byte;
  int low_shift;
  size_t high_byte;
  int high_shift;
};

QuantPlace PlaceOf(const BlockTraits& traits, int r, int k) {
  const int step = k / 4;
  const size_t lane = static_cast<size_t>(r) * 4 + k % 4;
  QuantPlace place{};
  if (traits.low_bits == 8) {
    place.low_byte = step * 64 + lane;
    return place;
  }
  const bool pairs = traits.low_bits == 2;
  place.low_byte = (pairs ? step / 4 : step % 4) * 64 + lane;
  place.low_shift = pairs ? step % 4 * 2 : step / 4 * 4;
  place.high_byte = (traits.high_bits == 2 ? step / 4 * 64 : 0) + lane;
  place.high_shift = traits.high_bits == 2 ? step % 4 * 2 : step;
  return place;
}

void Put16(uint8_t* p, uint16_t value) { std::memcpy(p, &value, sizeof(value)); }

// Bits [shift, shift + 2) of values 4s + b of a block, s = 0..7: byte b of two vectors.
void PutPairs(const uint8_t* quants, int shift, uint8_t* out) {
  for (int v = 0; v < 2; ++v) {
    for (int b = 0; b < 4; ++b) {
      int byte = 0;
      for (int i = 0; i < 4; ++i) byte |= (quants[16 * v + 4 * i + b] >> shift & 3) << 2 * i;
      out[v * 64 + b] = static_cast<uint8_t>(byte);
    }
  }
}

// Writes a block's 32 quants of row r, as PlaceOf() each, without reading the destination.
void PutQuants(const BlockTraits& traits, const uint8_t* quants, int r, uint8_t* low,
               uint8_t* high) {
  low += static_cast<size_t>(r) * 4;
  high += static_cast<size_t>(r) * 4;
  if (traits.low_bits == 8) {
    for (int s = 0; s < 8; ++s) std::memcpy(low + s * 64, quants + 4 * s, 4);
  } else if (traits.low_bits == 2) {
    PutPairs(quants, 0, low);
  } else {
    for (int s = 0; s < 4; ++s) {
      for (int b = 0; b < 4; ++b) {
        const int byte = (quants[4 * s + b] & 15) | quants[16 + 4 * s + b] << 4;
        low[s * 64 + b] = static_cast<uint8_t>(byte);
      }
    }
  }
  if (traits.high_bits == 2) PutPairs(quants, traits.low_bits, high);
  if (traits.high_bits != 1) return;
  for (int b = 0; b < 4; ++b) {
    int byte = 0;
    for (int s = 0; s < 8; ++s) byte |= (quants[4 * s + b] >> traits.low_bits & 1) << s;
    high[b] = static_cast<uint8_t>(byte);
  }
}

// Returns false if the scale or minimum may not be finite.
bool PutFileBlock(const BlockTraits& traits, const GroupLayout& layout, const FileBlock& from,
                  int file_block, int r, uint8_t* group) {
  const int blocks = traits.super() ? 8 : 1;
  const size_t at = static_cast<size_t>(file_block) * 16 + r;
  if (traits.scale_bytes == 1) {
    group[layout.scale + at] = static_cast<uint8_t>(from.scale);
  } else {
    Put16(group + layout.scale + at * 2, from.scale);
  }
  if (traits.has_min) Put16(group + layout.min + at * 2, from.min);
  for (int i = 0; i < blocks; ++i) {
    const size_t block = static_cast<size_t>(file_block) * blocks + i;
    PutQuants(traits, from.quants + i * kBlock, r, group + block * LowBytes(traits),
              group + layout.high + block * HighBytes(traits));
    if (traits.halves) {
      group[layout.sub_scale + block * 32 + r] = from.sub_scales[2 * i];
      group[layout.sub_scale + block * 32 + 16 + r] = from.sub_scales[2 * i + 1];
    } else if (traits.super()) {
      group[layout.sub_scale + block * 16 + r] = from.sub_scales[i];
      if (traits.sub == SubScales::kUnsigned)
        group[layout.sub_min + block * 16 + r] = from.sub_mins[i];
    }
  }
  constexpr uint16_t kExponent = 0x7c00;     // of a half: all set in infinities and NaN
  constexpr uint16_t kLargeExponent = 0xfc;  // of e8m0: values may exceed the largest float
  if (traits.scale_bytes == 1) return from.scale < kLargeExponent;
  return (from.scale & kExponent) != kExponent && (from.min & kExponent) != kExponent;
}

bool PackGroup(DType dtype, const uint8_t* const* rows, int num_rows, int cols, uint8_t* group) {
  const BlockTraits traits = BlockTraitsOf(dtype);
  const GroupLayout layout = GroupLayoutOf(traits, cols / kBlock);
  const DTypeTraits file = TraitsOf(dtype);
  FileBlock block;
  bool finite = true;
  for (int r = 0; r < num_rows; ++r) {
    for (int b = 0; b < cols / file.block_elements; ++b) {
      TakeBlock(dtype, rows[r] + static_cast<size_t>(b) * file.block_bytes, &block);
      finite &= PutFileBlock(traits, layout, block, b, r, group);
    }
  }
  return finite;
}

// The quant of value k of row r minus its offset, or its codebook value.
int QuantAt(const BlockTraits& traits, const GroupLayout& layout, const uint8_t* group, int r,
            int k) {
  const size_t block = k / kBlock;
  const QuantPlace place = PlaceOf(traits, r, k % kBlock);
  int quant = group[block * LowBytes(traits) + place.low_byte] >> place.low_shift;
  quant &= (1 << traits.low_bits) - 1;
  if (traits.high_bits > 0) {
    const int high =
        group[layout.high + block * HighBytes(traits) + place.high_byte] >> place.high_shift;
    quant |= (high & ((1 << traits.high_bits) - 1)) << traits.low_bits;
  }
  if (traits.codebook == Codebook::kIq4Nl) return kIq4NlValues[quant];
  if (traits.codebook == Codebook::kMxfp4) return kMxfp4Values[quant];
  return quant - traits.offset;
}

// The same operations in the same order as in kernels/dequantize.cc.
void UnpackGroupRow(DType dtype, const uint8_t* group, int r, int cols, float* out) {
  const BlockTraits traits = BlockTraitsOf(dtype);
  const GroupLayout layout = GroupLayoutOf(traits, cols / kBlock);
  for (int k = 0; k < cols; ++k) {
    const size_t block = k / kBlock;
    const size_t scale_at = (traits.super() ? block / 8 : block) * 16 + r;
    const size_t sub_at = traits.halves ? (block * 2 + k % kBlock / 16) * 16 + r : block * 16 + r;
    float scale = traits.scale_bytes == 1 ? HalfE8M0ToFloat(group[layout.scale + scale_at])
                                          : F16ToFloat(Load16(group + layout.scale + scale_at * 2));
    float min = traits.has_min ? F16ToFloat(Load16(group + layout.min + scale_at * 2)) : 0.0f;
    const uint8_t sub = traits.super() ? group[layout.sub_scale + sub_at] : 0;
    switch (traits.sub) {
      case SubScales::kNone:
        min = -min;
        break;
      case SubScales::kUnsigned:
        scale *= static_cast<float>(sub);
        min *= static_cast<float>(group[layout.sub_min + sub_at]);
        break;
      case SubScales::kSigned:
        scale *= static_cast<float>(static_cast<int8_t>(sub));
        break;
      case SubScales::kNibbles:
        scale *= static_cast<float>(sub & 15);
        min *= static_cast<float>(sub >> 4);
        break;
    }
    out[k] = scale * static_cast<float>(QuantAt(traits, layout, group, r, k));
    if (traits.has_min) out[k] -= min;
  }
}

// Scales are stored times 256, the factor that LoadF8() omits.
constexpr float kF8Factor = 256.0f;

bool PackF8(const uint8_t* const* rows, int num_rows, int cols, uint8_t* panel) {
  constexpr size_t kBlockBytes = TraitsOf(DType::kF8_E4M3).block_bytes;
  auto* scales = reinterpret_cast<float*>(panel + static_cast<size_t>(cols) * kPanelRows);
  bool finite = true;
  for (int r = 0; r < num_rows; ++r) {
    for (int b = 0; b < cols / kF8Columns; ++b) {
      const uint8_t* block = rows[r] + b * kBlockBytes;
      float scale;
      std::memcpy(&scale, block, sizeof(scale));
      scales[b * kPanelRows + r] = scale * kF8Factor;
      finite &= std::isfinite(scale * kF8Factor);
      for (int j = 0; j < kF8Columns; ++j) {
        const uint8_t value = block[sizeof(scale) + j];
        panel[(static_cast<size_t>(b) * kF8Columns + j) * kPanelRows + r] = value;
        finite &= (value & 0x7f) != 0x7f;
      }
    }
  }
  return finite;
}

float F8At(const uint8_t* panel, int row, int k, int cols) {
  const auto* scales =
      reinterpret_cast<const float*>(panel + static_cast<size_t>(cols) * kPanelRows);
  return E4M3ToFloat(panel[static_cast<size_t>(k) * kPanelRows + row]) *
         (scales[k / kF8Columns * kPanelRows + row] / kF8Factor);
}

// Index of (row, column) in a float panel, in elements.
size_t DensePlace(PanelFormat format, int r, int k) {
  if (format == PanelFormat::kBF16) return (static_cast<size_t>(k / 2) * 16 + r) * 2 + k % 2;
  return static_cast<size_t>(k) * 16 + r;
}

}  // namespace

size_t PanelBytes(PanelFormat format, DType dtype, int cols) {
  switch (format) {
    case PanelFormat::kF32:
      return static_cast<size_t>(cols) * kPanelRows * sizeof(float);
    case PanelFormat::kF16:
      return RoundUp(static_cast<size_t>(cols) * kPanelRows * 2, 64);
    case PanelFormat::kBF16:
      return RoundUp(cols, 32) * kPanelRows * 2;
    case PanelFormat::kF8:
      return RoundUp(static_cast<size_t>(cols) * kPanelRows +
                         static_cast<size_t>(cols) / kF8Columns * kPanelRows * sizeof(float),
                     64);
    case PanelFormat::kBlocks:
      return GroupLayoutOf(BlockTraitsOf(dtype), cols / kBlock).bytes;
  }
  return 0;
}

bool PackPanel(PanelFormat format, DType packed_dtype, const DType* row_dtypes,
               const uint8_t* const* rows, int num_rows, int cols, float* scratch, uint8_t* panel) {
  std::memset(panel, 0, PanelBytes(format, packed_dtype, cols));
  if (format == PanelFormat::kBlocks) return PackGroup(packed_dtype, rows, num_rows, cols, panel);
  if (format == PanelFormat::kF8) return PackF8(rows, num_rows, cols, panel);
  for (int r = 0; r < num_rows; ++r) {
    DequantizeRow(row_dtypes[r], rows[r], cols, scratch + static_cast<size_t>(r) * cols);
  }
  for (int k = 0; k < cols; ++k) {
    for (int r = 0; r < num_rows; ++r) {
      const float value = scratch[static_cast<size_t>(r) * cols + k];
      const size_t at = DensePlace(format, r, k);
      if (format == PanelFormat::kF32) {
        reinterpret_cast<float*>(panel)[at] = value;
      } else {
        reinterpret_cast<uint16_t*>(panel)[at] =
            format == PanelFormat::kF16 ? FloatToF16(value) : FloatToBF16(value);
      }
    }
  }
  return AllFinite({scratch, static_cast<size_t>(num_rows) * cols});
}

void UnpackRow(PanelFormat format, DType dtype, const uint8_t* panel, int row, int cols,
               float* out) {
  if (format == PanelFormat::kBlocks) return UnpackGroupRow(dtype, panel, row, cols, out);
  for (int k = 0; k < cols; ++k) {
    const size_t at = DensePlace(format, row, k);
    if (format == PanelFormat::kF8) {
      out[k] = F8At(panel, row, k, cols);
    } else if (format == PanelFormat::kF32) {
      out[k] = reinterpret_cast<const float*>(panel)[at];
    } else {
      const uint16_t bits = reinterpret_cast<const uint16_t*>(panel)[at];
      out[k] = format == PanelFormat::kF16 ? F16ToFloat(bits) : BF16ToFloat(bits);
    }
  }
}

}  // namespace hydrant::cpu
