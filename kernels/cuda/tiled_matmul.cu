#include <algorithm>

#include "kernels/cuda/block_matmul.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul_kernels.h"
#include "kernels/cuda/tile_rows.h"
#include "kernels/cuda/tiled_matmul.h"
#include "kernels/cuda/tiles.h"

namespace hydrant::cuda {
namespace {

// Up to this many rows, reading the tiles once per 64 rows should cost less than writing and
// reading bf16 once: 4 x 4.5 bits against 4.5 + 16 + 16.
constexpr int kMaxRowsFromTiles = 256;
// Up to this many rows our product reads a bf16 weight once.
constexpr int kMaxRowsFromRows = 64;
// A weight larger than this in bf16 (an output matrix) is not unpacked unless necessary: no other
// product would use that memory.
constexpr size_t kMaxUnpackedBytes = 1'000'000'000;

size_t UnpackedBytes(int rows, int cols) {
  return BytesOf(DType::kBF16, static_cast<size_t>(rows) * cols);
}

bool CanMultiply(const Context& context, const CudaWeight& weight) {
  return std::all_of(weight.tiled().begin(), weight.tiled().end(),
                     [&](const TiledRows& rows) { return CanMultiplyBlocks(context, rows.dtype); });
}

cudaError_t MultiplyUnpacked(const Context& context, const MatmulArgs& args) {
  const auto& weight = static_cast<const CudaWeight&>(*args.weight);
  const void* unpacked = nullptr;
  cudaError_t error = UnpackWeight(context, weight, &unpacked);
  const CudaWeight whole(weight.rows(), weight.cols(), DType::kBF16, unpacked);
  MatmulArgs library = args;
  library.weight = &whole;
  if (error == cudaSuccess) error = context.matmul->Run(context, library);
  if (error != cudaSuccess || args.bias == nullptr) return error;
  return AddBias(context.stream, args.bias, args.m, weight.rows(), args.y);
}

// All arguments except W and the destination of its rows.
BlockMatmulArgs WithoutWeight(const MatmulArgs& args) {
  const auto& weight = static_cast<const CudaWeight&>(*args.weight);
  const int width = args.gate.has_value() ? weight.rows() / 2 : weight.rows();  // of y
  BlockMatmulArgs block;
  block.cols = weight.cols();
  block.m = args.m;
  block.y_stride = static_cast<size_t>(width);
  block.accumulate = args.accumulate;
  block.gated = args.gate.has_value();
  block.activation = args.gate.value_or(Activation::kSilu);
  block.rotated = args.rope.has_value();
  block.rope = args.rope.value_or(RopeSplitArgs());
  block.x_norm = args.x_norm.value_or(SplitNorm());
  block.y_norm = args.y_norm.value_or(SplitNorm());
  block.x_parts = SplitNorm::Parts(weight.cols());
  block.y_parts = SplitNorm::Parts(width);
  return block;
}

// Multiplies from tiles, or from rows if the weight is not in tiles.
cudaError_t MultiplyTiles(const Context& context, const MatmulArgs& args) {
  const auto& weight = static_cast<const CudaWeight&>(*args.weight);
  const int64_t count = static_cast<int64_t>(args.m) * weight.cols();
  const bool rounds = args.x_dtype != DType::kBF16;
  ScratchLayout layout;
  const size_t partials = layout.Add<char>(PartialBytes(context, args.m));
  const size_t rounded = layout.Add<uint16_t>(rounds ? static_cast<size_t>(count) : 0);
  void* scratch = nullptr;
  BlockMatmulArgs block = WithoutWeight(args);
  cudaError_t error = context.scratch->Get(layout.bytes(), &scratch);
  if (error == cudaSuccess)
    error = context.counters->Get(NumRowGroups(weight.rows()), context.stream, &block.counters);
  block.x = rounds ? At<uint16_t>(scratch, rounded) : static_cast<const uint16_t*>(args.x);
  if (error == cudaSuccess && rounds)
    error = RoundToBF16(context.stream, static_cast<const float*>(args.x), count,
                        At<uint16_t>(scratch, rounded));
  block.partials = At<float>(scratch, partials);
  const auto take = [&](const uint8_t* tiles, int first_row, int rows) {
    block.tiles = tiles;
    block.rows = rows;
    block.y = args.y == nullptr ? nullptr : args.y + first_row;
    block.y_bf16 = args.y_bf16 == nullptr ? nullptr : args.y_bf16 + first_row;
    block.bias = args.bias == nullptr ? nullptr : args.bias + first_row;
  };
  if (error == cudaSuccess && !weight.InTiles()) {
    take(static_cast<const uint8_t*>(weight.data()), 0, weight.rows());
    return MultiplyRows(context, block);
  }
  for (const TiledRows& rows : weight.tiled()) {
    take(rows.tiles, rows.first_row, rows.rows);
    if (error == cudaSuccess) error = MultiplyBlocks(context, rows.dtype, block);
  }
  return error;
}

// For a weight that is not in tiles.
bool CanMultiplyFromRows(const Context& context, const CudaWeight& weight) {
  constexpr int kColumnStep = 8;  // 16 bytes
  return weight.dtype() == DType::kBF16 && weight.cols() % kColumnStep == 0 &&
         CanMultiplyRows(context);
}

}  // namespace

cudaError_t UnpackWeight(const Context& context, const CudaWeight& weight, const void** unpacked) {
  void* out = nullptr;
  cudaError_t error = context.operands->Get(UnpackedBytes(weight.rows(), weight.cols()), &out);
  for (const TiledRows& rows : weight.tiled()) {
    auto* const first =
        static_cast<uint16_t*>(out) + static_cast<size_t>(rows.first_row) * weight.cols();
    if (error == cudaSuccess) error = UnpackTiles(context.stream, rows, weight.cols(), first);
  }
  *unpacked = out;
  return error;
}

cudaError_t MatmulTiles(const Context& context, const MatmulArgs& args) {
  if (args.m == 0) return cudaSuccess;
  const auto& weight = static_cast<const CudaWeight&>(*args.weight);
  const bool many = args.m > kMaxRowsFromTiles &&
                    UnpackedBytes(weight.rows(), weight.cols()) <= kMaxUnpackedBytes;
  if (!CanMultiply(context, weight) || (many && !context.batch_invariant))
    return MultiplyUnpacked(context, args);
  return MultiplyTiles(context, args);
}

bool MultipliesRows(const Context& context, const CudaWeight& weight, int m) {
  return context.fuses_products && !weight.InTiles() && m <= kMaxRowsFromRows &&
         CanMultiplyFromRows(context, weight);
}

cudaError_t MatmulRows(const Context& context, const MatmulArgs& args) {
  return args.m == 0 ? cudaSuccess : MultiplyTiles(context, args);
}

// Each half of the rows is whole panels, so that a panel belongs to the gate or to up.
bool FusesProducts(const Context& context, const CudaWeight& weight, int m) {
  if (!context.fuses_products || weight.rows() % (2 * kTileRows) != 0) return false;
  if (!weight.InTiles()) return MultipliesRows(context, weight, m);
  const bool few = context.batch_invariant || m <= kMaxRowsFromTiles;
  return few && weight.tiled().size() == 1 && CanMultiply(context, weight);
}

// One matrix of tiles per expert.
bool CanMultiplyExperts(const Context& context, const ExpertMatmulArgs& args) {
  const auto& weight = static_cast<const CudaWeight&>(*args.weight);
  return weight.tiled().size() == 1 && weight.rows() / args.experts % kTileRows == 0 &&
         CanMultiply(context, weight);
}

cudaError_t ExpertMatmulTiles(const Context& context, const ExpertMatmulArgs& args) {
  const auto& weight = static_cast<const CudaWeight&>(*args.weight);
  const TiledRows& rows = weight.tiled().front();
  BlockMatmulArgs block;
  block.tiles = rows.tiles;
  block.rows = weight.rows() / args.experts;
  block.cols = weight.cols();
  block.x = static_cast<const uint16_t*>(args.x);
  block.y = args.y;
  block.y_stride = static_cast<size_t>(block.rows);
  block.bias = args.bias;
  block.experts = args.experts;
  block.places = args.places;
  block.offsets = args.offsets;
  block.sources = args.sources;
  return MultiplyBlocks(context, rows.dtype, block);
}

cudaError_t ReserveForTiles(const Context& context, int rows, int cols) {
  const size_t bytes = UnpackedBytes(rows, cols);
  if (context.batch_invariant || bytes > kMaxUnpackedBytes) return cudaSuccess;
  void* unused = nullptr;
  return context.operands->Get(bytes, &unused);
}

}  // namespace hydrant::cuda
