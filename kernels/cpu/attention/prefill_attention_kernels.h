// The interface between prefill attention and its vector kernel, which processes one tile at a
// time. Plain data and raw pointers only: each implementation is compiled for its instruction set
// (prefill_attention_base.cc, ..._avx512.cc).
//
// Queries lie in the lanes: a tile's queries, logits, weights and output are stored transposed,
// [..., kQueryTile], so that keys and values are read untransposed, maxima and sums run down the
// columns without horizontal operations, and every head_dim takes the same path. A short tile, such
// as the question after a cached prefix, has the query heads of a group side by side in its lanes
// (pack_gqa of FlashAttention-3): each key is then multiplied once for all of them. A lane's result
// does not depend on its neighbours, so packing does not change the bits.
#ifndef HYDRANT_KERNELS_CPU_ATTENTION_PREFILL_ATTENTION_KERNELS_H_
#define HYDRANT_KERNELS_CPU_ATTENTION_PREFILL_ATTENTION_KERNELS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/ops/prefill_attention.h"

namespace hydrant::cpu {

inline constexpr int kKeyPanel = 128;  // keys per step; 16 KiB of logits
// Weights that a tile may keep for its statistics (8 MiB); depends only on the
// tile's position and the model.
inline constexpr size_t kMaxKeptWeights = size_t{2} << 20;

constexpr int NumPanels(int keys) { return (keys + kKeyPanel - 1) / kKeyPanel; }

struct PrefillShape {
  int head_dim = 0;
  int group = 0;             // query heads per KV head
  int64_t query_stride = 0;  // elements between queries, in q and out
  float scale = 1.0f;
  float softcap = 0.0f;  // 0: none
};

// A ColumnStatistic over one tile.
struct TileStatistic {
  ColumnStatistic::Kind kind = ColumnStatistic::Kind::kSum;
  GroupReduce reduce = GroupReduce::kMean;
  int begin = 0;  // queries of the tile
  int end = 0;
  float* out = nullptr;  // [num_prefix_keys + num_keys], overwritten; null: not computed
};

struct PrefillTile {
  const float* q = nullptr;         // first query, first query head of the group
  const float* k = nullptr;         // [num_keys, head_dim], or the kernel's format
  const float* v = nullptr;         // the same
  float* out = nullptr;             // layout of q; null: not computed
  const float* sinks = nullptr;     // [group], the query heads' sink logits; null: none
  int first_position = 0;           // a multiple of kQueryTile
  int end_key = 0;                  // no query sees this key or a later one
  int window = kNoWindow;           // keys that each query sees, its own included
  int num_queries = 0;              // <= kQueryTile
  const float* prefix_k = nullptr;  // [num_prefix_keys, head_dim], seen by queries with a window
                                    // that reaches them
  const float* prefix_v = nullptr;  // the same
  int num_prefix_keys = 0;          // 0 if no query's window reaches the prefix
  std::array<TileStatistic, kMaxColumnStatistics> statistics = {};

