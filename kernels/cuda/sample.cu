// A block per row. Cuts are kept as a threshold on the logits' order and a quota of those equal to
// it, found by radix searches; sums are of integers (kernels/ops/sample_weight.h), so the order in
// which threads come changes nothing.
#include <cfloat>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/radix.cuh"
#include "kernels/ops/sample_weight.h"
#include "kernels/random.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarpSize;

using Sum = unsigned long long;

// The candidates: those above `key`, and the first `quota` (by id) of those equal to it; of these,
// those of at least `least_weight`.
struct Cut {
  uint32_t key;
  int quota;
  Sum least_weight;
};

struct Highest {
  float logit;
  uint32_t id;
  bool any_finite;
};

__device__ inline float LogitOfKey(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

template <typename T>
__device__ T BlockSum(T value, T* shared) {
  value = WarpSum(value);
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (thread % kWarpSize == 0) shared[thread / kWarpSize] = value;
  __syncthreads();
  T sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += shared[warp];
  return sum;
}

// The sum of `value` over the threads before this one.
template <typename T>
__device__ T SumBefore(T value, T* shared) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  T inclusive = value;
  for (int delta = 1; delta < kWarpSize; delta *= 2) {
    const T below = __shfl_up_sync(kAllLanes, inclusive, delta);
    if (lane >= delta) inclusive += below;
  }
  __syncthreads();
  if (lane == kWarpSize - 1) shared[thread / kWarpSize] = inclusive;
  __syncthreads();
  T before = inclusive - value;
  for (int warp = 0; warp < thread / kWarpSize; ++warp) before += shared[warp];
  return before;
}

class RowSampler {
 public:
  struct Shared {
    RadixSearch<int> counts;
    RadixSearch<Sum> weights;
    Sum sums[kWarps];
    int numbers[kWarps];
    Highest highest[kWarps];
  };

  __device__ RowSampler(const SampleArgs& args, Shared* shared)
      : logits_(args.Row(static_cast<int>(blockIdx.x))),
        vocab_(args.vocab),
        row_(args.rows[blockIdx.x]),
        token_(args.tokens + blockIdx.x),
        shared_(*shared),
        thread_(static_cast<int>(threadIdx.x)) {}

  __device__ void Run() {
    const Highest highest = FindHighest();
    if (!highest.any_finite || row_.temperature <= 0.0f) {
      if (thread_ == 0) *token_ = highest.any_finite ? highest.id : UINT32_MAX;
      return;
    }
    highest_ = highest.logit;
    inverse_temperature_ = 1.0 / static_cast<double>(row_.temperature);
    // -infinity is no candidate: the lowest key that counts is above it.
    Cut cut = {OrderedKey(-FLT_MAX) - 1, 0, 0};
    CutTopK(&cut);
    if (row_.min_p > 0.0f) cut.least_weight = MinPWeight(row_.min_p);
    CutTopP(&cut);
    Draw(cut);
  }

 private:
  __device__ float Logit(int id) const { return CandidateLogit(logits_[id]); }
  __device__ Sum Weight(float logit) const {
    return SampleWeight((static_cast<double>(logit) - highest_) * inverse_temperature_);
  }

