// Causal attention of a run of queries over the layer scratch, with up to three statistics of the
// attention that each key received; policies rank entries by them.
//
// Query i of the run has position p = first_position + i and sees keys 0 .. p, limited to keys
// before end_key. With a window it sees only the `window` keys p - window + 1 .. p (sliding-window
// attention, arXiv 2310.06825, section 2), and the work is proportional to the window. Softmax in
// fp32 of the logits scale * q k or, with a softcap, of softcap * tanh(scale *
// q k / softcap) (Gemma 2, arXiv 2408.00118, section 2). A query head's sink logit joins the
// softmax of each of its queries, neither scaled nor capped, and has no value: weights of keys then
// sum to less than 1 (GPT-OSS, arXiv 2508.10925; `sinks` in transformers' gpt_oss). With w[i, j] =
// the reduction over the query heads of KV head h of the weight of query i on key j, a
// ColumnStatistic adds to out[h, j], over the queries in its range that see j:
//   kSum        the sum of w. Over a whole prompt: the accumulated attention score of H2O (arXiv
//               2306.14048, section 4); over its last queries: SnapKV's window (arXiv 2404.14469,
//               section 4).
//   kMax        the maximum of w and of the value in out, which is at least 0 (the importance of
//               KVzip, arXiv 2505.23416).
//   kBelowMean  the number of w below 1 / (number of keys that query i sees), the mean of its
//               weights without a sink (Scissorhands, arXiv 2305.17118, algorithm 2): counted where
//               w * keys < 1 - kBelowMeanMargin. The margin covers rounding only. A weight equal to
//               the mean, such as that of a lone key or of keys with equal logits, is off by a few
//               units of fp32's last place, up or down as the backend sums; without a margin it
//               would count on one backend and not on another.
// A statistic costs as much as the tiles with queries in its range.
//
// Queries are processed in tiles of kQueryTile aligned to absolute positions, and a tile's sums
// are added in order, so that any slicing of the prompt into runs that start at multiples of
// kQueryTile gives the same bits.
//
// A prefix in pages may precede the scratch's keys: every query sees all live entries of its KV
// head there, then keys 0 .. first_position + i. Positions count within the suffix, so its slicing
// does not change the bits either. With a window, query i sees only the entries of the last
// window - 1 - p tokens before the suffix, p = first_position + i.
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
  int32_t first_query = 0;  // positions, any integers; queries outside the range are skipped
  int32_t end_query = std::numeric_limits<int32_t>::max();
  float* out = nullptr;  // [num_kv_heads, stride], accumulated into; null: not computed
  int64_t stride = 0;    // elements
  // The same for the prefix's entries, in entry order.
  float* prefix_out = nullptr;  // [num_kv_heads, prefix_stride]
  int64_t prefix_stride = 0;

  // Whether queries at positions [begin, end) change the statistic.
  constexpr bool Touches(int begin, int end) const {
    return (out != nullptr || prefix_out != nullptr) && begin < end && first_query < end &&
           end_query > begin && first_query < end_query;
  }
};

// The entries of one (slot, layer). Heads may differ in length: lengths are read on the device. Log
// weights are ignored. Keys must be rotated: no rolling rule.
struct PagedPrefix {
  KvPages pages;
  SequenceTables tables;
  int slot = 0;
  int layer = 0;
  int max_entries = 0;  // upper bound of every head's length, for a device's work plan
  // Position of the suffix's first token in its sequence; read only with a window, which finds
  // entries by their positions. REQUIRES, with a window: the L entries of a head are the last L
  // tokens before that position.
  int32_t next_position = 0;
};

struct PrefillAttentionArgs {
  // All three of one dtype; if it is not fp32, it equals `precision`.
  ArenaRows q = nullptr;       // [num_queries, num_heads, head_dim], rotated (RoPE)
  ArenaRows k = nullptr;       // key j of head h at k + h * kv_head_stride + j * head_dim
  ArenaRows v = nullptr;       // the same
  int64_t kv_head_stride = 0;  // elements
  int num_queries = 0;
  int first_position = 0;  // a multiple of kQueryTile
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float scale = 1.0f;
  float softcap = 0.0f;                // logits stay within +-softcap; 0: no cap
  const float* sink_logits = nullptr;  // [num_heads], finite; null: none
  void* out = nullptr;                 // [num_queries, num_heads, head_dim]; null: not computed
  DType out_dtype = DType::kF32;       // or the backend's choice (Backend::ActivationDType)
  // In any order; a statistic without an output is not computed.
  std::array<ColumnStatistic, kMaxColumnStatistics> statistics = {};
  const PagedPrefix* prefix = nullptr;  // in the caller's memory; null: none
  // At least 1. Queries from end_key on see all the keys before it, so a probe's
  // queries may attend to keys from later in the prompt.
  int32_t end_key = std::numeric_limits<int32_t>::max();
  // At least 1. REQUIRES, with a window: no statistic, and every query sees a key before end_key.
  int32_t window = kNoWindow;
  // kBF16 or kF16 let a device round q, k, v and the weights to that dtype before it multiplies.
  // kQ8_0 lets it round rows of q, k and v to 8 bits and a scale, and each query's weights times
  // the scales of their values, some keys at a time, to 8 bits of the largest. In bf16 a weight may
  // be off by 1 % of itself, in statistics as well, which otherwise stay fp32 if there is an
  // output. Without an output the statistics only rank, and a weight may be off by 7 %.
  DType precision = DType::kF32;
  // [num_heads + num_kv_heads, head_dim], powers of two: of q's channels, then of k's. A backend
  // that rounds q and k to 8 bits multiplies them by these before: no channel then rounds to zero
  // beside a large one. REQUIRES: they change no product of q and k. Null: none.
  const float* byte_factors = nullptr;

  // The run's keys. A query at `position` sees keys [FirstSeenAt(position), KeysSeenAt(position));
  // without a window FirstSeenAt is 0.
  constexpr int NumKeys() const { return KeysSeenAt(first_position + num_queries - 1); }
  constexpr int KeysSeenAt(int position) const {
    return position < end_key ? position + 1 : end_key;
  }
  constexpr int FirstSeenAt(int position) const {
    return window <= position ? position - window + 1 : 0;
  }
  // Whether a query at `position` or later sees an entry of the prefix.
  constexpr bool SeesPrefixAt(int position) const {
    return prefix != nullptr && position < window - 1;
  }

  // Whether the requirements of a window hold.
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
