// AMX bf16: bf16 panels, or for many rows block weights unpacked to bf16, times bf16 activations.
#include <immintrin.h>

#include "kernels/cpu/isa/amx_tiles-inl.h"
#include "kernels/cpu/isa/unroll.h"
#include "kernels/cpu/matmul/matmul_avx512_blocks-inl.h"
#include "kernels/cpu/matmul/matmul_rows-inl.h"

namespace hydrant::cpu {
namespace {

// Tiles 0, 1: activations of two row tiles; 2, 3: weights of two panels; 4..7: their
// products, row tile first.
TileConfig ConfigFor(int rows0, int rows1) {
  TileConfig config;
  const int rows[8] = {rows0, rows1, 16, 16, rows0, rows0, rows1, rows1};
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = static_cast<uint8_t>(rows[t]);
    config.row_bytes[t] = 64;
  }
  return config;
}

// Tiles of one operand, [tile or panel][block][1 KiB].
struct Operand {
  const uint8_t* tiles;
  size_t stride;  // bytes from one row tile (panel) to the next
};

// Tiles 4..7 += a block of two row tiles by two panels. Tiles of x stream from L2 with a
// non-temporal load, so that they do not evict the panels, which all rows use, from L1.
template <int kTiles, int kPanels>
inline void Multiply(const uint8_t* x0, const uint8_t* x1, const uint8_t* w0, const uint8_t* w1) {
  _tile_loadd(2, w0, 64);
  _tile_stream_loadd(0, x0, 64);
  _tile_dpbf16ps(4, 0, 2);
  if constexpr (kPanels == 2) {
    _tile_loadd(3, w1, 64);
    _tile_dpbf16ps(5, 0, 3);
  }
  if constexpr (kTiles == 2) {
    _tile_stream_loadd(1, x1, 64);
    _tile_dpbf16ps(6, 1, 2);
    if constexpr (kPanels == 2) _tile_dpbf16ps(7, 1, 3);
  }
}

template <int kTile>
inline void StoreTile(void* to, size_t stride) {
  if constexpr (kTile == 4) _tile_stored(4, to, stride);
  if constexpr (kTile == 5) _tile_stored(5, to, stride);
  if constexpr (kTile == 6) _tile_stored(6, to, stride);
  if constexpr (kTile == 7) _tile_stored(7, to, stride);
}

template <int kTile>
inline void LoadTile(const void* from, size_t stride) {
  if constexpr (kTile == 4) _tile_loadd(4, from, stride);
  if constexpr (kTile == 5) _tile_loadd(5, from, stride);
  if constexpr (kTile == 6) _tile_loadd(6, from, stride);
  if constexpr (kTile == 7) _tile_loadd(7, from, stride);
}

template <int kTile>
inline void ZeroTile() {
  if constexpr (kTile == 4) _tile_zero(4);
  if constexpr (kTile == 5) _tile_zero(5);
  if constexpr (kTile == 6) _tile_zero(6);
  if constexpr (kTile == 7) _tile_zero(7);
}

// Whether all sixteen columns of y of the panel exist.
inline bool IsWhole(const PanelArgs& args, int panel) {
  return args.rows - panel * kPanelRows >= kPanelRows;
}
inline float* OutputAt(const PanelArgs& args, int row, int panel) {
  return args.y + row * args.y_stride + panel * kPanelRows;
}

// Initial value of a product: y, or zero.
template <int kTile>
inline void StartProduct(const PanelArgs& args, bool accumulate, int row, int num_rows, int panel) {
  if (!accumulate) return ZeroTile<kTile>();
  if (IsWhole(args, panel))
    return LoadTile<kTile>(OutputAt(args, row, panel), args.y_stride * sizeof(float));
  float* product = reinterpret_cast<float*>(args.scratch);
  const int valid = args.rows - panel * kPanelRows;
  for (int r = 0; r < num_rows; ++r) {
    const __mmask16 there = static_cast<__mmask16>((1 << valid) - 1);
    _mm512_store_ps(product + r * 16, _mm512_maskz_loadu_ps(there, OutputAt(args, row + r, panel)));
  }
  OrderMemory();
  LoadTile<kTile>(product, 64);
}

template <int kTile>
inline void StoreProduct(const PanelArgs& args, int row, int num_rows, int panel) {
  if (IsWhole(args, panel))
    return StoreTile<kTile>(OutputAt(args, row, panel), args.y_stride * sizeof(float));
  float* product = reinterpret_cast<float*>(args.scratch);
  StoreTile<kTile>(product, 64);
  OrderMemory();
  const __mmask16 there = static_cast<__mmask16>((1 << (args.rows - panel * kPanelRows)) - 1);
  for (int r = 0; r < num_rows; ++r)
    _mm512_mask_storeu_ps(OutputAt(args, row + r, panel), there, _mm512_load_ps(product + r * 16));
}

// The output of the next product: further down, or the next panels.
template <int kTiles, int kPanels>
inline const float* NextOutput(const PanelArgs& args, int row, int panel) {
  const int next = row + kTiles * kTileRows;
  if (next < args.end_row) return OutputAt(args, next, panel);
  return OutputAt(args, args.first_row, panel + kPanels < args.end_panel ? panel + kPanels : panel);
}

// Prefetches the next lines of y while tiles are multiplied: one row of a tile of each panel.
template <int kPanels>
inline void AskForRow(const float* y) {
  for (int panel = 0; panel < kPanels; ++panel)
    _mm_prefetch(reinterpret_cast<const char*>(y + panel * kPanelRows), _MM_HINT_T2);
}

struct TileRows {
  int rows0 = 0;
  int rows1 = 0;
};

// Blocks of columns. A product adds to the y of earlier blocks.
struct Blocks {
  int begin, end;

