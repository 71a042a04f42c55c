#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/ptx.cuh"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 4;  // tokens per thread

__global__ void PenalizeKernel(PenalizeArgs args) {
  WaitForPredecessor();
  const size_t row = blockIdx.y;
  const Penalties penalties = args.rows[row].penalties;
  if (!penalties.Any()) return;
  float* logits = args.logits + row * args.vocab;
  uint16_t* seen = args.seen + static_cast<size_t>(args.slots[row]) * args.vocab;
  const uint32_t newest = args.newest[row];
  const int first = static_cast<int>(blockIdx.x * kThreads * kEach + threadIdx.x);
  for (int i = 0; i < kEach; ++i) {
    const int token = first + i * kThreads;
    if (token >= args.vocab) return;
    uint16_t times = seen[token];
    if (static_cast<uint32_t>(token) == newest) {
      times = SeenWith(times, true);
      seen[token] = times;
    }
    if (times != 0) logits[token] = PenalizedLogit(logits[token], times, penalties);
  }
}

}  // namespace

cudaError_t Penalize(const Context& context, const PenalizeArgs& args) {
  if (args.num_rows == 0) return cudaSuccess;
  const dim3 grid(CeilDiv(args.vocab, kThreads * kEach), args.num_rows);
  return LaunchOverlapped(PenalizeKernel, grid, dim3(kThreads), 0, context.stream, args);
}

}  // namespace hydrant::cuda
