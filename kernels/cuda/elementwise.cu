#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/page_row.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/rope_split.cuh"
#include "kernels/cuda/softcap.cuh"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;
// For the norm of a long row: steps of few rows wait for each norm.
constexpr int kLongRow = 1024;
constexpr int kLongRowThreads = 1024;
constexpr int kAtOnce = 4;  // elements per thread with loads in flight together

// Sum over a block's threads, returned to all of them. `partial`: one number per warp.
template <int kBlockThreads>
__device__ double BlockSum(double sum, double* partial) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  sum = WarpSum(sum);
  if (lane == 0) partial[thread / kWarpSize] = sum;
  __syncthreads();
  return WarpSum(lane < kBlockThreads / kWarpSize ? partial[lane] : 0.0);
}

// A thread's elements of a row: `first`, and others kBlockThreads apart. All loads precede the
// stores, which the compiler could not ensure since `out` may alias x.
template <int kBlockThreads>
struct RowElements {
  float x[kAtOnce], weight[kAtOnce];

  __device__ RowElements(const float* row, const float* weights, int first, int n) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int j = first + i * kBlockThreads;
      x[i] = j < n ? row[j] : 0.0f;
      weight[i] = j < n ? weights[j] : 0.0f;
    }
  }
};

// One block per run. Sums are double: squares of large activations overflow floats. The order of
// the sum depends only on n.
template <int kBlockThreads>
__global__ void __launch_bounds__(kBlockThreads) RmsNormKernel(RmsNormArgs args) {
  WaitForPredecessor();
  __shared__ double partial[kBlockThreads / kWarpSize];
  const int run = static_cast<int>(blockIdx.x);
  const size_t first =
      run / args.groups * args.RowStride() + static_cast<size_t>(run % args.groups) * args.n;
  const float* x = args.x + first;
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0.0;
#pragma unroll kAtOnce
  for (int j = thread; j < args.n; j += kBlockThreads) sum += static_cast<double>(x[j]) * x[j];
  const double scale =
      1.0 / sqrt(BlockSum<kBlockThreads>(sum, partial) / args.n + static_cast<double>(args.eps));
  for (int begin = thread; begin < args.n; begin += kAtOnce * kBlockThreads) {
    const RowElements<kBlockThreads> row(x, args.weight, begin, args.n);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int j = begin + i * kBlockThreads;
      if (j >= args.n) continue;
      const double before = args.accumulate ? static_cast<float*>(args.out)[first + j] : 0.0;
      StoreElement(args.out_dtype, args.out, first + j,
                   static_cast<float>(before + row.x[i] * scale * row.weight[i]));
    }
  }
}

// As RmsNormKernel, with the mean computed first.
template <int kBlockThreads>
__global__ void __launch_bounds__(kBlockThreads) LayerNormKernel(LayerNormArgs args) {
  WaitForPredecessor();
  __shared__ double partial[2][kBlockThreads / kWarpSize];
  const size_t first = static_cast<size_t>(blockIdx.x) * args.n;
  const float* x = args.x + first;
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0.0;
#pragma unroll kAtOnce
  for (int j = thread; j < args.n; j += kBlockThreads) sum += static_cast<double>(x[j]);
  const double mean = BlockSum<kBlockThreads>(sum, partial[0]) / args.n;
  sum = 0.0;
#pragma unroll kAtOnce
  for (int j = thread; j < args.n; j += kBlockThreads) sum += (x[j] - mean) * (x[j] - mean);
  const double variance = BlockSum<kBlockThreads>(sum, partial[1]) / args.n;
  const double scale = 1.0 / sqrt(variance + static_cast<double>(args.eps));
  for (int begin = thread; begin < args.n; begin += kAtOnce * kBlockThreads) {
    const RowElements<kBlockThreads> row(x, args.weight, begin, args.n);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int j = begin + i * kBlockThreads;
      if (j >= args.n) continue;
      StoreElement(args.out_dtype, args.out, first + j,
                   static_cast<float>((row.x[i] - mean) * scale * row.weight[i] + args.bias[j]));
    }
  }
}

