// Block weights in AMX int8, with sums bit-equal to matmul_avx512vnni.cc.
#include <immintrin.h>

#include "kernels/cpu/isa/amx_tiles-inl.h"
#include "kernels/cpu/matmul/matmul_avx512_blocks-inl.h"
#include "kernels/cpu/matmul/matmul_rows-inl.h"

namespace hydrant::cpu {
namespace {

// Two sets of product tiles (high and low halves of the activations) are used alternately: while
// the vector units scale and add one block's sums, the tile unit multiplies the next.
template <DType dtype>
struct BlockShape {
  static constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  static constexpr int kHalves = kTraits.halves ? 2 : 1;
  static constexpr int kSteps = 8 / kHalves;
  static constexpr int kUnitBytes = kSteps * 64;  // unpacked weights that share a scale
  static constexpr size_t PanelScratch(int num_blocks) {
    const size_t units = static_cast<size_t>(num_blocks) * kHalves;
    return units * (kUnitBytes + 64 + (kTraits.has_min ? 64 : 0));
  }
};

constexpr size_t kProductBytes = 4 * kTileBytes;

struct UnpackedPanel {
  int8_t* quants;  // [unit][step][16 rows][4], offset subtracted
  float* scales;   // [unit][16]
  float* mins;     // [unit][16]
};

template <DType dtype>
UnpackedPanel CarvePanel(uint8_t* scratch, int num_blocks, int index) {
  using Shape = BlockShape<dtype>;
  uint8_t* p = scratch + kProductBytes + index * Shape::PanelScratch(num_blocks);
  const size_t units = static_cast<size_t>(num_blocks) * Shape::kHalves;
  UnpackedPanel panel;
  panel.quants = reinterpret_cast<int8_t*>(p);
  panel.scales = reinterpret_cast<float*>(p + units * Shape::kUnitBytes);
  panel.mins = panel.scales + units * 16;
  return panel;
}

template <DType dtype>
void UnpackPanel(const uint8_t* group, const GroupLayout& layout, int num_blocks,
                 const UnpackedPanel& out) {
  using Shape = BlockShape<dtype>;
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(Shape::kTraits.offset));
  for (int block = 0; block < num_blocks; ++block) {
    __m512i quants[8];
    UnpackBlock<dtype>(group, layout, block, quants);
    for (int s = 0; s < 8; ++s) {
      _mm512_store_si512(out.quants + (block * 8 + s) * 64, _mm512_sub_epi8(quants[s], offset));
    }
    for (int half = 0; half < Shape::kHalves; ++half) {
      _mm512_store_ps(out.scales + (block * Shape::kHalves + half) * 16,
                      ScaleOf<dtype>(group, layout, block, half));
      if constexpr (Shape::kTraits.has_min)
        _mm512_store_ps(out.mins + (block * Shape::kHalves + half) * 16,
                        MinOf<dtype>(group, layout, block, half));
    }
  }
}

template <DType dtype>
TileConfig BlockConfig(int rows) {
  using Shape = BlockShape<dtype>;
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = static_cast<uint8_t>(rows);
    config.row_bytes[t] = 64;
  }
  for (int t : {0, 1}) config.row_bytes[t] = Shape::kSteps * 4;
  for (int t : {2, 3}) config.rows[t] = Shape::kSteps;
  return config;
}

// Writes the products of one unit to `products`: high, then low.
template <int kSet>
inline void MultiplyUnit(const uint8_t* x, const int8_t* w, int32_t* products) {
  _tile_loadd(0, x, 64);
  _tile_loadd(1, x + 32, 64);
  if constexpr (kSet == 0) {
    _tile_loadd(2, w, 64);
    _tile_zero(4);
    _tile_zero(5);
    _tile_dpbssd(4, 0, 2);
    _tile_dpbssd(5, 1, 2);
    _tile_stored(4, products, 64);
    _tile_stored(5, products + 256, 64);
  } else {
    _tile_loadd(3, w, 64);
    _tile_zero(6);
    _tile_zero(7);
    _tile_dpbssd(6, 0, 3);
    _tile_dpbssd(7, 1, 3);
    _tile_stored(6, products, 64);
    _tile_stored(7, products + 256, 64);
  }
}

