#include <cstddef>

#include "kernels/page_element.h"
#include "kernels/reference/ops.h"

namespace hydrant::reference {
namespace {

// Calls move(element of k and v, element of the blocks' keys, element of their values) for each.
template <typename Move>
void ForEachElement(const PrefixBlocksArgs& args, const Move& move) {
  const size_t size = args.pool.HeadSize();
  for (int i = 0; i < args.count; ++i) {
    for (int head = 0; head < args.pool.num_kv_heads; ++head) {
      const size_t at = args.pool.KeysAt(args.blocks[i], args.layer, head);
      const size_t row = head * args.kv_head_stride + i * size;
      for (size_t e = 0; e < size; ++e) move(row + e, at + e, at + e + args.pool.ValuesOffset());
    }
  }
}

}  // namespace

void SavePrefix(const PrefixBlocksArgs& args) {
  const PrefixBlocks& to = args.pool;
  ForEachElement(args, [&](size_t from, size_t key, size_t value) {
    StorePageElement(to.dtype, to.memory, key, args.k[from]);
    StorePageElement(to.dtype, to.memory, value, args.v[from]);
  });
}

void LoadPrefix(const PrefixBlocksArgs& args) {
  const PrefixBlocks& from = args.pool;
  ForEachElement(args, [&](size_t to, size_t key, size_t value) {
    args.k[to] = LoadPageElement(from.dtype, from.memory, key);
    args.v[to] = LoadPageElement(from.dtype, from.memory, value);
  });
}

}  // namespace hydrant::reference
