// Float panels and block weights with AVX2, FMA and F16C, the minimum of the backend.
#include <immintrin.h>

#include "kernels/cpu/matmul/matmul_avx2_blocks-inl.h"
#include "kernels/cpu/matmul/matmul_dense-inl.h"
#include "kernels/cpu/matmul/matmul_rows-inl.h"

namespace hydrant::cpu {
namespace {

struct Avx2 {
  using F = __m256;
  static constexpr int kWidth = 8;
  static F Zero() { return _mm256_setzero_ps(); }
  static F Broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static F Load(const float* p) { return _mm256_loadu_ps(p); }
  static F LoadF16(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F LoadF8(const uint8_t* p) {
    const __m128i bytes = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m128i magnitude = _mm_slli_epi16(_mm_and_si128(bytes, _mm_set1_epi16(0x7f)), 7);
    const __m128i sign = _mm_slli_epi16(_mm_srli_epi16(bytes, 7), 15);
    return _mm256_cvtph_ps(_mm_or_si128(sign, magnitude));
  }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static void LoadBf16Pair(const uint16_t* p, F* even, F* odd) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    *odd = _mm256_castsi256_ps(
        _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static void Store(float* p, F v) { _mm256_storeu_ps(p, v); }
};

// kRows rows of x by eight rows of a group. Products of 16-bit integers, summed exactly
// in 32 bits over a block.
template <DType dtype, int kRows>
void BlocksTile(const PanelArgs& args, const TileTask& task, int side) {
  const int row = task.row, panel = task.panel;
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  constexpr int kHalves = kTraits.halves ? 2 : 1;
  constexpr int kSteps = 8 / kHalves;
  const int num_blocks = args.cols / kBlock;
  const GroupLayout layout = GroupLayoutOf(kTraits, num_blocks);
  const uint8_t* group = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
  __m256 sums[kRows];
#pragma GCC unroll 16
  for (auto& sum : sums) sum = _mm256_setzero_ps();
  const size_t block_bytes = args.panel_bytes / num_blocks;
  for (int block = 0; block < num_blocks; ++block) {
    if (side == 0) PrefetchFor(task, block, group + block * block_bytes, block_bytes);
    const BlockOfRows x = BlockOfRowsAt(args.quantized, row, num_blocks, block);
    const uint8_t* low = group + block * LowBytes(kTraits) + side * 32;
    const uint8_t* high = group + layout.high + block * HighBytes(kTraits) + side * 32;
    for (int half = 0; half < kHalves; ++half) {
      __m256i dots[kRows];
#pragma GCC unroll 16
      for (auto& dot : dots) dot = _mm256_setzero_si256();
#pragma GCC unroll 8
      for (int i = 0; i < kSteps; ++i) {
        const int step = half * kSteps + i;
        const __m256i quants = UnpackStep<dtype>(low, high, step);
        const __m256i even = _mm256_and_si256(quants, _mm256_set1_epi16(255));
        const __m256i odd = _mm256_srli_epi16(quants, 8);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const int32_t* pairs = reinterpret_cast<const int32_t*>(x.quants + r * 64 + step * 8);
          dots[r] = _mm256_add_epi32(dots[r], _mm256_madd_epi16(even, _mm256_set1_epi32(pairs[0])));
          dots[r] = _mm256_add_epi32(dots[r], _mm256_madd_epi16(odd, _mm256_set1_epi32(pairs[1])));
        }
      }
      const __m256 scale = ScaleOf<dtype>(group, layout, block, half, side);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        if constexpr (kTraits.offset != 0) {
          dots[r] = _mm256_sub_epi32(dots[r],
                                     _mm256_set1_epi32(kTraits.offset * SumOf<dtype>(x, r, half)));
        }
        const __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(x.scales[r]));
        sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), factor, sums[r]);
      }
      if constexpr (kTraits.has_min) {
        const __m256 min = MinOf<dtype>(group, layout, block, half, side);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const __m256 sum = _mm256_set1_ps(ScaledSumOf<dtype>(x, r, half));
          sums[r] = _mm256_fmadd_ps(min, sum, sums[r]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float values[8];
    _mm256_storeu_ps(values, sums[r]);
    StoreValues(args, row + r, panel * kPanelRows + side * 8, values, 8);
  }
}

template <DType dtype>
struct BlockTiles {
  static constexpr int kMaxRows = 4, kPanels = 1;
  template <int kRows>
  static void Run(const PanelArgs& args, const TileTask& task) {
    BlocksTile<dtype, kRows>(args, task, 0);
    BlocksTile<dtype, kRows>(args, task, 1);
  }
};

template <DType dtype>
struct BlockRange {
  static void Run(const PanelArgs& args) { EveryTile<BlockTiles<dtype>>(args); }
};

// Order of a row's block: for each four values, the pairs (0, 2) and (1, 3), which match the even
// and the odd bytes of a vector of quants in the pairwise multiply.
void QuantizeBlock(const float* x, uint8_t* quants, float* scale, float* scaled_sum,
                   int32_t half_sums[2]) {
  const FourVectors values = LoadBlock(x);
  const BlockScale s = ScaleOfBlock(values, kQuantLimit);
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  for (int half = 0; half < 2; ++half) {
    const __m256i a = RoundedTo(s, values.v[2 * half]), b = RoundedTo(s, values.v[2 * half + 1]);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(quants + 32 * half),
                        _mm256_shuffle_epi8(packed, order));
    half_sums[half] = SumOfLanes(_mm256_add_epi32(a, b));
  }
  *scale = s.scale;
  *scaled_sum = s.scale * static_cast<float>(half_sums[0] + half_sums[1]);
}

void Quantize(const float* x, int cols, const ConvertRange& range, const QuantizedRows& out) {
  QuantizeRows(x, cols, range, out, 2, QuantizeBlock);
}

}  // namespace

const MatmulKernels& MatmulKernelsAvx2() {
  static constexpr MatmulKernels kKernels = {.f32 = Dense<Avx2, PanelFormat::kF32>,
                                             .f16 = Dense<Avx2, PanelFormat::kF16>,
                                             .bf16_widened = Dense<Avx2, PanelFormat::kBF16>,
                                             .f8 = Dense<Avx2, PanelFormat::kF8>,
                                             .blocks = ForFormat<BlockRange>,
                                             .quantize = Quantize};
  return kKernels;
}

}  // namespace hydrant::cpu