  int num_keys() const {
    return first_position + num_queries < end_key ? first_position + num_queries : end_key;
  }
  bool counted() const {
    for (const TileStatistic& statistic : statistics) {
      if (statistic.out != nullptr) return true;
    }
    return false;
  }
  // No panel holds keys of both the prefix and the run.
  int num_panels() const { return NumPanels(num_prefix_keys) + NumPanels(num_keys()); }
  // The first panel with a key that any query sees.
  int first_panel() const {
    const int first_seen = num_prefix_keys + first_position - window + 1;
    return first_seen > 0 ? first_seen / kKeyPanel : 0;
  }
};

// Offsets of a tile's scratch, in floats. Query i of query head g is lane g * head_lanes + i of
// [packs, kQueryTile]; the results of lanes past the last head are unused.
struct PrefillScratchLayout {
  int head_lanes = 0;         // lanes per query head
  int packs = 0;              // kQueryTile-lane packs for the query heads of a KV head
  bool keep_weights = false;  // of every panel, for the statistics
  int panels = 0;             // panels with kept weights
  size_t queries = 0;         // [packs, head_dim, kQueryTile], scaled
  size_t outputs = 0;         // [packs, head_dim, kQueryTile], unnormalised
  size_t maxima = 0;          // [packs, kQueryTile], running
  size_t sums = 0;            // [packs, kQueryTile], running
  // [panels, packs, kQueryTile]: the reference of a panel's weights
  size_t panel_maxima = 0;
  size_t factors = 0;  // [packs, kQueryTile]: one panel's weights to attention weights
  // For a kernel with reduced precision: a panel's keys and values, and a pack's weights.
  size_t operands = 0;
  size_t rounded = 0;
  size_t weights = 0;  // [panels, packs, kKeyPanel, kQueryTile]
  size_t total = 0;
};

inline PrefillScratchLayout LayoutOf(const PrefillShape& shape, const PrefillTile& tile) {
  PrefillScratchLayout layout;
  // A statistic reduces over the group: its heads have the same query in the same lane.
  layout.head_lanes = tile.counted() ? kQueryTile : tile.num_queries;
  layout.packs = (shape.group * layout.head_lanes + kQueryTile - 1) / kQueryTile;
  const size_t rows = static_cast<size_t>(layout.packs) * kQueryTile;
  layout.keep_weights = tile.counted() && tile.num_panels() * rows * kKeyPanel <= kMaxKeptWeights;
  layout.panels = layout.keep_weights ? tile.num_panels() : 1;
  layout.outputs = layout.queries + rows * shape.head_dim;
  layout.maxima = layout.outputs + rows * shape.head_dim;
  layout.sums = layout.maxima + rows;
  layout.panel_maxima = layout.sums + rows;
  layout.factors = layout.panel_maxima + rows * layout.panels;
  layout.operands = layout.factors + rows;
  layout.rounded = layout.operands + size_t{kKeyPanel} * (shape.head_dim + 1);
  layout.weights = layout.rounded + kKeyPanel / 2 * kQueryTile;
  layout.total = layout.weights + rows * kKeyPanel * layout.panels;
  return layout;
}

// Offsets of the scratch of a RankKernel's tile, in floats.
struct RankLayout {
  int strips = 0;        // of kQueryTile keys
  int rows = 0;          // queries of as many query heads as fit at a time
  size_t operands = 0;   // [rows, head_dim + 2] at most, in the product's format
  size_t logits = 0;     // [kQueryTile, kQueryTile]
  size_t origins = 0;    // [rows]
  size_t sums = 0;       // [rows / 2, 16]
  size_t sum_words = 0;  // [rows / 2, 4]
  size_t factors = 0;    // [rows / 2, 4]
  size_t words = 0;      // [strips, rows / 2, kQueryTile]
  size_t total = 0;
};

inline RankLayout RankLayoutOf(const PrefillShape& shape, const PrefillTile& tile) {
  constexpr int kMaxHeads = 4;  // so that their logits of a strip stay in L1
  RankLayout layout;
  layout.strips = (tile.num_keys() + kQueryTile - 1) / kQueryTile;
  const size_t head_words = size_t{1} * layout.strips * kQueryTile * kQueryTile / 2;
  int heads = shape.group < kMaxHeads ? shape.group : kMaxHeads;
  while (heads > 1 && heads * head_words > kMaxKeptWeights) --heads;
  const int turns = (shape.group + heads - 1) / heads;
  heads = (shape.group + turns - 1) / turns;
  layout.rows = heads * kQueryTile;
  const size_t rows = layout.rows, pairs = rows / 2;
  layout.logits = layout.operands + rows * (shape.head_dim + 2);
  layout.origins = layout.logits + size_t{1} * kQueryTile * kQueryTile;
  layout.sums = layout.origins + rows;
  layout.sum_words = layout.sums + pairs * 16;
  layout.factors = layout.sum_words + pairs * 4;
  layout.words = layout.factors + pairs * 4;
  layout.total = layout.words + heads * head_words;
  return layout;
}

// scratch: LayoutOf(...).total floats of the calling thread; for a RankKernel
// RankLayoutOf(...).total.
using PrefillTileKernel = void (*)(const PrefillShape& shape, const PrefillTile& tile,
                                   float* scratch);

PrefillTileKernel PrefillTileBase();
PrefillTileKernel PrefillTileAvx512();
PrefillTileKernel PrefillTileAvx512Bf16();  // rounds q, k, v to bf16; weights are within 1 %
// As PrefillTileAvx512Bf16(); PrefillTile's keys and values, a prefix's too, are rounded by
// RoundKeysAmx() and RoundValuesAmx(). REQUIRES: head_dim is a multiple of kAmxHeadDim
PrefillTileKernel PrefillTileAmx();
inline constexpr int kAmxHeadDim = 32;
// Number of key rows, padded with zero rows to whole tiles.
constexpr int TileRowsOf(int rows) { return (rows + 31) / 32 * 32; }
// 32-bit words of pairs of keys, and of values, which are stored panel by panel.
constexpr int64_t TileKeyWords(int rows, int head_dim) {
  return int64_t{1} * TileRowsOf(rows) * (head_dim / 2);
}
constexpr int64_t TileValueWords(int rows, int head_dim) {
  return int64_t{1} * NumPanels(rows) * (kKeyPanel / 2) * head_dim;
}
// keys: [rows, head_dim]; to: TileKeyWords(rows, head_dim) words.
void RoundKeysAmx(const float* keys, int rows, int head_dim, float* to);
// values: [rows, head_dim], at most kKeyPanel rows; to: TileValueWords(rows, head_dim) words.
void RoundValuesAmx(const float* values, int rows, int head_dim, float* to);

// Approximates weights within 7 %, for ranking: see prefill_rank-inl.h. REQUIRES, of a tile: no
// output, softcap, sinks or prefix; two statistics, the sum of the mean and the maximum, over the
// same queries, which see all keys; keys prepared by `to_lanes`.
struct RankKernel {
  PrefillTileKernel tile;
  int64_t (*lane_words)(int keys, int head_dim);  // 32-bit words; also the offset of a key
  // keys: [rows, head_dim], starting at a multiple of kQueryTile.
  void (*to_lanes)(const float* keys, int rows, int head_dim, float* to);
};
const RankKernel& RankBase();
const RankKernel& RankAvx512();
const RankKernel& RankAvx512Bf16();  // rounds q and k to bf16
const RankKernel& RankAmx();         // rounds to bf16. REQUIRES: a multiple of kAmxHeadDim

// 32-bit words of a row in 8 bits, and of a key with its scale and sum.
constexpr int NumByteWords(int head_dim) { return (head_dim + 3) / 4; }
constexpr int ByteKeyStride(int head_dim) { return NumByteWords(head_dim) + 2; }
// Values are grouped by four rows: one word per column, then the rows' scales.
inline constexpr int kByteValueRows = 4;
constexpr int ByteValueStride(int head_dim) { return head_dim + kByteValueRows; }
constexpr int64_t ByteValueWords(int rows, int head_dim) {
  return int64_t{1} * ((rows + kByteValueRows - 1) / kByteValueRows) * ByteValueStride(head_dim);
}
// Kernels in 8 bits. REQUIRES: head_dim >= 4
struct ByteKernels {
  // Rounds q and each panel's weights; PrefillTile::k and v are rounded before. REQUIRES: no prefix
  PrefillTileKernel tile;
  // keys: [rows, head_dim]; to: [rows, ByteKeyStride(head_dim)].
  void (*round_keys)(const float* keys, int rows, int head_dim, float* to);
  // values: [rows, head_dim]; to: ByteValueWords(rows, head_dim) words.
  void (*round_values)(const float* values, int rows, int head_dim, float* to);
  RankKernel rank;
};
const ByteKernels& ByteKernelsAvx512Vnni();
const ByteKernels& ByteKernelsDotProd();  // ARM

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_ATTENTION_PREFILL_ATTENTION_KERNELS_H_
