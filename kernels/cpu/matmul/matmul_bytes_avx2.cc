// Block weights with AVX2 in 8 bits, for several rows: bytes are multiplied in pairs and summed in
// 16 bits as long as no sum can overflow.
#include <immintrin.h>

#include "kernels/cpu/isa/unroll.h"
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

// The pairwise products of four values of eight rows, in 16 bits. Two of 128 * 127 do not overflow.
template <bool kSigned>
inline __m256i PairsOf(__m256i quants, __m256i magnitudes, __m256i x) {
  if constexpr (kSigned) return _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(x, quants));
  return _mm256_maddubs_epi16(quants, x);
}

// The quants of four values of eight rows, as PairsOf() takes them.
struct Quants {
  __m256i values, magnitudes;
};
template <DType dtype, int kStep>
HYDRANT_INLINE Quants QuantsOf(const uint8_t* low, const uint8_t* high) {
  const __m256i quants = UnpackStep<dtype, kStep>(low, high).raw;
  if constexpr (!BytePlanOf(BlockTraitsOf(dtype)).is_signed) return {quants, quants};
  const __m256i values = _mm256_xor_si256(quants, _mm256_set1_epi8(-128));
  return {values, _mm256_abs_epi8(values)};
}

// Parts of eight rows of W: two for each panel.
inline constexpr int kPanelSides = kSides;
static_assert(kPanelSides == 2);

// The block's vectors of a side.
struct SideOfBlock {
  const uint8_t* low;
  const uint8_t* high;
};

// Adds the products of kRows rows of x and the sides, for kRun steps from kFirst on: summed in 16
// bits, which do not overflow, then in 32.
template <DType dtype, int kRows, int kParts, int kFirst, int kRun, bool kStarts>
HYDRANT_INLINE void AddRun(const SideOfBlock (&sides)[kParts], const uint8_t* x,
                           __m256i (&dots)[kParts][kRows]) {
  constexpr BytePlan kPlan = BytePlanOf(BlockTraitsOf(dtype));
  __m256i pairs[kParts][kRows];
  Unroll<kRun>(HYDRANT_UNROLLED(i) {
    constexpr int kStep = kFirst + decltype(i)::value;
    Quants quants[kParts];
    Unroll<kParts>(
        HYDRANT_UNROLLED(s) { quants[s] = QuantsOf<dtype, kStep>(sides[s].low, sides[s].high); });
    Unroll<kRows>(HYDRANT_UNROLLED(r) {
      const auto* four = reinterpret_cast<const int32_t*>(x + r * kBlock + kStep * 4);
      const __m256i values = _mm256_set1_epi32(*four);
      Unroll<kParts>(HYDRANT_UNROLLED(s) {
        const __m256i products =
            PairsOf<kPlan.is_signed>(quants[s].values, quants[s].magnitudes, values);
        pairs[s][r] = i == 0 ? products : _mm256_add_epi16(pairs[s][r], products);
      });
    });
  });
  Unroll<kParts>(HYDRANT_UNROLLED(s) {
    Unroll<kRows>(HYDRANT_UNROLLED(r) {
      const __m256i sums = _mm256_madd_epi16(pairs[s][r], _mm256_set1_epi16(1));
      dots[s][r] = kStarts ? sums : _mm256_add_epi32(dots[s][r], sums);
    });
  });
}

// Where the factors of eight rows of W in a block lie.
struct FactorsAt {
  const uint8_t* group;
  const GroupLayout& layout;
  int block, half, side;
};

// Adds integer sums, scaled, and what the rows' least values add.
template <DType dtype, int kRows>
HYDRANT_INLINE void AddScaled(const FactorsAt& at, const BlockOfRows& x,
                              const __m256i (&dots)[kRows], __m256 (&sums)[kRows]) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  const __m256 scale = ScaleOf<dtype>(at.group, at.layout, at.block, at.half, at.side).raw;
  Unroll<kRows>(HYDRANT_UNROLLED(r) {
    const __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(x.scales[r]));
    sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), factor, sums[r]);
  });
  constexpr bool kShifted = kTraits.offset != 0 && !BytePlanOf(kTraits).is_signed;
  if constexpr (kTraits.has_min || kShifted) {
    __m256 least;  // the value of a quant of 0
    if constexpr (kTraits.has_min) {
      least = MinOf<dtype>(at.group, at.layout, at.block, at.half, at.side).raw;
    } else {
      least = _mm256_mul_ps(scale, _mm256_set1_ps(-kTraits.offset));
    }
    Unroll<kRows>(HYDRANT_UNROLLED(r) {
      const __m256 sum = _mm256_set1_ps(ScaledSumOf<dtype>(x, r, at.half));
      sums[r] = _mm256_fmadd_ps(least, sum, sums[r]);
    });
  }
}

