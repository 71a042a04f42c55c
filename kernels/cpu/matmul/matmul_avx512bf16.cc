// bf16 panels times bf16 activations with AVX-512 BF16's pairwise dot products.
#include <immintrin.h>

#include "kernels/cpu/matmul/matmul_avx512_blocks-inl.h"
#include "kernels/cpu/matmul/matmul_rows-inl.h"

namespace hydrant::cpu {
namespace {

inline __m512bh BroadcastPair(const uint16_t* p) {
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(*reinterpret_cast<const int32_t*>(p)));
}

template <int kRows, int kPanels>
void Tile(const PanelArgs& args, int row, int panel) {
  const int num_blocks = (args.cols + 31) / 32;
  const size_t tile = static_cast<size_t>(row / kTileRows) * num_blocks;
  const uint16_t* x = args.x_bf16 + (tile * kTileRows + row % kTileRows) * 32;
  const uint8_t* weights = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
  __m512 sums[kRows][kPanels];
#pragma GCC unroll 16
  for (auto& row_sums : sums) {
#pragma GCC unroll 16
    for (auto& sum : row_sums) sum = _mm512_setzero_ps();
  }
  for (int block = 0; block < num_blocks; ++block, x += kTileRows * 32, weights += 1024) {
    for (int pair = 0; pair < 16; ++pair) {
      __m512bh w[kPanels];
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p) {
        w[p] = reinterpret_cast<__m512bh>(
            _mm512_loadu_si512(weights + p * args.panel_bytes + pair * 64));
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const __m512bh value = BroadcastPair(x + r * 32 + pair * 2);
#pragma GCC unroll 16
        for (int p = 0; p < kPanels; ++p) sums[r][p] = _mm512_dpbf16_ps(sums[r][p], value, w[p]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) StoreRow(args, row + r, panel + p, sums[r][p]);
  }
}

template <int kPanels>
void Panels(const PanelArgs& args, int panel) {
  constexpr int kMaxRows = 8;  // divides the rows of a tile
  int row = args.first_row;
  for (; row + kMaxRows <= args.end_row; row += kMaxRows) Tile<kMaxRows, kPanels>(args, row, panel);
  switch (args.end_row - row) {
    case 1:
      return Tile<1, kPanels>(args, row, panel);
    case 2:
      return Tile<2, kPanels>(args, row, panel);
    case 3:
      return Tile<3, kPanels>(args, row, panel);
    case 4:
      return Tile<4, kPanels>(args, row, panel);
    case 5:
      return Tile<5, kPanels>(args, row, panel);
    case 6:
      return Tile<6, kPanels>(args, row, panel);
    case 7:
      return Tile<7, kPanels>(args, row, panel);
    default:
      return;
  }
}

void Bf16(const PanelArgs& args) {
  int panel = args.first_panel;
  for (; panel + 3 <= args.end_panel; panel += 3) Panels<3>(args, panel);
  for (; panel < args.end_panel; ++panel) Panels<1>(args, panel);
}

void RoundBf16(const float* x, int cols, int first_row, int end_row, uint16_t* out) {
  const int num_blocks = (cols + 31) / 32;
  for (int row = first_row; row < end_row; ++row) {
    const float* values = x + static_cast<size_t>(row - first_row) * cols;
    const size_t tile = static_cast<size_t>(row / kTileRows) * num_blocks;
    for (int half_block = 0; half_block < 2 * num_blocks; ++half_block) {
      const int left = cols - half_block * 16;
      const __mmask16 mask = left >= 16  ? 0xffff
                             : left <= 0 ? 0
                                         : static_cast<__mmask16>((1u << left) - 1);
      const __m512 v = _mm512_maskz_loadu_ps(mask, values + half_block * 16);
      const size_t at =
          ((tile + half_block / 2) * kTileRows + row % kTileRows) * 32 + half_block % 2 * 16;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at),
                          reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
    }
  }
}

}  // namespace

const MatmulKernels& MatmulKernelsAvx512Bf16() {
  static constexpr MatmulKernels kKernels = {.bf16 = Bf16, .round_bf16 = RoundBf16};
  return kKernels;
}

}  // namespace hydrant::cpu
