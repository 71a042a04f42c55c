// Rows of logits split over several blocks: blockIdx.x is the row, blockIdx.y the part.
#ifndef HYDRANT_KERNELS_CUDA_ROW_PARTS_CUH_
#define HYDRANT_KERNELS_CUDA_ROW_PARTS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/ops/sample_weight.h"

namespace hydrant::cuda {

inline constexpr int kRowThreads = 256;
inline constexpr int kRowWarps = kRowThreads / kWarpSize;
inline constexpr int kRowVector = 4;                           // logits per 16-byte vector
inline constexpr int kRowTile = kRowThreads * 4 * kRowVector;  // four loads per thread
// Also enough for parts that begin before the row.
constexpr int RowTiles(int vocab) { return CeilDiv(vocab + kRowVector - 1, kRowTile); }

// Where parts begin: at aligned addresses, for results that do not depend on the split; or at the
// same ids in every row, at any address.
enum class PartStarts { kAligned, kFixed };

// `tiles` tiles of a row of `vocab` logits, from tile part * tiles on.
class RowPart {
 public:
  __device__ RowPart(const float* logits, int vocab, int tiles, int part, PartStarts starts)
      : logits_(logits), vocab_(vocab) {
    const auto skew =
        static_cast<int>(reinterpret_cast<uintptr_t>(logits_) / sizeof(float) % kRowVector);
    vectors_ = starts == PartStarts::kAligned || skew == 0;
    begin_ = part * tiles * kRowTile - (starts == PartStarts::kAligned ? skew : 0);
    end_ = begin_ + tiles * kRowTile;
  }

  // Ids [begin, end), of which some may lie outside the row.
  __device__ int begin() const { return begin_; }

  // Calls visit(id, logit) for every element of this thread.
  template <typename Visit>
  __device__ void ForEach(Visit visit) const {
    for (int id = begin_ + static_cast<int>(threadIdx.x) * kRowVector; id < end_ && id < vocab_;
         id += kRowThreads * kRowVector) {
      if (vectors_ && id >= 0 && id + kRowVector <= vocab_) {
        const float4 four = *reinterpret_cast<const float4*>(logits_ + id);
        visit(id, four.x);
        visit(id + 1, four.y);
        visit(id + 2, four.z);
        visit(id + 3, four.w);
      } else {
        for (int i = max(id, 0); i < min(id + kRowVector, vocab_); ++i) visit(i, logits_[i]);
      }
    }
  }

  // A thread's run of consecutive ids: thread order is id order.
  struct Run {
    int begin, end;
  };
  __device__ Run RunOfThread() const {
    const int length = (end_ - begin_) / kRowThreads;
    const int begin = begin_ + static_cast<int>(threadIdx.x) * length;
    return {min(max(begin, 0), vocab_), min(max(begin + length, 0), vocab_)};
  }
  __device__ float operator[](int id) const { return CandidateLogit(logits_[id]); }

 private:
  const float* logits_;
  int vocab_, begin_, end_;
  bool vectors_;
};

// Whether the other parts of this block's row have finished; if so, their results are visible.
// Counts in parts_done[row], which is reset to zero by the last block.
__device__ inline bool IsLastOfRow(unsigned* parts_done) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned most = gridDim.y - 1;
    last = atomicInc(&parts_done[blockIdx.x], most) == most;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_ROW_PARTS_CUH_
