#include <cstring>

#include "kernels/reference/ops.h"

namespace hydrant::reference {
namespace {

void CopyPage(const KvPages& from, int32_t from_page, const KvPages& to, int32_t to_page) {
  const auto copy = [&](const void* source, void* target, size_t bytes) {
    std::memcpy(static_cast<char*>(target) + to_page * bytes,
                static_cast<const char*>(source) + from_page * bytes, bytes);
  };
  const size_t slots = from.layout.block_size;
  const size_t vectors = BytesOf(from.layout.dtype, slots * from.layout.head_dim);
  copy(from.keys, to.keys, vectors);
  copy(from.values, to.values, vectors);
  copy(from.positions, to.positions, slots * sizeof(int32_t));
  copy(from.scores, to.scores, slots * sizeof(float));
  copy(from.log_weights, to.log_weights, slots * 2 * sizeof(float));
}

}  // namespace

void CopyPages(const CopyPagesArgs& args) {
  for (int i = 0; i < args.count; ++i)
    CopyPage(args.from, args.copies[i].from, args.to, args.copies[i].to);
}

}  // namespace hydrant::reference
