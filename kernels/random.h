// Random numbers computed from (seed, position, ...) alone: a request draws the same numbers in any
// batch, and a resumed sequence repeats them. Stateless.
#ifndef HYDRANT_KERNELS_RANDOM_H_
#define HYDRANT_KERNELS_RANDOM_H_

#include <cstdint>

namespace hydrant {

// A bijection of 64 bits in which every input bit changes each output bit about half of the time:
// shift-xor and multiply, with the constants of splitmix64's finaliser (Stafford's variant 13).
constexpr uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

inline constexpr uint64_t kRandomStep = 0x9e3779b97f4a7c15u;  // odd, 2^64 / golden ratio

// 64 uniform bits. The seed is mixed before the position enters, so that seeds s and s + 1 do not
// share shifted streams; the odd step spreads neighbouring positions.
constexpr uint64_t RandomBits(uint64_t seed, int32_t position) {
  const uint64_t stream = MixBits(seed + kRandomStep);
  return MixBits(stream +
                 kRandomStep * (static_cast<uint64_t>(static_cast<uint32_t>(position)) + 1));
}

// Bits of number `index` of the sequence that `key` (bits too) seeds: keys of several numbers are
// built one number at a time.
constexpr uint64_t SubBits(uint64_t key, uint32_t index) {
  return MixBits(key + kRandomStep * (uint64_t{index} + 1));
}

// Uniform in [0, 1), a multiple of 2^-53.
constexpr double RandomUnit(uint64_t bits) {
  return static_cast<double>(bits >> 11) * (1.0 / 9007199254740992.0);
}

// Uniform in [0, count). REQUIRES: count >= 1. The bias is below count / 2^64.
constexpr uint64_t RandomBelow(uint64_t bits, uint64_t count) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(bits) * count >> 64);
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_RANDOM_H_
