#include <cstring>

#include "kernels/reference/ops.h"

namespace hydrant::reference {
namespace {

// Page `from` of one array to page `to` of the other.
void CopyPart(const void* source, int32_t from, void* target, int32_t to, size_t bytes) {
  std::memcpy(static_cast<char*>(target) + to * bytes,
              static_cast<const char*>(source) + from * bytes, bytes);
}

void CopyPage(const KvPages& from, const KvPages& to, const PageCopy& page) {
  const size_t slots = from.layout.block_size;
  if (page.to.data != kNotCopied) {
    const auto copy = [&](const void* source, void* target, size_t bytes) {
      CopyPart(source, page.from.data, target, page.to.data, bytes);
    };
    const size_t vectors = BytesOf(from.layout.dtype, slots * from.layout.head_dim);
    copy(from.keys, to.keys, vectors);
    copy(from.values, to.values, vectors);
    copy(from.positions, to.positions, slots * sizeof(int32_t));
  }
  if (page.to.state != kNotCopied) {
    const auto copy = [&](const void* source, void* target, size_t bytes) {
      CopyPart(source, page.from.state, target, page.to.state, bytes);
    };
    copy(from.scores, to.scores, slots * sizeof(float));
    copy(from.log_weights, to.log_weights, slots * 2 * sizeof(float));
  }
}

}  // namespace

void CopyPages(const CopyPagesArgs& args) {
  for (int i = 0; i < args.count; ++i) CopyPage(args.from, args.to, args.copies[i]);
}

}  // namespace hydrant::reference
