// Quantized block types as tiles (kernels/cuda/tiles.h) in device memory: how stored blocks become
// a tile, and how a tile becomes tensor-core operands and scales. A new type adds one Format.
//
// A tile is divided along its columns into steps of 32. The 32 lanes of a warp hold a step's 32 x
// 32 quants in the layout of Mma16816, two tiles of 16 rows by two of 16 columns. Lane 4 g + t
// holds rows g, g + 8, g + 16, g + 24 and columns 4 t to 4 t + 3 of each 16, as 16 pairs of
// neighbouring columns. Pair 8 i + 4 j + 2 p + h is row 16 i + 8 h + g, columns 16 j + 4 t + 2 p
// and the next. (The product allows any assignment of columns to positions 2 t, 2 t + 1, 2 t + 8, 2
// t + 9, provided x uses the same one.) 5-bit quants use two planes, four bits and one. A plane of
// b bits takes b words per lane and step, so a lane reads 16 bytes of 4-bit quants at once. As in
// Marlin (Frantar et al., arXiv 2408.11743, section 3.4), each thread's 16 bytes are exactly the
// operands that it needs. Scales follow the planes in the file's encoding, rows interleaved.
//
// Quants convert to bf16 integers exactly: 0x4300 | q is 128 + q for q < 128. A Format's zero (128
// + 8 for q4_0) is subtracted from the sum, not from each quant.
#ifndef HYDRANT_KERNELS_CUDA_BLOCK_FORMATS_CUH_
#define HYDRANT_KERNELS_CUDA_BLOCK_FORMATS_CUH_

#include <cuda_runtime.h>

#include "kernels/codebooks.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tiles.h"

namespace hydrant::cuda {

inline constexpr int kStepColumns = 32;
inline constexpr int kStepPairs = 16;  // per lane

// A plane of kBits per quant. Word v of a lane holds 16 / kBits pairs; the first quant of each pair
// is in the lower half of the word.
template <int kBits>
struct Plane {
  static constexpr int kWordPairs = 16 / kBits;
  static constexpr int kVector = kBits < 4 ? kBits : 4;  // words read at once
  static constexpr int kStepBytes = 128 * kBits;

