// Matmul over float panels with fp32 multiply-add, written once over a vector type V:
//   V::F, V::kWidth (4, 8 or 16 floats), Zero, Broadcast, Load, LoadF16, LoadBf16Pair, Fma, Add,
//   Mul, Store; LoadF8: e4m3fn bits as a half with the same bits, 2^-8 of their value.
// Register tile: kRows rows of x by kPanels panels. Included by files compiled for
// one instruction set each.
#ifndef HYDRANT_KERNELS_CPU_MATMUL_MATMUL_DENSE_INL_H_
#define HYDRANT_KERNELS_CPU_MATMUL_MATMUL_DENSE_INL_H_

#include "kernels/cpu/matmul/matmul_kernels.h"

namespace hydrant::cpu {
namespace {

template <class V>
struct PanelVectors {
  static constexpr int kVectors = kPanelRows / V::kWidth;
  typename V::F v[kVectors];
};

template <class V>
inline void StorePanel(const PanelArgs& args, int row, int panel, const PanelVectors<V>& sums) {
  constexpr int kVectors = PanelVectors<V>::kVectors;
  float* y = args.y + row * args.y_stride + panel * kPanelRows;
  const int valid = args.rows - panel * kPanelRows;
  if (valid >= kPanelRows) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* out = y + v * V::kWidth;
      V::Store(out, args.accumulate ? V::Add(V::Load(out), sums.v[v]) : sums.v[v]);
    }
    return;
  }
  float values[kPanelRows];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) V::Store(values + v * V::kWidth, sums.v[v]);
  for (int j = 0; j < valid; ++j) y[j] = args.accumulate ? y[j] + values[j] : values[j];
}

// Columns per step of the inner loop: bf16 panels interleave two.
template <PanelFormat format>
constexpr int kColumnStep = format == PanelFormat::kBF16 ? 2 : 1;

// The weights of columns [k, k + step) of one panel of `cols` columns.
template <class V, PanelFormat format>
inline void LoadColumns(const uint8_t* panel, int k, int cols, PanelVectors<V>* out) {
  for (int v = 0; v < PanelVectors<V>::kVectors; ++v) {
    const size_t at = static_cast<size_t>(k) * kPanelRows + v * V::kWidth;
    if constexpr (format == PanelFormat::kF32) {
      out[0].v[v] = V::Load(reinterpret_cast<const float*>(panel) + at);
    } else if constexpr (format == PanelFormat::kF16) {
      out[0].v[v] = V::LoadF16(reinterpret_cast<const uint16_t*>(panel) + at);
    } else if constexpr (format == PanelFormat::kF8) {
      const uint8_t* scales = panel + static_cast<size_t>(cols) * kPanelRows;
      const size_t scale_at = static_cast<size_t>(k / kF8Columns) * kPanelRows + v * V::kWidth;
      out[0].v[v] =
          V::Mul(V::LoadF8(panel + at), V::Load(reinterpret_cast<const float*>(scales) + scale_at));
    } else {
      V::LoadBf16Pair(reinterpret_cast<const uint16_t*>(panel) + at + v * V::kWidth, &out[0].v[v],
                      &out[1].v[v]);
    }
  }
}

// Every loop over registers is unrolled: otherwise the compiler keeps the sums in memory and
// stores them at every column.
//
// Columns [first_column, end_column) of a tile. `partial` [kRows][kPanels][16] holds the sums of
// earlier columns, and receives the new sums unless the tile ends here: fp32 values are stored
// exactly, so the cut does not change the result.
template <class V, PanelFormat format, int kRows, int kPanels>
void DenseTile(const PanelArgs& args, int row, int panel, int first_column, int end_column,
               float* partial) {
  constexpr int kStep = kColumnStep<format>;
  constexpr int kVectors = PanelVectors<V>::kVectors;
  PanelVectors<V> sums[kRows][kPanels];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        sums[r][p].v[v] = first_column == 0
                              ? V::Zero()
                              : V::Load(partial + ((r * kPanels + p) * kVectors + v) * V::kWidth);
      }
    }
  }
  const float* x = args.x + static_cast<size_t>(row) * args.cols;
  const uint8_t* weights = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
  const auto multiply_column = [&](int k, const PanelVectors<V>(&w)[kPanels][kStep], int s)
      __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename V::F value = V::Broadcast(x + static_cast<size_t>(r) * args.cols + k + s);
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v)
          sums[r][p].v[v] = V::Fma(value, w[p][s].v[v], sums[r][p].v[v]);
      }
    }
  };
  PanelVectors<V> w[kPanels][kStep];
  int k = first_column;
  for (; k + kStep <= end_column; k += kStep) {
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p)
      LoadColumns<V, format>(weights + p * args.panel_bytes, k, args.cols, w[p]);
