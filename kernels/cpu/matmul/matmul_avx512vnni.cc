// Block weights with AVX-512 and its four-way integer dot products (VNNI).
#include <immintrin.h>

#include "kernels/cpu/isa/byte_dots.h"
#include "kernels/cpu/isa/unroll.h"
#include "kernels/cpu/matmul/matmul_avx512_blocks-inl.h"
#include "kernels/cpu/matmul/matmul_rows-inl.h"

namespace hydrant::cpu {
namespace {

inline __m512i Broadcast4(const uint8_t* p) {
  return _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(p));
}

// kRows rows of x by one group. x = 256 * high + low, both int8, so two dot products give the exact
// product of 16-bit activations; `low` starts from the weights' offset, at no cost.
template <DType dtype, int kRows>
void BlocksTile(const PanelArgs& args, const TileTask& task) {
  const int row = task.row, panel = task.panel;
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  constexpr int kHalves = kTraits.halves ? 2 : 1;
  constexpr int kSteps = 8 / kHalves;
  const int num_blocks = args.cols / kBlock;
  const GroupLayout layout = GroupLayoutOf(kTraits, num_blocks);
  const uint8_t* group = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
  const size_t block_bytes = args.panel_bytes / num_blocks;
  __m512 sums[kRows];
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  for (int block = 0; block < num_blocks; ++block) {
    const BlockOfRows x = BlockOfRowsAt(args.quantized, row, num_blocks, block);
    PrefetchFor(task, block, group + block * block_bytes, block_bytes);
    __m512i quants[8];
    UnpackBlock<dtype>(group, layout, block, quants);
    for (int half = 0; half < kHalves; ++half) {
      const __m512 scale = ScaleOf<dtype>(group, layout, block, half);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        __m512i high = _mm512_setzero_si512();
        __m512i low = kTraits.offset == 0
                          ? _mm512_setzero_si512()
                          : _mm512_set1_epi32(-kTraits.offset * SumOf<dtype>(x, r, half));
#pragma GCC unroll 8
        for (int i = 0; i < kSteps; ++i) {
          const int step = half * kSteps + i;
          high = _mm512_dpbusd_epi32(high, quants[step], Broadcast4(x.quants + r * 64 + step * 4));
          low =
              _mm512_dpbusd_epi32(low, quants[step], Broadcast4(x.quants + r * 64 + 32 + step * 4));
        }
        const __m512i dot = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
        const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(x.scales[r]));
        sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), factor, sums[r]);
      }
      if constexpr (kTraits.has_min) {
        const __m512 min = MinOf<dtype>(group, layout, block, half);
        for (int r = 0; r < kRows; ++r) {
          const __m512 sum = _mm512_set1_ps(ScaledSumOf<dtype>(x, r, half));
          sums[r] = _mm512_fmadd_ps(min, sum, sums[r]);
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) StoreRow(args, row + r, panel, sums[r]);
}

// The value of a quant of 0.
template <DType dtype>
inline __m512 LeastOf(const uint8_t* group, const GroupLayout& layout, int block, int half,
                      __m512 scale) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  static_assert(!kTraits.has_min || kTraits.offset == 0);
  if constexpr (kTraits.has_min) return MinOf<dtype>(group, layout, block, half);
  return _mm512_mul_ps(scale, _mm512_set1_ps(-kTraits.offset));
}

// Adds the dot products of a block or half a block of kRows rows and of kPanels groups.
template <DType dtype, int kRows, int kPanels>
inline __attribute__((always_inline)) void AddDots(const uint8_t* const (&groups)[kPanels],
                                                   const GroupLayout& layout, int block, int half,
                                                   const BlockOfRows& x,
                                                   __m512i (&dots)[kPanels][kRows]) {
  constexpr int kSteps = BlockTraitsOf(dtype).halves ? 4 : 8;
#pragma GCC unroll 8
  for (int i = 0; i < kSteps; ++i) {
    const int step = half * kSteps + i;
    __m512i quants[kPanels];
    Unroll<kPanels>(
        HYDRANT_UNROLLED(p) { quants[p] = QuantsOf<dtype>(groups[p], layout, block, step); });
    Unroll<kRows>(HYDRANT_UNROLLED(r) {
      const __m512i values = Broadcast4(x.quants + r * kBlock + step * 4);
      Unroll<kPanels>(HYDRANT_UNROLLED(p) { AddByteDots(quants[p], values, &dots[p][r]); });
    });
  }
}

