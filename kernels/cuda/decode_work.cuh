// Distributes a decode launch's work equally over its blocks. All heads' entries, in steps of
// kWorkStep, form one sequence, each head starting a new step; it is divided into one run per
// block. Heads may have any length, and the last block to finish joins a split head. Lengths are
// read on the device, so a recorded launch works for any lengths. (FlashInfer, arXiv 2501.01005,
// section 3.3.1, plans such runs on the host.)
#ifndef HYDRANT_KERNELS_CUDA_DECODE_WORK_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_WORK_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/decode_launch.cuh"

namespace hydrant::cuda {

inline constexpr int kWorkStep = 64;
inline constexpr int kLeastSteps = 2;  // per run
inline constexpr int kMaxParts = 256;  // per head: the join keeps one factor per part in a chunk

// A head's metadata, read before its work begins.
struct WorkHead {
  int unit = -1;
  int slot = -1;
  int32_t length = 0;  // with the new entry; 0: padding
  int32_t new_entry = 0;
  bool grows = false;
};

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
__device__ inline int WorkStepsOf(int length) { return (length + kWorkStep - 1) / kWorkStep; }

// Entries of a head that a block processes at once: [unit.begin, unit.begin + unit.count).
struct WorkPiece {
  DecodeUnit unit;  // count 0: no more work
  DecodeRule rule;
  bool begins, ends;            // the head's first, last piece in this block
  int first_block, last_block;  // blocks that share the head

  __device__ bool IsWholeHead() const { return unit.count == unit.length; }
};

// A block's run, in shared memory: registers are needed for the products.
struct BlockWork {
  static constexpr int kWindow = kWarpSize;  // heads read at once

  int run;         // steps per block
  int left;        // remaining steps of this block
  int unit;        // (row, KV head) of the next piece
  int head_begin;  // steps before this head
  int entry;
  bool first;  // first piece of the head in this block
  WorkHead window[kWindow];

  // Finds the run. All threads of the block; ends with a barrier. Each thread counts the steps of
  // some heads; the thread that finds the run's start among its heads publishes it.
  __device__ void Start(const DecodeLaunch& launch) {
    __shared__ int steps_of_warp[kDecodeWarps], longest_of_warp[kDecodeWarps];
    const int thread = static_cast<int>(threadIdx.x);
    const int lane = thread % kWarpSize, warp = thread / kWarpSize;
    const int units = launch.args.num_rows * launch.args.tables.num_kv_heads;
    const int share = (units + kDecodeThreads - 1) / kDecodeThreads;
    const int first_unit = min(thread * share, units), end = min(first_unit + share, units);
    if (thread < kWindow) window[thread].unit = -1;
    if (thread == 0) {  // stays so in a block without work
      unit = head_begin = entry = 0;
      first = true;
    }
    int steps = 0, longest = 0;
#pragma unroll 4
    for (int u = first_unit; u < end; ++u) {
      const int of_head = WorkStepsOf(LoadWorkHead(launch, u).length);
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
    const int of_block =
        max(max(CeilDiv(total, gridDim.x), kLeastSteps), CeilDiv(longest, kMaxParts - 1));
    const int begin = static_cast<int>(blockIdx.x) * of_block;
    if (thread == 0) {
      run = of_block;
      left = max(min(of_block, total - begin), 0);
    }
    if (begin >= before && begin < before + steps) BeginAt(launch, first_unit, before, begin);
    __syncthreads();
  }

  // Takes the next piece. All lanes of the first warp; other warps see it after a barrier.
  __device__ void Take(const DecodeLaunch& launch, WorkPiece* piece) {
    int at = unit, steps_before = head_begin, next = entry, steps_left = left;
    bool is_first = first;
    __syncwarp();
    int count = 0;
    while (steps_left > 0) {
      const int length = Head(launch, at).length;
      if (next < length) {
        count = min(min(launch.chunk, length - next), steps_left * kWorkStep);
        break;
      }
      steps_before += WorkStepsOf(length);
      ++at;
      next = 0;
      is_first = true;
    }
    if (count > 0) Describe(launch, at, steps_before, next, piece);
    steps_left -= WorkStepsOf(count);
    if (threadIdx.x != 0) return;
    piece->unit.count = count;
    piece->begins = is_first;
    piece->ends = count == 0 || next + count >= piece->unit.length || steps_left == 0;
    unit = at;
    head_begin = steps_before;
    entry = next + count;
    left = steps_left;
    first = false;
  }

 private:
  __device__ void BeginAt(const DecodeLaunch& launch, int at, int before, int begin) {
    for (;;) {
      const int of_head = WorkStepsOf(LoadWorkHead(launch, at).length);
      if (begin < before + of_head) break;
      before += of_head;
      ++at;
    }
    unit = at;
    head_begin = before;
    entry = (begin - before) * kWorkStep;
    first = true;
  }

  __device__ const WorkHead& Head(const DecodeLaunch& launch, int at) {
    const int units = launch.args.num_rows * launch.args.tables.num_kv_heads;
    const int lane = static_cast<int>(threadIdx.x);
    if (window[at % kWindow].unit != at) {
      __syncwarp();
      if (at + lane < units) window[(at + lane) % kWindow] = LoadWorkHead(launch, at + lane);
      __syncwarp();
    }
    return window[at % kWindow];
  }

  // Fills in a piece except its count and its place among the head's pieces.
  __device__ void Describe(const DecodeLaunch& launch, int at, int steps_before, int begin,
                           WorkPiece* piece) {
    const SequenceTables& tables = launch.args.tables;
    const WorkHead& head = Head(launch, at);
    if (threadIdx.x != 0) return;
    piece->rule = tables.rules[head.slot];
    DecodeUnit& u = piece->unit;
    u.unit = at;
    u.row = at / tables.num_kv_heads;
    u.head = at % tables.num_kv_heads;
    u.slot = head.slot;
    u.head_index = tables.HeadIndex(head.slot, launch.args.layer, u.head);
    u.length = head.length;
    u.new_entry = head.new_entry;
    u.grows = head.grows;
    u.weighted = launch.weighted && piece->rule.weighted;
    u.begin = begin;
    piece->first_block = steps_before / run;
    piece->last_block = (steps_before + WorkStepsOf(head.length) - 1) / run;
  }
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_WORK_CUH_
