// Block weights for many rows, in 8 bits. The blocks of a panel are unpacked once for all rows, to
// signed bytes that are multiplied directly. A block's minimum, or scales per half, would cost each
// product extra work: such blocks are rounded again, to 8 bits with a scale only.
#include <immintrin.h>

#include "kernels/cpu/isa/byte_dots.h"
#include "kernels/cpu/isa/unroll.h"
#include "kernels/cpu/matmul/matmul_avx512_blocks-inl.h"
#include "kernels/cpu/matmul/matmul_rows-inl.h"

namespace hydrant::cpu {
namespace {

// Lower bound of a block's share of its row's largest scale, or magnitude: anything smaller is
// negligible beside the largest.
constexpr float kSmallestShare = 0x1p-60f;
constexpr int kMaxHalvings = 16;

// A panel in 8 bits, in PanelArgs::scratch. Value of column k of a row: quant * its block's
// scale * the row's scale.
struct Panel8 {
  int8_t* quants;     // [cols / 4][16 rows][4]
  float* scales;      // [blocks][16]: magnitudes from kSmallestShare to 1
  int32_t* starts;    // [blocks][16]: -128 * sum of the block's quants; activations have 128 added
  float* row_scales;  // [16]
};

Panel8 PanelIn(uint8_t* scratch, int cols, int which) {
  const size_t values = static_cast<size_t>(cols) * kPanelRows, scales = values / kBlock;
  const size_t bytes = values + scales * (sizeof(float) + sizeof(int32_t));
  uint8_t* p = scratch + which * (bytes + kPanelRows * sizeof(float));
  Panel8 panel;
  panel.quants = reinterpret_cast<int8_t*>(p);
  panel.scales = reinterpret_cast<float*>(p + values);
  panel.starts = reinterpret_cast<int32_t*>(panel.scales + scales);
  panel.row_scales = reinterpret_cast<float*>(p + bytes);
  return panel;
}

// value = scale * quant + least, for a block's half or the whole block.
struct Line {
  __m512 scale, least;
};

template <DType dtype>
inline Line LineOf(const uint8_t* group, const GroupLayout& layout, int block, int half) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  Line line = {ScaleOf<dtype>(group, layout, block, half), _mm512_setzero_ps()};
  if constexpr (kTraits.has_min) line.least = MinOf<dtype>(group, layout, block, half);
  if constexpr (kTraits.offset != 0)
    line.least = _mm512_fnmadd_ps(line.scale, _mm512_set1_ps(kTraits.offset), line.least);
  return line;
}

// An upper bound of the magnitudes in each row of the block. It is tight: a block's scale was
// chosen so that its largest quant is the format's, or nearly.
template <DType dtype>
inline __m512 PeakOf(const Line (&lines)[2]) {
  __m512 peak = _mm512_setzero_ps();
  for (const Line& line : lines) {
    const __m512 other =
        _mm512_fmadd_ps(line.scale, _mm512_set1_ps(LargestQuant(BlockTraitsOf(dtype))), line.least);
    peak = _mm512_max_ps(peak, _mm512_max_ps(_mm512_abs_ps(line.least), _mm512_abs_ps(other)));
  }
  return peak;
}

// Converts quants of the file to 8 bits; `line` is divided by the new scale. Quants of at most 6
// bits use integers in units of 1 / 256, which wrap around on the way; wider ones use floats.
template <bool kFewBits>
struct Requantizer;

template <>
struct Requantizer<true> {
  __m512i scale, least;  // duplicated in both halves of each row's lane

