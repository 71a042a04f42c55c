// The order in which selection keeps a head's entries, as one integer per entry. Stateless.
#ifndef HYDRANT_KERNELS_CPU_EVICTION_RANK_KEY_H_
#define HYDRANT_KERNELS_CPU_EVICTION_RANK_KEY_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace hydrant::cpu {

// Maps floats to integers of the same order. NaN counts as -infinity, and -0 as 0.
inline uint32_t OrderedBits(float value) {
  if (std::isnan(value)) value = -std::numeric_limits<float>::infinity();
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Score first, then the higher position: distinct for every entry.
inline uint64_t RankKey(float score, int32_t position) {
  return static_cast<uint64_t>(OrderedBits(score)) << 32 | static_cast<uint32_t>(position);
}

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_EVICTION_RANK_KEY_H_
