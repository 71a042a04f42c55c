// Block weights by activations of 8 bits, for instruction sets whose vectors hold a part of a
// panel's rows (kSides parts). A struct `Unit` of the including file multiplies the bytes:
//
//   // Sets dots[p][r] to the products of part p and row r of x, for steps kFirst ..
//   // kFirst + kSteps - 1, four values each.
//   template <DType dtype, int kFirst, int kSteps, int kParts, int kRows>
//   static void SetDots(const PartOfBlock (&parts)[kParts], const uint8_t* x,
//                       IntVec (&dots)[kParts][kRows]);
//   // The number of parts that SetDots() takes at a time, so that all sums stay in registers.
//   static constexpr int PartsAtOnce(int rows, int parts);
#ifndef HYDRANT_KERNELS_CPU_MATMUL_MATMUL_BYTES_INL_H_
#define HYDRANT_KERNELS_CPU_MATMUL_MATMUL_BYTES_INL_H_

#include "kernels/cpu/isa/unroll.h"
#include "kernels/cpu/matmul/matmul_base_blocks-inl.h"
#include "kernels/cpu/matmul/matmul_rows-inl.h"

namespace hydrant::cpu {
namespace {

// Whether quants exceed a signed byte. These are multiplied minus 128, which is their offset; all
// others as they are, from 0 on.
constexpr bool MinusOffset(const BlockTraits& traits) { return LargestQuant(traits) > 127; }
static_assert(MinusOffset(BlockTraitsOf(DType::kQ8_0)));
static_assert(BlockTraitsOf(DType::kQ8_0).offset == 128);
static_assert(MinusOffset(BlockTraitsOf(DType::kIQ4_NL)));
static_assert(BlockTraitsOf(DType::kIQ4_NL).offset == 128);
static_assert(!MinusOffset(BlockTraitsOf(DType::kQ6_K)));

// The vectors of a block for one part of a panel.
struct PartOfBlock {
  const uint8_t* low;
  const uint8_t* high;
};

// The factors of a part's rows of W in a block.
struct FactorsAt {
  const uint8_t* group;
  const GroupLayout& layout;
  int block, half, side;
};

// Adds integer sums, scaled, and the products with the rows' least values.
template <DType dtype, int kRows>
HYDRANT_INLINE void AddScaled(const FactorsAt& at, const BlockOfRows& x,
                              const IntVec (&dots)[kRows], Vec (&sums)[kRows]) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  const Vec scale = ScaleOf<dtype>(at.group, at.layout, at.block, at.half, at.side);
  Unroll<kRows>(HYDRANT_UNROLLED(r) {
    const Vec factor = hn::Mul(scale, Set(x.scales[r]));
    sums[r] = hn::MulAdd(hn::ConvertTo(kFloats, dots[r]), factor, sums[r]);
  });
  constexpr bool kShifted = kTraits.offset != 0 && !MinusOffset(kTraits);
  if constexpr (kTraits.has_min || kShifted) {
    Vec least;  // the value of a quant of 0
    if constexpr (kTraits.has_min) {
      least = MinOf<dtype>(at.group, at.layout, at.block, at.half, at.side);
    } else {
      least = hn::Mul(scale, Set(-kTraits.offset));
    }
    Unroll<kRows>(HYDRANT_UNROLLED(r) {
      sums[r] = hn::MulAdd(least, Set(ScaledSumOf<dtype>(x, r, at.half)), sums[r]);
    });
  }
}

// kRows rows of x by kPanels panels; panels past the last one are not stored.
template <typename Unit, DType dtype, int kRows, int kPanels>
void BytesTile(const PanelArgs& args, const TileTask& task) {
  const int row = task.row, panel = task.panel;
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  constexpr int kHalves = kTraits.halves ? 2 : 1, kSteps = 8 / kHalves;
  constexpr int kParts = kPanels * kSides, kAtOnce = Unit::PartsAtOnce(kRows, kParts);
  const int num_blocks = args.cols / kBlock;
  const GroupLayout layout = GroupLayoutOf(kTraits, num_blocks);
  const size_t block_bytes = args.panel_bytes / num_blocks;
  const uint8_t* groups[kPanels];
  Vec sums[kParts][kRows];
  Unroll<kPanels>(HYDRANT_UNROLLED(p) {
    const int there = panel + p < args.end_panel ? panel + p : panel;
    groups[p] = args.panels + static_cast<size_t>(there) * args.panel_bytes;
  });
  Unroll<kParts>(
      HYDRANT_UNROLLED(s) { Unroll<kRows>(HYDRANT_UNROLLED(r) { sums[s][r] = Zero(); }); });
  for (int block = 0; block < num_blocks; ++block) {
    const BlockOfRows x = BlockOfRowsAt(args.quantized_8, row, num_blocks, block, 1);
    Unroll<kPanels>(HYDRANT_UNROLLED(p) {
      PrefetchFor(task, block, groups[p] + block * block_bytes, block_bytes);
    });
    Unroll<kHalves>(HYDRANT_UNROLLED(half) {
      Unroll<kParts / kAtOnce>(HYDRANT_UNROLLED(turn) {
        constexpr int kFirstPart = decltype(turn)::value * kAtOnce;
        PartOfBlock parts[kAtOnce];
        Unroll<kAtOnce>(HYDRANT_UNROLLED(s) {
          const uint8_t* group = groups[(kFirstPart + s) / kSides];
          const size_t in_vector = (kFirstPart + s) % kSides * kSideBytes;
          parts[s] = {group + block * LowBytes(kTraits) + in_vector,
                      group + layout.high + block * HighBytes(kTraits) + in_vector};
        });
        IntVec dots[kAtOnce][kRows];
        Unit::template SetDots<dtype, decltype(half)::value * kSteps, kSteps>(parts, x.quants,
                                                                              dots);
        Unroll<kAtOnce>(HYDRANT_UNROLLED(s) {
          constexpr int kPart = kFirstPart + decltype(s)::value;
          const FactorsAt at = {groups[kPart / kSides], layout, block, half, kPart % kSides};
          AddScaled<dtype, kRows>(at, x, dots[s], sums[kPart]);
        });
      });
    });
  }
  Unroll<kPanels>(HYDRANT_UNROLLED(p) {
    if (panel + p >= args.end_panel) return;
    Unroll<kRows>(HYDRANT_UNROLLED(r) {
      float values[kPanelRows];
      Unroll<kSides>(HYDRANT_UNROLLED(s) { Store(values + s * kLanes, sums[kSides * p + s][r]); });
      StoreValues(args, row + r, (panel + p) * kPanelRows, values, kPanelRows);
    });
  });
}

template <typename Unit, DType dtype>
struct ByteTiles {
  static constexpr int kMinRows = 1, kMaxRows = 4, kPanels = 2;
  // Two panels at once keep memory busier; their sums fit in registers for two rows.
  template <int kRows>
  static void Run(const PanelArgs& args, const TileTask& task) {
    constexpr int kAtOnce = kRows <= 2 ? kPanels : 1;
    const int end = task.panel + kPanels < args.end_panel ? task.panel + kPanels : args.end_panel;
    for (TileTask part = task; part.panel < end; part.panel += kAtOnce)
      BytesTile<Unit, dtype, kRows, kAtOnce>(args, part);
  }
};

void QuantizeBlock8(const float* x, uint8_t* quants, float* scale, float* scaled_sum,
                    int32_t half_sums[2]) {
  const BlockScale s = RoundBlock(x, kQuantLimit8, reinterpret_cast<int8_t*>(quants), half_sums);
  *scale = s.scale;
  *scaled_sum = s.scale * static_cast<float>(half_sums[0] + half_sums[1]);
}

void Quantize8(const float* x, int cols, const ConvertRange& range, const QuantizedRows& out) {
  QuantizeRows(x, cols, range, out, 1, QuantizeBlock8);
}

}  // namespace
}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_MATMUL_MATMUL_BYTES_INL_H_