  __device__ Highest FindHighest() {
    Highest mine = {-INFINITY, 0, false};
    for (int id = thread_; id < vocab_; id += kThreads) {
      const float raw = logits_[id], logit = CandidateLogit(raw);
      mine.any_finite |= raw >= -FLT_MAX && raw <= FLT_MAX;
      if (logit > mine.logit) mine = {logit, static_cast<uint32_t>(id), mine.any_finite};
    }
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
      mine = Higher(mine, {__shfl_xor_sync(kAllLanes, mine.logit, mask),
                           __shfl_xor_sync(kAllLanes, mine.id, mask),
                           __shfl_xor_sync(kAllLanes, mine.any_finite ? 1 : 0, mask) != 0});
    }
    if (thread_ % kWarpSize == 0) shared_.highest[thread_ / kWarpSize] = mine;
    __syncthreads();
    for (int warp = 0; warp < kWarps; ++warp) mine = Higher(mine, shared_.highest[warp]);
    return mine;
  }
  __device__ static Highest Higher(const Highest& a, const Highest& b) {
    const bool second = b.logit > a.logit || (b.logit == a.logit && b.id < a.id);
    return {second ? b.logit : a.logit, second ? b.id : a.id, a.any_finite || b.any_finite};
  }

  __device__ void CutTopK(Cut* cut) {
    if (row_.top_k <= 0 || row_.top_k >= vocab_) return;
    int mine = 0;
    for (int id = thread_; id < vocab_; id += kThreads) mine += OrderedKey(Logit(id)) > cut->key;
    if (row_.top_k >= BlockSum(mine, shared_.numbers)) return;
    const uint32_t none = cut->key;
    shared_.counts.Find(row_.top_k, [&](auto visit) {
      for (int id = thread_; id < vocab_; id += kThreads) {
        const uint32_t key = OrderedKey(Logit(id));
        if (key > none) visit(key, 1);
      }
    });
    cut->key = shared_.counts.threshold();
    cut->quota = shared_.counts.remaining();
  }

  // Calls visit(key, weight) so that the block together visits every candidate's weight once; those
  // at the cut's key come as one.
  template <typename Visit>
  __device__ void ForEachWeight(const Cut& cut, Visit visit) const {
    for (int id = thread_; id < vocab_; id += kThreads) {
      const float logit = Logit(id);
      const uint32_t key = OrderedKey(logit);
      if (key <= cut.key) continue;
      const Sum weight = Weight(logit);
      if (weight >= cut.least_weight) visit(key, weight);
    }
    if (thread_ != 0 || cut.quota == 0) return;
    const Sum weight = Weight(LogitOfKey(cut.key));
    if (weight >= cut.least_weight) visit(cut.key, weight * static_cast<Sum>(cut.quota));
  }

  __device__ void CutTopP(Cut* cut) {
    if (row_.top_p >= 1.0f) return;
    Sum mine = 0;
    ForEachWeight(*cut, [&](uint32_t, Sum weight) { mine += weight; });
    const Sum need = TopPWeight(row_.top_p, BlockSum(mine, shared_.sums));
    const Cut before = *cut;
    shared_.weights.Find(need, [&](auto visit) { ForEachWeight(before, visit); });
    const Sum each = Weight(LogitOfKey(shared_.weights.threshold()));
    cut->key = shared_.weights.threshold();
    cut->quota = static_cast<int>((shared_.weights.remaining() + each - 1) / each);
  }

  // Each thread owns a run of ids, so that threads come in the order of ids.
  __device__ void Draw(const Cut& cut) {
    const int run = (vocab_ + kThreads - 1) / kThreads;
    const int begin = min(thread_ * run, vocab_), end = min(begin + run, vocab_);
    int equals = 0;
    for (int id = begin; id < end; ++id) equals += OrderedKey(Logit(id)) == cut.key;
    const int equals_before = SumBefore(equals, shared_.numbers);
    Sum mine = 0;
    Walk(cut, begin, end, equals_before, [&](int, Sum weight) {
      mine += weight;
      return true;
    });
    const Sum before = SumBefore(mine, shared_.sums);
    const Sum total = BlockSum(mine, shared_.sums);
    const Sum target = RandomBelow(RandomBits(row_.seed, row_.position), total);
    if (target < before || target >= before + mine) return;
    Sum left = target - before;
    Walk(cut, begin, end, equals_before, [&](int id, Sum weight) {
      if (left < weight) {
        *token_ = static_cast<uint32_t>(id);
        return false;
      }
      left -= weight;
      return true;
    });
  }

  // The candidates among ids [begin, end) in their order, until visit(id, weight) says false.
  template <typename Visit>
  __device__ void Walk(const Cut& cut, int begin, int end, int equals_before, Visit visit) const {
    for (int id = begin; id < end; ++id) {
      const float logit = Logit(id);
      const uint32_t key = OrderedKey(logit);
      if (key < cut.key || (key == cut.key && equals_before++ >= cut.quota)) continue;
      const Sum weight = Weight(logit);
      if (weight >= cut.least_weight && !visit(id, weight)) return;
    }
  }

  const float* const logits_;
  const int vocab_;
  const SamplingRow row_;
  uint32_t* const token_;
  Shared& shared_;
  const int thread_;
  double highest_ = 0.0, inverse_temperature_ = 0.0;
};

__global__ void __launch_bounds__(kThreads) SampleKernel(SampleArgs args) {
  __shared__ RowSampler::Shared shared;
  RowSampler(args, &shared).Run();
}

}  // namespace

cudaError_t Sample(const Context& context, const SampleArgs& args) {
  if (args.num_rows == 0) return cudaSuccess;
  return Launch(SampleKernel, dim3(args.num_rows), dim3(kThreads), 0, context.stream, args);
}

}  // namespace hydrant::cuda
