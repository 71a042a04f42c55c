#include "kernels/cpu/eviction/squared_distances.h"

#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/eviction/squared_distances.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hydrant::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void Measure(const float* row, const float* rows, int count, int head_dim, float* out) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int i = 0; i < count; ++i) {
    const float* other = rows + static_cast<size_t>(i) * head_dim;
    auto sums = hn::Zero(d);
    int e = 0;
    for (; e + lanes <= head_dim; e += lanes) {
      const auto difference = hn::Sub(hn::LoadU(d, row + e), hn::LoadU(d, other + e));
      sums = hn::MulAdd(difference, difference, sums);
    }
    float tail = 0.0f;
    for (; e < head_dim; ++e) tail += (row[e] - other[e]) * (row[e] - other[e]);
    out[i] = hn::GetLane(hn::SumOfLanes(d, sums)) + tail;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hydrant::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hydrant::cpu {
namespace {
HWY_EXPORT(Measure);
}  // namespace

void VectorDistances::SquaredDistances(const float* row, const float* rows, int count, int head_dim,
                                       float* out) {
  HWY_DYNAMIC_DISPATCH(Measure)(row, rows, count, head_dim, out);
}

}  // namespace hydrant::cpu
#endif  // HWY_ONCE
