#include "kernels/cpu/pages/read_pages.h"

#include <cstddef>

#include "kernels/victim.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/pages/read_pages.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/pages/page_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hydrant::cpu {
namespace HWY_NAMESPACE {

void ReadRows(const KvPages& pages, const PageIds* blocks, int begin, int end, float* keys,
              float* values) {
  const size_t d = pages.layout.head_dim;
  for (int entry = begin; entry < end; ++entry) {
    const size_t from = PageIndex(pages.layout, blocks, entry) * d, to = entry * d;
    LoadRow(pages.layout.dtype, pages.keys, from, d, keys + to);
    LoadRow(pages.layout.dtype, pages.values, from, d, values + to);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hydrant::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hydrant::cpu {
namespace {
HWY_EXPORT(ReadRows);
}  // namespace

void ReadEntries(const KvPages& pages, const PageIds* blocks, int begin, int end, float* keys,
                 float* values) {
  HWY_DYNAMIC_DISPATCH(ReadRows)(pages, blocks, begin, end, keys, values);
}

}  // namespace hydrant::cpu
#endif  // HWY_ONCE