  explicit Requantizer(const Line& line) {
    const auto twice = [](__m512 value) {
      const __m512i steps = _mm512_cvtps_epi32(value);
      return _mm512_or_si512(_mm512_and_si512(steps, _mm512_set1_epi32(0xffff)),
                             _mm512_slli_epi32(steps, 16));
    };
    const __m512 parts = _mm512_set1_ps(256.0f);
    scale = twice(_mm512_mul_ps(line.scale, parts));
    least = twice(_mm512_fmadd_ps(line.least, parts, _mm512_set1_ps(128.0f)));  // rounds to nearest
  }
  __m512i operator()(__m512i quants) const {
    const __m512i low = _mm512_set1_epi16(0xff);
    const __m512i even = _mm512_mullo_epi16(_mm512_and_si512(quants, low), scale);
    const __m512i odd = _mm512_mullo_epi16(_mm512_srli_epi16(quants, 8), scale);
    return _mm512_or_si512(_mm512_srli_epi16(_mm512_add_epi16(even, least), 8),
                           _mm512_andnot_si512(low, _mm512_add_epi16(odd, least)));
  }
};

template <>
struct Requantizer<false> {
  Line line;

  explicit Requantizer(const Line& divided) : line(divided) {}
  __m512i operator()(__m512i quants) const {
    const __m512i byte = _mm512_set1_epi32(255);
    __m512i packed = _mm512_setzero_si512();
    for (int i = 3; i >= 0; --i) {
      const __m512i quant = _mm512_and_si512(_mm512_srli_epi32(quants, 8 * i), byte);
      const __m512i rounded =
          _mm512_cvtps_epi32(_mm512_fmadd_ps(line.scale, _mm512_cvtepi32_ps(quant), line.least));
      packed = _mm512_or_si512(_mm512_slli_epi32(packed, 8), _mm512_and_si512(rounded, byte));
    }
    return packed;
  }
};

// Whether quants minus their offset are the bytes to multiply.
constexpr bool IsScaleAlone(const BlockTraits& traits) { return !traits.has_min && !traits.halves; }

// Converts a block to bytes; returns their scales.
template <DType dtype>
inline __m512 ToBytes(const uint8_t* group, const GroupLayout& layout, int block,
                      __m512i quants[8]) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  if constexpr (IsScaleAlone(kTraits)) {
    for (int i = 0; i < 8; ++i)
      quants[i] = _mm512_sub_epi8(quants[i], _mm512_set1_epi8(static_cast<char>(kTraits.offset)));
    return ScaleOf<dtype>(group, layout, block, 0);
  } else {
    const Line lines[2] = {LineOf<dtype>(group, layout, block, 0),
                           LineOf<dtype>(group, layout, block, kTraits.halves ? 1 : 0)};
    const __m512 peak = PeakOf<dtype>(lines);
    const __mmask16 usual = _mm512_cmp_ps_mask(peak, _mm512_set1_ps(kSmallestPeak), _CMP_GT_OQ);
    const __m512 inverse = _mm512_maskz_div_ps(usual, _mm512_set1_ps(127.0f), peak);
    for (int half = 0; half < 2; ++half) {
      const Requantizer<LargestQuant(BlockTraitsOf(dtype)) < 64> requantized(
          {_mm512_mul_ps(lines[half].scale, inverse), _mm512_mul_ps(lines[half].least, inverse)});
      for (int i = half * 4; i < half * 4 + 4; ++i) quants[i] = requantized(quants[i]);
    }
    return _mm512_mul_ps(peak, _mm512_set1_ps(1.0f / 127.0f));
  }
}

// Converts scales to shares of the largest of their row, so that their exponents leave room for
// those of activations. Zero scales become tiny: their quants are zero.
inline void ShareRowScales(int num_blocks, const Panel8& panel) {
  __m512 largest = _mm512_set1_ps(kSmallestPeak);
  __m512 fault = _mm512_setzero_ps();  // NaN where a scale is not finite
  for (int block = 0; block < num_blocks; ++block) {
    const __m512 scale = _mm512_load_ps(panel.scales + block * kPanelRows);
    largest = _mm512_max_ps(_mm512_abs_ps(scale), largest);
    fault = _mm512_fmadd_ps(scale, _mm512_setzero_ps(), fault);
  }
  _mm512_store_ps(panel.row_scales, _mm512_add_ps(largest, fault));
  const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), largest);
  const __m512 smallest = _mm512_set1_ps(kSmallestShare);
  for (int block = 0; block < num_blocks; ++block) {
    float* const scales = panel.scales + block * kPanelRows;
    const __m512 share = _mm512_mul_ps(_mm512_load_ps(scales), inverse);
    const __mmask16 usual = _mm512_cmp_ps_mask(_mm512_abs_ps(share), smallest, _CMP_GE_OQ);
    _mm512_store_ps(scales, _mm512_mask_mov_ps(smallest, usual, share));
  }
}