// Several blocks per row, along y; a thread rotates pairs, then copies the rest. With
// `queries_are_there` queries are rotated in place.
__global__ void RopeSplitKernel(RopeSplitArgs args, bool queries_are_there) {
  WaitForPredecessor();
  const int row = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  const int threads = static_cast<int>(gridDim.y) * kThreads;
  const int half = args.rotary_dim / 2;
  const int turned_heads = args.num_heads + (args.k.data == nullptr ? 0 : args.num_kv_heads);
  const float* in = args.qkv + static_cast<size_t>(row) * (args.num_heads + 2 * args.num_kv_heads) *
                                   args.head_dim;
  const int position = args.positions[row];
  const auto from = [&](int head, const MutableArenaRows& to) {
    return queries_are_there && head < args.num_heads ? to.f32() : in + head * args.head_dim;
  };
  // Multiplying by a power of two before or after rounding and rotation is the same.
  const auto factor = [&](int head, int element) {
    return args.factors == nullptr ? 1.0f : args.factors[head * args.head_dim + element];
  };
  for (int i = thread; i < turned_heads * half; i += threads) {
    const int head = i / half, pair = i % half;
    const MutableArenaRows to = SplitHead(args, row, head);
    const float* const x = from(head, to);
    const RotaryPair at = RotaryPairOf(args, pair);
    const float f = factor(head, at.first);
    StoreRotated(args, position, head, pair, f * x[at.first], f * x[at.second], to);
  }
  const int rest = args.head_dim - args.rotary_dim;
  for (int i = thread; i < turned_heads * rest; i += threads) {
    const int head = i / rest, element = args.rotary_dim + i % rest;
    const MutableArenaRows to = SplitHead(args, row, head);
    const float x = factor(head, element) * from(head, to)[element];
    StoreUnrotated(args, head, element, x, to);
  }
  if (args.k.data == nullptr) return;
  for (int i = thread; i < args.num_kv_heads * args.head_dim; i += threads) {
    const int head = turned_heads + i / args.head_dim, element = i % args.head_dim;
    StoreUnrotated(args, head, element, in[turned_heads * args.head_dim + i],
                   SplitHead(args, row, head));
  }
}

// Rounds rows of heads to quantized blocks, one warp per row.
struct RoundHeads {
  const float* from;  // row i of head h at from + i * from_row + h * from_head
  float* to;
  int64_t from_row, from_head, to_row, to_head;
  int heads, head_dim;
  DType dtype;
  const float* subtracted = nullptr;  // [heads, head_dim], before rounding
};
__global__ void RoundHeadsKernel(RoundHeads args) {
  WaitForPredecessor();
  const auto row = static_cast<int64_t>(blockIdx.x);
  for (int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
       i < args.heads * args.head_dim; i += static_cast<int>(gridDim.y) * kThreads) {
    const int head = i / args.head_dim, element = i % args.head_dim;
    float x = args.from[row * args.from_row + head * args.from_head + element];
    if (args.subtracted != nullptr) x -= args.subtracted[i];
    args.to[row * args.to_row + head * args.to_head + element] = RoundRowElement(args.dtype, x);
  }
}

__device__ float Activated(Activation activation, float x) {
  constexpr float kSqrtHalf = 0.70710678118654752f;
  switch (activation) {
    case Activation::kRelu:
      return x < 0.0f ? 0.0f : x;
    case Activation::kGelu:
      return 0.5f * x * erfcf(-x * kSqrtHalf);
    case Activation::kGeluTanh:
      return GeluTanh(x);
    case Activation::kSilu:
      return Silu(x);
    case Activation::kIdentity:
    case Activation::kClampedSwiglu:  // takes two inputs: ClampedSwiglu
      return x;
  }
  return x;
}

