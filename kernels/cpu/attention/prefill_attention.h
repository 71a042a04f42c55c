// Prefill attention of the cpu backend (contract: kernels/ops/prefill_attention.h).
//
// The unit of work is a tile: kQueryTile queries of the query heads that share one KV head. A tile
// walks its keys in panels of kKeyPanel, with a running maximum, so its memory does not depend on
// the prompt. For column sums it keeps the weights of all panels if they fit a bound, and computes
// the logits a second time if not. Column sums of a tile are added to the total in tile order. Must
// be called from one thread at a time per pool.
#ifndef HYDRANT_KERNELS_CPU_ATTENTION_PREFILL_ATTENTION_H_
#define HYDRANT_KERNELS_CPU_ATTENTION_PREFILL_ATTENTION_H_

#include "kernels/ops/prefill_attention.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

void PrefillAttention(const PrefillAttentionArgs& args, ThreadPool& pool);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_ATTENTION_PREFILL_ATTENTION_H_