// Adds integer sums, scaled, and what the least values of a group add.
template <DType dtype, int kRows>
inline __attribute__((always_inline)) void AddScaled(const uint8_t* group,
                                                     const GroupLayout& layout, int block, int half,
                                                     const BlockOfRows& x,
                                                     const __m512i (&dots)[kRows],
                                                     __m512 (&sums)[kRows]) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  const __m512 scale = ScaleOf<dtype>(group, layout, block, half);
  Unroll<kRows>(HYDRANT_UNROLLED(r) {
    const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(x.scales[r]));
    sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), factor, sums[r]);
  });
  if constexpr (kTraits.has_min || kTraits.offset != 0) {
    const __m512 least = LeastOf<dtype>(group, layout, block, half, scale);
    Unroll<kRows>(HYDRANT_UNROLLED(r) {
      const __m512 sum = _mm512_set1_ps(ScaledSumOf<dtype>(x, r, half));
      sums[r] = _mm512_fmadd_ps(least, sum, sums[r]);
    });
  }
}

// kRows rows in 8 bits by kPanels panels, unpacked on the way; panels past the last one are not
// stored. Integer and float sums all stay in registers, which limits the rows.
template <DType dtype, int kRows, int kPanels>
void Blocks8Tile(const PanelArgs& args, const TileTask& task) {
  const int row = task.row, panel = task.panel;
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  const int num_blocks = args.cols / kBlock;
  const GroupLayout layout = GroupLayoutOf(kTraits, num_blocks);
  const size_t block_bytes = args.panel_bytes / num_blocks;
  const uint8_t* groups[kPanels];
  __m512 sums[kPanels][kRows];
  Unroll<kPanels>(HYDRANT_UNROLLED(p) {
    const int there = panel + p < args.end_panel ? panel + p : panel;
    groups[p] = args.panels + static_cast<size_t>(there) * args.panel_bytes;
    Unroll<kRows>(HYDRANT_UNROLLED(r) { sums[p][r] = _mm512_setzero_ps(); });
  });
  for (int block = 0; block < num_blocks; ++block) {
    const BlockOfRows x = BlockOfRowsAt(args.quantized_8, row, num_blocks, block, 1);
    Unroll<kPanels>(HYDRANT_UNROLLED(p) {
      PrefetchFor(task, block, groups[p] + block * block_bytes, block_bytes);
    });
#pragma GCC unroll 2
    for (int half = 0; half < (kTraits.halves ? 2 : 1); ++half) {
      __m512i dots[kPanels][kRows];
      Unroll<kPanels>(HYDRANT_UNROLLED(p) {
        Unroll<kRows>(HYDRANT_UNROLLED(r) { dots[p][r] = _mm512_setzero_si512(); });
      });
      AddDots<dtype, kRows, kPanels>(groups, layout, block, half, x, dots);
      Unroll<kPanels>(HYDRANT_UNROLLED(p) {
        AddScaled<dtype, kRows>(groups[p], layout, block, half, x, dots[p], sums[p]);
      });
    }
  }
  Unroll<kPanels>(HYDRANT_UNROLLED(p) {
    if (panel + p >= args.end_panel) return;
    Unroll<kRows>(HYDRANT_UNROLLED(r) { StoreRow(args, row + r, panel + p, sums[p][r]); });
  });
}

template <DType dtype>
struct BlockTiles {
  // Eight rows: half as fast, lack of registers.
  static constexpr int kMinRows = 1, kMaxRows = 4, kPanels = 1;
  template <int kRows>
  static void Run(const PanelArgs& args, const TileTask& task) {
    BlocksTile<dtype, kRows>(args, task);
  }
};
template <DType dtype, int kLeast, int kMost, int kWide>
struct Block8Tiles {
  static constexpr int kMinRows = kLeast, kMaxRows = kMost, kPanels = kWide;
  template <int kRows>
  static void Run(const PanelArgs& args, const TileTask& task) {
    Blocks8Tile<dtype, kRows, kPanels>(args, task);
  }
};

template <DType dtype>
struct BlockRange {
  static void Run(const PanelArgs& args) { EveryTile<BlockTiles<dtype>>(args); }
};
template <DType dtype>
struct Block8Range {
  // Two panels at once keep memory busier; one panel leaves registers for two more rows.
  static void Run(const PanelArgs& args) {
    const int rows = args.end_row - args.first_row;
    if (rows == 7 || rows == 8) return EveryTile<Block8Tiles<dtype, 7, 8, 1>>(args);
    EveryTile<Block8Tiles<dtype, 1, 6, 2>>(args);
  }
};