// Comparisons with NaN are false, so NaN passes through.
__device__ float ClampedSwiglu(float gate, float up) {
  gate = gate > kSwigluLimit ? kSwigluLimit : gate;
  up = up > kSwigluLimit ? kSwigluLimit : up < -kSwigluLimit ? -kSwigluLimit : up;
  return (up + 1.0f) * (gate / (1.0f + expf(-kSwigluSlope * gate)));
}

__device__ float Activated(const ActivateArgs& args, float x, float up) {
  return args.activation == Activation::kClampedSwiglu ? ClampedSwiglu(x, up)
                                                       : Activated(args.activation, x) * up;
}

__device__ float OneOf(const ActivateArgs& args, size_t at) {
  return args.x_bf16 != nullptr ? HalfOf<true>(args.x_bf16[at], 0) : args.x[at];
}
__device__ float4 FourOf(const ActivateArgs& args, size_t at) {
  if (args.x_bf16 == nullptr) return *reinterpret_cast<const float4*>(args.x + at);
  const uint2 words = *reinterpret_cast<const uint2*>(args.x_bf16 + at);
  return make_float4(HalfOf<true>(words.x, 0), HalfOf<true>(words.x, 1), HalfOf<true>(words.y, 0),
                     HalfOf<true>(words.y, 1));
}

// One thread per element, or per four if rows are whole vectors; grid x: within a row, y: rows,
// strided beyond the grid limit.
template <bool kVectors>
__global__ void ActivateKernel(ActivateArgs args) {
  WaitForPredecessor();
  const int j = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * (kVectors ? 4 : 1);
  if (j >= args.n) return;
  const int width = args.gated ? 2 * args.n : args.n;
  for (int row = static_cast<int>(blockIdx.y); row < args.m; row += static_cast<int>(gridDim.y)) {
    const size_t from = static_cast<size_t>(row) * width + j;
    const size_t to = static_cast<size_t>(row) * args.n + j;
    if constexpr (kVectors) {
      const float4 in = FourOf(args, from);
      float4 up = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
      if (args.gated) up = FourOf(args, from + args.n);
      StorePair(args.out_dtype, args.out, to, Activated(args, in.x, up.x),
                Activated(args, in.y, up.y));
      StorePair(args.out_dtype, args.out, to + 2, Activated(args, in.z, up.z),
                Activated(args, in.w, up.w));
    } else {
      StoreElement(
          args.out_dtype, args.out, to,
          Activated(args, OneOf(args, from), args.gated ? OneOf(args, from + args.n) : 1.0f));
    }
  }
}

__global__ void SoftCapKernel(SoftCapArgs args) {
  WaitForPredecessor();
  const int j = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (j >= args.n) return;
  for (int row = static_cast<int>(blockIdx.y); row < args.m; row += static_cast<int>(gridDim.y)) {
    float& x = args.x[static_cast<size_t>(row) * args.n + j];
    x = SoftCap(x, args.cap);
  }
}

// One thread per column.
__global__ void SumRowsKernel(SumRowsArgs args) {
  WaitForPredecessor();
  const int j = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (j >= args.n) return;
  double sum = 0.0;
  for (int i = 0; i < args.m; ++i) sum += args.x[static_cast<size_t>(i) * args.n + j];
  args.out[j] += static_cast<float>(args.scale * sum);
}

// For kernels with one thread per element.
dim3 ElementGrid(int m, int n) {
  constexpr int kMaxRows = 65535;
  return dim3(CeilDiv(n, kThreads), m < kMaxRows ? m : kMaxRows);
}

}  // namespace

cudaError_t RmsNorm(const Context& context, const RmsNormArgs& args) {
  if (args.m == 0) return cudaSuccess;
  const dim3 runs(args.m * args.groups);
  if (args.n < kLongRow)
    return LaunchOverlapped(RmsNormKernel<kThreads>, runs, dim3(kThreads), 0, context.stream, args);
  return LaunchOverlapped(RmsNormKernel<kLongRowThreads>, runs, dim3(kLongRowThreads), 0,
                          context.stream, args);
}