  int count() const { return end - begin; }
};

// x, w: start at the first of the blocks. Not inlined: the loop needs all registers for addresses.
template <int kTiles, int kPanels>
[[gnu::noinline]] void Product(const PanelArgs& args, const Operand& x, const Operand& w, int row,
                               int panel, TileRows rows, Blocks blocks) {
  const int num_blocks = blocks.count();
  const bool more = args.accumulate || blocks.begin > 0;
  StartProduct<4>(args, more, row, rows.rows0, panel);
  if constexpr (kPanels == 2) StartProduct<5>(args, more, row, rows.rows0, panel + 1);
  if constexpr (kTiles == 2) StartProduct<6>(args, more, row + 16, rows.rows1, panel);
  if constexpr (kTiles == 2 && kPanels == 2)
    StartProduct<7>(args, more, row + 16, rows.rows1, panel + 1);
  const uint8_t *x0 = x.tiles, *x1 = x0 + x.stride, *w0 = w.tiles, *w1 = w0 + w.stride;
  const float* next = NextOutput<kTiles, kPanels>(args, row, panel);
  const int asking = num_blocks < kTileRows ? num_blocks : kTileRows;
  const int64_t step = args.y_stride, other = kTiles == 2 ? kTileRows * step : 0;
  const auto advance = [&] {
    Multiply<kTiles, kPanels>(x0, x1, w0, w1);
    x0 += kTileBytes;
    x1 += kTileBytes;
    w0 += kTileBytes;
    w1 += kTileBytes;
  };
  for (int block = 0; block < asking; ++block, next += step) {
    advance();
    AskForRow<kPanels>(next);
    if constexpr (kTiles == 2) AskForRow<kPanels>(next + other);
  }
  for (int block = asking; block < num_blocks; ++block) advance();
  StoreProduct<4>(args, row, rows.rows0, panel);
  if constexpr (kPanels == 2) StoreProduct<5>(args, row, rows.rows0, panel + 1);
  if constexpr (kTiles == 2) StoreProduct<6>(args, row + 16, rows.rows1, panel);
  if constexpr (kTiles == 2 && kPanels == 2) StoreProduct<7>(args, row + 16, rows.rows1, panel + 1);
}

// All rows of x by one or two panels. Reconfigures tiles when the number of rows changes.
void RowsByPanels(const PanelArgs& args, const Operand& w, int panel, int num_panels, Blocks blocks,
                  TileRows* configured) {
  const size_t x_stride = static_cast<size_t>((args.cols + 31) / 32) * kTileBytes;
  for (int row = args.first_row; row < args.end_row; row += 2 * kTileRows) {
    const int left = args.end_row - row;
    TileRows rows;
    rows.rows0 = left < 16 ? left : 16;
    rows.rows1 = left <= 16 ? 0 : left < 32 ? left - 16 : 16;
    if (rows.rows0 != configured->rows0 || rows.rows1 != configured->rows1) {
      Configure(ConfigFor(rows.rows0, rows.rows1 > 0 ? rows.rows1 : 1));
      *configured = rows;
    }
    const size_t at = row / kTileRows * x_stride + static_cast<size_t>(blocks.begin) * kTileBytes;
    const Operand x = {reinterpret_cast<const uint8_t*>(args.x_bf16) + at, x_stride};
    if (rows.rows1 > 0) {
      num_panels == 2 ? Product<2, 2>(args, x, w, row, panel, rows, blocks)
                      : Product<2, 1>(args, x, w, row, panel, rows, blocks);
    } else {
      num_panels == 2 ? Product<1, 2>(args, x, w, row, panel, rows, blocks)
                      : Product<1, 1>(args, x, w, row, panel, rows, blocks);
    }
  }
}

void Bf16(const PanelArgs& args) {
  TileRows configured;
  for (int panel = args.first_panel; panel < args.end_panel; panel += 2) {
    const Operand w = {args.panels + static_cast<size_t>(panel) * args.panel_bytes,
                       args.panel_bytes};
    RowsByPanels(args, w, panel, panel + 2 <= args.end_panel ? 2 : 1, {0, (args.cols + 31) / 32},
                 &configured);
  }
  _tile_release();
}

// Two vectors of floats truncated to pairs of bf16: lane r holds (even[r], odd[r]).
inline __m512i CutToPair(__m512 even, __m512 odd) {
  const __m512i upper =
      _mm512_broadcast_i32x4(_mm_setr_epi8(2, 3, 0, 0, 6, 7, 0, 0, 10, 11, 0, 0, 14, 15, 0, 0));
  constexpr __mmask64 kLowerBytes = 0x3333333333333333;
  return _mm512_mask_shuffle_epi8(_mm512_castps_si512(odd), kLowerBytes, _mm512_castps_si512(even),
                                  upper);
}

// Truncation loses half a unit in the last place on average. This factor compensates it for
// mantissas distributed as those of products are (uniform logarithms): ln 2 / 2 of a unit of 1, so
// from 0.35 to 0.69 of a number's unit. Numbers exact in bf16 stay exact, and the error is 6 %
// above that of rounding to nearest.
constexpr float kBeforeCut = 1.0f + 0.34657359f / 128.0f;

// Quants of a block of 16 rows to floats, minus their offset.
template <DType dtype>
class QuantsToFloats {
 public:
  QuantsToFloats() {
    alignas(64) float values[16];
    for (int i = 0; i < 16; ++i) {
      const bool coded = kTraits.codebook != Codebook::kNone;
      const int quant = coded ? CodeBytesOf(kTraits).bytes[i] : i;
      values[i] = static_cast<float>(quant - kTraits.offset);
    }
    values_ = _mm512_load_ps(values);
  }

