// Block weights in AMX's int8 by activations of 8 bits, with the same sums, bit by bit, as
// matmul_avx512vnni.cc.
#include <immintrin.h>

#include "kernels/cpu/amx_tiles-inl.h"
#include "kernels/cpu/matmul_avx512_blocks-inl.h"
#include "kernels/cpu/matmul_rows-inl.h"
#include "kernels/cpu/unroll.h"

namespace hydrant::cpu {
namespace {

// A unit is what shares a scale: a block, or half of one.
template <DType dtype>
struct UnitShape {
  static constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  static constexpr int kHalves = kTraits.halves ? 2 : 1;
  static constexpr int kSteps = 8 / kHalves;
  static constexpr int kRowBytes = 4 * kSteps;    // of a row of activations
  static constexpr int kUnitBytes = 64 * kSteps;  // of a panel, unpacked
};

// So many blocks are unpacked, then multiplied, then added. Block by block would be slower: for
// some 200 cycles after a product of tiles vectors of 512 bits run at half their speed (Intel Xeon
// with AMX, 2026-11). All stays in the first cache.
constexpr int kBlocksAtOnce = 16;
constexpr int kBlockBytes = 8 * 64;  // of a panel, unpacked
constexpr int kProducts = kTileBytes / sizeof(int32_t);

struct Unpacked {
  int8_t* quants;     // [block][kBlockBytes], offset subtracted
  int32_t* products;  // [unit][16 rows][16]
};

Unpacked UnpackedIn(uint8_t* scratch) {
  return {reinterpret_cast<int8_t*>(scratch),
          reinterpret_cast<int32_t*>(scratch + kBlocksAtOnce * kBlockBytes)};
}

// Tiles: 0 activations of 16 rows, 1 weights, 2 their products.
template <DType dtype>
TileConfig UnitConfig() {
  TileConfig config;
  for (int t = 0; t < 3; ++t) {
    config.rows[t] = kTileRows;
    config.row_bytes[t] = 64;
  }
  config.row_bytes[0] = UnitShape<dtype>::kRowBytes;
  config.rows[1] = UnitShape<dtype>::kSteps;
  return config;
}

// Blocks [first, end) of a panel.
struct BlockRun {
  const uint8_t* group;
  GroupLayout layout;
  int first, end;
};

template <DType dtype>
void Unpack(const BlockRun& run, int8_t* to) {
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(UnitShape<dtype>::kTraits.offset));
  for (int block = run.first; block < run.end; ++block, to += kBlockBytes) {
    __m512i quants[8];
    UnpackBlock<dtype>(run.group, run.layout, block, quants);
    for (int s = 0; s < 8; ++s) _mm512_store_si512(to + s * 64, _mm512_sub_epi8(quants[s], offset));
  }
}

// x: [block][16 rows][32], from the first on.
template <DType dtype>
void Multiply(int num_blocks, const uint8_t* x, const Unpacked& unpacked) {
  using Shape = UnitShape<dtype>;
  OrderMemory();
  for (int unit = 0; unit < num_blocks * Shape::kHalves; ++unit) {
    const int block = unit / Shape::kHalves, half = unit % Shape::kHalves;
    _tile_zero(2);
    _tile_loadd(0, x + block * kTileRows * kBlock + half * Shape::kRowBytes, kBlock);
    _tile_loadd(1, unpacked.quants + unit * Shape::kUnitBytes, 64);
    _tile_dpbssd(2, 0, 1);
    _tile_stored(2, unpacked.products + unit * kProducts, 64);
  }
  OrderMemory();
}

// Of the rows of x, of a unit.
template <DType dtype, int kRows>
inline __attribute__((always_inline)) void AddUnit(const BlockRun& run, int block, int half,
                                                   const BlockOfRows& x, const int32_t* products,
                                                   __m512 (&sums)[kRows]) {
  const __m512 scale = ScaleOf<dtype>(run.group, run.layout, block, half);
  Unroll<kRows>(HYDRANT_UNROLLED(r) {
    const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(products + r * kPanelRows));
    sums[r] = _mm512_fmadd_ps(dot, _mm512_mul_ps(scale, _mm512_set1_ps(x.scales[r])), sums[r]);
  });
  if constexpr (UnitShape<dtype>::kTraits.has_min) {
    const __m512 min = MinOf<dtype>(run.group, run.layout, block, half);
    Unroll<kRows>(HYDRANT_UNROLLED(r) {
      sums[r] = _mm512_fmadd_ps(min, _mm512_set1_ps(ScaledSumOf<dtype>(x, r, half)), sums[r]);
    });
  }
}

// kRows rows by a panel; those behind the first `valid` are not stored.
template <DType dtype, int kRows>
void BytesTile(const PanelArgs& args, const TileTask& task, int valid) {
  using Shape = UnitShape<dtype>;
  const int num_blocks = args.cols / kBlock;
  const size_t block_bytes = args.panel_bytes / num_blocks;
  const Unpacked unpacked = UnpackedIn(args.scratch);
  BlockRun run = {args.panels + static_cast<size_t>(task.panel) * args.panel_bytes,
                  GroupLayoutOf(Shape::kTraits, num_blocks), 0, 0};
  __m512 sums[kRows];
  Unroll<kRows>(HYDRANT_UNROLLED(r) { sums[r] = _mm512_setzero_ps(); });
  for (; run.first < num_blocks; run.first = run.end) {
    run.end = num_blocks - run.first < kBlocksAtOnce ? num_blocks : run.first + kBlocksAtOnce;
    const auto x_at = [&](int block) {
      return BlockOfRowsAt(args.quantized_8, task.row, num_blocks, block, 1);
    };
    Unpack<dtype>(run, unpacked.quants);
    Multiply<dtype>(run.end - run.first, x_at(run.first).quants, unpacked);
    const int32_t* products = unpacked.products;
    for (int block = run.first; block < run.end; ++block) {
      // Here, as adding alone leaves the memory idle.
      if (block % task.turns == task.turn)
        PrefetchAhead<Cache::kSecond>(run.group + block * block_bytes, block_bytes);
      for (int half = 0; half < Shape::kHalves; ++half, products += kProducts)
        AddUnit<dtype, kRows>(run, block, half, x_at(block), products, sums);
    }
  }
  Unroll<kRows>(HYDRANT_UNROLLED(r) {
    if (r < valid) StoreRow(args, task.row + r, task.panel, sums[r]);
  });
}

template <DType dtype>
struct BytesTiles {
  static constexpr int kMostRows = kTileRows, kPanels = 1;
  template <int kRows>
  static void Run(const PanelArgs& args, const TileTask& task) {
    BytesTile<dtype, kRows <= 8 ? 8 : 16>(args, task, kRows);
  }
};

template <DType dtype>
struct BytesRange {
  static void Run(const PanelArgs& args) {
    Configure(UnitConfig<dtype>());
    EveryTile<BytesTiles<dtype>>(args);
    _tile_release();
  }
};

}  // namespace

const MatmulKernels& MatmulKernelsAmxBytes() {
  static constexpr MatmulKernels kKernels = {.blocks_8_tiled = ForFormat<BytesRange>};
  return kKernels;
}

}  // namespace hydrant::cpu