template <DType dtype>
void Unpack(const PanelArgs& args, int panel, const Panel8& out) {
  const int num_blocks = args.cols / kBlock;
  const GroupLayout layout = GroupLayoutOf(BlockTraitsOf(dtype), num_blocks);
  const uint8_t* group = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
  const size_t block_bytes = args.panel_bytes / num_blocks;
  for (int block = 0; block < num_blocks; ++block) {
    __m512i quants[8];
    PrefetchAhead<Cache::kFirst>(group + block * block_bytes, block_bytes);
    UnpackBlock<dtype>(group, layout, block, quants);
    const __m512 scale = ToBytes<dtype>(group, layout, block, quants);
    __m512i sum = _mm512_setzero_si512();
    for (int i = 0; i < 8; ++i) {
      _mm512_store_si512(out.quants + (static_cast<size_t>(block) * 8 + i) * 64, quants[i]);
      AddByteDots(_mm512_set1_epi8(1), quants[i], &sum);
    }
    _mm512_store_ps(out.scales + block * kPanelRows, scale);
    _mm512_store_si512(out.starts + block * kPanelRows,
                       _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sum, 7)));
  }
  ShareRowScales(num_blocks, out);
}

// Multiplies floats by powers of two by adding to their exponent fields: multiplications would
// compete with the dot products for the same units.
inline __m512 Raise(__m512i floats, __m512i exponents) {
  return _mm512_castsi512_ps(_mm512_add_epi32(floats, exponents));
}

// Scales of the panel's rows for a row of activations with scale `scale`.
inline __m512 RowScalesOf(const Panel8& panel, __m512 scale) {
  return _mm512_mul_ps(_mm512_load_ps(panel.row_scales), scale);
}

// kRows rows of a tile from `row` on by two panels; a second panel past the last one is not stored.
// Integer and float sums all stay in registers, which limits the rows.
template <int kRows>
void ManyTile(const PanelArgs& args, const Panel8& one, const Panel8& other, int row, int panel) {
  const int num_blocks = args.cols / kBlock;
  const size_t tile = static_cast<size_t>(row / kTileRows);
  const uint8_t* x = args.interleaved.quants + tile * args.cols * kTileRows + row % kTileRows * 4;
  const int32_t* exponents =
      args.interleaved.exponents + tile * num_blocks * kTileRows + row % kTileRows;
  const int8_t* one_quants = one.quants;
  const int8_t* other_quants = other.quants;
  __m512 sums[kRows], other_sums[kRows];
  Unroll<kRows>(HYDRANT_UNROLLED(r) { sums[r] = other_sums[r] = _mm512_setzero_ps(); });
  for (int block = 0; block < num_blocks; ++block, exponents += kTileRows) {
    __m512i dots[kRows], other_dots[kRows];
    Unroll<kRows>(HYDRANT_UNROLLED(r) {
      dots[r] = _mm512_load_si512(one.starts + block * kPanelRows);
      other_dots[r] = _mm512_load_si512(other.starts + block * kPanelRows);
    });
    for (int step = 0; step < kBlock / 4; ++step) {
      const __m512i a = _mm512_load_si512(one_quants), b = _mm512_load_si512(other_quants);
      Unroll<kRows>(HYDRANT_UNROLLED(r) {
        const __m512i values = _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(x + r * 4));
        AddByteDots(values, a, &dots[r]);
        AddByteDots(values, b, &other_dots[r]);
      });
      x += 4 * kTileRows;
      one_quants += 64;
      other_quants += 64;
    }
    const __m512i scale = _mm512_load_si512(one.scales + block * kPanelRows);
    const __m512i other_scale = _mm512_load_si512(other.scales + block * kPanelRows);
    Unroll<kRows>(HYDRANT_UNROLLED(r) {
      const __m512i exponent = _mm512_set1_epi32(exponents[r]);
      sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), Raise(scale, exponent), sums[r]);
      other_sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(other_dots[r]),
                                      Raise(other_scale, exponent), other_sums[r]);
    });
  }
  const float* scales = args.interleaved.scales + row;
  Unroll<kRows>(HYDRANT_UNROLLED(r) {
    if (row + r >= args.end_row) return;
    const __m512 scale = _mm512_set1_ps(scales[r]);
    StoreRow(args, row + r, panel, _mm512_mul_ps(sums[r], RowScalesOf(one, scale)));
    if (panel + 1 < args.end_panel)
      StoreRow(args, row + r, panel + 1, _mm512_mul_ps(other_sums[r], RowScalesOf(other, scale)));
  });
}

