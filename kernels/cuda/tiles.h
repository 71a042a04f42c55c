// Weights in tiles: the device layout for kernels/cuda/block_matmul.cuh, with each value's bits as
// in the file. A tile is 32 rows by 128 columns (256 if the file's blocks have 256), [panel of 32
// rows][tile along the columns]; rows and columns that pad the last tile are zeros.
// kernels/cuda/block_formats.cuh defines the layout inside a tile. Sizes only, for host and device.
#ifndef HYDRANT_KERNELS_CUDA_TILES_H_
#define HYDRANT_KERNELS_CUDA_TILES_H_

#include <cstddef>
#include <type_traits>

#include "kernels/dtype.h"

namespace hydrant {

inline constexpr int kTileRows = 32;

constexpr int TileColumns(DType dtype) { return BlockElements(dtype) == 256 ? 256 : 128; }

// Calls f with the type as a constant, for every tile type (not f32 and f16).
template <typename Function>
auto WithTileType(DType dtype, Function f) {
#define HYDRANT_TILE_TYPE(kDType) \
  case DType::kDType:             \
    return f(std::integral_constant<DType, DType::kDType>());
  switch (dtype) {
    HYDRANT_TILE_TYPE(kQ4_0)
    HYDRANT_TILE_TYPE(kQ4_1)
    HYDRANT_TILE_TYPE(kQ5_0)
    HYDRANT_TILE_TYPE(kQ5_1)
    HYDRANT_TILE_TYPE(kQ8_0)
    HYDRANT_TILE_TYPE(kQ4_K)
    HYDRANT_TILE_TYPE(kQ5_K)
    HYDRANT_TILE_TYPE(kQ6_K)
    HYDRANT_TILE_TYPE(kQ2_K)
    HYDRANT_TILE_TYPE(kQ3_K)
    HYDRANT_TILE_TYPE(kIQ4_NL)
    HYDRANT_TILE_TYPE(kIQ4_XS)
    HYDRANT_TILE_TYPE(kMXFP4)
    HYDRANT_TILE_TYPE(kF8_E4M3)
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kE4M3:
      break;
  }
#undef HYDRANT_TILE_TYPE
  return f(std::integral_constant<DType, DType::kBF16>());
}

// Not for device code, as BytesOf().
constexpr size_t TileBytes(DType dtype) { return kTileRows * BytesOf(dtype, TileColumns(dtype)); }

constexpr size_t BytesOfTiles(DType dtype, int rows, int cols) {
  const int columns = TileColumns(dtype);
  return static_cast<size_t>((rows + kTileRows - 1) / kTileRows) *
         ((cols + columns - 1) / columns) * TileBytes(dtype);
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_CUDA_TILES_H_
