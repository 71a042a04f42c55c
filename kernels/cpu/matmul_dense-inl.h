// Matmul over float panels with fp32 multiply-add, written once over a vector type V:
//   V::F, V::kWidth (8 or 16 floats), Zero, Broadcast, Load, LoadF16, LoadBf16Pair, Fma, Add,
//   Store.
// Register tile: kRows rows of x by kPanels panels. Included by files compiled for one instruction
// set each.
#ifndef HYDRANT_KERNELS_CPU_MATMUL_DENSE_INL_H_
#define HYDRANT_KERNELS_CPU_MATMUL_DENSE_INL_H_

#include "kernels/cpu/matmul_kernels.h"

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
    for (int v = 0; v < kVectors; ++v) {
      float* out = y + v * V::kWidth;
      V::Store(out, args.accumulate ? V::Add(V::Load(out), sums.v[v]) : sums.v[v]);
    }
    return;
  }
  float values[kPanelRows];
  for (int v = 0; v < kVectors; ++v) V::Store(values + v * V::kWidth, sums.v[v]);
  for (int j = 0; j < valid; ++j) y[j] = args.accumulate ? y[j] + values[j] : values[j];
}

// Columns a step of the inner loop takes: bf16 panels interleave two.
template <PanelFormat format>
constexpr int kColumnStep = format == PanelFormat::kBF16 ? 2 : 1;

// The weights of columns [k, k + step) of one panel.
template <class V, PanelFormat format>
inline void LoadColumns(const uint8_t* panel, int k, PanelVectors<V>* out) {
  for (int v = 0; v < PanelVectors<V>::kVectors; ++v) {
    const size_t at = static_cast<size_t>(k) * kPanelRows + v * V::kWidth;
    if constexpr (format == PanelFormat::kF32) {
      out[0].v[v] = V::Load(reinterpret_cast<const float*>(panel) + at);
    } else if constexpr (format == PanelFormat::kF16) {
      out[0].v[v] = V::LoadF16(reinterpret_cast<const uint16_t*>(panel) + at);
    } else {
      V::LoadBf16Pair(reinterpret_cast<const uint16_t*>(panel) + at + v * V::kWidth, &out[0].v[v],
                      &out[1].v[v]);
    }
  }
}

template <class V, PanelFormat format, int kRows, int kPanels>
void DenseTile(const PanelArgs& args, int row, int panel) {
  constexpr int kStep = kColumnStep<format>;
  constexpr int kVectors = PanelVectors<V>::kVectors;
  PanelVectors<V> sums[kRows][kPanels];
  for (auto& row_sums : sums) {
    for (auto& panel_sums : row_sums) {
      for (auto& v : panel_sums.v) v = V::Zero();
    }
  }
  const float* x = args.x + static_cast<size_t>(row) * args.cols;
  const uint8_t* weights = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
  const auto multiply_column = [&](int k, const PanelVectors<V>(&w)[kPanels][kStep], int s)
      __attribute__((always_inline)) {
    for (int r = 0; r < kRows; ++r) {
      const typename V::F value = V::Broadcast(x + static_cast<size_t>(r) * args.cols + k + s);
      for (int p = 0; p < kPanels; ++p) {
        for (int v = 0; v < kVectors; ++v)
          sums[r][p].v[v] = V::Fma(value, w[p][s].v[v], sums[r][p].v[v]);
      }
    }
  };
  PanelVectors<V> w[kPanels][kStep];
  int k = 0;
  for (; k + kStep <= args.cols; k += kStep) {
    for (int p = 0; p < kPanels; ++p)
      LoadColumns<V, format>(weights + p * args.panel_bytes, k, w[p]);
    for (int s = 0; s < kStep; ++s) multiply_column(k, w, s);
  }
  if (k < args.cols) {
    for (int p = 0; p < kPanels; ++p)
      LoadColumns<V, format>(weights + p * args.panel_bytes, k, w[p]);
    multiply_column(k, w, 0);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) StorePanel(args, row + r, panel + p, sums[r][p]);
  }
}

// All rows against kPanels panels, kMaxRows at a time.
template <class V, PanelFormat format, int kMaxRows, int kPanels>
void DensePanels(const PanelArgs& args, int panel) {
  int row = args.first_row;
  for (; row + kMaxRows <= args.end_row; row += kMaxRows)
    DenseTile<V, format, kMaxRows, kPanels>(args, row, panel);
  switch (args.end_row - row) {  // what is left, kMaxRows being at most 12
#define HYDRANT_ROWS(n)                                                             \
  case n:                                                                           \
    if constexpr (n < kMaxRows) DenseTile<V, format, n, kPanels>(args, row, panel); \
    break;
    HYDRANT_ROWS(1)
    HYDRANT_ROWS(2)
    HYDRANT_ROWS(3)
    HYDRANT_ROWS(4)
    HYDRANT_ROWS(5)
    HYDRANT_ROWS(6) HYDRANT_ROWS(7) HYDRANT_ROWS(8) HYDRANT_ROWS(9) HYDRANT_ROWS(10)
        HYDRANT_ROWS(11)
#undef HYDRANT_ROWS
            default : break;
  }
}

// Few rows: more panels at once, so that enough independent sums are under way to hide the latency
// of multiply-add.
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

#endif  // HYDRANT_KERNELS_CPU_MATMUL_DENSE_INL_H_
