// Block weights with AVX-512 and its four-way integer dot products (VNNI).
#include <immintrin.h>

#include "kernels/cpu/matmul_avx512_blocks-inl.h"
#include "kernels/cpu/matmul_rows-inl.h"

namespace hydrant::cpu {
namespace {

inline __m512i Broadcast4(const uint8_t* p) {
  return _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(p));
}

// Few rows: a group is used once, so the memory sets the pace; asking ahead keeps it busy where the
// processor's own prefetching stops, at the ends of pages and of a group's streams.
inline void PrefetchAhead(const uint8_t* p, size_t bytes) {
  constexpr size_t kAhead = 4096;
  for (size_t at = 0; at < bytes; at += 64)
    _mm_prefetch(reinterpret_cast<const char*>(p + kAhead + at), _MM_HINT_T0);
}

// kRows rows of x by one group. x = 256 * high + low, both int8, so two dot products give the exact
// product of 16-bit activations; `low` starts from the weights' offset, for nothing.
template <DType dtype, int kRows>
void BlocksTile(const PanelArgs& args, int row, int panel) {
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
    if constexpr (kRows <= 4) PrefetchAhead(group + block * block_bytes, block_bytes);
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

template <DType dtype>
struct BlockTiles {
  static constexpr int kMaxRows = 4;
  template <int kRows>
  static void Run(const PanelArgs& args, int row, int panel) {
    BlocksTile<dtype, kRows>(args, row, panel);
  }
};

template <DType dtype>
struct BlockRange {
  static void Run(const PanelArgs& args) { EveryTile<BlockTiles<dtype>>(args); }
};

// A row's block: the 32 high bytes, then the 32 low bytes.
void QuantizeBlock(const float* x, uint8_t* quants, float* scale, float* scaled_sum,
                   int32_t half_sums[2]) {
  const __m512 values[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
  const float peak =
      _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(values[0]), _mm512_abs_ps(values[1])));
  const bool has_nan = _mm512_cmp_ps_mask(values[0], values[1], _CMP_UNORD_Q) != 0;
  const BlockScale s = BlockScaleOf(&peak, 1, has_nan);
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

void Quantize(const float* x, int cols, int first_row, int end_row, const QuantizedRows& out) {
  QuantizeRows(x, cols, first_row, end_row, out, QuantizeBlock);
}

}  // namespace

const MatmulKernels& MatmulKernelsAvx512Vnni() {
  static constexpr MatmulKernels kKernels = {.f32 = nullptr,
                                             .f16 = nullptr,
                                             .bf16_widened = nullptr,
                                             .f8 = nullptr,
                                             .bf16 = nullptr,
                                             .round_bf16 = nullptr,
                                             .blocks = ForFormat<BlockRange>,
                                             .blocks_tiled = nullptr,
                                             .blocks_split = nullptr,
                                             .quantize = Quantize};
  return kKernels;
}

}  // namespace hydrant::cpu
