// Mixture of experts: see kernels/ops/experts.h.
#include "kernels/cuda/expert_tiles.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul_kernels.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/page_element.cuh"
#include "kernels/cuda/tiled_matmul.h"

namespace hydrant::cuda {
namespace {

// Sort key of an expert. REQUIRES: kMaxChosenExperts lanes in a warp.
struct Ranked {
  float logit;
  int expert;  // past the last: none
};
static_assert(kMaxChosenExperts <= kWarpSize);

__device__ bool Before(Ranked a, Ranked b) {
  const bool nan_a = a.logit != a.logit, nan_b = b.logit != b.logit;
  if (nan_a != nan_b) return nan_a;
  if (!nan_a && a.logit != b.logit) return a.logit > b.logit;
  return a.expert < b.expert;
}

// One warp per row. Each round takes the best expert after the last one taken;
// lane c keeps choice c.
__global__ void ChooseExpertsKernel(RouteExpertsArgs args) {
  const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x);
  const float* logits = args.logits + static_cast<size_t>(row) * args.experts;
  const Ranked none = {-INFINITY, args.experts};
  Ranked last = none, own = none;
  float most = 0.0f;
  for (int c = 0; c < args.per_row; ++c) {
    Ranked best = none;
    for (int e = lane; e < args.experts; e += kWarpSize) {
      const Ranked here = {logits[e], e};
      if ((c == 0 || Before(last, here)) && Before(here, best)) best = here;
    }
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
      const Ranked other = {__shfl_xor_sync(kAllLanes, best.logit, mask),
                            __shfl_xor_sync(kAllLanes, best.expert, mask)};
      if (Before(other, best)) best = other;
    }
    last = best;
    if (c == 0) most = best.logit;
    if (c == lane) own = best;
  }
  const bool chose = lane < args.per_row;
  const float weight = chose ? expf(own.logit - most) : 0.0f;
  float sum = weight;
  if (args.kind == ExpertWeights::kOfAll) {
    sum = 0.0f;
    for (int e = lane; e < args.experts; e += kWarpSize) sum += expf(logits[e] - most);
  }
  sum = WarpSum(sum);
  if (!chose) return;
  const size_t at = static_cast<size_t>(row) * args.per_row + lane;
  args.chosen[at] = own.expert;
  args.weights[at] = weight / sum;
}

// One warp per expert: counts the choices of lower experts, then assigns its own
// places in row order.
__global__ void GroupByExpertKernel(RouteExpertsArgs args) {
  const int expert = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x);
  const int num_places = args.rows * args.per_row;
  int before = 0;
  for (int i = lane; i < num_places; i += kWarpSize) before += args.chosen[i] < expert;
  int place = WarpSum(before);
  if (lane == 0) args.offsets[expert] = place;
  if (lane == 0 && expert == args.experts - 1) args.offsets[args.experts] = num_places;
  for (int first = 0; first < num_places; first += kWarpSize) {
    const int i = first + lane;
    const bool own = i < num_places && args.chosen[i] == expert;
    const unsigned owners = __ballot_sync(kAllLanes, own);
    if (own) {
      const int at = place + __popc(owners & ((1u << lane) - 1));
      args.sources[at] = i / args.per_row;
      args.places[i] = at;
    }
    place += __popc(owners);
  }
}

constexpr int kWarps = 8;
constexpr int kTilePlaces = 8;     // places of one expert per block
constexpr int kBlockOutputs = 64;  // rows of the expert's matrix
constexpr int kWarpOutputs = 2;    // at once, sharing the loads of x
static_assert(kExpertRowStep % kWarpOutputs == 0 && kBlockOutputs % kWarpOutputs == 0);

