#include "kernels/cpu/prefix_blocks.h"

#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/prefix_blocks.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/page_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hydrant::cpu {
namespace HWY_NAMESPACE {

// One head of one block, whose rows lie side by side in both places.
void SaveHead(const PrefixBlocks& pool, const float* k, const float* v, size_t at) {
  StoreRow(pool.dtype, k, pool.HeadSize(), pool.memory, at);
  StoreRow(pool.dtype, v, pool.HeadSize(), pool.memory, at + pool.ValuesOffset());
}

void LoadHead(const PrefixBlocks& pool, size_t at, float* k, float* v) {
  LoadRow(pool.dtype, pool.memory, at, pool.HeadSize(), k);
  LoadRow(pool.dtype, pool.memory, at + pool.ValuesOffset(), pool.HeadSize(), v);
}

}  // namespace HWY_NAMESPACE
}  // namespace hydrant::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hydrant::cpu {
namespace {
HWY_EXPORT(SaveHead);
HWY_EXPORT(LoadHead);

// Calls move(element of k and v, element of the pool) for every head of every block.
template <typename Move>
void ForEachHead(const PrefixBlocksArgs& args, ThreadPool& threads, const Move& move) {
  const int heads = args.pool.num_kv_heads;
  threads.ParallelFor(args.count * heads, [&](int task, int) {
    const int block = task / heads, head = task % heads;
    move(head * args.kv_head_stride + block * args.pool.HeadSize(),
         args.pool.KeysAt(args.blocks[block], args.layer, head));
  });
}

}  // namespace

void SavePrefix(const PrefixBlocksArgs& args, ThreadPool& threads) {
  ForEachHead(args, threads, [&](size_t from, size_t at) {
    HWY_DYNAMIC_DISPATCH(SaveHead)(args.pool, args.k + from, args.v + from, at);
  });
}

void LoadPrefix(const PrefixBlocksArgs& args, ThreadPool& threads) {
  ForEachHead(args, threads, [&](size_t to, size_t at) {
    HWY_DYNAMIC_DISPATCH(LoadHead)(args.pool, at, args.k + to, args.v + to);
  });
}

}  // namespace hydrant::cpu
#endif  // HWY_ONCE
