// The tiles of prefill attention's kernels for AMX: 32 keys, or columns of values, by the tile's
// queries. Included after amx_tiles-inl.h and the vector words.
//   0, 1   16 keys each
//   2, 3   16 queries each
//   4..7   their products, keys first: rows of kQueryTile lanes

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

HYDRANT_INLINE void ConfigureTiles() {
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = kLanes;
    config.row_bytes[t] = kLanes * sizeof(float);
  }
  Configure(config);
}

HYDRANT_INLINE void ZeroSums() {
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
}

// from, to: [2 * kLanes, kQueryTile].
HYDRANT_INLINE void LoadSums(const float* from) {
  constexpr int kStride = kQueryTile * static_cast<int>(sizeof(float));
  _tile_loadd(4, from, kStride);
  _tile_loadd(5, from + kLanes, kStride);
  _tile_loadd(6, from + kLanes * kQueryTile, kStride);
  _tile_loadd(7, from + kLanes * kQueryTile + kLanes, kStride);
}

HYDRANT_INLINE void StoreSums(float* to) {
  constexpr int kStride = kQueryTile * static_cast<int>(sizeof(float));
  _tile_stored(4, to, kStride);
  _tile_stored(5, to + kLanes, kStride);
  _tile_stored(6, to + kLanes * kQueryTile, kStride);
  _tile_stored(7, to + kLanes * kQueryTile + kLanes, kStride);
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