// Processes the rows of a tile in three parts: 6, 6 and 4.
template <DType dtype>
struct ManyRange {
  static void Run(const PanelArgs& args) {
    for (int panel = args.first_panel; panel < args.end_panel; panel += 2) {
      const Panel8 one = PanelIn(args.scratch, args.cols, 0);
      Panel8 other = one;
      Unpack<dtype>(args, panel, one);
      if (panel + 1 < args.end_panel) {
        other = PanelIn(args.scratch, args.cols, 1);
        Unpack<dtype>(args, panel + 1, other);
      }
      for (int row = args.first_row; row < args.end_row; row += kTileRows) {
        ManyTile<6>(args, one, other, row, panel);
        if (row + 6 < args.end_row) ManyTile<6>(args, one, other, row + 6, panel);
        if (row + 12 < args.end_row) ManyTile<4>(args, one, other, row + 12, panel);
      }
    }
  }
};

// The largest number of each row of a tile, one row per vector on entry; row r in lane r.
inline __m512i LargestOfRows(__m512i rows[kTileRows]) {
  // Each step halves the number of vectors; joining distant pairs leaves the rows in order.
  for (int r = 0; r < 8; ++r) {
    const __m512i one = rows[r], other = rows[r + 8];
    rows[r] = _mm512_max_epi32(_mm512_shuffle_i32x4(one, other, 0x44),
                               _mm512_shuffle_i32x4(one, other, 0xee));
  }
  for (int r = 0; r < 4; ++r) {
    const __m512i one = rows[r], other = rows[r + 4];
    rows[r] = _mm512_max_epi32(_mm512_shuffle_i32x4(one, other, 0x88),
                               _mm512_shuffle_i32x4(one, other, 0xdd));
  }
  // A quarter each of rows r, r + 8, r + 4 and r + 12.
  const auto join = [](__m512i one, __m512i other) {
    return _mm512_max_epi32(_mm512_unpacklo_epi32(one, other), _mm512_unpackhi_epi32(one, other));
  };
  const __m512i all = join(join(rows[0], rows[2]), join(rows[1], rows[3]));
  const __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15);
  return _mm512_permutexvar_epi32(order, all);
}

// Scales from rows to bytes, from the bits of each row's largest magnitude. A block is quantised
// in steps of the row's scale, halved as often as the block's values allow, so that products need
// only an exponent per block.
struct RowScales {
  __m512 scale;    // NaN where a number is not finite; 0 where all are 0 or too small for 1 / scale
  __m512 peak;     // the largest magnitude; 1 in those cases
  __m512 inverse;  // 1 / scale; 0 in those cases

