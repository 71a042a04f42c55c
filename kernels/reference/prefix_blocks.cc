#include <cstddef>

#include "kernels/page_element.h"
#include "kernels/reference/ops.h"

namespace hydrant::reference {
namespace {

// Calls move(element of k and v, element of the blocks' keys, element of their values) for each.
template <typename Move>
void ForEachElement(const PrefixBlocksArgs& args, const Move& move) {
  const int dims = args.pool.head_dim;
  for (int i = 0; i < args.count; ++i) {
    for (int head = 0; head < args.pool.num_kv_heads; ++head) {
      const size_t block = args.pool.KeysAt(args.blocks[i], args.layer, head);
      for (int token = 0; token < kPrefixBlockTokens; ++token) {
        const size_t row = head * args.kv_head_stride +
                           (i * int64_t{kPrefixBlockTokens} + token) * args.row_stride;
        const size_t at = block + static_cast<size_t>(token) * dims;
        for (int e = 0; e < dims; ++e) move(row + e, at + e, at + e + args.pool.ValuesOffset());
      }
    }
  }
}

}  // namespace

void SavePrefix(const PrefixBlocksArgs& args) {
  const PrefixBlocks& to = args.pool;
  ForEachElement(args, [&](size_t from, size_t key, size_t value) {
    StorePageElement(to.dtype, to.memory, key, args.k[from]);
    if (args.v != nullptr) StorePageElement(to.dtype, to.memory, value, args.v[from]);
  });
}

void LoadPrefix(const PrefixBlocksArgs& args) {
  const PrefixBlocks& from = args.pool;
  ForEachElement(args, [&](size_t to, size_t key, size_t value) {
    args.k[to] = LoadPageElement(from.dtype, from.memory, key);
    if (args.v != nullptr) args.v[to] = LoadPageElement(from.dtype, from.memory, value);
  });
}

}  // namespace hydrant::reference
