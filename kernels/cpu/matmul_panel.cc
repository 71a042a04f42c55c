// Packing and unpacking of panels: the plain code that says what every byte of the packed forms
// means.
#include <cstring>

#include "kernels/cpu/matmul_weight.h"
#include "kernels/dequantize.h"
#include "kernels/float16.h"

namespace hydrant::cpu {
namespace {

size_t RoundUp(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// One file block, taken apart: unsigned quants and the scale fields' bits.
struct FileBlock {
  uint8_t quants[256];
  uint16_t scale = 0;
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

// Value j in the low half of byte j, value j + 16 in the high half; a fifth bit at bit j of
// `fifth`.
void Take32(const uint8_t* nibbles, uint32_t fifth, FileBlock* out) {
  for (int j = 0; j < 16; ++j) {
    out->quants[j] = static_cast<uint8_t>((nibbles[j] & 15) | (fifth >> j & 1) << 4);
    out->quants[j + 16] = static_cast<uint8_t>(nibbles[j] >> 4 | (fifth >> (j + 16) & 1) << 4);
  }
}

// The 6-bit scales and minima of q4_k and q5_k (kernels/dequantize.cc says how they are packed).
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
  for (int i = 0; i < 256; ++i) {
    const int group = i / 32;
    const int j = i % 32;
    int quant = nibbles[group / 2 * 32 + j] >> group % 2 * 4 & 15;
    if (five_bits) quant |= (fifth[j] >> group & 1) << 4;
    out->quants[i] = static_cast<uint8_t>(quant);
  }
}

void TakeQ6K(const uint8_t* src, FileBlock* out) {
  out->scale = Load16(src + 208);
  std::memcpy(out->sub_scales, src + 192, 16);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128;
    const int quarter = i % 128 / 32;
    const int j = i % 32;
    const int nibble = src[half * 64 + quarter % 2 * 32 + j] >> quarter / 2 * 4 & 15;
    const int pair = src[128 + half * 32 + j] >> quarter * 2 & 3;
    out->quants[i] = static_cast<uint8_t>(nibble | pair << 4);
  }
}

void TakeBlock(DType dtype, const uint8_t* src, FileBlock* out) {
  switch (dtype) {
    case DType::kQ4_0:
      out->scale = Load16(src);
      return Take32(src + 2, 0, out);
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
    default:
      return;
  }
}

// Where the quant of value k of a block, row r of the group, keeps its bits.
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
  place.low_byte = step % 4 * 64 + lane;
  place.low_shift = step / 4 * 4;
  place.high_byte = (traits.high_bits == 2 ? step / 4 * 64 : 0) + lane;
  place.high_shift = traits.high_bits == 2 ? step % 4 * 2 : step;
  return place;
}

void Put16(uint8_t* p, uint16_t value) { std::memcpy(p, &value, sizeof(value)); }

void PutQuants(const BlockTraits& traits, const uint8_t* quants, int r, uint8_t* low,
               uint8_t* high) {
  const int low_mask = traits.low_bits == 8 ? 255 : 15;
  for (int k = 0; k < kBlock; ++k) {
    const QuantPlace place = PlaceOf(traits, r, k);
    low[place.low_byte] |= static_cast<uint8_t>((quants[k] & low_mask) << place.low_shift);
    if (traits.high_bits > 0)
      high[place.high_byte] |= static_cast<uint8_t>(quants[k] >> 4 << place.high_shift);
  }
}

void PutFileBlock(const BlockTraits& traits, const GroupLayout& layout, const FileBlock& from,
                  int file_block, int r, uint8_t* group) {
  const int blocks = traits.super ? 8 : 1;
  Put16(group + layout.scale + (static_cast<size_t>(file_block) * 16 + r) * 2, from.scale);
  if (traits.has_min)
    Put16(group + layout.min + (static_cast<size_t>(file_block) * 16 + r) * 2, from.min);
  for (int i = 0; i < blocks; ++i) {
    const size_t block = static_cast<size_t>(file_block) * blocks + i;
    PutQuants(traits, from.quants + i * kBlock, r, group + block * LowBytes(traits),
              group + layout.high + block * HighBytes(traits));
    if (!traits.super) continue;
    if (traits.halves) {
      group[layout.sub_scale + block * 32 + r] = from.sub_scales[2 * i];
      group[layout.sub_scale + block * 32 + 16 + r] = from.sub_scales[2 * i + 1];
    } else {
      group[layout.sub_scale + block * 16 + r] = from.sub_scales[i];
      group[layout.sub_min + block * 16 + r] = from.sub_mins[i];
    }
  }
}

void PackGroup(DType dtype, const uint8_t* const* rows, int num_rows, int cols, uint8_t* group) {
  const BlockTraits traits = BlockTraitsOf(dtype);
  const GroupLayout layout = GroupLayoutOf(traits, cols / kBlock);
  const DTypeTraits file = TraitsOf(dtype);
  FileBlock block;
  for (int r = 0; r < num_rows; ++r) {
    for (int b = 0; b < cols / file.block_elements; ++b) {
      TakeBlock(dtype, rows[r] + static_cast<size_t>(b) * file.block_bytes, &block);
      PutFileBlock(traits, layout, block, b, r, group);
    }
  }
}

// The same operations in the same order as kernels/dequantize.cc.
void UnpackGroupRow(DType dtype, const uint8_t* group, int r, int cols, float* out) {
  const BlockTraits traits = BlockTraitsOf(dtype);
  const GroupLayout layout = GroupLayoutOf(traits, cols / kBlock);
  for (int k = 0; k < cols; ++k) {
    const size_t block = k / kBlock;
    const size_t scale_at = ((traits.super ? block / 8 : block) * 16 + r) * 2;
    const QuantPlace place = PlaceOf(traits, r, k % kBlock);
    int quant = group[block * LowBytes(traits) + place.low_byte] >> place.low_shift;
    if (traits.low_bits == 4) quant &= 15;
    if (traits.high_bits > 0) {
      const int high =
          group[layout.high + block * HighBytes(traits) + place.high_byte] >> place.high_shift;
      quant |= (high & ((1 << traits.high_bits) - 1)) << 4;
    }
    float scale = F16ToFloat(Load16(group + layout.scale + scale_at));
    if (traits.halves) {
      const uint8_t sub = group[layout.sub_scale + block * 32 + k % kBlock / 16 * 16 + r];
      scale *= static_cast<float>(static_cast<int8_t>(sub));
    } else if (traits.super) {
      scale *= static_cast<float>(group[layout.sub_scale + block * 16 + r]);
    }
    out[k] = scale * static_cast<float>(quant - traits.offset);
    if (!traits.has_min) continue;
    const float min = F16ToFloat(Load16(group + layout.min + scale_at));
    out[k] = traits.super
                 ? out[k] - min * static_cast<float>(group[layout.sub_min + block * 16 + r])
                 : out[k] + min;
  }
}

// Place of (row, column) in a float panel, in elements.
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
    case PanelFormat::kBlocks:
      return GroupLayoutOf(BlockTraitsOf(dtype), cols / kBlock).bytes;
  }
  return 0;
}

void PackPanel(PanelFormat format, DType packed_dtype, const DType* row_dtypes,
               const uint8_t* const* rows, int num_rows, int cols, float* scratch, uint8_t* panel) {
  std::memset(panel, 0, PanelBytes(format, packed_dtype, cols));
  if (format == PanelFormat::kBlocks) return PackGroup(packed_dtype, rows, num_rows, cols, panel);
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
}

void UnpackRow(PanelFormat format, DType dtype, const uint8_t* panel, int row, int cols,
               float* out) {
  if (format == PanelFormat::kBlocks) return UnpackGroupRow(dtype, panel, row, cols, out);
  for (int k = 0; k < cols; ++k) {
    const size_t at = DensePlace(format, row, k);
    if (format == PanelFormat::kF32) {
      out[k] = reinterpret_cast<const float*>(panel)[at];
    } else {
      const uint16_t bits = reinterpret_cast<const uint16_t*>(panel)[at];
      out[k] = format == PanelFormat::kF16 ? F16ToFloat(bits) : BF16ToFloat(bits);
    }
  }
}

}  // namespace hydrant::cpu