#pragma GCC unroll 16
    for (int s = 0; s < kStep; ++s) multiply_column(k, w, s);
  }
  if (k < end_column) {
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p)
      LoadColumns<V, format>(weights + p * args.panel_bytes, k, args.cols, w[p]);
    multiply_column(k, w, 0);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
      if (end_column == args.cols) {
        StorePanel(args, row + r, panel + p, sums[r][p]);
        continue;
      }
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v)
        V::Store(partial + ((r * kPanels + p) * kVectors + v) * V::kWidth, sums[r][p].v[v]);
    }
  }
}

// Columns of a panel that stay in L1 (12 KiB of fp32) while all rows are
// multiplied; an even number.
constexpr int kCachedColumns = 192;

// All rows by some columns of kPanels panels, kMaxRows at a time.
template <class V, PanelFormat format, int kMaxRows, int kPanels>
void DenseColumns(const PanelArgs& args, int panel, int first_column, int end_column) {
  auto* partial = reinterpret_cast<float*>(args.scratch);
  constexpr int kPartials = kPanels * kPanelRows;  // per row
  int row = args.first_row;
  for (; row + kMaxRows <= args.end_row; row += kMaxRows, partial += kMaxRows * kPartials)
    DenseTile<V, format, kMaxRows, kPanels>(args, row, panel, first_column, end_column, partial);
  switch (args.end_row - row) {  // the remainder; kMaxRows is at most 12
#define HYDRANT_ROWS(n)                                                                      \
  case n:                                                                                    \
    if constexpr (n < kMaxRows)                                                              \
      DenseTile<V, format, n, kPanels>(args, row, panel, first_column, end_column, partial); \
    break;
    HYDRANT_ROWS(1)
    HYDRANT_ROWS(2)
    HYDRANT_ROWS(3)
    HYDRANT_ROWS(4)
    HYDRANT_ROWS(5)
    HYDRANT_ROWS(6)
    HYDRANT_ROWS(7)
    HYDRANT_ROWS(8)
    HYDRANT_ROWS(9)
    HYDRANT_ROWS(10)
    HYDRANT_ROWS(11)
#undef HYDRANT_ROWS
    default:
      break;
  }
}

// One tile reads all its columns in one pass; many tiles share them, as many at a
// time as the cache holds.
template <class V, PanelFormat format, int kMaxRows, int kPanels>
void DensePanels(const PanelArgs& args, int panel) {
  const int rows = args.end_row - args.first_row;
  const bool fits = rows * kPanels * kPanelRows * sizeof(float) <= args.scratch_bytes;
  const int step = rows > kMaxRows && fits ? kCachedColumns : args.cols;
  for (int column = 0; column < args.cols; column += step) {
    const int end = args.cols - column < step ? args.cols : column + step;
    DenseColumns<V, format, kMaxRows, kPanels>(args, panel, column, end);
  }
}

// Few rows: more panels at once, so that enough independent sums hide the latency of multiply-add.
template <class V, PanelFormat format>
void Dense(const PanelArgs& args) {
  constexpr int kMaxRows = V::kWidth == 16 ? 12 : 6;
  constexpr int kPanels = V::kWidth == 16 ? 2 : 1;
  constexpr int kFewRows = kMaxRows / 2 - 1;
  int panel = args.first_panel;
  if (args.end_row - args.first_row <= kFewRows) {
    for (; panel + 2 * kPanels <= args.end_panel; panel += 2 * kPanels) {
      DensePanels<V, format, kFewRows, 2 * kPanels>(args, panel);
    }
  }
  for (; panel + kPanels <= args.end_panel; panel += kPanels)
    DensePanels<V, format, kMaxRows, kPanels>(args, panel);
  for (; panel < args.end_panel; ++panel) DensePanels<V, format, kMaxRows, 1>(args, panel);
}

}  // namespace
}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_MATMUL_MATMUL_DENSE_INL_H_
