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

void SwapOutPages(const SwapPagesArgs& args) {
  for (int i = 0; i < args.count; ++i)
    CopyPage(args.pool, args.swaps[i].page, args.host, args.swaps[i].host_page);
}

void SwapInPages(const SwapPagesArgs& args) {
  for (int i = 0; i < args.count; ++i)
    CopyPage(args.host, args.swaps[i].host_page, args.pool, args.swaps[i].page);
}

}  // namespace hydrant::reference
