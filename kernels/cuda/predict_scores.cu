#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/entry_state.h"
#include "kernels/ops/predict_scores.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;

// One warp per (row, head). A row is read by the warps of all heads, mostly from the cache.
__global__ void PredictScoresKernel(PredictScoresArgs args) {
  const int row = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / kWarpSize);
  const int head = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  if (row >= args.num_rows) return;
  const float* x = args.x + int64_t{row} * args.width;
  const float* weights = args.weights + int64_t{head} * args.width;
  float squares = 0.0f, product = 0.0f;
  for (int i = lane; i < args.width; i += kWarpSize) {
    squares += x[i] * x[i];
    product += weights[i] * x[i];
  }
  squares = WarpSum(squares);
  product = WarpSum(product);
  if (lane > 0) return;
  const float rms = sqrtf(squares / static_cast<float>(args.width));
  const float log_score = args.biases[head] + (rms > 0.0f ? product / rms : 0.0f);
  args.out[head * args.stride + row] = expf(fminf(fmaxf(log_score, -kMaxLogScore), kMaxLogScore));
}

// One thread per (row, head).
__global__ void StoreNewScoresKernel(StoreNewScoresArgs args) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int heads = args.tables.num_kv_heads;
  const int row = i / heads, head = i % heads;
  if (row >= args.num_rows) return;
  const int slot = args.slots[row];
  if (slot < 0 || !args.tables.rules[slot].predicted) return;
  const size_t index = args.tables.HeadIndex(slot, args.layer, head);
  const int32_t length = args.tables.lengths[index];
  if (length == args.tables.caps[index]) return;
  const PageIds* blocks = args.tables.HeadBlocks(slot, args.layer, head);
  args.pages.scores[StateIndex(args.pages.layout, blocks, length)] =
      args.scores[head * args.stride + row];
}

}  // namespace

cudaError_t PredictScores(const Context& context, const PredictScoresArgs& args) {
  if (args.num_rows == 0) return cudaSuccess;
  return Launch(PredictScoresKernel, dim3(CeilDiv(args.num_rows, kWarps), args.num_kv_heads),
                dim3(kThreads), 0, context.stream, args);
}

cudaError_t StoreNewScores(const Context& context, const StoreNewScoresArgs& args) {
  if (args.num_rows == 0) return cudaSuccess;
  return Launch(StoreNewScoresKernel,
                dim3(CeilDiv(int64_t{args.num_rows} * args.tables.num_kv_heads, kThreads)),
                dim3(kThreads), 0, context.stream, args);
}

}  // namespace hydrant::cuda
