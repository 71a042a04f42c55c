#include "kernels/cpu/read_pages.h"

#include <cstddef>
#include <cstring>

#include "kernels/float16.h"
#include "kernels/victim.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/read_pages.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hydrant::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;

void WidenBF16(const uint16_t* in, size_t n, float* out) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, in + i)));
    hn::StoreU(hn::BitCast(d, bits), d, out + i);
  }
  for (; i < n; ++i) out[i] = BF16ToFloat(in[i]);
}

void WidenF16(const uint16_t* in, size_t n, float* out) {
  const D d;
  const hn::Rebind<hwy::float16_t, D> d16;
  const hn::RebindToUnsigned<decltype(d16)> du16;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d))
    hn::StoreU(hn::PromoteTo(d, hn::BitCast(d16, hn::LoadU(du16, in + i))), d, out + i);
  for (; i < n; ++i) out[i] = F16ToFloat(in[i]);
}

void LoadRow(DType dtype, const void* base, size_t offset, size_t n, float* out) {
  switch (dtype) {
    case DType::kBF16:
      WidenBF16(static_cast<const uint16_t*>(base) + offset, n, out);
      break;
    case DType::kF16:
      WidenF16(static_cast<const uint16_t*>(base) + offset, n, out);
      break;
    default:
      std::memcpy(out, static_cast<const float*>(base) + offset, n * sizeof(float));
      break;
  }
}

void ReadRows(const KvPages& pages, const int32_t* blocks, int begin, int end, float* keys,
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

void ReadEntries(const KvPages& pages, const int32_t* blocks, int begin, int end, float* keys,
                 float* values) {
  HWY_DYNAMIC_DISPATCH(ReadRows)(pages, blocks, begin, end, keys, values);
}

}  // namespace hydrant::cpu
#endif  // HWY_ONCE