  explicit RowScales(__m512i largest) {
    const __m512 limit = _mm512_set1_ps(kQuantLimit8);
    peak = _mm512_castsi512_ps(largest);
    // Bits of infinity and NaN exceed those of any number.
    const __mmask16 finite =
        _mm512_cmple_epi32_mask(largest, _mm512_castps_si512(_mm512_set1_ps(kLargestFloat)));
    const __mmask16 usual =
        _mm512_mask_cmp_ps_mask(finite, peak, _mm512_set1_ps(kSmallestPeak), _CMP_GE_OQ);
    scale = _mm512_mask_mov_ps(_mm512_set1_ps(__builtin_nanf("")), finite,
                               _mm512_maskz_div_ps(usual, peak, limit));
    inverse = _mm512_maskz_div_ps(usual, limit, peak);
    peak = _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), usual, peak);
  }

  // From the largest magnitude of each row in a block: the number to add to a float's bits for the
  // halvings of the block's scale.
  __m512i ExponentsOf(__m512i largest) const {
    constexpr int32_t kMantissa = 0x7fffff, kOne = 0x3f800000;
    const __m512 share = _mm512_div_ps(_mm512_castsi512_ps(largest), peak);
    const __m512i up = _mm512_add_epi32(_mm512_castps_si512(share), _mm512_set1_epi32(kMantissa));
    const __m512i exponents = _mm512_sub_epi32(
        _mm512_andnot_si512(_mm512_set1_epi32(kMantissa), up), _mm512_set1_epi32(kOne));
    const __m512i least = _mm512_set1_epi32(-kMaxHalvings * (kMantissa + 1));
    return _mm512_min_epi32(_mm512_max_epi32(exponents, least), _mm512_setzero_si512());
  }
  // The factor for the numbers of such a block.
  __m512 InverseOf(__m512i exponents) const {
    const __m512i raised = _mm512_sub_epi32(_mm512_castps_si512(inverse), exponents);
    return _mm512_mask_mov_ps(_mm512_setzero_ps(),
                              _mm512_cmp_ps_mask(inverse, _mm512_setzero_ps(), _CMP_GT_OQ),
                              _mm512_castsi512_ps(raised));
  }
};

// Sixteen columns of a tile's rows to bytes with 128 added, four columns per vector.
inline void StoreBytes(const __m512 rows[kTileRows], const float* inverse, uint8_t* out) {
  __m512i four[4];  // rows 4i to 4i + 3; each quarter holds four columns
  for (int i = 0; i < 4; ++i) {
    const auto ints = [&](int r) {
      return _mm512_cvtps_epi32(_mm512_mul_ps(rows[4 * i + r], _mm512_set1_ps(inverse[4 * i + r])));
    };
    const __m512i bytes = _mm512_packs_epi16(_mm512_packs_epi32(ints(0), ints(1)),
                                             _mm512_packs_epi32(ints(2), ints(3)));
    four[i] = _mm512_xor_si512(bytes, _mm512_set1_epi8(static_cast<char>(0x80)));
  }
  const __m512i low[2] = {_mm512_shuffle_i32x4(four[0], four[1], 0x44),
                          _mm512_shuffle_i32x4(four[2], four[3], 0x44)};
  const __m512i high[2] = {_mm512_shuffle_i32x4(four[0], four[1], 0xee),
                           _mm512_shuffle_i32x4(four[2], four[3], 0xee)};
  _mm512_storeu_si512(out, _mm512_shuffle_i32x4(low[0], low[1], 0x88));
  _mm512_storeu_si512(out + 64, _mm512_shuffle_i32x4(low[0], low[1], 0xdd));
  _mm512_storeu_si512(out + 128, _mm512_shuffle_i32x4(high[0], high[1], 0x88));
  _mm512_storeu_si512(out + 192, _mm512_shuffle_i32x4(high[0], high[1], 0xdd));
}

// The larger magnitude per lane, as bits, of a row's block.
inline __m512i Magnitudes(const float* x) {
  const auto bits = [x](int half) {
    return _mm512_castps_si512(_mm512_abs_ps(_mm512_loadu_ps(x + half * 16)));
  };
  return _mm512_max_epi32(bits(0), bits(1));
}

