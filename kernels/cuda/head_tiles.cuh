// The grid of a causal pass over tiles of several heads. Blocks start with x fastest, so all heads
// of the longest tile start first. Ordered by head, the last head's longest tiles would start last
// and leave other multiprocessors idle.
#ifndef HYDRANT_KERNELS_CUDA_HEAD_TILES_CUH_
#define HYDRANT_KERNELS_CUDA_HEAD_TILES_CUH_

#include <cuda_runtime.h>

namespace hydrant::cuda {

// x: heads, y: tiles, at most 65,535 (2 million keys in tiles of 32), z: splits.
inline dim3 HeadTileGrid(int tiles, int heads, int splits = 1) {
  return dim3(heads, tiles, splits);
}

// The head and tile of a block in this grid.
struct HeadTile {
  int tile, head;

  // For tiles of keys: every query sees the first keys.
  __device__ static HeadTile FirstTileFirst() {
    return {static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x)};
  }
  // For tiles of queries: the last queries see all keys.
  __device__ static HeadTile LastTileFirst() {
    return {static_cast<int>(gridDim.y - 1 - blockIdx.y), static_cast<int>(blockIdx.x)};
  }
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_HEAD_TILES_CUH_
