#include "kernels/cpu/pages/prefix_blocks.h"

#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/pages/prefix_blocks.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/pages/page_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hydrant::cpu {
namespace HWY_NAMESPACE {

// Saves the keys, or the values, of one head of one block.
void SaveHead(const PrefixBlocks& pool, const float* rows, int64_t row_stride, size_t at) {
  if (row_stride == pool.head_dim)
    return StoreRow(pool.dtype, rows, pool.HeadSize(), pool.memory, at);
  for (int token = 0; token < kPrefixBlockTokens; ++token, at += pool.head_dim)
    StoreRow(pool.dtype, rows + token * row_stride, pool.head_dim, pool.memory, at);
}

void LoadHead(const PrefixBlocks& pool, size_t at, int64_t row_stride, float* rows) {
  if (row_stride == pool.head_dim)
    return LoadRow(pool.dtype, pool.memory, at, pool.HeadSize(), rows);
  for (int token = 0; token < kPrefixBlockTokens; ++token, at += pool.head_dim)
    LoadRow(pool.dtype, pool.memory, at, pool.head_dim, rows + token * row_stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace hydrant::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hydrant::cpu {
namespace {
HWY_EXPORT(SaveHead);
HWY_EXPORT(LoadHead);

// Calls move(arena rows, first element in the pool) for the keys, then the values, of every head of
// every block. Each thread has its own range of blocks: two threads that first touch the same huge
// page would both clear it.
template <typename Move>
void ForEachHead(const PrefixBlocksArgs& args, ThreadPool& threads, const Move& move) {
  const int heads = args.pool.num_kv_heads;
  threads.ParallelForRanges(args.count * heads, [&](int task, int) {
    const int64_t block = task / heads, head = task % heads;
    const int64_t row = head * args.kv_head_stride + block * kPrefixBlockTokens * args.row_stride;
    const size_t at = args.pool.KeysAt(args.blocks[block], args.layer, static_cast<int>(head));
    move(args.k.f32() + row, at);
    if (args.v.data != nullptr) move(args.v.f32() + row, at + args.pool.ValuesOffset());
  });
}

}  // namespace

void SavePrefix(const PrefixBlocksArgs& args, ThreadPool& threads) {
  ForEachHead(args, threads, [&](const float* rows, size_t at) {
    HWY_DYNAMIC_DISPATCH(SaveHead)(args.pool, rows, args.row_stride, at);
  });
}

void LoadPrefix(const PrefixBlocksArgs& args, ThreadPool& threads) {
  ForEachHead(args, threads, [&](float* rows, size_t at) {
    HWY_DYNAMIC_DISPATCH(LoadHead)(args.pool, at, args.row_stride, rows);
  });
}

}  // namespace hydrant::cpu
#endif  // HWY_ONCE
