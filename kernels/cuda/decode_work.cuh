// Which entries of which heads a block attends to where all blocks of a launch get an equal share.
// All heads' entries, in steps of kWorkStep, stand in one row, a head beginning with a new step;
// the row is cut into as many runs as there are blocks. So heads may be of any length, and one that
// is cut is joined by the block that ends last. Lengths are read on the device: a recorded launch
// is right for any. (FlashInfer, arXiv 2501.01005, section 3.3.1, plans such runs on the host.)
#ifndef HYDRANT_KERNELS_CUDA_DECODE_WORK_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_WORK_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/decode_launch.cuh"

namespace hydrant::cuda {

inline constexpr int kWorkStep = 64;
inline constexpr int kLeastSteps = 2;   // of a block's run
inline constexpr int kMostParts = 256;  // of a head: the join keeps a factor of each in a chunk

// What is read of a head before its work begins.
struct WorkHead {
  int unit = -1;
  int slot = -1;
  int32_t length = 0;  // with the new entry; 0: padding
  int32_t new_entry = 0;
  bool grows = false;
};

// A step of a head's length, by its place in the tables.
__device__ inline WorkHead LoadWorkHead(const DecodeLaunch& launch, int unit) {
  const SequenceTables& tables = launch.args.tables;
  WorkHead head;
  head.unit = unit;
  head.slot = launch.args.slots[unit / tables.num_kv_heads];
  if (head.slot < 0) return head;
  const size_t index = tables.HeadIndex(head.slot, launch.args.layer, unit % tables.num_kv_heads);
  const int32_t held = tables.lengths[index];
  head.grows = held < tables.caps[index];
  head.length = head.grows ? held + 1 : held;
  head.new_entry = head.grows ? held : tables.victims[index];
  return head;
}

// Entries [begin, begin + count) of a head, that a block attends to at once.
struct WorkPiece {
  int unit = -1;
  int begin = 0, count = 0;             // count 0: there is no more work
  bool begins = false, ends = false;    // the first, the last of the head in this block
  int first_block = 0, last_block = 0;  // that work on the head
};

// Walks through a block's run. All threads of the block call, with the same results.
class BlockWork {
 public:
  static constexpr int kWindow = kWarpSize;  // heads that are read at once

  // `window`: [kWindow] in shared memory. The block is in step at the end.
  __device__ BlockWork(const DecodeLaunch& launch, WorkHead* window)
      : l_(launch),
        window_(window),
        thread_(static_cast<int>(threadIdx.x)),
        units_(launch.args.num_rows * launch.args.tables.num_kv_heads) {
    if (thread_ < kWindow) window_[thread_].unit = -1;
    FindRun();
  }

  __device__ WorkPiece Take() {
    WorkPiece piece;
    while (left_ > 0) {
      const int length = Head(unit_).length;
      const int steps = CeilDiv(length, kWorkStep);
      if (entry_ >= length) {
        head_begin_ += steps;
        ++unit_;
        entry_ = 0;
        first_ = true;
        continue;
      }
      piece.unit = unit_;
      piece.begin = entry_;
      piece.count = min(min(l_.chunk, length - entry_), left_ * kWorkStep);
      piece.begins = first_;
      piece.first_block = head_begin_ / run_;
      piece.last_block = (head_begin_ + steps - 1) / run_;
      first_ = false;
      left_ -= CeilDiv(piece.count, kWorkStep);
      entry_ += piece.count;
      piece.ends = entry_ >= length || left_ == 0;
      break;
    }
    return piece;
  }

  // Of a unit that has not been left behind.
  __device__ const WorkHead& Head(int unit) const {
    const WorkHead& head = window_[unit % kWindow];
    if (head.unit != unit) ReadHeads(unit);
    return head;
  }

 private:
  __device__ void ReadHeads(int first) const {
    __syncthreads();
    const int unit = first + thread_;
    if (thread_ < kWindow && unit < units_) window_[unit % kWindow] = LoadWorkHead(l_, unit);
    __syncthreads();
  }
  __device__ int StepsOf(int unit) const {
    return CeilDiv(LoadWorkHead(l_, unit).length, kWorkStep);
  }

  // Each thread counts the steps of some heads; the one whose heads the run begins in says where.
  __device__ void FindRun() {
    __shared__ int steps_of_warp[kDecodeWarps], longest_of_warp[kDecodeWarps];
    __shared__ int found[2];
    const int lane = thread_ % kWarpSize, warp = thread_ / kWarpSize;
    const int share = CeilDiv(units_, kDecodeThreads);
    const int first = min(thread_ * share, units_), end = min(first + share, units_);
    int steps = 0, longest = 0;
#pragma unroll 4
    for (int unit = first; unit < end; ++unit) {
      const int of_head = StepsOf(unit);
      steps += of_head;
      longest = max(longest, of_head);
    }
    int through = steps;
    for (int apart = 1; apart < kWarpSize; apart *= 2) {
      const int below = __shfl_up_sync(kAllLanes, through, apart);
      if (lane >= apart) through += below;
      longest = max(longest, __shfl_xor_sync(kAllLanes, longest, apart));
    }
    if (lane == kWarpSize - 1) {
      steps_of_warp[warp] = through;
      longest_of_warp[warp] = longest;
    }
    __syncthreads();
    int total = 0, before = through - steps;
    for (int w = 0; w < kDecodeWarps; ++w) {
      if (w < warp) before += steps_of_warp[w];
      total += steps_of_warp[w];
      longest = max(longest, longest_of_warp[w]);
    }
    run_ = max(max(CeilDiv(total, gridDim.x), kLeastSteps), CeilDiv(longest, kMostParts - 1));
    const int begin = static_cast<int>(blockIdx.x) * run_;
    left_ = max(min(run_, total - begin), 0);
    if (begin >= before && begin < before + steps) {
      int unit = first;
      for (int of_head = StepsOf(unit); begin >= before + of_head; of_head = StepsOf(unit)) {
        before += of_head;
        ++unit;
      }
      found[0] = unit;
      found[1] = before;
    }
    __syncthreads();
    if (left_ == 0) return;
    unit_ = found[0];
    head_begin_ = found[1];
    entry_ = (begin - head_begin_) * kWorkStep;
  }

  const DecodeLaunch& l_;
  WorkHead* const window_;
  const int thread_, units_;
  int run_ = 0;         // steps of a block
  int left_ = 0;        // steps
  int unit_ = 0;        // where the next piece begins
  int head_begin_ = 0;  // steps before this head
  int entry_ = 0;
  bool first_ = true;
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_WORK_CUH_
