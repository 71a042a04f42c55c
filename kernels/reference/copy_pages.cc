#include <cstring>
#include <span>

#include "kernels/reference/ops.h"

namespace hydrant::reference {
namespace {

void CopyData(const KvPages& from, const KvPages& to, const PageCopy& page) {
  const auto copy = [&](const void* source, void* target, size_t bytes) {
    std::memcpy(static_cast<char*>(target) + page.to.data * bytes,
                static_cast<const char*>(source) + page.from.data * bytes, bytes);
  };
  const size_t slots = from.layout.block_size;
  const size_t vectors = BytesOf(from.layout.dtype, slots * from.layout.head_dim);
  copy(from.keys, to.keys, vectors);
  copy(from.values, to.values, vectors);
  copy(from.positions, to.positions, slots * sizeof(int32_t));
}

void CopyState(const KvPages& from, const KvPages& to, const PageCopy& page) {
  const size_t slots = from.layout.block_size;
  const auto copy = [&](const float* source, size_t from_stride, float* target, size_t to_stride,
                        size_t count) {
    if (source == nullptr || target == nullptr) return;
    std::memcpy(target + page.to.state * to_stride, source + page.from.state * from_stride,
                count * sizeof(float));
  };
  copy(from.scores, slots, to.scores, slots, slots);
  copy(from.log_weights, from.layout.LogWeightStride(), to.log_weights, to.layout.LogWeightStride(),
       2 * slots);
}

}  // namespace

void CopyPages(const CopyPagesArgs& args) {
  for (const PageCopy& page : std::span(args.copies, args.count)) {
    if (page.to.data != kNotCopied) CopyData(args.from, args.to, page);
    if (page.to.state != kNotCopied) CopyState(args.from, args.to, page);
  }
}

}  // namespace hydrant::reference
