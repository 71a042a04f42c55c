// Several blocks per row, each for one part of its logits: finds the part's top tokens, its sum of
// exponentials, and the number of tokens ranked before the given one. The row's last block to
// finish merges the parts. Parts depend only on the vocabulary size and are added in order, so a
// row's result does not depend on the batch.
#include <cfloat>
#include <cmath>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/row_parts.cuh"
#include "kernels/ops/sample_weight.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = kRowThreads, kWarps = kRowWarps;
constexpr int kMaxParts = kThreads;

// A token and its logit; none: UINT32_MAX and -infinity.
struct Ranked {
  float logit;
  uint32_t id;

  __device__ bool IsBefore(const Ranked& other) const {
    return logit > other.logit || (logit == other.logit && id < other.id);
  }
};
__device__ Ranked None() { return {-INFINITY, UINT32_MAX}; }

// Results of one tile of a row.
struct PartLogprobs {
  Ranked first[kTopLogprobs];
  double sum;  // of exp(logit - first[0].logit); 0 where that is -infinity
  int before;  // tokens ranked before the given one
};

struct Shared {
  float tile[kRowTile];  // the row's logits; NaN past its end
  Ranked first[kWarps];
  double sums[kMaxParts];
  int counts[kMaxParts];
};

// The best-ranked token of all threads.
__device__ Ranked FirstOfBlock(Ranked mine, Shared* shared) {
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    const Ranked other = {__shfl_xor_sync(kAllLanes, mine.logit, mask),
                          __shfl_xor_sync(kAllLanes, mine.id, mask)};
    if (other.IsBefore(mine)) mine = other;
  }
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (thread % kWarpSize == 0) shared->first[thread / kWarpSize] = mine;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) {
    if (shared->first[warp].IsBefore(mine)) mine = shared->first[warp];
  }
  return mine;
}

// Adds the warps' sums in warp order.
template <typename T>
__device__ T SumOfBlock(T value, T* shared) {
  value = WarpSum(value);
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (thread % kWarpSize == 0) shared[thread / kWarpSize] = value;
  __syncthreads();
  T sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += shared[warp];
  return sum;
}

__device__ float LogitOf(const LogprobsArgs& args, uint32_t token) {
  return CandidateLogit(args.Row(static_cast<int>(blockIdx.x))[token]);
}

__device__ void ReadPart(const LogprobsArgs& args, Shared* shared, PartLogprobs* out) {
  const uint32_t token = args.tokens[blockIdx.x];
  Ranked asked = None();
  if (token < static_cast<uint32_t>(args.vocab)) asked = {LogitOf(args, token), token};
  const RowPart part(args.Row(static_cast<int>(blockIdx.x)), args.vocab, 1,
                     static_cast<int>(blockIdx.y), PartStarts::kFixed);
  for (int i = static_cast<int>(threadIdx.x); i < kRowTile; i += kThreads) shared->tile[i] = NAN;
  __syncthreads();
  int before = 0;
  part.ForEach([&](int id, float raw) {
    const Ranked one = {CandidateLogit(raw), static_cast<uint32_t>(id)};
    before += one.IsBefore(asked) ? 1 : 0;
    shared->tile[id - part.begin()] = one.logit;
  });
  __syncthreads();
  const auto for_each = [&](auto visit) {
    for (int i = static_cast<int>(threadIdx.x); i < kRowTile; i += kThreads) {
      const float logit = shared->tile[i];
      if (logit == logit) visit(Ranked{logit, static_cast<uint32_t>(part.begin() + i)});
    }
  };
  Ranked last = {INFINITY, 0};
  for (int rank = 0; rank < kTopLogprobs; ++rank) {
    Ranked best = None();
    for_each([&](const Ranked& one) {
      if (last.IsBefore(one) && one.IsBefore(best)) best = one;
    });
    last = FirstOfBlock(best, shared);
    if (threadIdx.x == 0) out->first[rank] = last;
    if (rank > 0) continue;
    double sum = 0.0;
    if (last.logit > -INFINITY)
      for_each([&](const Ranked& one) { sum += expf(one.logit - last.logit); });
    sum = SumOfBlock(sum, shared->sums);
    if (threadIdx.x == 0) out->sum = sum;
  }
  before = SumOfBlock(before, shared->counts);
  if (threadIdx.x == 0) out->before = before;
}

