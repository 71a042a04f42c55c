// What prefill attention asks of its vector kernel: one tile at a time. Plain data and raw pointers
// only: the implementations are compiled for an instruction set of their own
// (prefill_attention_avx2.cc, ..._avx512.cc).
//
// Queries lie in the lanes: a tile's queries, logits, weights and output are stored transposed,
// [..., kQueryTile], so that keys and values are read as they are, maxima and sums run down the
// columns without a horizontal step, and every head_dim takes the same path. A short tile, such as
// the question after a cached prefix, has the query heads of a group side by side in its lanes
// (pack_gqa of FlashAttention-3): each key is then multiplied once for all of them. What a lane
// computes does not depend on its neighbours, so this changes no bit.
#ifndef HYDRANT_KERNELS_CPU_ATTENTION_PREFILL_ATTENTION_KERNELS_H_
#define HYDRANT_KERNELS_CPU_ATTENTION_PREFILL_ATTENTION_KERNELS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/ops/prefill_attention.h"

namespace hydrant::cpu {

inline constexpr int kKeyPanel = 128;  // keys of a step; 16 KiB of logits
// Weights a tile may keep for its statistics (8 MiB); depends on the tile's position and the model
// alone.
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
  float* out = nullptr;  // [num_prefix_keys + num_keys], written; null: not wanted
};

struct PrefillTile {
  const float* q = nullptr;         // first query, first query head of the group
  const float* k = nullptr;         // [num_keys, head_dim], or as its kernel wants them
  const float* v = nullptr;         // the same
  float* out = nullptr;             // as q; null: not wanted
  const float* sinks = nullptr;     // [group], the query heads' sink logits; null: none
  int first_position = 0;           // a multiple of kQueryTile
  int end_key = 0;                  // no query sees this one or one after it
  int window = kNoWindow;           // each sees so many, its own included
  int num_queries = 0;              // <= kQueryTile
  const float* prefix_k = nullptr;  // [num_prefix_keys, head_dim], seen by every query whose window
                                    // reaches them
  const float* prefix_v = nullptr;  // the same
  int num_prefix_keys = 0;          // 0 where no query's window reaches them
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
  // The first panel with a key that some query sees.
  int first_panel() const {
    const int first_seen = num_prefix_keys + first_position - window + 1;
    return first_seen > 0 ? first_seen / kKeyPanel : 0;
  }
};