// One block per tile of places and kBlockOutputs outputs; a warp computes kWarpOutputs at a time.
// Lanes stride over the columns, 16 bytes at a time, with a sum for each place and output. The
// order of a sum depends only on the number of columns. x has the weight's dtype.
template <DType kDType>
__global__ void ExpertMatmulKernel(ExpertMatmulArgs args, const void* x, const void* weight, int n,
                                   int cols) {
  using Vector = PageVector<kDType>;
  __shared__ ExpertTile shared_tile;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  if (warp == 0) {
    const ExpertTile tile =
        FindExpertTile<kTilePlaces>(args.offsets, args.experts, static_cast<int>(blockIdx.x));
    if (lane == 0) shared_tile = tile;
  }
  __syncthreads();
  const ExpertTile tile = shared_tile;
  if (tile.count == 0) return;
  size_t rows[kTilePlaces];  // index of each row's first element
  for (int r = 0; r < kTilePlaces; ++r) {
    const int place = tile.first + min(r, tile.count - 1);
    rows[r] = static_cast<size_t>(args.sources == nullptr ? place : args.sources[place]) * cols;
  }
  const bool whole = cols % Vector::kElements == 0;
  const auto load = [&](Vector& vector, const void* base, size_t first, int column) {
    if (whole) {
      vector.Load(base, (first + column) / Vector::kElements);
    } else {
      vector.LoadElements(base, first + column, cols - column);
    }
  };
  const int begin = static_cast<int>(blockIdx.y) * kBlockOutputs;
  for (int output = begin + warp * kWarpOutputs; output < min(n, begin + kBlockOutputs);
       output += kWarps * kWarpOutputs) {
    const size_t own = static_cast<size_t>(tile.expert) * n + output;
    float sums[kWarpOutputs][kTilePlaces] = {};
    for (int column = lane * Vector::kElements; column < cols;
         column += kWarpSize * Vector::kElements) {
      Vector w[kWarpOutputs];
#pragma unroll
      for (int o = 0; o < kWarpOutputs; ++o) load(w[o], weight, (own + o) * cols, column);
#pragma unroll
      for (int r = 0; r < kTilePlaces; ++r) {
        if (r >= tile.count) continue;
        Vector values;
        load(values, x, rows[r], column);
#pragma unroll
        for (int o = 0; o < kWarpOutputs; ++o) {
#pragma unroll
          for (int i = 0; i < Vector::kElements; ++i) sums[o][r] += values[i] * w[o][i];
        }
      }
    }
#pragma unroll
    for (int o = 0; o < kWarpOutputs; ++o) {
      const float bias = args.bias == nullptr ? 0.0f : args.bias[own + o];
#pragma unroll
      for (int r = 0; r < kTilePlaces; ++r) {
        const float sum = WarpSum(sums[o][r]);
        if (lane == 0 && r < tile.count)
          args.y[static_cast<size_t>(tile.first + r) * n + output + o] = sum + bias;
      }
    }
  }
}

constexpr int kThreads = 256;

// One thread per element; grid x: within a row, y: rows, strided beyond the grid limit.
__global__ void CombineExpertsKernel(CombineExpertsArgs args) {
  const int j = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (j >= args.n) return;
  for (int row = static_cast<int>(blockIdx.y); row < args.rows;
       row += static_cast<int>(gridDim.y)) {
    const size_t first = static_cast<size_t>(row) * args.per_row;
    float sum = 0.0f;
    for (int c = 0; c < args.per_row; ++c)
      sum += args.weights[first + c] *
             args.y[static_cast<size_t>(args.places[first + c]) * args.n + j];
    args.out[static_cast<size_t>(row) * args.n + j] += sum;
  }
}

// Converts x to the dtype of the product.
cudaError_t ConvertRows(const Context& context, DType wanted, int cols, ExpertMatmulArgs* args) {
  if (wanted == args->x_dtype) return cudaSuccess;
  const int64_t count = static_cast<int64_t>(args->rows) * cols;
  args->x_dtype = wanted;
  if (wanted == DType::kF32) return WidenBF16(context, args->x, count, &args->x);
  void* rounded = nullptr;
  const cudaError_t error = context.scratch->Get(BytesOf(DType::kBF16, count), &rounded);
  if (error != cudaSuccess) return error;
  const auto* const x = static_cast<const float*>(args->x);
  args->x = rounded;
  return RoundToBF16(context.stream, x, count, static_cast<uint16_t*>(rounded));
}

}  // namespace

cudaError_t RouteExperts(const Context& context, const RouteExpertsArgs& args) {
  cudaError_t error = cudaSuccess;
  if (args.rows > 0)
    error = Launch(ChooseExpertsKernel, dim3(args.rows), dim3(kWarpSize), 0, context.stream, args);
  if (error != cudaSuccess) return error;
  return Launch(GroupByExpertKernel, dim3(args.experts), dim3(kWarpSize), 0, context.stream, args);
}

cudaError_t ExpertMatmul(const Context& context, const ExpertMatmulArgs& given) {
  if (given.places == 0) return cudaSuccess;
  const auto& weight = static_cast<const CudaWeight&>(*given.weight);
  const int n = weight.rows() / given.experts, cols = weight.cols();
  ExpertMatmulArgs args = given;
  cudaError_t error = ConvertRows(context, weight.dtype(), cols, &args);
  const void* matrix = weight.data();
  if (error == cudaSuccess && weight.InTiles()) {
    if (CanMultiplyExperts(context, args)) return ExpertMatmulTiles(context, args);
    error = UnpackWeight(context, weight, &matrix);
  }
  if (error != cudaSuccess) return error;
  const int tiles = MostExpertTiles<kTilePlaces>(args.places, args.experts);
  const dim3 grid(tiles, CeilDiv(n, kBlockOutputs));
  const auto kernel = weight.dtype() == DType::kBF16 ? ExpertMatmulKernel<DType::kBF16>
                                                     : ExpertMatmulKernel<DType::kF32>;
  return Launch(kernel, grid, dim3(kWarps * kWarpSize), 0, context.stream, args, args.x, matrix, n,
                cols);
}

cudaError_t CombineExperts(const Context& context, const CombineExpertsArgs& args) {
  if (args.rows == 0) return cudaSuccess;
  constexpr int kMaxRows = 65535;
  const dim3 grid(CeilDiv(args.n, kThreads), args.rows < kMaxRows ? args.rows : kMaxRows);
  return Launch(CombineExpertsKernel, grid, dim3(kThreads), 0, context.stream, args);
}

}  // namespace hydrant::cuda