// Each thread holds a part and offers its first token not taken yet.
__device__ void MergeParts(const LogprobsArgs& args, int parts, const PartLogprobs* of_row,
                           Shared* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const bool has_part = thread < parts;
  const PartLogprobs* part = of_row + thread;
  TokenLogprobs* out = args.out + blockIdx.x;
  int taken = 0;
  Ranked head = None();
  const auto take_next = [&] {
    head = None();
    if (!has_part || taken == kTopLogprobs) return;
    head = {__ldcg(&part->first[taken].logit), __ldcg(&part->first[taken].id)};
    ++taken;
  };
  take_next();
  const float highest_of_part = head.logit;
  const Ranked highest = FirstOfBlock(head, shared);
  const bool any = highest.logit > -INFINITY;
  __syncthreads();
  if (has_part) {
    shared->sums[thread] =
        any ? __ldcg(&part->sum) * exp(static_cast<double>(highest_of_part) - highest.logit) : 0.0;
    shared->counts[thread] = __ldcg(&part->before);
  }
  __syncthreads();
  double sum = 0.0;
  int before = 0;
  for (int i = 0; i < parts; ++i) {
    sum += shared->sums[i];
    before += shared->counts[i];
  }
  const double log_sum = any ? log(sum) : 0.0;
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - highest.logit - log_sum);
  };
  for (int rank = 0; rank < kTopLogprobs; ++rank) {
    const Ranked ranked = FirstOfBlock(head, shared);
    if (thread == 0) {
      out->top_tokens[rank] = any ? ranked.id : UINT32_MAX;
      out->top_logprobs[rank] = any ? logprob(ranked.logit) : -INFINITY;
    }
    if (ranked.id != UINT32_MAX && ranked.id == head.id) take_next();
  }
  if (thread != 0) return;
  const uint32_t token = args.tokens[blockIdx.x];
  const bool has_token = any && token < static_cast<uint32_t>(args.vocab);
  out->token = token;
  out->logprob = has_token ? logprob(LogitOf(args, token)) : NAN;
  out->rank = has_token ? before + 1 : 0;
}

__global__ void __launch_bounds__(kThreads)
    LogprobsKernel(LogprobsArgs args, PartLogprobs* parts, unsigned* parts_done) {
  WaitForPredecessor();
  __shared__ Shared shared;
  PartLogprobs* of_row = parts + static_cast<size_t>(blockIdx.x) * gridDim.y;
  ReadPart(args, &shared, of_row + blockIdx.y);
  if (!IsLastOfRow(parts_done)) return;
  MergeParts(args, static_cast<int>(gridDim.y), of_row, &shared);
}

}  // namespace

// REQUIRES: vocab <= 2^19 (sample_weight.h)
cudaError_t Logprobs(const Context& context, const LogprobsArgs& args) {
  if (args.num_rows == 0) return cudaSuccess;
  const int parts = RowTiles(args.vocab);
  if (parts > kMaxParts) return cudaErrorInvalidValue;
  void* scratch = nullptr;
  unsigned* parts_done = nullptr;
  cudaError_t error = context.scratch->Get(
      static_cast<size_t>(args.num_rows) * parts * sizeof(PartLogprobs), &scratch);
  if (error == cudaSuccess)
    error = context.counters->Get(args.num_rows, context.stream, &parts_done);
  if (error != cudaSuccess) return error;
  return LaunchOverlapped(LogprobsKernel, dim3(args.num_rows, parts), dim3(kThreads), 0,
                          context.stream, args, static_cast<PartLogprobs*>(scratch), parts_done);
}

}  // namespace hydrant::cuda
