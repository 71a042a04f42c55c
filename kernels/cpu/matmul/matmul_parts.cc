#include "kernels/cpu/matmul/matmul_parts.h"

#include <algorithm>

#include "kernels/cpu/isa/isa.h"

namespace hydrant::cpu {
namespace {

void Overlay(const MatmulKernels& from, MatmulKernels* onto) {
  if (from.f32) onto->f32 = from.f32;
  if (from.f16) onto->f16 = from.f16;
  if (from.bf16_widened) onto->bf16_widened = from.bf16_widened;
  if (from.f8) onto->f8 = from.f8;
  if (from.bf16) onto->bf16 = from.bf16;
  if (from.round_bf16) onto->round_bf16 = from.round_bf16;
  if (from.blocks) onto->blocks = from.blocks;
  if (from.blocks_tiled) onto->blocks_tiled = from.blocks_tiled;
  if (from.blocks_bf16) onto->blocks_bf16 = from.blocks_bf16;
  if (from.blocks_8) onto->blocks_8 = from.blocks_8;
  if (from.quantize) onto->quantize = from.quantize;
  if (from.quantize_8) onto->quantize_8 = from.quantize_8;
  if (from.blocks_8_many) onto->blocks_8_many = from.blocks_8_many;
  if (from.quantize_8_many) onto->quantize_8_many = from.quantize_8_many;
}

MatmulKernels ChooseKernels() {
  MatmulKernels kernels = MatmulKernelsBase();
  if constexpr (kIsX86) {
    const Isa isa = DetectIsa();
    const bool vnni = HasVnni();
    Overlay(MatmulKernelsBytesAvx2(), &kernels);
    if (isa >= Isa::kAvx512) Overlay(MatmulKernelsAvx512(), &kernels);
    if (vnni) Overlay(MatmulKernelsAvx512Vnni(), &kernels);
    if (vnni) Overlay(MatmulKernelsMany(), &kernels);
    if (isa >= Isa::kAvx512Bf16) Overlay(MatmulKernelsAvx512Bf16(), &kernels);
    if (isa >= Isa::kAmx) Overlay(MatmulKernelsAmxBf16(), &kernels);
    if (HasAmxInt8()) Overlay(MatmulKernelsAmxInt8(), &kernels);
  } else if (DetectIsa() >= Isa::kDotProd) {
    Overlay(MatmulKernelsBytesDotProd(), &kernels);
  }
  return kernels;
}

// The kernel for block weights. blocks_tiled and blocks give the same bits, so a batch-invariant
// backend may use either.
MatmulKernel BlocksKernel(int m, bool batch_invariant) {
  constexpr int kTiledMinRows = 6;
  constexpr int kBf16MinRows = 24;  // with fewer, unpacking to memory does not pay
  constexpr int kManyMinRows = 96;  // with fewer, unpacking to memory does not pay
  const MatmulKernels& kernels = ChosenMatmulKernels();
  if (!batch_invariant) {
    if (kernels.blocks_bf16 && m >= kBf16MinRows) return kernels.blocks_bf16;
    if (!kernels.blocks_bf16 && kernels.blocks_8_many && m >= kManyMinRows)
      return kernels.blocks_8_many;
    if (kernels.blocks_8) return kernels.blocks_8;
  }
  if (kernels.blocks_tiled && m >= kTiledMinRows) return kernels.blocks_tiled;
  return kernels.blocks;
}

}  // namespace

const MatmulKernels& ChosenMatmulKernels() {
  static const MatmulKernels kernels = ChooseKernels();
  return kernels;
}

MatmulKernel MatmulKernelFor(PanelFormat format, bool round_activations, int m,
                             bool batch_invariant) {
  const MatmulKernels& kernels = ChosenMatmulKernels();
  switch (format) {
    case PanelFormat::kF32:
      return kernels.f32;
    case PanelFormat::kF16:
      return kernels.f16;
    case PanelFormat::kBF16:
      return round_activations && kernels.bf16 ? kernels.bf16 : kernels.bf16_widened;
    case PanelFormat::kF8:
      return kernels.f8;
    case PanelFormat::kBlocks:
      return BlocksKernel(m, batch_invariant);
  }
  return nullptr;
}

ActivationForm FormFor(MatmulKernel kernel) {
  const MatmulKernels& kernels = ChosenMatmulKernels();
  if (kernel == kernels.blocks || kernel == kernels.blocks_tiled) return ActivationForm::kQuantized;
  if (kernel == kernels.blocks_8) return ActivationForm::kQuantized8;
  if (kernel == kernels.blocks_8_many) return ActivationForm::kInterleaved8;
  const bool bf16 = kernel == kernels.bf16 || kernel == kernels.blocks_bf16;
  return bf16 ? ActivationForm::kBf16 : ActivationForm::kFloats;
}

int RowsOfTask(int m, int cols) {
  constexpr int kRowStep = 96;        // a multiple of every kernel's rows: 4, 6, 8, 12, 16, 32
  constexpr int kRowBytes = 1 << 20;  // of converted activations
  const int most_rows = std::clamp(kRowBytes / (4 * cols) / kRowStep, 1, 6) * kRowStep;
  const int row_tasks = (m + most_rows - 1) / most_rows;
  return ((m + row_tasks - 1) / row_tasks + kRowStep - 1) / kRowStep * kRowStep;
}

QuantizedRows QuantizedSpace(size_t tiles, int cols, int value_bytes) {
  thread_local Arena arenas[2];
  const size_t blocks = tiles * (cols / kBlock) * kTileRows;
  const size_t quant_bytes = blocks * kBlock * value_bytes;
  uint8_t* p =
      arenas[value_bytes - 1].Get(quant_bytes + blocks * (4 * sizeof(float) + 2 * sizeof(int32_t)));
  QuantizedRows rows;
  rows.quants = p;
  rows.scales = reinterpret_cast<float*>(p + quant_bytes);
  rows.scaled_sums = rows.scales + blocks;
  rows.scaled_half_sums = rows.scaled_sums + blocks;
  rows.half_sums = reinterpret_cast<int32_t*>(rows.scaled_half_sums + 2 * blocks);
  return rows;
}

QuantizedRows FromTile(const QuantizedRows& rows, size_t tile, int cols, int value_bytes) {
  const size_t blocks = tile * (cols / kBlock) * kTileRows;
  return {.quants = rows.quants + blocks * kBlock * value_bytes,
          .scales = rows.scales + blocks,
          .scaled_sums = rows.scaled_sums + blocks,
          .half_sums = rows.half_sums + blocks * 2,
          .scaled_half_sums = rows.scaled_half_sums + blocks * 2};
}

InterleavedRows InterleavedSpace(size_t tiles, int cols) {
  thread_local Arena arena;
  const size_t rows = tiles * kTileRows, quants = rows * cols;
  uint8_t* p = arena.Get(quants + quants / kBlock * sizeof(int32_t) + rows * sizeof(float));
  auto* const exponents = reinterpret_cast<int32_t*>(p + quants);
  return {p, exponents, reinterpret_cast<float*>(exponents + quants / kBlock)};
}

InterleavedRows FromTile(const InterleavedRows& rows, size_t tile, int cols) {
  const size_t first = tile * kTileRows;
  return {rows.quants + first * cols, rows.exponents + first * (cols / kBlock),
          rows.scales + first};
}

uint16_t* Bf16Space(size_t tiles, int cols) {
  thread_local Arena arena;
  return reinterpret_cast<uint16_t*>(arena.Get(tiles * Bf16TileElements(cols) * sizeof(uint16_t)));
}

// Space for one panel unpacked for the int8 tiles, two unpacked to bytes, or some columns
// of two unpacked to bf16.
size_t MatmulScratchBytes(int cols) {
  constexpr size_t kUsual = size_t{192} << 10;
  constexpr size_t kBlockBytes = 2048;  // for two panels, more than either form needs
  return std::max(kUsual, (static_cast<size_t>(cols) / kBlock + 2) * kBlockBytes);
}

uint8_t* PanelScratch(int cols) {
  thread_local Arena arena;
  return arena.Get(MatmulScratchBytes(cols));
}

}  // namespace hydrant::cpu