// Layout of a row's block: the 32 high bytes, then the 32 low bytes.
void QuantizeBlock(const float* x, uint8_t* quants, float* scale, float* scaled_sum,
                   int32_t half_sums[2]) {
  const __m512 values[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
  const float peak =
      _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(values[0]), _mm512_abs_ps(values[1])));
  const bool has_nan = _mm512_cmp_ps_mask(values[0], values[1], _CMP_UNORD_Q) != 0;
  const BlockScale s = BlockScaleOf(&peak, 1, has_nan, kQuantLimit);
  for (int half = 0; half < 2; ++half) {
    const __m512i ints =
        s.finite ? _mm512_cvtps_epi32(_mm512_mul_ps(values[half], _mm512_set1_ps(s.inverse)))
                 : _mm512_setzero_si512();
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(ints, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(quants + half * 16), _mm512_cvtepi32_epi8(high));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(quants + 32 + half * 16),
                     _mm512_cvtepi32_epi8(ints));
    half_sums[half] = _mm512_reduce_add_epi32(ints);
  }
  *scale = s.scale;
  *scaled_sum = s.scale * static_cast<float>(half_sums[0] + half_sums[1]);
}

void Quantize(const float* x, int cols, const ConvertRange& range, const QuantizedRows& out) {
  QuantizeRows(x, cols, range, out, 2, QuantizeBlock);
}

// The 8-bit form processes four blocks at a time, to find their peaks and sums in parallel.
constexpr int kBlocksAtOnce = 4;

// The largest magnitude of each block; infinity where a value is NaN.
inline __m128 PeaksOf(const __m512 values[kBlocksAtOnce][2]) {
  __m512 peaks[kBlocksAtOnce];
  for (int b = 0; b < kBlocksAtOnce; ++b) {
    peaks[b] = _mm512_max_ps(_mm512_abs_ps(values[b][0]), _mm512_abs_ps(values[b][1]));
    const __mmask16 nan = _mm512_cmp_ps_mask(values[b][0], values[b][1], _CMP_UNORD_Q);
    const __m512 infinite = _mm512_set1_ps(__builtin_inff());
    peaks[b] = _mm512_mask_mov_ps(peaks[b], nan, infinite);
  }
  const auto fold = [](__m512 a, __m512 b) {
    return _mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  };
  // Each quarter of it: blocks 0, 2, 1, 3 after the second fold; the shuffle
  // below restores their order.
  const __m512 all = fold(fold(peaks[0], peaks[1]), fold(peaks[2], peaks[3]));
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  return _mm_permute_ps(quarter, _MM_SHUFFLE(3, 1, 2, 0));
}

// Sums of the blocks' halves, two blocks per vector: [block 0 half 0, block 0 half
// 1, block 1 half 0, ...].
inline __m256i HalfSumsOf(__m512i first, __m512i second) {
  const __m512i ones = _mm512_set1_epi8(1);
  const __m512i a = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, first);
  const __m512i b = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, second);
  const __m512i pairs = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  // [a b a b] in each quarter; a quarter is half a block of each.
  const __m512i sums = _mm512_add_epi32(pairs, _mm512_shuffle_epi32(pairs, _MM_PERM_BADC));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, sums));
}

struct FourBlocks {
  __m512i quants[2];  // two blocks each
  alignas(16) float scales[kBlocksAtOnce];
  alignas(16) float scaled_sums[kBlocksAtOnce];
  alignas(32) int32_t half_sums[kBlocksAtOnce][2];
};