template <DType dtype, int kRows>
void BlocksTile(const PanelArgs& args, int row, int panel, const UnpackedPanel& weights) {
  using Shape = BlockShape<dtype>;
  const int num_blocks = args.cols / kBlock;
  const int num_units = num_blocks * Shape::kHalves;
  const size_t first_block = static_cast<size_t>(row / kTileRows) * num_blocks;
  const uint8_t* x = args.quantized.quants + first_block * kTileBytes;
  int32_t* products[2] = {reinterpret_cast<int32_t*>(args.scratch),
                          reinterpret_cast<int32_t*>(args.scratch + 2 * kTileBytes)};
  __m512 sums[kRows];
  for (auto& sum : sums) sum = _mm512_setzero_ps();

  const auto unit_x = [&](int unit) {
    return x + unit / Shape::kHalves * kTileBytes + unit % Shape::kHalves * 16;
  };
  const auto add = [&](int unit, const int32_t* p) __attribute__((always_inline)) {
    const int block = unit / Shape::kHalves;
    const BlockOfRows rows = BlockOfRowsAt(args.quantized, row, num_blocks, block);
    const __m512 scale = _mm512_load_ps(weights.scales + unit * 16);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const __m512i high = _mm512_slli_epi32(_mm512_load_si512(p + r * 16), 8);
      const __m512i dot = _mm512_add_epi32(high, _mm512_load_si512(p + 256 + r * 16));
      const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(rows.scales[r]));
      sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), factor, sums[r]);
    }
    if constexpr (Shape::kTraits.has_min) {
      const __m512 min = _mm512_load_ps(weights.mins + unit * 16);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const __m512 sum = _mm512_set1_ps(ScaledSumOf<dtype>(rows, r, unit % Shape::kHalves));
        sums[r] = _mm512_fmadd_ps(min, sum, sums[r]);
      }
    }
  };

  MultiplyUnit<0>(unit_x(0), weights.quants, products[0]);
  int unit = 0;
  for (; unit + 2 < num_units; unit += 2) {
    MultiplyUnit<1>(unit_x(unit + 1), weights.quants + (unit + 1) * Shape::kUnitBytes, products[1]);
    add(unit, products[0]);
    MultiplyUnit<0>(unit_x(unit + 2), weights.quants + (unit + 2) * Shape::kUnitBytes, products[0]);
    add(unit + 1, products[1]);
  }
  if (unit + 1 < num_units) {
    MultiplyUnit<1>(unit_x(unit + 1), weights.quants + (unit + 1) * Shape::kUnitBytes, products[1]);
    add(unit, products[0]);
    add(unit + 1, products[1]);
  } else {
    add(unit, products[0]);
  }
  const int valid = args.end_row - row < kRows ? args.end_row - row : kRows;
  for (int r = 0; r < kRows; ++r) {
    if (r < valid) StoreRow(args, row + r, panel, sums[r]);
  }
}

// Unpacks a few panels at a time into scratch, and multiplies them with all
// rows while they are cached.
template <DType dtype>
void BlocksTiled(const PanelArgs& args) {
  using Shape = BlockShape<dtype>;
  const int num_blocks = args.cols / kBlock;
  const GroupLayout layout = GroupLayoutOf(Shape::kTraits, num_blocks);
  const size_t room = args.scratch_bytes - kProductBytes;
  const int fitting = static_cast<int>(room / Shape::PanelScratch(num_blocks));
  const int chunk = fitting < 1 ? 1 : fitting;
  int configured_rows = 0;
  for (int first = args.first_panel; first < args.end_panel; first += chunk) {
    const int end = args.end_panel - first < chunk ? args.end_panel : first + chunk;
    for (int panel = first; panel < end; ++panel) {
      UnpackPanel<dtype>(args.panels + static_cast<size_t>(panel) * args.panel_bytes, layout,
                         num_blocks, CarvePanel<dtype>(args.scratch, num_blocks, panel - first));
    }
    OrderMemory();
    for (int row = args.first_row; row < args.end_row; row += kTileRows) {
      const int rows = args.end_row - row > 8 ? 16 : 8;
      if (rows != configured_rows) Configure(BlockConfig<dtype>(rows));
      configured_rows = rows;
      for (int panel = first; panel < end; ++panel) {
        const UnpackedPanel unpacked = CarvePanel<dtype>(args.scratch, num_blocks, panel - first);
        if (rows == 16) {
          BlocksTile<dtype, 16>(args, row, panel, unpacked);
        } else {
          BlocksTile<dtype, 8>(args, row, panel, unpacked);
        }
      }
    }
  }
  _tile_release();
}

template <DType dtype>
struct TiledRange {
  static void Run(const PanelArgs& args) { BlocksTiled<dtype>(args); }
};

}  // namespace

const MatmulKernels& MatmulKernelsAmxInt8() {
  static constexpr MatmulKernels kKernels = {.blocks_tiled = ForFormat<TiledRange>};
  return kKernels;
}

}  // namespace hydrant::cpu
