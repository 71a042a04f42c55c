// The inner loops of Matmul, one table of functions per instruction set. Plain data only: the files
// behind these tables are compiled with the flags of one instruction set, so they include no header
// with inline functions that other files use.
//
// Every function computes rows of y = x W^T for a range of weight panels (16 rows of W each) and a
// range of rows of x, with one accumulator per output over the columns in ascending order: an
// output's bits depend on its row of x and its row of W alone, never on the ranges.
#ifndef HYDRANT_KERNELS_CPU_MATMUL_MATMUL_KERNELS_H_
#define HYDRANT_KERNELS_CPU_MATMUL_MATMUL_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/matmul/matmul_blocks.h"
#include "kernels/dtype.h"

namespace hydrant::cpu {

inline constexpr int kPanelRows = kGroupRows;
inline constexpr int kTileRows = 16;  // rows of x in a tile of converted activations

// Layout and arithmetic of a weight.
enum class PanelFormat : uint8_t {
  kF32,     // [panel][cols][16] float
  kF16,     // [panel][cols][16] half
  kBF16,    // [panel][cols / 2, rounded up to a multiple of 16][16][2] bf16, times fp32 activations
  kF8,      // [panel][cols][16] e4m3fn, then [panel][cols / 128][16] float: 256 times the scales
  kBlocks,  // matmul_blocks.h
};

inline constexpr int kF8Columns = BlockElements(DType::kF8_E4M3);  // columns that share a scale

// Rows of activations for block weights, in blocks of 32 values: x ~= scale * i, with i an
// integer of 16 or 8 bits.
//   quants  [tile][block][16 rows][64 or 32 bytes]  in the order of the instruction set
//   scales, scaled_sums            [tile][block][16]     scale; scale * sum of i
//   half_sums, scaled_half_sums    [tile][block][2][16]  the sums of i's halves, and times scale
struct QuantizedRows {
  uint8_t* quants;
  float* scales;
  float* scaled_sums;
  int32_t* half_sums;
  float* scaled_half_sums;
};

// The same in 8 bits, with 128 added, in the order of the kernels for many rows. A block's scale is
// its row's times a power of two.
struct InterleavedRows {
  uint8_t* quants;  // [tile][cols / 4][16 rows][4]
  // [tile][block][16 rows]: the powers' exponents, 0 or less, in the position of
  // a float's exponent field.
  int32_t* exponents;
  float* scales;  // [tile][16 rows]
};

struct PanelArgs {
  DType dtype;            // of the weight, for kBlocks
  const uint8_t* panels;  // first byte of panel 0
  size_t panel_bytes;
  int rows;  // of W; the last panel may be short
  int cols;
  int first_panel, end_panel;
  const float* x;               // [m, cols]
  QuantizedRows quantized;      // kBlocks: in 16 bits
  QuantizedRows quantized_8;    // kBlocks: in 8 bits
  InterleavedRows interleaved;  // kBlocks: in 8 bits, for many rows
  const uint16_t* x_bf16;       // [tile][cols / 32][16 rows][32], zero padded: the bf16 units
  int first_row, end_row;       // of x; first_row is a multiple of kTileRows
  float* y;                     // row i of x, row j of W: y[i * y_stride + j]
  int64_t y_stride;
  bool accumulate;
  uint8_t* scratch;      // of the calling thread, aligned to 64
  size_t scratch_bytes;  // at least MatmulScratchBytes()
};

using MatmulKernel = void (*)(const PanelArgs&);

// A range of rows of x, and of their blocks.
struct ConvertRange {
  int first_row, end_row;
  int first_block, end_block;
};

// A null function is not implemented for the instruction set: the next lower set's is used. The
// conversion functions write rows [first_row, end_row) of `out`, or a range of blocks; x begins
// with the first of these rows.
struct MatmulKernels {
  MatmulKernel f32 = nullptr;
  MatmulKernel f16 = nullptr;
  MatmulKernel bf16_widened = nullptr;  // fp32 activations
  MatmulKernel f8 = nullptr;
  MatmulKernel bf16 = nullptr;  // bf16 activations, from x_bf16
  // Rounds rows to bf16 tiles.
  void (*round_bf16)(const float* x, int cols, int first_row, int end_row, uint16_t* out) = nullptr;

  MatmulKernel blocks = nullptr;        // any number of rows; reads the output of `quantize`
  MatmulKernel blocks_tiled = nullptr;  // bit-equal to `blocks`, faster for many rows
  // Faster, with different bits. `blocks_bf16` reads x_bf16; the others read the output of the
  // conversion function with the same suffix below.
  MatmulKernel blocks_bf16 = nullptr;
  MatmulKernel blocks_8 = nullptr;
  MatmulKernel blocks_8_many = nullptr;  // fastest for many rows
  using Quantize = void (*)(const float* x, int cols, const ConvertRange& range,
                            const QuantizedRows& out);
  Quantize quantize = nullptr;
  Quantize quantize_8 = nullptr;
  void (*quantize_8_many)(const float* x, int cols, int first_row, int end_row,
                          const InterleavedRows& out) = nullptr;
};

// Each needs the instructions in its name and those of the tables before it.
const MatmulKernels& MatmulKernelsBase();
const MatmulKernels& MatmulKernelsBytesAvx2();
const MatmulKernels& MatmulKernelsBytesDotProd();
const MatmulKernels& MatmulKernelsAvx512();
const MatmulKernels& MatmulKernelsAvx512Vnni();
const MatmulKernels& MatmulKernelsMany();  // same instructions
const MatmulKernels& MatmulKernelsAvx512Bf16();
const MatmulKernels& MatmulKernelsAmxBf16();
const MatmulKernels& MatmulKernelsAmxInt8();

// Bytes of PanelArgs::scratch for a weight of this many columns.
size_t MatmulScratchBytes(int cols);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_MATMUL_MATMUL_KERNELS_H_
