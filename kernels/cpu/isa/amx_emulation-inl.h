// Scalar emulation of the AMX instructions (Intel SDM, volume 2), under the names of the compiler's
// intrinsics, so that tests of the kernels run on any machine. It traps where a processor would
// fault. Included by amx_tiles-inl.h in builds for tests.
#ifndef HYDRANT_KERNELS_CPU_ISA_AMX_EMULATION_INL_H_
#define HYDRANT_KERNELS_CPU_ISA_AMX_EMULATION_INL_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hydrant::cpu {
namespace {

inline constexpr int kNumTiles = 8;
inline constexpr int kMaxTileRows = 16;
inline constexpr int kMaxRowBytes = 64;

struct EmulatedTile {
  int rows = 0;
  int row_bytes = 0;
  alignas(64) uint8_t data[kMaxTileRows][kMaxRowBytes] = {};
};

struct EmulatedTiles {
  bool configured = false;
  EmulatedTile tiles[kNumTiles];
};

inline thread_local EmulatedTiles amx;

inline void FaultUnless(bool allowed) {
  if (!allowed) __builtin_trap();
}

inline EmulatedTile& EmulatedTileAt(int tile) {
  FaultUnless(amx.configured && amx.tiles[tile].rows > 0);
  return amx.tiles[tile];
}

inline void EmulatedConfigure(const TileConfig& config) {
  FaultUnless(config.palette == 1 && config.start_row == 0);
  amx = {};
  amx.configured = true;
  for (int t = 0; t < kNumTiles; ++t) {
    FaultUnless(config.rows[t] <= kMaxTileRows && config.row_bytes[t] <= kMaxRowBytes);
    FaultUnless((config.rows[t] == 0) == (config.row_bytes[t] == 0));
    amx.tiles[t].rows = config.rows[t];
    amx.tiles[t].row_bytes = config.row_bytes[t];
  }
}

// Zeroes the rows and bytes beyond the configured ones.
inline void EmulatedLoad(int to, const void* from, size_t stride) {
  EmulatedTile& tile = EmulatedTileAt(to);
  std::memset(tile.data, 0, sizeof(tile.data));
  for (int r = 0; r < tile.rows; ++r)
    std::memcpy(tile.data[r], static_cast<const uint8_t*>(from) + r * stride, tile.row_bytes);
}

inline void EmulatedStore(int from, void* to, size_t stride) {
  const EmulatedTile& tile = EmulatedTileAt(from);
  for (int r = 0; r < tile.rows; ++r)
    std::memcpy(static_cast<uint8_t*>(to) + r * stride, tile.data[r], tile.row_bytes);
}

inline void EmulatedZero(int tile) {
  EmulatedTile& zeroed = EmulatedTileAt(tile);
  std::memset(zeroed.data, 0, sizeof(zeroed.data));
}

// The tiles of a product: [rows, words] times [words, columns], in words of 32 bits.
struct EmulatedProduct {
  EmulatedTile& sum;
  const EmulatedTile& a;
  const EmulatedTile& b;

  EmulatedProduct(int to, int left, int right)
      : sum(EmulatedTileAt(to)), a(EmulatedTileAt(left)), b(EmulatedTileAt(right)) {
    FaultUnless(to != left && to != right && left != right);
    FaultUnless(sum.rows == a.rows && sum.row_bytes == b.row_bytes);
    FaultUnless(a.row_bytes == 4 * b.rows && sum.row_bytes % 4 == 0);
  }
};

// Denormal numbers count as zero.
inline float WidenBf16(uint16_t bits) {
  if ((bits & 0x7f80) == 0) bits &= 0x8000;
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// Even and odd terms are summed separately and added at the end (TDPBF16PS).
inline void EmulatedDotBf16(int to, int left, int right) {
  const EmulatedProduct product(to, left, right);
  for (int m = 0; m < product.sum.rows; ++m) {
    float even[16] = {}, odd[16] = {};
    for (int k = 0; k < product.b.rows; ++k) {
      uint16_t a[2], b[32];
      std::memcpy(a, product.a.data[m] + 4 * k, sizeof(a));
      std::memcpy(b, product.b.data[k], sizeof(b));
      const float first = WidenBf16(a[0]), second = WidenBf16(a[1]);
      for (int n = 0; n < 16; ++n) {
        even[n] += first * WidenBf16(b[2 * n]);
        odd[n] += second * WidenBf16(b[2 * n + 1]);
      }
    }
    float sums[16];
    std::memcpy(sums, product.sum.data[m], sizeof(sums));
    for (int n = 0; n < 16; ++n) sums[n] += even[n] + odd[n];
    std::memcpy(product.sum.data[m], sums, product.sum.row_bytes);
  }
}

// Bytes of type A by bytes of type B (TDPBSSD, TDPBSUD).
template <typename A, typename B>
inline void EmulatedDotBytes(int to, int left, int right) {
  const EmulatedProduct product(to, left, right);
  for (int m = 0; m < product.sum.rows; ++m) {
    int32_t sums[16];
    std::memcpy(sums, product.sum.data[m], sizeof(sums));
    for (int k = 0; k < product.b.rows; ++k) {
      A a[4];
      B b[64];
      std::memcpy(a, product.a.data[m] + 4 * k, sizeof(a));
      std::memcpy(b, product.b.data[k], sizeof(b));
      for (int n = 0; n < 16; ++n) {
        for (int i = 0; i < 4; ++i) sums[n] += int32_t{a[i]} * int32_t{b[4 * n + i]};
      }
    }
    std::memcpy(product.sum.data[m], sums, product.sum.row_bytes);
  }
}

}  // namespace
}  // namespace hydrant::cpu

// NOLINTBEGIN(bugprone-reserved-identifier): the compiler's names
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_dpbsud
#define _tile_loadconfig(config) \
  ::hydrant::cpu::EmulatedConfigure(*static_cast<const ::hydrant::cpu::TileConfig*>(config))
#define _tile_release() (::hydrant::cpu::amx = {})
#define _tile_loadd(tile, base, stride) ::hydrant::cpu::EmulatedLoad(tile, base, stride)
#define _tile_stream_loadd(tile, base, stride) ::hydrant::cpu::EmulatedLoad(tile, base, stride)
#define _tile_stored(tile, base, stride) ::hydrant::cpu::EmulatedStore(tile, base, stride)
#define _tile_zero(tile) ::hydrant::cpu::EmulatedZero(tile)
#define _tile_dpbf16ps(to, a, b) ::hydrant::cpu::EmulatedDotBf16(to, a, b)
#define _tile_dpbssd(to, a, b) ::hydrant::cpu::EmulatedDotBytes<int8_t, int8_t>(to, a, b)
#define _tile_dpbsud(to, a, b) ::hydrant::cpu::EmulatedDotBytes<int8_t, uint8_t>(to, a, b)
// NOLINTEND(bugprone-reserved-identifier)

#endif  // HYDRANT_KERNELS_CPU_ISA_AMX_EMULATION_INL_H_
