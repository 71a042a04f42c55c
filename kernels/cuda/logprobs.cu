// A block per row: the ranks one after another, each the highest of those behind the rank before,
// then the sum of exponentials and the token's own rank.
#include <cfloat>
#include <cmath>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/ops/sample_weight.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;

// A token and its logit; none: UINT32_MAX and -infinity.
struct Ranked {
  float logit;
  uint32_t id;

  __device__ bool IsBefore(const Ranked& other) const {
    return logit > other.logit || (logit == other.logit && id < other.id);
  }
};

class RowLogprobs {
 public:
  struct Shared {
    Ranked best[kWarps];
    double sums[kWarps];
    int counts[kWarps];
  };

  __device__ RowLogprobs(const LogprobsArgs& args, Shared* shared)
      : logits_(args.Row(static_cast<int>(blockIdx.x))),
        vocab_(args.vocab),
        token_(args.tokens[blockIdx.x]),
        out_(args.out + blockIdx.x),
        shared_(*shared),
        thread_(static_cast<int>(threadIdx.x)) {}

  __device__ void Run() {
    const Ranked highest = FirstBehind({INFINITY, 0});
    const bool any = highest.logit > -INFINITY;
    const double log_sum = any ? LogOfSum(highest.logit) : 0.0;
    const auto logprob = [&](float logit) {
      return static_cast<float>(static_cast<double>(logit) - highest.logit - log_sum);
    };
    Ranked ranked = highest;
    for (int rank = 0; rank < kTopLogprobs; ++rank) {
      if (thread_ == 0) {
        out_->top_tokens[rank] = any ? ranked.id : UINT32_MAX;
        out_->top_logprobs[rank] = any ? logprob(ranked.logit) : -INFINITY;
      }
      if (any && ranked.id != UINT32_MAX) ranked = FirstBehind(ranked);
    }
    const bool has_token = any && token_ < static_cast<uint32_t>(vocab_);
    const int rank = has_token ? RankOf({Logit(static_cast<int>(token_)), token_}) : 0;
    if (thread_ != 0) return;
    out_->token = token_;
    out_->logprob = has_token ? logprob(Logit(static_cast<int>(token_))) : NAN;
    out_->rank = rank;
  }

 private:
  __device__ float Logit(int id) const { return CandidateLogit(logits_[id]); }

  __device__ Ranked FirstBehind(const Ranked& last) {
    Ranked mine = {-INFINITY, UINT32_MAX};
    for (int id = thread_; id < vocab_; id += kThreads) {
      const Ranked candidate = {Logit(id), static_cast<uint32_t>(id)};
      if (last.IsBefore(candidate) && candidate.IsBefore(mine)) mine = candidate;
    }
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
      const Ranked other = {__shfl_xor_sync(kAllLanes, mine.logit, mask),
                            __shfl_xor_sync(kAllLanes, mine.id, mask)};
      if (other.IsBefore(mine)) mine = other;
    }
    __syncthreads();
    if (thread_ % kWarpSize == 0) shared_.best[thread_ / kWarpSize] = mine;
    __syncthreads();
    for (int warp = 0; warp < kWarps; ++warp) {
      if (shared_.best[warp].IsBefore(mine)) mine = shared_.best[warp];
    }
    return mine;
  }

  __device__ double LogOfSum(float highest) {
    double mine = 0.0;
    for (int id = thread_; id < vocab_; id += kThreads) mine += expf(Logit(id) - highest);
    mine = WarpSum(mine);
    __syncthreads();
    if (thread_ % kWarpSize == 0) shared_.sums[thread_ / kWarpSize] = mine;
    __syncthreads();
    double sum = 0.0;
    for (int warp = 0; warp < kWarps; ++warp) sum += shared_.sums[warp];
    return log(sum);
  }

  __device__ int RankOf(const Ranked& token) {
    int mine = 0;
    for (int id = thread_; id < vocab_; id += kThreads)
      mine += Ranked{Logit(id), static_cast<uint32_t>(id)}.IsBefore(token) ? 1 : 0;
    mine = WarpSum(mine);
    __syncthreads();
    if (thread_ % kWarpSize == 0) shared_.counts[thread_ / kWarpSize] = mine;
    __syncthreads();
    int before = 0;
    for (int warp = 0; warp < kWarps; ++warp) before += shared_.counts[warp];
    return before + 1;
  }

  const float* const logits_;
  const int vocab_;
  const uint32_t token_;
  TokenLogprobs* const out_;
  Shared& shared_;
  const int thread_;
};

__global__ void __launch_bounds__(kThreads) LogprobsKernel(LogprobsArgs args) {
  __shared__ RowLogprobs::Shared shared;
  RowLogprobs(args, &shared).Run();
}

}  // namespace

cudaError_t Logprobs(const Context& context, const LogprobsArgs& args) {
  if (args.num_rows == 0) return cudaSuccess;
  return Launch(LogprobsKernel, dim3(args.num_rows), dim3(kThreads), 0, context.stream, args);
}

}  // namespace hydrant::cuda