  __device__ static int At(int step, int lane, int word) {  // index of the word
    return (step * (kBits / kVector) + word / kVector) * 32 * kVector + lane * kVector +
           word % kVector;
  }
  __device__ static void Load(const uint8_t* plane, int step, int lane, uint32_t (&words)[kBits]) {
    const auto* const from = reinterpret_cast<const uint32_t*>(plane);
#pragma unroll
    for (int v = 0; v < kBits; v += kVector) {
      const uint32_t* const at = from + At(step, lane, v);
      if constexpr (kVector == 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(at);
        words[v] = four.x;
        words[v + 1] = four.y;
        words[v + 2] = four.z;
        words[v + 3] = four.w;
      } else if constexpr (kVector == 2) {
        const uint2 two = *reinterpret_cast<const uint2*>(at);
        words[v] = two.x;
        words[v + 1] = two.y;
      } else {
        words[v] = *at;
      }
    }
  }
  // Both quants of a pair, one per half, shifted to bit `position`, merged with
  // the bits of `other`.
  __device__ static uint32_t Pair(const uint32_t (&words)[kBits], int pair, int position,
                                  uint32_t other) {
    const uint32_t word = words[pair / kWordPairs];
    const int at = pair % kWordPairs * kBits;
    const uint32_t moved = at >= position ? word >> (at - position) : word << (position - at);
    return AndOr(moved, ((1u << kBits) - 1u) * 0x00010001u << position, other);
  }
  // The same for 8-bit quants at bit 0; the remaining bits belong to another pair.
  __device__ static uint32_t Half(const uint32_t (&words)[kBits], int pair) {
    return words[pair / kWordPairs] >> pair % kWordPairs * kBits;
  }
  // Stores kBits bits of all quants, starting at bit `from`.
  __device__ static void Store(uint8_t* plane, int step, int lane, const uint32_t* quants,
                               int from) {
    auto* const to = reinterpret_cast<uint32_t*>(plane);
    for (int v = 0; v < kBits; ++v) {
      uint32_t word = 0;
      for (int i = 0; i < 2 * kWordPairs; ++i) {
        const uint32_t bits = quants[v * 2 * kWordPairs + i] >> from & ((1u << kBits) - 1u);
        word |= bits << (i / 2 * kBits + i % 2 * 16);
      }
      to[At(step, lane, v)] = word;
    }
  }
};

// Scale and offset of a row's column group: value = scale * (number - zero) + min, rounded after
// each operation, as in kernels/dequantize.h.
struct Scale {
  float scale, min;
};

// Entry `index` of the rows' headers in a tile.
template <typename T>
__device__ T HeaderOf(const uint8_t* header, int index, int row) {
  return reinterpret_cast<const T*>(header)[index * kTileRows + row];
}

__device__ inline float HalfBits(uint32_t pair, int which) { return HalfOf<false>(pair, which); }

// Two int8 values, one per half, as bf16. Exact: 128 + the low seven bits, less 128, or less 256
// where the sign bit is set.
__device__ inline uint32_t SignedPair(uint32_t bytes) {
  constexpr uint32_t k128 = 0x43004300u, kMinusOne = 0xBF80BF80u;
  return FmaHalves(AndOr(bytes, 0x00800080u, k128), kMinusOne, AndOr(bytes, 0x007F007Fu, k128));
}

// Two e4m3 values as bf16: same exponent and mantissa bits, 2^120 too small before the multiply.
__device__ inline uint32_t E4M3Pair(uint32_t bytes) {
  constexpr uint32_t k2To120 = 0x7B807B80u, kMinusZero = 0x80008000u;
  return FmaHalves(AndOr(bytes << 8, 0x80008000u, bytes << 4 & 0x07F007F0u), k2To120, kMinusZero);
}

// --- Shared by all formats. kFirst: offset of the header in a stored block.

template <DType kType, int kBlockBytes_, int kLow, int kHigh, int kHeader, int kFirst>
struct FormatOf {
  static constexpr DType kDType = kType;
  static constexpr bool kIsSuper = kBlockBytes_ >= 84 && kType != DType::kF8_E4M3;
  static constexpr int kBlockColumns = kIsSuper ? 256 : kType == DType::kF8_E4M3 ? 128 : 32;
  static constexpr int kColumns = kIsSuper ? 256 : 128;  // of a tile
  static constexpr int kBlockBytes = kBlockBytes_;
  static constexpr int kSteps = kColumns / kStepColumns;
  static constexpr int kBits = kLow + kHigh;
  static constexpr int kBlockHeader = kHeader;  // bytes
  static constexpr int kHeaderBytes = kHeader * kColumns / kBlockColumns;
  static constexpr int kHeaderUnit =
      kHeaderBytes % 4 == 0 ? 4 : 2;  // bytes of a row that stay contiguous
  static constexpr int kHeaderAt = kSteps * 128 * kBits;
  static constexpr int kTileBytes = kHeaderAt + kTileRows * kHeaderBytes;
  static_assert(kTileBytes == kTileRows * kBlockBytes * kColumns / kBlockColumns);
  static constexpr int kScaleColumns = 32;  // columns that share a scale
  static constexpr bool kScaled = true;
  static constexpr bool kNeedsSums = true;  // sums of x, for zero and min
  static constexpr bool kRowMajor = false;

  __device__ static int HeaderByte(int i) { return kFirst + i; }

