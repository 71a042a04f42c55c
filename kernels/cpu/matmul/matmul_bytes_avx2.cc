// Block weights with AVX2 in 8 bits, for several rows: bytes are multiplied in pairs and summed in
// 16 bits as long as no sum can overflow.
#include <immintrin.h>

#include "kernels/cpu/matmul/matmul_base_blocks-inl.h"
#include "kernels/cpu/matmul/matmul_rows-inl.h"

namespace hydrant::cpu {
namespace {

// How the quants of a format are multiplied.
struct BytePlan {
  bool is_signed;  // quants reach 255, and pairs would overflow 16 bits: signed, minus 128
  int steps;       // of four values; their pairs are summed in 16 bits
};

constexpr BytePlan BytePlanOf(const BlockTraits& traits) {
  const int largest = LargestQuant(traits);
  if (2 * largest * 127 > 32767) return {.is_signed = true, .steps = 1};
  int steps = 8;
  while (steps * 2 * largest * 127 > 32767) steps /= 2;
  return {.is_signed = false, .steps = steps};
}
static_assert(BytePlanOf(BlockTraitsOf(DType::kQ4_0)).steps == 8);
static_assert(BytePlanOf(BlockTraitsOf(DType::kQ6_K)).steps == 2);
static_assert(BlockTraitsOf(DType::kQ8_0).offset == 128);
static_assert(BlockTraitsOf(DType::kIQ4_NL).offset == 128);

// UnpackStep() of a step that is known when the loops around are unrolled.
template <DType dtype>
HYDRANT_INLINE ByteVec UnpackStepAt(const uint8_t* low, const uint8_t* high, int step) {
  switch (step) {
    case 0:
      return UnpackStep<dtype, 0>(low, high);
    case 1:
      return UnpackStep<dtype, 1>(low, high);
    case 2:
      return UnpackStep<dtype, 2>(low, high);
    case 3:
      return UnpackStep<dtype, 3>(low, high);
    case 4:
      return UnpackStep<dtype, 4>(low, high);
    case 5:
      return UnpackStep<dtype, 5>(low, high);
    case 6:
      return UnpackStep<dtype, 6>(low, high);
    default:
      return UnpackStep<dtype, 7>(low, high);
  }
}

// The pairwise products of four values of eight rows, in 16 bits. Two of 128 * 127 do not overflow.
template <bool kSigned>
inline __m256i PairsOf(__m256i quants, __m256i magnitudes, __m256i x) {
  if constexpr (kSigned) return _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(x, quants));
  return _mm256_maddubs_epi16(quants, x);
}

// kRows rows of x by eight rows of a group.
template <DType dtype, int kRows>
void BytesTile(const PanelArgs& args, const TileTask& task, int side) {
  const int row = task.row, panel = task.panel;
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  constexpr BytePlan kPlan = BytePlanOf(kTraits);
  constexpr int kHalves = kTraits.halves ? 2 : 1;
  constexpr int kSteps = 8 / kHalves;
  constexpr int kRun = kPlan.steps < kSteps ? kPlan.steps : kSteps;
  constexpr bool kHasLeast = kTraits.has_min || (kTraits.offset != 0 && !kPlan.is_signed);
  const int num_blocks = args.cols / kBlock;
  const GroupLayout layout = GroupLayoutOf(kTraits, num_blocks);
  const uint8_t* group = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256 sums[kRows];
#pragma GCC unroll 8
  for (auto& sum : sums) sum = _mm256_setzero_ps();
  const size_t block_bytes = args.panel_bytes / num_blocks;
  for (int block = 0; block < num_blocks; ++block) {
    if (side == 0) PrefetchFor(task, block, group + block * block_bytes, block_bytes);
    const BlockOfRows x = BlockOfRowsAt(args.quantized_8, row, num_blocks, block, 1);
    const uint8_t* low = group + block * LowBytes(kTraits) + side * 32;
    const uint8_t* high = group + layout.high + block * HighBytes(kTraits) + side * 32;
#pragma GCC unroll 2
    for (int half = 0; half < kHalves; ++half) {
      __m256i dots[kRows];
#pragma GCC unroll 8
      for (int run = 0; run < kSteps; run += kRun) {
        __m256i pairs[kRows];
#pragma GCC unroll 8
        for (int i = 0; i < kRun; ++i) {
          const int step = half * kSteps + run + i;
          __m256i quants = UnpackStepAt<dtype>(low, high, step).raw;
          __m256i magnitudes = quants;
          if constexpr (kPlan.is_signed) {
            quants = _mm256_xor_si256(quants, _mm256_set1_epi8(-128));
            magnitudes = _mm256_abs_epi8(quants);
          }
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            const auto* values = reinterpret_cast<const int32_t*>(x.quants + r * kBlock + step * 4);
            const __m256i products =
                PairsOf<kPlan.is_signed>(quants, magnitudes, _mm256_set1_epi32(*values));
            pairs[r] = i == 0 ? products : _mm256_add_epi16(pairs[r], products);
          }
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const __m256i dot = _mm256_madd_epi16(pairs[r], ones);
          dots[r] = run == 0 ? dot : _mm256_add_epi32(dots[r], dot);
        }
      }
      const __m256 scale = ScaleOf<dtype>(group, layout, block, half, side).raw;
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(x.scales[r]));
        sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), factor, sums[r]);
      }
      if constexpr (kHasLeast) {  // the value of a quant of 0
        __m256 least = _mm256_setzero_ps();
        if constexpr (kTraits.has_min) least = MinOf<dtype>(group, layout, block, half, side).raw;
        if constexpr (kTraits.offset != 0)
          least = _mm256_fnmadd_ps(scale, _mm256_set1_ps(kTraits.offset), least);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const __m256 sum = _mm256_set1_ps(ScaledSumOf<dtype>(x, r, half));
          sums[r] = _mm256_fmadd_ps(least, sum, sums[r]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    float values[8];
    _mm256_storeu_ps(values, sums[r]);
    StoreValues(args, row + r, panel * kPanelRows + side * 8, values, 8);
  }
}

template <DType dtype>
struct ByteTiles {
  static constexpr int kMaxRows = 4, kPanels = 1;
  template <int kRows>
  static void Run(const PanelArgs& args, const TileTask& task) {
    BytesTile<dtype, kRows>(args, task, 0);
    BytesTile<dtype, kRows>(args, task, 1);
  }
};

template <DType dtype>
struct ByteRange {
  static void Run(const PanelArgs& args) { EveryTile<ByteTiles<dtype>>(args); }
};

void QuantizeBlock(const float* x, uint8_t* quants, float* scale, float* scaled_sum,
                   int32_t half_sums[2]) {
  const BlockScale s = RoundBlock(x, kQuantLimit8, reinterpret_cast<int8_t*>(quants), half_sums);
  *scale = s.scale;
  *scaled_sum = s.scale * static_cast<float>(half_sums[0] + half_sums[1]);
}

void Quantize(const float* x, int cols, const ConvertRange& range, const QuantizedRows& out) {
  QuantizeRows(x, cols, range, out, 1, QuantizeBlock);
}

}  // namespace

const MatmulKernels& MatmulKernelsBytesAvx2() {
  static constexpr MatmulKernels kKernels = {.blocks_8 = ForFormat<ByteRange>,
                                             .quantize_8 = Quantize};
  return kKernels;
}

}  // namespace hydrant::cpu
