// Rotary position embedding (RoFormer, arXiv 2104.09864, section 3.2.2) in kernels: the tables, the
// pairing of elements, and the inverse rotation. All pointers are borrowed and device-resident.
#ifndef HYDRANT_KERNELS_ROTARY_H_
#define HYDRANT_KERNELS_ROTARY_H_

#include <cstddef>
#include <cstdint>

namespace hydrant {

struct Rotary {
  const float* cos = nullptr;  // [max_positions, rotary_dim / 2]; cos^2 + sin^2 = 1
  const float* sin = nullptr;  // the same
  int rotary_dim = 0;          // even; the first elements of a head are rotated, the others stay
  bool interleaved = false;    // pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2)
};

// Element `d` of a row that was rotated to `position`, with the rotation undone. row(i): element i
// of the row, in the type to compute in.
template <typename Row>
constexpr auto RotatedBack(const Rotary& rotary, int32_t position, int d, const Row& row) {
  if (d >= rotary.rotary_dim) return row(d);
  const int half = rotary.rotary_dim / 2;
  const bool first = rotary.interleaved ? d % 2 == 0 : d < half;
  const int pair = rotary.interleaved ? d / 2 : d % half;
  const int step = rotary.interleaved ? 1 : half;
  const size_t angle = static_cast<size_t>(position) * half + pair;
  const auto across = row(first ? d + step : d - step) * rotary.sin[angle];
  return row(d) * rotary.cos[angle] + (first ? across : -across);
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_ROTARY_H_
