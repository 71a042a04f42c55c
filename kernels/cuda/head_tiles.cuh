// The blocks of a causal pass over tiles of several heads, in the order in which they start: all
// heads of the longest tile, then all heads of the next. Head by head, the last head's longest
// tiles would start last, and few multiprocessors would work on them in the end.
#ifndef HYDRANT_KERNELS_CUDA_HEAD_TILES_CUH_
#define HYDRANT_KERNELS_CUDA_HEAD_TILES_CUH_

#include <cuda_runtime.h>

#include <cstdint>

namespace hydrant::cuda {

// A grid of tiles * heads * splits blocks; a block's split is its blockIdx.y.
inline dim3 HeadTileGrid(int64_t tiles, int heads, int splits = 1) {
  return dim3(static_cast<unsigned>(tiles * heads), static_cast<unsigned>(splits));
}

// Of a block of such a grid.
struct HeadTile {
  int tile, head;

  // Tile 0 is the longest: the first keys, which all queries see.
  __device__ static HeadTile FirstTileFirst(int heads) {
    const int block = static_cast<int>(blockIdx.x);
    return {block / heads, block % heads};
  }
  // The last tile is: the last queries, which see all keys.
  __device__ static HeadTile LastTileFirst(int heads) {
    const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);
    return {block / heads, block % heads};
  }
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_HEAD_TILES_CUH_