  void Load(const uint8_t* group, const GroupLayout& layout, int block) {
    if constexpr (kNibbles) {
      for (int v = 0; v < 4; ++v)
        bits_[v] = _mm512_loadu_si512(group + block * LowBytes(kTraits) + v * 64);
    } else {
      UnpackBlock<dtype>(group, layout, block, bits_);
    }
  }

  // Values 4s + i. The table look-up reads the lowest four bits of a lane.
  __m512 Value(int s, int i) const {
    if constexpr (kNibbles)
      return _mm512_permutexvar_ps(_mm512_srli_epi32(bits_[s % 4], 8 * i + s / 4 * 4), values_);
    const __m512i shifted = _mm512_srli_epi32(bits_[s], 8 * i);
    if constexpr (kFewValues) return _mm512_permutexvar_ps(shifted, values_);
    const __m512i quant = _mm512_and_si512(shifted, _mm512_set1_epi32(255));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(quant, _mm512_set1_epi32(kTraits.offset)));
  }

 private:
  static constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  static constexpr bool kNibbles = kTraits.low_bits == 4 && kTraits.high_bits == 0;
  static constexpr bool kFewValues = LargestQuant(kTraits) < 16;
  __m512 values_;
  __m512i bits_[kNibbles ? 4 : 8];
};

