#include <cstddef>

#include "kernels/page_row.h"
#include "kernels/reference/ops.h"

namespace hydrant::reference {
namespace {

// Calls move(index in k and v, index in the blocks' keys, index in their values) with the
// first element of each row.
template <typename Move>
void ForEachRow(const PrefixBlocksArgs& args, const Move& move) {
  const int dims = args.pool.head_dim;
  for (int i = 0; i < args.count; ++i) {
    for (int head = 0; head < args.pool.num_kv_heads; ++head) {
      const size_t block = args.pool.KeysAt(args.blocks[i], args.layer, head);
      for (int token = 0; token < kPrefixBlockTokens; ++token) {
        const size_t row = head * args.kv_head_stride +
                           (i * int64_t{kPrefixBlockTokens} + token) * args.row_stride;
        const size_t at = block + static_cast<size_t>(token) * dims;
        move(row, at, at + args.pool.ValuesOffset());
      }
    }
  }
}

}  // namespace

void SavePrefix(const PrefixBlocksArgs& args) {
  const PrefixBlocks& to = args.pool;
  ForEachRow(args, [&](size_t from, size_t key, size_t value) {
    StorePageRow(to.dtype, args.k.f32() + from, to.head_dim, to.memory, key);
    if (args.v != nullptr)
      StorePageRow(to.dtype, args.v.f32() + from, to.head_dim, to.memory, value);
  });
}

void LoadPrefix(const PrefixBlocksArgs& args) {
  const PrefixBlocks& from = args.pool;
  ForEachRow(args, [&](size_t to, size_t key, size_t value) {
    LoadPageRow(from.dtype, from.memory, key, from.head_dim, args.k.f32() + to);
    if (args.v != nullptr)
      LoadPageRow(from.dtype, from.memory, value, from.head_dim, args.v.f32() + to);
  });
}

}  // namespace hydrant::reference
