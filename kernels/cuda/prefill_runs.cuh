// Prefill runs as the tensor-core kernels take them, one or several per grid. Plain data on host
// and device; pointers are borrowed.
#ifndef HYDRANT_KERNELS_CUDA_PREFILL_RUNS_CUH_
#define HYDRANT_KERNELS_CUDA_PREFILL_RUNS_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/prefill_prefix.cuh"
#include "kernels/ops/prefill_attention.h"

namespace hydrant::cuda {

// A run with 16-bit operand rows.
struct MmaArgs {
  PrefillAttentionArgs args;  // BehindPrefix()
  PrefixPlaces prefix;
  const uint16_t* q = nullptr;  // [num_queries, num_heads, head_dim]
  const uint16_t* k = nullptr;  // [num_kv_heads, head_rows, head_dim], the prefix first
  const uint16_t* v = nullptr;  // the same
  int head_rows = 0;
  float scale = 1.0f;  // makes logits base 2
  float cap = 0.0f;    // on products; 0: none
  int keys = 0;
  // [num_heads, num_queries], base 2, with room for kQueryTile more; null: not requested
  float* log_sum_exp = nullptr;
};

// Keys per tile, all of the prefix or all of the run.
inline constexpr int kMmaKeys = 64;
static_assert(kPrefixTile % kMmaKeys == 0);

// The statistics of one pass.
struct PassStatistics {
  ColumnStatistic of[kMaxColumnStatistics];
  int count = 0;
};

// Each query tile's contribution to a statistic, added in tile order by a later kernel, so that
// several blocks can share the same keys.
struct TileParts {
  float* data = nullptr;  // [statistics, tiles of kQueryTile queries, num_kv_heads, keys]; null:
                          // one block adds
  int tiles = 0;

  __device__ float* Of(int statistic, int tile, int kv_head, int num_kv_heads, int keys) const {
    return data + ((static_cast<size_t>(statistic) * tiles + tile) * num_kv_heads + kv_head) * keys;
  }
};

// Runs of several prompts in one grid. Tile indices run over all of them.
inline constexpr int kMaxBatch = 32;

struct MmaBatch {
  struct Run {
    MmaArgs m;
    PassStatistics statistics;
    int first_tile = 0;
  };
  Run runs[kMaxBatch];
  int count = 0;
  int tiles = 0;  // over all runs

  // The run that contains a tile; *tile becomes the index in that run.
  __device__ const Run& Find(int* tile) const {
    int run = count - 1;
    while (runs[run].first_tile > *tile) --run;
    *tile -= runs[run].first_tile;
    return runs[run];
  }
};

static_assert(sizeof(MmaBatch) <= 32764, "what a kernel's parameters may take");

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_PREFILL_RUNS_CUH_
