// Float panels and block weights with the instructions that every machine of the backend has
// (kernels/cpu/isa/isa.h).
#include "kernels/cpu/isa/unroll.h"
#include "kernels/cpu/isa/vectors-inl.h"
#include "kernels/cpu/matmul/matmul_base_blocks-inl.h"
#include "kernels/cpu/matmul/matmul_dense-inl.h"
#include "kernels/cpu/matmul/matmul_rows-inl.h"

namespace hydrant::cpu {
namespace {

struct Base {
  using F = Vec;
  static constexpr int kWidth = kLanes;
  static F Zero() { return hn::Zero(kFloats); }
  static F Broadcast(const float* p) { return Set(*p); }
  static F Load(const float* p) { return hn::LoadU(kFloats, p); }
  static F LoadF16(const uint16_t* p) { return LoadHalves(p); }
  static F LoadF8(const uint8_t* p) {
    constexpr LaneTag<uint16_t> kHalves;
    const auto bytes = hn::PromoteTo(kHalves, hn::LoadU(LaneTag<uint8_t>(), p));
    const auto magnitude = hn::ShiftLeft<7>(hn::And(bytes, hn::Set(kHalves, 0x7f)));
    const auto sign = hn::ShiftLeft<15>(hn::ShiftRight<7>(bytes));
    return FromHalves(hn::BitCast(LaneTag<int16_t>(), hn::Or(sign, magnitude)));
  }
  static F Mul(F a, F b) { return hn::Mul(a, b); }
  static void LoadBf16Pair(const uint16_t* p, F* even, F* odd) {
    const IntVec pairs = hn::LoadU(kInts, reinterpret_cast<const int32_t*>(p));
    *even = hn::BitCast(kFloats, hn::ShiftLeft<16>(pairs));
    *odd = hn::BitCast(kFloats, hn::And(pairs, hn::Set(kInts, -65536)));
  }
  static F Fma(F a, F b, F c) { return hn::MulAdd(a, b, c); }
  static F Add(F a, F b) { return hn::Add(a, b); }
  static void Store(float* p, F v) { hn::StoreU(v, kFloats, p); }
};

// Adds the products of values 4 step .. 4 step + 3 of kRows rows of x and of the part's rows of W,
// for the steps from kFirstStep on. Integers of 16 bits, summed exactly in 32 bits over a block.
template <DType dtype, int kRows, int kFirstStep, int kSteps>
HYDRANT_INLINE void AddSteps(const uint8_t* low, const uint8_t* high, const uint8_t* quants_of_x,
                             IntVec (&dots)[kRows]) {
  Unroll<kSteps>(HYDRANT_UNROLLED(i) {
    constexpr int kStep = kFirstStep + decltype(i)::value;
    const WordVec quants = hn::BitCast(kWords, UnpackStep<dtype, kStep>(low, high));
    const WordVec even = hn::And(quants, hn::Set(kWords, 255));
    const WordVec odd = hn::BitCast(
        kWords, hn::ShiftRight<8>(hn::BitCast(hn::Repartition<uint16_t, Words>(), quants)));
    Unroll<kRows>(HYDRANT_UNROLLED(r) {
      const auto* pairs = reinterpret_cast<const int32_t*>(quants_of_x + r * 64 + kStep * 8);
      const WordVec first = hn::BitCast(kWords, hn::Set(kInts, pairs[0]));
      const WordVec second = hn::BitCast(kWords, hn::Set(kInts, pairs[1]));
      dots[r] = AddPairs(even, first, dots[r]);
      dots[r] = AddPairs(odd, second, dots[r]);
    });
  });
}

// kRows rows of x by kLanes rows of a group.
template <DType dtype, int kRows>
void BlocksTile(const PanelArgs& args, const TileTask& task, int side) {
  const int row = task.row, panel = task.panel;
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  constexpr int kHalves = kTraits.halves ? 2 : 1;
  constexpr int kSteps = 8 / kHalves;
  const int num_blocks = args.cols / kBlock;
  const GroupLayout layout = GroupLayoutOf(kTraits, num_blocks);
  const uint8_t* group = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
  Vec sums[kRows];
  Unroll<kRows>(HYDRANT_UNROLLED(r) { sums[r] = Zero(); });
  const size_t block_bytes = args.panel_bytes / num_blocks;
  for (int block = 0; block < num_blocks; ++block) {
    if (side == 0) PrefetchFor(task, block, group + block * block_bytes, block_bytes);
    const BlockOfRows x = BlockOfRowsAt(args.quantized, row, num_blocks, block);
    const uint8_t* low = group + block * LowBytes(kTraits) + side * kSideBytes;
    const uint8_t* high = group + layout.high + block * HighBytes(kTraits) + side * kSideBytes;
    Unroll<kHalves>(HYDRANT_UNROLLED(half) {
      IntVec dots[kRows];
      Unroll<kRows>(HYDRANT_UNROLLED(r) { dots[r] = hn::Zero(kInts); });
      AddSteps<dtype, kRows, decltype(half)::value * kSteps, kSteps>(low, high, x.quants, dots);
      const Vec scale = ScaleOf<dtype>(group, layout, block, half, side);
      Unroll<kRows>(HYDRANT_UNROLLED(r) {
        if constexpr (kTraits.offset != 0) {
          dots[r] = hn::Sub(dots[r], hn::Set(kInts, kTraits.offset * SumOf<dtype>(x, r, half)));
        }
        const Vec factor = hn::Mul(scale, Set(x.scales[r]));
        sums[r] = hn::MulAdd(hn::ConvertTo(kFloats, dots[r]), factor, sums[r]);
      });
      if constexpr (kTraits.has_min) {
        const Vec min = MinOf<dtype>(group, layout, block, half, side);
        Unroll<kRows>(HYDRANT_UNROLLED(r) {
          sums[r] = hn::MulAdd(min, Set(ScaledSumOf<dtype>(x, r, half)), sums[r]);
        });
      }
    });
  }
  Unroll<kRows>(HYDRANT_UNROLLED(r) {
    float values[kLanes];
    Store(values, sums[r]);
    StoreValues(args, row + r, panel * kPanelRows + side * kLanes, values, kLanes);
  });
}

template <DType dtype>
struct BlockTiles {
  static constexpr int kMinRows = 1, kMaxRows = 4, kPanels = 1;
  template <int kRows>
  static void Run(const PanelArgs& args, const TileTask& task) {
    for (int side = 0; side < kSides; ++side) BlocksTile<dtype, kRows>(args, task, side);
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
  int16_t in_order[kBlock];
  const BlockScale s = RoundBlock(x, kQuantLimit, in_order, half_sums);
  constexpr hn::FixedTag<uint8_t, 16> kEight;
  alignas(16) static constexpr uint8_t kOrder[16] = {0, 1, 4,  5,  2,  3,  6,  7,
                                                     8, 9, 12, 13, 10, 11, 14, 15};
  for (int i = 0; i < kBlock; i += 8) {
    const auto eight = hn::LoadU(kEight, reinterpret_cast<const uint8_t*>(in_order + i));
    hn::StoreU(hn::TableLookupBytes(eight, hn::Load(kEight, kOrder)), kEight, quants + 2 * i);
  }
  *scale = s.scale;
  *scaled_sum = s.scale * static_cast<float>(half_sums[0] + half_sums[1]);
}

void Quantize(const float* x, int cols, const ConvertRange& range, const QuantizedRows& out) {
  QuantizeRows(x, cols, range, out, 2, QuantizeBlock);
}

}  // namespace

const MatmulKernels& MatmulKernelsBase() {
  static constexpr MatmulKernels kKernels = {.f32 = Dense<Base, PanelFormat::kF32>,
                                             .f16 = Dense<Base, PanelFormat::kF16>,
                                             .bf16_widened = Dense<Base, PanelFormat::kBF16>,
                                             .f8 = Dense<Base, PanelFormat::kF8>,
                                             .blocks = ForFormat<BlockRange>,
                                             .quantize = Quantize};
  return kKernels;
}

}  // namespace hydrant::cpu