// Where a tile's scratch lies, in floats. Query i of query head g is lane g * head_lanes + i of
// [packs, kQueryTile]; lanes behind the last head's compute what nobody reads.
struct PrefillScratchLayout {
  int head_lanes = 0;         // those of a query head
  int packs = 0;              // the query heads of a KV head take so many tiles of lanes
  bool keep_weights = false;  // of every panel, for the statistics
  int panels = 0;             // weights are kept for
  size_t queries = 0;         // [packs, head_dim, kQueryTile], scaled
  size_t outputs = 0;         // [packs, head_dim, kQueryTile], unnormalised
  size_t maxima = 0;          // [packs, kQueryTile], running
  size_t sums = 0;            // [packs, kQueryTile], running
  size_t panel_maxima =
      0;               // [panels, packs, kQueryTile]: what the weights of a panel are relative to
  size_t factors = 0;  // [packs, kQueryTile]: what turns those of one panel into attention weights
  // Of a kernel that multiplies in fewer bits: a panel's keys and values, and a pack's weights.
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

// Where the scratch of a tile that is ranked lies, in floats.
struct RankLayout {
  int strips = 0;        // of kQueryTile keys
  int rows = 0;          // queries of some query heads, as many as there is room for at a time
  size_t operands = 0;   // [rows, head_dim + 2] at most, as a product takes them
  size_t logits = 0;     // [kQueryTile, kQueryTile]
  size_t origins = 0;    // [rows]
  size_t sums = 0;       // [rows / 2, 16]
  size_t sum_words = 0;  // [rows / 2, 4]
  size_t factors = 0;    // [rows / 2, 4]
  size_t words = 0;      // [strips, rows / 2, kQueryTile]
  size_t total = 0;
};

inline RankLayout RankLayoutOf(const PrefillShape& shape, const PrefillTile& tile) {
  constexpr int kMostHeads = 4;  // whose logits of a strip stay in the first cache
  RankLayout layout;
  layout.strips = (tile.num_keys() + kQueryTile - 1) / kQueryTile;
  const size_t head_words = size_t{1} * layout.strips * kQueryTile * kQueryTile / 2;
  int heads = shape.group < kMostHeads ? shape.group : kMostHeads;
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

// scratch: LayoutOf(...).total floats of the calling thread; RankLayoutOf(...).total of a kernel
// that ranks.
using PrefillTileKernel = void (*)(const PrefillShape& shape, const PrefillTile& tile,
                                   float* scratch);

PrefillTileKernel PrefillTileAvx2();
PrefillTileKernel PrefillTileAvx512();
PrefillTileKernel PrefillTileAvx512Bf16();  // rounds q, k, v to bf16; weights are within 1 %
// The same; PrefillTile's keys and values, a prefix's too, are what RoundKeysAmx() and
// RoundValuesAmx() left. REQUIRES: a head_dim that is a multiple of kAmxHeadDim
PrefillTileKernel PrefillTileAmx();
inline constexpr int kAmxHeadDim = 32;
// Rows of keys with those that fill the last tiles, which are zero.
constexpr int TileRowsOf(int rows) { return (rows + 31) / 32 * 32; }
// Words of 32 bits that pairs of keys, or of values in panels of their own, take.
constexpr int64_t TileKeyWords(int rows, int head_dim) {
  return int64_t{1} * TileRowsOf(rows) * (head_dim / 2);
}
constexpr int64_t TileValueWords(int rows, int head_dim) {
  return int64_t{1} * NumPanels(rows) * (kKeyPanel / 2) * head_dim;
}
// keys: [rows, head_dim]; to: TileKeyWords(rows, head_dim) words.
void RoundKeysAmx(const float* keys, int rows, int head_dim, float* to);
// values: [rows, head_dim], at most kKeyPanel; to: TileValueWords(rows, head_dim) words.
void RoundValuesAmx(const float* values, int rows, int head_dim, float* to);

// Tells weights apart, within 7 %: see prefill_rank-inl.h. REQUIRES of a tile: no output, softcap,
// sinks or prefix; two statistics, a mean's sum and the largest weight, of the same queries, which
// see all keys; these as `to_lanes` left them.
struct RankKernel {
  PrefillTileKernel tile;
  int64_t (*lane_words)(int keys, int head_dim);  // words of 32 bits, of the keys before one, too
  // keys: [rows, head_dim], from a multiple of kQueryTile on.
  void (*to_lanes)(const float* keys, int rows, int head_dim, float* to);
};
const RankKernel& RankAvx2();
const RankKernel& RankAvx512();
const RankKernel& RankAvx512Bf16();  // rounds q and k to bf16
const RankKernel& RankAvx512Vnni();  // to 8 bits. REQUIRES: a head_dim of at least 4
const RankKernel& RankAmx();         // to bf16. REQUIRES: a multiple of kAmxHeadDim

// Words of 32 bits that numbers of 8 bits take, and a key of them with its scale and its sum.
constexpr int NumByteWords(int head_dim) { return (head_dim + 3) / 4; }
constexpr int ByteKeyStride(int head_dim) { return NumByteWords(head_dim) + 2; }
// Values lie four rows together: a word for each column, then their scales.
inline constexpr int kByteValueRows = 4;
constexpr int ByteValueStride(int head_dim) { return head_dim + kByteValueRows; }
constexpr int64_t ByteValueWords(int rows, int head_dim) {
  return int64_t{1} * ((rows + kByteValueRows - 1) / kByteValueRows) * ByteValueStride(head_dim);
}
// Rounds q to 8 bits, and a panel's weights; PrefillTile::k and v are what RoundKeysAvx512Vnni()
// and RoundValuesAvx512Vnni() left. REQUIRES: a head_dim of at least 4, no prefix
PrefillTileKernel PrefillTileAvx512Vnni();
// keys: [rows, head_dim]; to: [rows, ByteKeyStride(head_dim)].
void RoundKeysAvx512Vnni(const float* keys, int rows, int head_dim, float* to);
// values: [rows, head_dim]; to: ByteValueWords(rows, head_dim) words.
void RoundValuesAvx512Vnni(const float* values, int rows, int head_dim, float* to);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_ATTENTION_PREFILL_ATTENTION_KERNELS_H_