  // Loads values 128 + quant.
  __device__ static void Load(const uint8_t* tile, int step, int lane,
                              uint32_t (&pairs)[kStepPairs]) {
    uint32_t low[kLow];
    Plane<kLow>::Load(tile, step, lane, low);
#pragma unroll
    for (int pair = 0; pair < kStepPairs; ++pair)
      pairs[pair] = Plane<kLow>::Pair(low, pair, 0, 0x43004300u);
    if constexpr (kHigh > 0) {
      uint32_t high[kHigh];
      Plane<kHigh>::Load(tile + kSteps * Plane<kLow>::kStepBytes, step, lane, high);
#pragma unroll
      for (int pair = 0; pair < kStepPairs; ++pair)
        pairs[pair] = Plane<kHigh>::Pair(high, pair, kLow, pairs[pair]);
    }
  }
  __device__ static void Store(uint8_t* tile, int step, int lane, const uint32_t* quants) {
    Plane<kLow>::Store(tile, step, lane, quants, 0);
    if constexpr (kHigh > 0)
      Plane<kHigh>::Store(tile + kSteps * Plane<kLow>::kStepBytes, step, lane, quants, kLow);
  }
};

// Quant i of a block of 32; its nibbles begin at byte `first`.
__device__ inline uint32_t Nibble(const uint8_t* block, int first, int i) {
  return block[first + i % 16] >> i / 16 * 4 & 15u;
}
__device__ inline uint32_t FifthBit(const uint8_t* block, int first, int i) {
  return (block[first + i / 8] >> i % 8 & 1u) << 4;
}
// For q4_k and q5_k: groups 2i and 2i + 1 share 32 bytes.
__device__ inline uint32_t NibbleOfGroups(const uint8_t* block, int first, int i) {
  return block[first + i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15u;
}
// For q2_k and q3_k.
__device__ inline uint32_t BitPair(const uint8_t* block, int first, int i) {
  return block[first + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3u;
}

// Eight 6-bit scales and minima in three words (kernels/dequantize.cc, UnpackScale).
__device__ inline Scale ScaleAndMinOf(const uint8_t* header, int index, int row) {
  const auto both = HeaderOf<uint32_t>(header, 0, row);
  uint32_t scale = HeaderOf<uint32_t>(header, 1, row) >> index % 4 * 8;
  uint32_t min = HeaderOf<uint32_t>(header, 2, row) >> index % 4 * 8;
  if (index < 4) {  // uniform across the warp
    scale &= 63u;
    min &= 63u;
  } else {
    const uint32_t nibbles = HeaderOf<uint32_t>(header, 3, row) >> index % 4 * 8;
    scale = (nibbles & 15u) | (scale >> 2 & 48u);
    min = (nibbles >> 4 & 15u) | (min >> 2 & 48u);
  }
  return {__fmul_rn(HalfBits(both, 0), static_cast<float>(scale)),
          -__fmul_rn(HalfBits(both, 1), static_cast<float>(min))};
}

// --- The types.

template <DType kDType>
struct Format;

template <>
struct Format<DType::kQ4_0> : FormatOf<DType::kQ4_0, 18, 4, 0, 2, 0> {
  static constexpr float kZero = 128 + 8;
  __device__ static uint32_t Quant(const uint8_t* block, int i) { return Nibble(block, 2, i); }
  __device__ static Scale ScaleOf(const uint8_t* header, int index, int row) {
    return {HalfBits(HeaderOf<uint32_t>(header, index / 2, row), index % 2), 0.0f};
  }
};

template <>
struct Format<DType::kQ4_1> : FormatOf<DType::kQ4_1, 20, 4, 0, 4, 0> {
  static constexpr float kZero = 128;
  __device__ static uint32_t Quant(const uint8_t* block, int i) { return Nibble(block, 4, i); }
  __device__ static Scale ScaleOf(const uint8_t* header, int index, int row) {
    const auto both = HeaderOf<uint32_t>(header, index, row);
    return {HalfBits(both, 0), HalfBits(both, 1)};
  }
};

template <>
struct Format<DType::kQ5_0> : FormatOf<DType::kQ5_0, 22, 4, 1, 2, 0> {
  static constexpr float kZero = 128 + 16;
  __device__ static uint32_t Quant(const uint8_t* block, int i) {
    return Nibble(block, 6, i) | FifthBit(block, 2, i);
  }
  __device__ static Scale ScaleOf(const uint8_t* header, int index, int row) {
    return Format<DType::kQ4_0>::ScaleOf(header, index, row);
  }
};

template <>
struct Format<DType::kQ5_1> : FormatOf<DType::kQ5_1, 24, 4, 1, 4, 0> {
  static constexpr float kZero = 128;
  __device__ static uint32_t Quant(const uint8_t* block, int i) {
    return Nibble(block, 8, i) | FifthBit(block, 4, i);
  }
  __device__ static Scale ScaleOf(const uint8_t* header, int index, int row) {
    return Format<DType::kQ4_1>::ScaleOf(header, index, row);
  }
};

template <>
struct Format<DType::kQ4_K> : FormatOf<DType::kQ4_K, 144, 4, 0, 16, 0> {
  static constexpr float kZero = 128;
  __device__ static uint32_t Quant(const uint8_t* block, int i) {
    return NibbleOfGroups(block, 16, i);
  }
  __device__ static Scale ScaleOf(const uint8_t* header, int index, int row) {
    return ScaleAndMinOf(header, index, row);
  }
};

template <>
struct Format<DType::kQ5_K> : FormatOf<DType::kQ5_K, 176, 4, 1, 16, 0> {
  static constexpr float kZero = 128;
  __device__ static uint32_t Quant(const uint8_t* block, int i) {
    return NibbleOfGroups(block, 48, i) | (block[16 + i % 32] >> i / 32 & 1u) << 4;
  }
  __device__ static Scale ScaleOf(const uint8_t* header, int index, int row) {
    return ScaleAndMinOf(header, index, row);
  }
};

template <>
struct Format<DType::kQ6_K> : FormatOf<DType::kQ6_K, 210, 4, 2, 18, 192> {
  static constexpr int kScaleColumns = 16;
  static constexpr float kZero = 128 + 32;
  __device__ static uint32_t Quant(const uint8_t* block, int i) {
    const int half = i / 128, quarter = i % 128 / 32, j = i % 32;
    return (block[half * 64 + quarter % 2 * 32 + j] >> quarter / 2 * 4 & 15u) |
           (block[128 + half * 32 + j] >> quarter * 2 & 3u) << 4;
  }
  __device__ static Scale ScaleOf(const uint8_t* header, int index, int row) {
    const auto scale =
        static_cast<int8_t>(HeaderOf<uint16_t>(header, index / 2, row) >> index % 2 * 8);
    return {__fmul_rn(HalfBits(HeaderOf<uint16_t>(header, 8, row), 0), static_cast<float>(scale)),
            0.0f};
  }
};

template <>
struct Format<DType::kQ2_K> : FormatOf<DType::kQ2_K, 84, 2, 0, 20, 0> {
  static constexpr int kScaleColumns = 16;
  static constexpr float kZero = 128;
  __device__ static int HeaderByte(int i) { return i < 16 ? i : 64 + i; }
  __device__ static uint32_t Quant(const uint8_t* block, int i) { return BitPair(block, 16, i); }
  __device__ static Scale ScaleOf(const uint8_t* header, int index, int row) {
    const uint32_t packed = HeaderOf<uint32_t>(header, index / 4, row) >> index % 4 * 8;
    const auto both = HeaderOf<uint32_t>(header, 4, row);
    return {__fmul_rn(HalfBits(both, 0), static_cast<float>(packed & 15u)),
            -__fmul_rn(HalfBits(both, 1), static_cast<float>(packed >> 4 & 15u))};
  }
};

template <>
struct Format<DType::kQ3_K> : FormatOf<DType::kQ3_K, 110, 2, 1, 14, 96> {
  static constexpr int kScaleColumns = 16;
  static constexpr float kZero = 128 + 4;
  __device__ static uint32_t Quant(const uint8_t* block, int i) {
    return BitPair(block, 32, i) | (block[i % 32] >> i / 32 & 1u) << 2;
  }
  __device__ static Scale ScaleOf(const uint8_t* header, int index, int row) {
    const uint32_t low = HeaderOf<uint16_t>(header, index % 8 / 2, row) >> index % 2 * 8;
    const uint32_t high = HeaderOf<uint16_t>(header, 4 + index % 4 / 2, row) >> index % 2 * 8;
    const auto scale =
        static_cast<int>((low >> index / 8 * 4 & 15u) | (high >> index / 4 * 2 & 3u) << 4) - 32;
    return {__fmul_rn(HalfBits(HeaderOf<uint16_t>(header, 6, row), 0), static_cast<float>(scale)),
            0.0f};
  }
};

// Signed integer pairs; no zero offset.
template <typename Base>
struct SignedFormat : Base {
  static constexpr float kZero = 0;
  static constexpr bool kNeedsSums = false;
};

template <>
struct Format<DType::kQ8_0> : SignedFormat<FormatOf<DType::kQ8_0, 34, 8, 0, 2, 0>> {
  __device__ static uint32_t Quant(const uint8_t* block, int i) { return block[2 + i]; }
  __device__ static void Load(const uint8_t* tile, int step, int lane,
                              uint32_t (&pairs)[kStepPairs]) {
    uint32_t words[8];
    Plane<8>::Load(tile, step, lane, words);
#pragma unroll
    for (int pair = 0; pair < kStepPairs; ++pair)
      pairs[pair] = SignedPair(Plane<8>::Half(words, pair));
  }
  __device__ static Scale ScaleOf(const uint8_t* header, int index, int row) {
    return Format<DType::kQ4_0>::ScaleOf(header, index, row);
  }
};

template <>
struct Format<DType::kF8_E4M3> : SignedFormat<FormatOf<DType::kF8_E4M3, 132, 8, 0, 4, 0>> {
  __device__ static uint32_t Quant(const uint8_t* block, int i) { return block[4 + i]; }
  __device__ static void Load(const uint8_t* tile, int step, int lane,
                              uint32_t (&pairs)[kStepPairs]) {
    uint32_t words[8];
    Plane<8>::Load(tile, step, lane, words);
#pragma unroll
    for (int pair = 0; pair < kStepPairs; ++pair)
      pairs[pair] = E4M3Pair(Plane<8>::Half(words, pair));
  }
  __device__ static Scale ScaleOf(const uint8_t* header, int /*index*/, int row) {
    return {HeaderOf<float>(header, 0, row), 0.0f};
  }
};

// A codebook indexed by nibbles.
struct Codebook {
  uint32_t words[4];  // one byte per value
  constexpr explicit Codebook(const int (&values)[16]) : words() {
    for (int i = 0; i < 16; ++i)
      words[i / 4] |= (static_cast<uint32_t>(values[i]) & 255u) << i % 4 * 8;
  }
};

// The codebook values of the four nibbles in the lower half of a word.
__device__ inline uint32_t LookUp(const uint32_t (&codes)[4], uint32_t nibbles) {
  const uint32_t low = __byte_perm(codes[0], codes[1], nibbles & 0x7777u);
  const uint32_t high = __byte_perm(codes[2], codes[3], nibbles & 0x7777u);
  return __byte_perm(low, high, (nibbles >> 1 & 0x4444u) | 0x3210u);
}

template <typename Base, bool kMxfp4>
struct CodebookFormat : SignedFormat<Base> {
  __device__ static void Load(const uint8_t* tile, int step, int lane,
                              uint32_t (&pairs)[kStepPairs]) {
    constexpr Codebook kCodes(kMxfp4 ? kMxfp4Values : kIq4NlValues);
    uint32_t words[4];
    Plane<4>::Load(tile, step, lane, words);
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const uint32_t first = LookUp(kCodes.words, words[word] & 0xFFFFu);
      const uint32_t second = LookUp(kCodes.words, words[word] >> 16);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        pairs[word * 4 + i] =
            SignedPair(__byte_perm(first, second, 0x0400u + 0x0101u * static_cast<unsigned>(i)));
    }
  }
};

template <>
struct Format<DType::kIQ4_NL> : CodebookFormat<FormatOf<DType::kIQ4_NL, 18, 4, 0, 2, 0>, false> {
  __device__ static uint32_t Quant(const uint8_t* block, int i) { return Nibble(block, 2, i); }
  __device__ static Scale ScaleOf(const uint8_t* header, int index, int row) {
    return Format<DType::kQ4_0>::ScaleOf(header, index, row);
  }
};

template <>
struct Format<DType::kIQ4_XS> : CodebookFormat<FormatOf<DType::kIQ4_XS, 136, 4, 0, 8, 0>, false> {
  __device__ static uint32_t Quant(const uint8_t* block, int i) {
    return Nibble(block, 8 + i / 32 * 16, i % 32);
  }
  __device__ static Scale ScaleOf(const uint8_t* header, int index, int row) {
    const auto first = HeaderOf<uint32_t>(header, 0, row);  // one half (d), then pairs
    const uint32_t nibble = HeaderOf<uint32_t>(header, 1, row) >> index * 4 & 15u;
    const auto scale = static_cast<int>(nibble | (first >> (16 + 2 * index) & 3u) << 4) - 32;
    return {__fmul_rn(HalfBits(first, 0), static_cast<float>(scale)), 0.0f};
  }
};

template <>
struct Format<DType::kMXFP4> : CodebookFormat<FormatOf<DType::kMXFP4, 17, 4, 0, 1, 0>, true> {
  __device__ static uint32_t Quant(const uint8_t* block, int i) { return Nibble(block, 1, i); }
  // 2^(e - 128); 0 and 1 are denormal (kernels/float16.h, HalfE8M0ToFloat).
  __device__ static Scale ScaleOf(const uint8_t* header, int index, int row) {
    const uint32_t e = HeaderOf<uint32_t>(header, 0, row) >> index * 8 & 255u;
    return {__uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23), 0.0f};
  }
};

// Unquantized: the pairs are the operands.
template <>
struct Format<DType::kBF16> {
  static constexpr DType kDType = DType::kBF16;
  static constexpr int kBlockColumns = 1, kBlockBytes = 2, kBlockHeader = 0, kHeaderBytes = 0;
  static constexpr int kHeaderUnit = 2;
  static constexpr int kColumns = 128, kSteps = 4, kBits = 16;
  static constexpr int kHeaderAt = kSteps * 128 * kBits, kTileBytes = kHeaderAt;
  static constexpr int kScaleColumns = 32;
  static constexpr bool kScaled = false, kNeedsSums = false, kRowMajor = false;
  static constexpr float kZero = 0;
  __device__ static int HeaderByte(int i) { return i; }
  __device__ static uint32_t Quant(const uint8_t* block, int /*i*/) {
    return *reinterpret_cast<const uint16_t*>(block);
  }
  __device__ static void Load(const uint8_t* tile, int step, int lane,
                              uint32_t (&pairs)[kStepPairs]) {
    Plane<16>::Load(tile, step, lane, pairs);
  }
  __device__ static void Store(uint8_t* tile, int step, int lane, const uint32_t* quants) {
    Plane<16>::Store(tile, step, lane, quants, 0);
  }
  __device__ static Scale ScaleOf(const uint8_t* /*header*/, int /*index*/, int /*row*/) {
    return {1.0f, 0.0f};
  }
};

// A tile of a row-major weight in shared memory: 64 bytes of each of 32 rows per step. Swizzled so
// that warps copying 16 bytes per lane and warps reading 8 bytes per lane have no bank conflicts.
struct RowsOfBF16 : Format<DType::kBF16> {
  static constexpr bool kRowMajor = true;
  static constexpr int kStepBytes = kTileRows * kStepColumns * 2;

  // Offset of 8 columns of a row.
  __device__ static int PlaceOf(int step, int row, int chunk) {
    return step * kStepBytes + (row ^ (step & 1)) * 64 + (chunk ^ (row & 2)) * 16;
  }
  __device__ static void Load(const uint8_t* tile, int step, int lane,
                              uint32_t (&pairs)[kStepPairs]) {
    const int t = lane % 4;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint2 two = *reinterpret_cast<const uint2*>(
            tile + PlaceOf(step, 8 * r + lane / 4, 2 * j + t / 2) + t % 2 * 8);
        const int first = 8 * (r / 2) + 4 * j + r % 2;
        pairs[first] = two.x;
        pairs[first + 2] = two.y;
      }
    }
  }
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_BLOCK_FORMATS_CUH_