// kRows rows of x by kPanels panels; panels past the last one are not stored.
template <DType dtype, int kRows, int kPanels>
void BytesTile(const PanelArgs& args, const TileTask& task) {
  const int row = task.row, panel = task.panel;
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  constexpr int kHalves = kTraits.halves ? 2 : 1, kSteps = 8 / kHalves;
  constexpr int kMostSteps = BytePlanOf(kTraits).steps;
  constexpr int kRun = kMostSteps < kSteps ? kMostSteps : kSteps;
  constexpr int kParts = kPanels * kPanelSides;
  const int num_blocks = args.cols / kBlock;
  const GroupLayout layout = GroupLayoutOf(kTraits, num_blocks);
  const size_t block_bytes = args.panel_bytes / num_blocks;
  const uint8_t* groups[kPanels];
  __m256 sums[kParts][kRows];
  Unroll<kPanels>(HYDRANT_UNROLLED(p) {
    const int there = panel + p < args.end_panel ? panel + p : panel;
    groups[p] = args.panels + static_cast<size_t>(there) * args.panel_bytes;
  });
  Unroll<kParts>(HYDRANT_UNROLLED(s) {
    Unroll<kRows>(HYDRANT_UNROLLED(r) { sums[s][r] = _mm256_setzero_ps(); });
  });
  for (int block = 0; block < num_blocks; ++block) {
    const BlockOfRows x = BlockOfRowsAt(args.quantized_8, row, num_blocks, block, 1);
    SideOfBlock sides[kParts];
    Unroll<kParts>(HYDRANT_UNROLLED(s) {
      const uint8_t* group = groups[s / kPanelSides];
      const size_t in_vector = s % kPanelSides * kSideBytes;
      if (in_vector == 0) PrefetchFor(task, block, group + block * block_bytes, block_bytes);
      sides[s] = {group + block * LowBytes(kTraits) + in_vector,
                  group + layout.high + block * HighBytes(kTraits) + in_vector};
    });
    Unroll<kHalves>(HYDRANT_UNROLLED(half) {
      __m256i dots[kParts][kRows];
      Unroll<kSteps / kRun>(HYDRANT_UNROLLED(run) {
        constexpr int kFirst = decltype(half)::value * kSteps + decltype(run)::value * kRun;
        constexpr bool kStarts = decltype(run)::value == 0;
        AddRun<dtype, kRows, kParts, kFirst, kRun, kStarts>(sides, x.quants, dots);
      });
      Unroll<kParts>(HYDRANT_UNROLLED(s) {
        const FactorsAt at = {groups[s / kPanelSides], layout, block, half, s % kPanelSides};
        AddScaled<dtype, kRows>(at, x, dots[s], sums[s]);
      });
    });
  }
  Unroll<kPanels>(HYDRANT_UNROLLED(p) {
    if (panel + p >= args.end_panel) return;
    Unroll<kRows>(HYDRANT_UNROLLED(r) {
      float values[kPanelRows];
      _mm256_storeu_ps(values, sums[2 * p][r]);
      _mm256_storeu_ps(values + kLanes, sums[2 * p + 1][r]);
      StoreValues(args, row + r, (panel + p) * kPanelRows, values, kPanelRows);
    });
  });
}

template <DType dtype, int kLeast, int kMost, int kWide>
struct ByteTiles {
  static constexpr int kMinRows = kLeast, kMaxRows = kMost, kPanels = kWide;
  template <int kRows>
  static void Run(const PanelArgs& args, const TileTask& task) {
    BytesTile<dtype, kRows, kPanels>(args, task);
  }
};

template <DType dtype>
struct ByteRange {
  // Two panels at once keep memory busier, and their sums fit in registers for two rows.
  static void Run(const PanelArgs& args) {
    if (args.end_row - args.first_row <= 2) return EveryTile<ByteTiles<dtype, 1, 2, 2>>(args);
    EveryTile<ByteTiles<dtype, 1, 4, 1>>(args);
  }
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