cudaError_t LayerNorm(const Context& context, const LayerNormArgs& args) {
  if (args.m == 0) return cudaSuccess;
  if (args.n < kLongRow)
    return LaunchOverlapped(LayerNormKernel<kThreads>, dim3(args.m), dim3(kThreads), 0,
                            context.stream, args);
  return LaunchOverlapped(LayerNormKernel<kLongRowThreads>, dim3(args.m), dim3(kLongRowThreads), 0,
                          context.stream, args);
}

cudaError_t RopeSplit(const Context& context, const RopeSplitArgs& args) {
  if (args.m == 0) return cudaSuccess;
  const int heads = args.num_heads + args.num_kv_heads;
  const dim3 grid(args.m, CeilDiv(int64_t{heads} * args.head_dim, 4 * kThreads));
  RopeSplitArgs split = args;
  const bool round_queries = BlockElements(args.query_precision) > 1;
  const bool round_kv = BlockElements(args.kv_precision) > 1 && args.k.data != nullptr;
  if (round_queries) split.query_precision = DType::kF32;
  if (round_kv) split.kv_precision = DType::kF32;
  cudaError_t error = cudaSuccess;
  const auto round = [&](const RoundHeads& rows) {
    if (error == cudaSuccess)
      error = LaunchOverlapped(RoundHeadsKernel, grid, dim3(kThreads), 0, context.stream, rows);
  };
  const int64_t d = args.head_dim;
  if (round_queries) {
    round({.from = args.qkv,
           .to = args.q.f32(),
           .from_row = (args.num_heads + int64_t{2} * args.num_kv_heads) * d,
           .from_head = d,
           .to_row = args.num_heads * d,
           .to_head = d,
           .heads = args.num_heads,
           .head_dim = args.head_dim,
           .dtype = args.query_precision});
  }
  if (error == cudaSuccess)
    error = LaunchOverlapped(RopeSplitKernel, grid, dim3(kThreads), 0, context.stream, split,
                             round_queries);
  if (!round_kv) return error;
  for (float* rows : {args.k.f32(), args.v.f32()}) {
    round({.from = rows,
           .to = rows,
           .from_row = args.kv_row_stride,
           .from_head = args.kv_head_stride,
           .to_row = args.kv_row_stride,
           .to_head = args.kv_head_stride,
           .heads = args.num_kv_heads,
           .head_dim = args.head_dim,
           .dtype = args.kv_precision,
           .subtracted = rows == args.k.f32() ? args.key_offsets : nullptr});
  }
  return error;
}

cudaError_t Activate(const Context& context, const ActivateArgs& args) {
  if (args.m == 0) return cudaSuccess;
  const bool aligned = args.x_bf16 != nullptr ? reinterpret_cast<uintptr_t>(args.x_bf16) % 8 == 0
                                              : reinterpret_cast<uintptr_t>(args.x) % 16 == 0;
  const bool vectors = args.n % 4 == 0 && aligned && reinterpret_cast<uintptr_t>(args.out) % 8 == 0;
  return LaunchOverlapped(vectors ? ActivateKernel<true> : ActivateKernel<false>,
                          ElementGrid(args.m, vectors ? args.n / 4 : args.n), dim3(kThreads), 0,
                          context.stream, args);
}

cudaError_t SumRows(const Context& context, const SumRowsArgs& args) {
  if (args.m == 0) return cudaSuccess;
  return LaunchOverlapped(SumRowsKernel, dim3(CeilDiv(args.n, kThreads)), dim3(kThreads), 0,
                          context.stream, args);
}

cudaError_t SoftCap(const Context& context, const SoftCapArgs& args) {
  if (args.m == 0) return cudaSuccess;
  return LaunchOverlapped(SoftCapKernel, ElementGrid(args.m, args.n), dim3(kThreads), 0,
                          context.stream, args);
}

}  // namespace hydrant::cuda