// Quantises all rows of a tile, which begins at x.
void QuantizeTile(const float* x, int cols, uint8_t* quants, int32_t* exponents, float* scales) {
  const int num_blocks = cols / kBlock;
  __m512i magnitudes[kTileRows];
  for (int r = 0; r < kTileRows; ++r) {
    magnitudes[r] = _mm512_setzero_si512();
    for (int block = 0; block < num_blocks; ++block) {
      const float* const from = x + static_cast<size_t>(r) * cols + block * kBlock;
      magnitudes[r] = _mm512_max_epi32(magnitudes[r], Magnitudes(from));
    }
  }
  const RowScales rows(LargestOfRows(magnitudes));
  _mm512_storeu_ps(scales, rows.scale);
  for (int block = 0; block < num_blocks; ++block, exponents += kTileRows) {
    const float* const first = x + block * kBlock;
    for (int r = 0; r < kTileRows; ++r)
      magnitudes[r] = Magnitudes(first + static_cast<size_t>(r) * cols);
    const __m512i of_block = rows.ExponentsOf(LargestOfRows(magnitudes));
    _mm512_storeu_si512(exponents, of_block);
    alignas(64) float inverse[kTileRows];
    _mm512_store_ps(inverse, rows.InverseOf(of_block));
    for (int half = 0; half < 2; ++half, quants += kBlock / 2 * kTileRows) {
      __m512 values[kTileRows];
      for (int r = 0; r < kTileRows; ++r)
        values[r] = _mm512_loadu_ps(first + static_cast<size_t>(r) * cols + half * 16);
      StoreBytes(values, inverse, quants);
    }
  }
}

// Quantises a single row into its lane: four bytes of a block every kTileRows * 4 bytes.
void QuantizeRow(const float* x, int cols, uint8_t* quants, int32_t* exponents, float* scale) {
  const int num_blocks = cols / kBlock;
  const auto largest_of = [](__m512i magnitudes) {
    return _mm512_set1_epi32(_mm512_reduce_max_epi32(magnitudes));
  };
  __m512i magnitudes = _mm512_setzero_si512();
  for (int block = 0; block < num_blocks; ++block)
    magnitudes = _mm512_max_epi32(magnitudes, Magnitudes(x + block * kBlock));
  const RowScales row(largest_of(magnitudes));
  *scale = _mm512_cvtss_f32(row.scale);
  for (int block = 0; block < num_blocks; ++block, exponents += kTileRows) {
    const __m512i of_block = row.ExponentsOf(largest_of(Magnitudes(x + block * kBlock)));
    *exponents = _mm512_cvtsi512_si32(of_block);
    const __m512 inverse = row.InverseOf(of_block);
    for (int half = 0; half < 2; ++half, quants += kBlock / 2 * kTileRows) {
      const __m512 values = _mm512_loadu_ps(x + block * kBlock + half * 16);
      const __m512i ints = _mm512_cvtps_epi32(_mm512_mul_ps(values, inverse));
      alignas(16) int32_t fours[4];
      const __m128i up = _mm_set1_epi8(static_cast<char>(0x80));
      _mm_store_si128(reinterpret_cast<__m128i*>(fours),
                      _mm_xor_si128(_mm512_cvtsepi32_epi8(ints), up));
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<int32_t*>(quants + i * (kTileRows * 4)) = fours[i];
    }
  }
}

void QuantizeInterleaved(const float* x, int cols, int first_row, int end_row,
                         const InterleavedRows& out) {
  const int num_blocks = cols / kBlock;
  for (int row = first_row; row < end_row;) {
    const float* values = x + static_cast<size_t>(row - first_row) * cols;
    const size_t tile = static_cast<size_t>(row / kTileRows);
    uint8_t* quants = out.quants + tile * cols * kTileRows + row % kTileRows * 4;
    int32_t* exponents = out.exponents + tile * num_blocks * kTileRows + row % kTileRows;
    const bool is_whole = row % kTileRows == 0 && row + kTileRows <= end_row;
    const auto quantize = is_whole ? QuantizeTile : QuantizeRow;
    quantize(values, cols, quants, exponents, out.scales + row);
    row += is_whole ? kTileRows : 1;
  }
}

}  // namespace

const MatmulKernels& MatmulKernelsMany() {
  static constexpr MatmulKernels kKernels = {.blocks_8_many = ForFormat<ManyRange>,
                                             .quantize_8_many = QuantizeInterleaved};
  return kKernels;
}

}  // namespace hydrant::cpu