// Blocks of a panel as bf16 tiles: [block][16 pairs of columns][16 rows][2].
template <DType dtype>
void UnpackPanel(const uint8_t* group, const GroupLayout& layout, Blocks blocks, size_t block_bytes,
                 uint8_t* tiles) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  const __m512 before_cut = _mm512_set1_ps(kBeforeCut);
  QuantsToFloats<dtype> quants;
  for (int block = blocks.begin; block < blocks.end; ++block, tiles += kTileBytes) {
    PrefetchAhead<Cache::kFirst, 4096>(group + block * block_bytes, block_bytes);
    quants.Load(group, layout, block);
    __m512 scales[2], mins[2];
    for (int half = 0; half < 2; ++half) {
      const int which = kTraits.halves ? half : 0;
      scales[half] = _mm512_mul_ps(ScaleOf<dtype>(group, layout, block, which), before_cut);
      mins[half] = _mm512_setzero_ps();
      if constexpr (kTraits.has_min)
        mins[half] = _mm512_mul_ps(MinOf<dtype>(group, layout, block, which), before_cut);
    }
    const auto value = [&](int s, int i) __attribute__((always_inline)) {
      return _mm512_fmadd_ps(quants.Value(s, i), scales[s / 4], mins[s / 4]);
    };
    Unroll<8>(HYDRANT_UNROLLED(s) {
      Unroll<2>(HYDRANT_UNROLLED(pair) {
        _mm512_store_si512(tiles + (2 * s + pair) * 64,
                           CutToPair(value(s, 2 * pair), value(s, 2 * pair + 1)));
      });
    });
  }
}

// Blocks of columns per pass: two panels of them stay in L1, and a task's rows in L2.
constexpr int kNearBlocks = 20;

template <DType dtype>
struct BlocksRange {
  static void Run(const PanelArgs& args) {
    const int num_blocks = args.cols / kBlock;
    const int parts = (num_blocks + kNearBlocks - 1) / kNearBlocks;
    TileRows configured;
    for (int part = 0; part < parts; ++part)
      RunPart(args, {num_blocks * part / parts, num_blocks * (part + 1) / parts}, &configured);
    _tile_release();
  }

 private:
  static void RunPart(const PanelArgs& args, Blocks blocks, TileRows* configured) {
    const int num_blocks = args.cols / kBlock;
    const GroupLayout layout = GroupLayoutOf(BlockTraitsOf(dtype), num_blocks);
    const size_t panel_bytes = static_cast<size_t>(blocks.count()) * kTileBytes;
    uint8_t* tiles = args.scratch + kTileBytes;  // after the space for a product
    for (int panel = args.first_panel; panel < args.end_panel; panel += 2) {
      const int count = panel + 2 <= args.end_panel ? 2 : 1;
      for (int p = 0; p < count; ++p) {
        UnpackPanel<dtype>(args.panels + static_cast<size_t>(panel + p) * args.panel_bytes, layout,
                           blocks, args.panel_bytes / num_blocks, tiles + p * panel_bytes);
      }
      OrderMemory();
      RowsByPanels(args, {tiles, panel_bytes}, panel, count, blocks, configured);
    }
  }
};

}  // namespace

const MatmulKernels& MatmulKernelsAmxBf16() {
  static constexpr MatmulKernels kKernels = {.bf16 = Bf16, .blocks_bf16 = ForFormat<BlocksRange>};
  return kKernels;
}

}  // namespace hydrant::cpu