// x: `count` blocks. A value that is not finite makes its block's scale NaN, as in BlockScaleOf().
inline FourBlocks QuantizeFour(const float* x, int count) {
  __m512 values[kBlocksAtOnce][2];
  for (int b = 0; b < kBlocksAtOnce; ++b) {
    const __mmask16 there = b < count ? 0xffff : 0;
    for (int half = 0; half < 2; ++half)
      values[b][half] = _mm512_maskz_loadu_ps(there, x + b * kBlock + half * 16);
  }
  const __m128 peaks = PeaksOf(values);
  const __m128 limit = _mm_set1_ps(kQuantLimit8);
  const __mmask8 infinite = _mm_cmp_ps_mask(peaks, _mm_set1_ps(kLargestFloat), _CMP_GT_OQ);
  const __mmask8 tiny = _mm_cmp_ps_mask(peaks, _mm_set1_ps(kSmallestPeak), _CMP_LT_OQ);
  const __mmask8 usual = static_cast<__mmask8>(~(infinite | tiny));
  const __m128 inverses = _mm_maskz_div_ps(usual, limit, peaks);
  const __m128 scales = _mm_mask_mov_ps(_mm_maskz_div_ps(usual, peaks, limit), infinite,
                                        _mm_set1_ps(__builtin_nanf("")));
  FourBlocks out;
  alignas(16) float inverse[kBlocksAtOnce];
  _mm_store_ps(inverse, inverses);
  for (int pair = 0; pair < 2; ++pair) {
    __m128i bytes[4];
    for (int i = 0; i < 4; ++i) {
      const int b = pair * 2 + i / 2;
      const __m512i ints =
          _mm512_cvtps_epi32(_mm512_mul_ps(values[b][i % 2], _mm512_set1_ps(inverse[b])));
      bytes[i] = _mm512_maskz_cvtepi32_epi8(infinite >> b & 1 ? 0 : 0xffff, ints);
    }
    const __m256i low = _mm256_set_m128i(bytes[1], bytes[0]);
    const __m256i high = _mm256_set_m128i(bytes[3], bytes[2]);
    out.quants[pair] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  const __m256i half_sums = HalfSumsOf(out.quants[0], out.quants[1]);
  _mm256_store_si256(reinterpret_cast<__m256i*>(out.half_sums), half_sums);
  const __m128i sums = _mm256_cvtepi64_epi32(
      _mm256_add_epi32(half_sums, _mm256_shuffle_epi32(half_sums, _MM_SHUFFLE(2, 3, 0, 1))));
  _mm_store_ps(out.scales, scales);
  _mm_store_ps(out.scaled_sums, _mm_mul_ps(scales, _mm_cvtepi32_ps(sums)));
  return out;
}

// Stores `count` blocks of the row, from `block` on.
inline void Store(const FourBlocks& four, int row, int block, int count, int num_blocks,
                  const QuantizedRows& out) {
  for (int b = 0; b < count; ++b) {
    const size_t tile = static_cast<size_t>(row / kTileRows) * num_blocks + block + b;
    const size_t at = tile * kTileRows + row % kTileRows;
    const __m512i two = four.quants[b / 2];
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(out.quants + at * kBlock),
        b % 2 == 0 ? _mm512_castsi512_si256(two) : _mm512_extracti64x4_epi64(two, 1));
    out.scales[at] = four.scales[b];
    out.scaled_sums[at] = four.scaled_sums[b];
    for (int half = 0; half < 2; ++half) {
      const size_t at_half = (tile * 2 + half) * kTileRows + row % kTileRows;
      out.half_sums[at_half] = four.half_sums[b][half];
      out.scaled_half_sums[at_half] = four.scales[b] * static_cast<float>(four.half_sums[b][half]);
    }
  }
}

// Converts all rows of a tile before the next blocks: they share cache lines.
void Quantize8(const float* x, int cols, const ConvertRange& range, const QuantizedRows& out) {
  const int num_blocks = cols / kBlock;
  for (int begin = range.first_row, end; begin < range.end_row; begin = end) {
    const int tile_end = (begin / kTileRows + 1) * kTileRows;
    end = tile_end < range.end_row ? tile_end : range.end_row;
    for (int block = range.first_block; block < range.end_block; block += kBlocksAtOnce) {
      const int left = range.end_block - block;
      const int count = left < kBlocksAtOnce ? left : kBlocksAtOnce;
      for (int row = begin; row < end; ++row) {
        const float* values =
            x + static_cast<size_t>(row - range.first_row) * cols + block * kBlock;
        Store(QuantizeFour(values, count), row, block, count, num_blocks, out);
      }
    }
  }
}

}  // namespace

const MatmulKernels& MatmulKernelsAvx512Vnni() {
  static constexpr MatmulKernels kKernels = {.blocks = ForFormat<BlockRange>,
                                             .blocks_8 = ForFormat<Block8Range>,
                                             .quantize = Quantize,
                                             .quantize_8 = Quantize8};
  return kKernels;
}

}  // namespace hydrant::cpu
