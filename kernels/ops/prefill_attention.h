// Causal attention of a run of queries over the layer scratch, with up to three statistics of what
// each key received: the numbers that policies rank entries by.
//
// Query i of the run has position p = first_position + i and sees keys 0 .. p, of those before
// end_key. With a window it sees none at or before p - window: so many keys, its own included
// (sliding-window attention, arXiv 2310.06825, section 2). The work is then proportional to the
// window. Softmax in fp32 of the logits scale * q k, or, with a softcap, of softcap * tanh(scale *
// q k / softcap) (Gemma 2, arXiv 2408.00118, section 2). A sink logit of a query head joins the
// softmax of each of its queries, neither scaled nor capped, and has no value: weights of keys then
// sum to less than 1 (GPT-OSS, arXiv 2508.10925; `sinks` of transformers' gpt_oss). With w[i, j] =
// the reduction over the query heads of KV head h of the weight of query i on key j, a
// ColumnStatistic adds to out[h, j], over the queries in its range that see j:
//   kSum        the sum of w. Over a whole prompt: the accumulated attention score of H2O (arXiv
//               2306.14048, section 4); over its last queries: SnapKV's window (arXiv 2404.14469,
//               section 4).
//   kMax        the maximum of w, and of what is there, which is at least 0 (the importance of
//               KVzip, arXiv 2505.23416).
//   kBelowMean  the number of w below 1 / (number of keys that query i sees), the mean of its
//               weights where no sink has a share (Scissorhands, arXiv 2305.17118, algorithm 2):
//               those with w * keys < 1 - kBelowMeanMargin. The margin is for rounding alone. A
//               weight that is the mean, as that of a lone key or of keys with equal logits, is off
//               by a few units of fp32's last place, upwards or down as the backend sums; it must
//               not count on one backend and not on another.
// A statistic costs what the tiles with queries in its range cost.
//
// Queries are worked through in tiles of kQueryTile aligned to absolute positions, and a tile's
// sums are added in order, so that any slicing of the prompt into runs that start at multiples of
// kQueryTile gives the same bits.
//
// A prefix that lies in pages already may come before the scratch's keys: every query sees all live
// entries of its KV head there, then keys 0 .. first_position + i as ever. Positions count within
// the suffix, so that its slicing changes no bit either. With a window too, query i sees the
// entries of the last window - 1 - p tokens before the suffix, p = first_position + i.
#ifndef HYDRANT_KERNELS_OPS_PREFILL_ATTENTION_H_
#define HYDRANT_KERNELS_OPS_PREFILL_ATTENTION_H_

#include <array>
#include <cstdint>
#include <limits>

#include "kernels/arena_rows.h"
#include "kernels/kv_pages.h"

namespace hydrant {

inline constexpr int kQueryTile = 32;
inline constexpr float kBelowMeanMargin = 1.0f / 65536;  // 128 units of fp32's last place
inline constexpr int kMaxColumnStatistics = 3;
inline constexpr int32_t kNoWindow = std::numeric_limits<int32_t>::max();

struct ColumnStatistic {
  enum class Kind : uint8_t { kSum, kMax, kBelowMean };
  Kind kind = Kind::kSum;
  GroupReduce reduce = GroupReduce::kMean;
  int32_t first_query = 0;  // positions; queries outside are left out; any numbers
  int32_t end_query = std::numeric_limits<int32_t>::max();
  float* out = nullptr;  // [num_kv_heads, stride], accumulated into; null: not wanted
  int64_t stride = 0;    // elements
  // The same of the prefix's entries, in their order.
  float* prefix_out = nullptr;  // [num_kv_heads, prefix_stride]
  int64_t prefix_stride = 0;

  // Whether queries at positions [begin, end) change it.
  constexpr bool Touches(int begin, int end) const {
    return (out != nullptr || prefix_out != nullptr) && begin < end && first_query < end &&
           end_query > begin && first_query < end_query;
  }
};

// The entries of one (slot, layer). Heads may differ in length: lengths are read on the device.
// Log-weights are not. Its keys are turned: not of a rolling rule.
struct PagedPrefix {
  KvPages pages;
  SequenceTables tables;
  int slot = 0;
  int layer = 0;
  int max_entries = 0;  // no head holds more: a device plans its work by it
  // Position of the suffix's first token in its sequence; read with a window, which finds entries
  // by their positions. REQUIRES then: the entries of a head with L of them are the last L tokens
  // before it.
  int32_t next_position = 0;
};

struct PrefillAttentionArgs {
  // All three of one dtype, which `precision` is too where it is not fp32.
  ArenaRows q = nullptr;       // [num_queries, num_heads, head_dim], turned by RoPE
  ArenaRows k = nullptr;       // key j of head h at k + h * kv_head_stride + j * head_dim
  ArenaRows v = nullptr;       // the same
  int64_t kv_head_stride = 0;  // elements
  int num_queries = 0;
  int first_position = 0;  // a multiple of kQueryTile
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float scale = 1.0f;
  float softcap = 0.0f;                // logits stay within +-softcap; 0: as they are
  const float* sink_logits = nullptr;  // [num_heads], finite; null: none
  void* out = nullptr;                 // [num_queries, num_heads, head_dim]; null: not wanted
  DType out_dtype = DType::kF32;       // or what the backend wants (Backend::ActivationDType)
  // In any order; those without an output are not wanted.
  std::array<ColumnStatistic, kMaxColumnStatistics> statistics = {};
  const PagedPrefix* prefix = nullptr;  // in the caller's memory; null: none
  // At least 1. Queries from there on see all the keys before it, and so may be asked of keys that
  // came after them.
  int32_t end_key = std::numeric_limits<int32_t>::max();
  // At least 1. REQUIRES, with a window: no statistic is wanted, and every query sees a key before
  // end_key.
  int32_t window = kNoWindow;
  // kBF16 or kF16 let a device round q, k, v and the weights to it before it multiplies; kQ8_0 rows
  // of q, k and v to 8 bits and a scale, and each query's weights times the scales of their values,
  // some keys at a time, to 8 bits of the largest. In bf16 a weight may be off by 1 % of itself, in
  // statistics as well, which otherwise stay fp32 where there is an output. Without one they only
  // rank: a weight may be off by 7 % then.
  DType precision = DType::kF32;

  // The run's keys. A query at `position` sees [FirstSeenAt(position), KeysSeenAt(position)) of
  // them: without a window as many as the latter says.
  constexpr int NumKeys() const { return KeysSeenAt(first_position + num_queries - 1); }
  constexpr int KeysSeenAt(int position) const {
    return position < end_key ? position + 1 : end_key;
  }
  constexpr int FirstSeenAt(int position) const {
    return window <= position ? position - window + 1 : 0;
  }
  // Whether a query at `position`, or one behind it, sees an entry of a prefix.
  constexpr bool SeesPrefixAt(int position) const {
    return prefix != nullptr && position < window - 1;
  }

  // Whether what a window requires holds.
  constexpr bool WindowIsValid() const {
    if (window == kNoWindow) return true;
    for (const ColumnStatistic& statistic : statistics) {
      if (statistic.out != nullptr || statistic.prefix_out != nullptr) return false;
    }
    return window >= 1 && FirstSeenAt(first_position + num_queries - 1) < end_key;
  }
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_PREFILL_ATTENTION_H_
