// Decode attention of the cpu backend (contract: kernels/ops/decode_attention.h).
//
// A head's entries are cut into parts of kPartEntries, independent of the batch and the number of
// threads. Each part produces its own maximum, sum and unnormalised output; the parts are then
// joined in order (flash decoding). So a long head can be split over threads with the same bits.
// Must be called from one thread at a time per pool.
#ifndef HYDRANT_KERNELS_CPU_ATTENTION_DECODE_ATTENTION_H_
#define HYDRANT_KERNELS_CPU_ATTENTION_DECODE_ATTENTION_H_

#include "kernels/ops/decode_attention.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

void DecodeAttention(const DecodeAttentionArgs& args, ThreadPool& pool);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_ATTENTION_DECODE_ATTENTION_H_
