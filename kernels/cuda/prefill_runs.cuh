// Runs of prompts as the kernels for tensor cores take them, one or several in a grid. Plain data
// on host and device; what it points to is the caller's.
#ifndef HYDRANT_KERNELS_CUDA_PREFILL_RUNS_CUH_
#define HYDRANT_KERNELS_CUDA_PREFILL_RUNS_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/prefill_prefix.cuh"
#include "kernels/ops/prefill_attention.h"

namespace hydrant::cuda {

// A run whose operands are rows of 16 bits.
struct MmaArgs {
  PrefillAttentionArgs args;  // BehindPrefix()
  PrefixPlaces prefix;
  const uint16_t* q = nullptr;  // [num_queries, num_heads, head_dim]
  const uint16_t* k = nullptr;  // [num_kv_heads, head_rows, head_dim], the prefix first
  const uint16_t* v = nullptr;  // the same
  int head_rows = 0;
  float scale = 1.0f;  // to powers of two
  float cap = 0.0f;    // of products; 0: none
  int keys = 0;
  // [num_heads, num_queries], of powers of two, and room for kQueryTile more; null: not wanted
  float* log_sum_exp = nullptr;
};

// Keys of a warp's neighbours and its own that are all of the prefix or all of the run.
inline constexpr int kMmaKeys = 64;
static_assert(kPrefixTile % kMmaKeys == 0);

// The statistics of one pass.
struct PassStatistics {
  ColumnStatistic of[kMaxColumnStatistics];
  int count = 0;
};

// Where a statistic's blocks leave what each tile of queries gives, to be added in the tiles' order
// afterwards, so that several blocks can work on the same keys.
struct TileParts {
  float* data = nullptr;  // [statistics, tiles of kQueryTile queries, num_kv_heads, keys]; null:
                          // one block adds
  int tiles = 0;

  __device__ float* Of(int statistic, int tile, int kv_head, int num_kv_heads, int keys) const {
    return data + ((static_cast<size_t>(statistic) * tiles + tile) * num_kv_heads + kv_head) * keys;
  }
};

// Runs of several prompts in one grid. Tiles are counted through all of them.
inline constexpr int kMaxBatch = 32;

struct MmaBatch {
  struct Run {
    MmaArgs m;
    PassStatistics statistics;
    int first_tile = 0;
  };
  Run runs[kMaxBatch];
  int count = 0;
  int tiles = 0;  // of all runs

  // The run of a tile, and which of the run's tiles it is.
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
