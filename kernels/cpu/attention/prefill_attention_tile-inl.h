// A tile of queries over all of its keys: softmax with a running maximum, panel by panel (the
// online form of Milakov and Gimelshein, arXiv 1805.02867), then the tile's statistics.
// Included once per instruction set, after attention_softcap-inl.h,
// prefill_attention_panel-inl.h and prefill_softmax-inl.h.

#include <type_traits>

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

// The query in a lane of a pack: query head of the group, and query of the tile. Head and query
// may be past the last one.
struct Lane {
  int head;
  int query;
};

HYDRANT_INLINE Lane LaneOf(const PrefillScratchLayout& layout, int pack, int lane) {
  const int index = pack * kQueryTile + lane;
  return {index / layout.head_lanes, index % layout.head_lanes};
}

// Offset of each lane's query in q and out; -1: the lane has none.
HYDRANT_INLINE void QueryOffsets(const PrefillShape& shape, const PrefillTile& tile,
                                 const PrefillScratchLayout& layout, int pack, int64_t* offsets) {
  for (int i = 0; i < kQueryTile; ++i) {
    const Lane lane = LaneOf(layout, pack, i);
    offsets[i] = lane.head < shape.group && lane.query < tile.num_queries
                     ? lane.query * shape.query_stride + lane.head * shape.head_dim
                     : -1;
  }
}

// from: [head_dim, kQueryTile]; divides each lane by its sum.
HYDRANT_INLINE void StoreOutput(const PrefillShape& shape, const float* from, const float* sums,
                                const int64_t* offsets, float* out) {
  for (int lane = 0; lane < kQueryTile; lane += kLanes) {
    const Vec factor = hn::Div(Set(1.0f), Load(sums + lane));
    for (int d = 0; d < shape.head_dim; d += kLanes) {
      const int left = shape.head_dim - d;
      Vec rows[kLanes];
      for (int i = 0; i < kLanes; ++i)
        rows[i] = i < left ? hn::Mul(Load(from + (d + i) * kQueryTile + lane), factor) : Zero();
      Transpose(rows);
      for (int i = 0; i < kLanes; ++i) {
        if (offsets[lane + i] >= 0) StoreFirst(left, out + offsets[lane + i] + d, rows[i]);
      }
    }
  }
}

// Causal mask: -inf where first_key + r > first_position + queries[i].
// queries[kQueryTile]: the lanes' queries.
HYDRANT_INLINE void MaskFuture(const int* queries, int first_key, int rows, int first_position,
                               float* logits) {
  for (int r = 0; r < rows; ++r) {
    const int blind = first_key + r - first_position;  // queries before this one do not see the key
    for (int i = 0; i < kQueryTile; ++i) {
      float* logit = logits + r * kQueryTile + i;
      *logit = queries[i] < blind ? kMinusInfinity : *logit;
    }
  }
}

// Window mask: keys up to first_position + i - window are hidden from query i. A panel may lie
// entirely before a query's window; its weights are then arbitrary, and the first visible key
// cancels them, because e^(kPastLogit - logit) is 0.
HYDRANT_INLINE void MaskPast(const int* queries, int first_key, int rows, int first_position,
                             int window, float* logits) {
  for (int r = 0; r < rows; ++r) {
    const int last = first_key + r - first_position + window;  // first query that does not see it
    for (int i = 0; i < kQueryTile; ++i) {
      float* logit = logits + r * kQueryTile + i;
      *logit = queries[i] >= last ? kPastLogit : *logit;
    }
  }
}

// The keys of a panel: first those of the prefix, in separate panels, then the run's.
struct Panel {
  const float* k;
  const float* v;
  int rows;
  int first_key;  // index in the run; below 0 in the prefix
  int column;     // first column of its statistics
};

HYDRANT_INLINE Panel PanelOf(const PrefillShape& shape, const PrefillTile& tile, int panel) {
  const int prefix_panels = NumPanels(tile.num_prefix_keys);
  const bool of_prefix = panel < prefix_panels;
  const int first = (of_prefix ? panel : panel - prefix_panels) * kKeyPanel;
  const int left = (of_prefix ? tile.num_prefix_keys : tile.num_keys()) - first;
  const int64_t of_keys = static_cast<int64_t>(first) * KeyStride(shape.head_dim);
  const int64_t of_values = ValuesBefore(first, shape.head_dim);
  return {.k = (of_prefix ? tile.prefix_k : tile.k) + of_keys,
          .v = (of_prefix ? tile.prefix_v : tile.v) + of_values,
          .rows = left < kKeyPanel ? left : kKeyPanel,
          .first_key = of_prefix ? first - tile.num_prefix_keys : first,
          .column = of_prefix ? first : tile.num_prefix_keys + first};
}

// Logits of one panel and one pack, capped and masked.
HYDRANT_INLINE void PackLogits(const PrefillShape& shape, const PrefillTile& tile,
                               const PrefillScratchLayout& layout, const Panel& panel,
                               const PanelOperands& operands, int pack, const float* scratch,
                               float* logits) {
  const int64_t pack_floats = static_cast<int64_t>(shape.head_dim) * kQueryTile;
  PanelLogits(shape, operands, panel.rows, scratch + layout.queries + pack * pack_floats, logits);
  if (shape.softcap != 0.0f) CapLogits(shape.softcap, panel.rows * kQueryTile, 0.0f, logits);
  const bool future = panel.first_key + panel.rows > tile.first_position;
  const bool past = panel.first_key <= tile.first_position + kQueryTile - 1 - tile.window;
  if (!future && !past) return;
  alignas(64) int queries[kQueryTile];
  for (int i = 0; i < kQueryTile; ++i) queries[i] = LaneOf(layout, pack, i).query;
  if (future) MaskFuture(queries, panel.first_key, panel.rows, tile.first_position, logits);
  if (past)
    MaskPast(queries, panel.first_key, panel.rows, tile.first_position, tile.window, logits);
}

// The lanes of queries [0, count) among the lanes from `lane` on.
HYDRANT_INLINE Mask QueriesBefore(int count, int lane) {
  return FirstN(count > lane ? count - lane : 0);
}

// The factor from a panel's weights to attention weights, per query: exp(panel_max - max) / sum; 0
// for queries outside [begin, end).
HYDRANT_INLINE void PanelFactors(const float* maxima, const float* sums, const float* panel_maxima,
                                 int begin, int end, float* factors) {
  for (int lane = 0; lane < kQueryTile; lane += kLanes) {
    const Vec factor =
        hn::Div(Exp(hn::Sub(Load(panel_maxima + lane), Load(maxima + lane))), Load(sums + lane));
    const Vec existing = hn::IfThenElse(QueriesBefore(end, lane), factor, Zero());
    Store(factors + lane, hn::IfThenElse(QueriesBefore(begin, lane), Zero(), existing));
  }
}

using Kind = ColumnStatistic::Kind;

// One statistic of one panel.
struct PanelStatistic {
  const float* weights;  // [group, kKeyPanel, kQueryTile]
  const float* factors;  // [group, kQueryTile]
  const float* limits;   // [kQueryTile], for kBelowMean: weights below these count
  int group;
  int rows;
  int blind;   // queries before this one do not see the panel's first key
  float* out;  // [rows]
};

// Combines a head's attention weights, weights * factors, with those of the group's earlier heads
// (GroupReduce; a mean as a sum).
template <GroupReduce kReduce>
HYDRANT_INLINE Vec JoinHeads(Vec before, Vec weights, Vec factors) {
  if (kReduce == GroupReduce::kMean) return hn::MulAdd(weights, factors, before);
  const Vec a = hn::Mul(weights, factors);
  return kReduce == GroupReduce::kMax ? hn::Max(before, a) : hn::MulAdd(a, a, before);
}

// The group's weight of one key, for a vector of queries.
template <GroupReduce kReduce>
HYDRANT_INLINE Vec GroupWeight(const float* weights, const float* factors, int group) {
  Vec w = Zero();
  for (int g = 0; g < group; ++g) {
    w = JoinHeads<kReduce>(w, Load(weights + g * kKeyPanel * kQueryTile),
                           Load(factors + g * kQueryTile));
  }
  return w;
}

// The tile's contribution to key `row`, reduced to one vector of lanes.
template <Kind kKind, GroupReduce kReduce>
HYDRANT_INLINE Vec KeyStatistic(const PanelStatistic& panel, int row) {
  Vec total = Zero();
  for (int lane = 0; lane < kQueryTile; lane += kLanes) {
    const Vec w = GroupWeight<kReduce>(panel.weights + row * kQueryTile + lane,
                                       panel.factors + lane, panel.group);
    if (kKind == Kind::kMax) {
      total = hn::Max(total, w);
    } else if (kKind == Kind::kBelowMean) {
      const Vec below = hn::IfThenElse(hn::Lt(w, Load(panel.limits + lane)), Set(1.0f), Zero());
      total = hn::Add(total, hn::IfThenElse(QueriesBefore(panel.blind + row, lane), Zero(), below));
    } else {
      total = hn::Add(total, w);
    }
  }
  return kReduce == GroupReduce::kMean && kKind != Kind::kBelowMean
             ? hn::Mul(total, Set(1.0f / static_cast<float>(panel.group)))
             : total;
}

// Stores `rows` values, at most one vector.
HYDRANT_INLINE void StoreKeys(Vec values, int rows, float* out) {
  if (rows >= kLanes) {
    Store(out, values);
  } else {
    StoreFirst(rows, out, values);
  }
}

// Rows past the last one in a vector are computed from stale scratch and dropped.
template <Kind kKind, GroupReduce kReduce>
void ReducePanel(const PanelStatistic& panel) {
  constexpr std::conditional_t<kKind == Kind::kMax, Largest, Sum> kFold;
  for (int r = 0; r < panel.rows; r += kLanes) {
    Vec quads[kLanes / 4];
    for (int quad = 0; quad < kLanes / 4; ++quad) {
      Vec key[4];
      for (int i = 0; i < 4; ++i) key[i] = KeyStatistic<kKind, kReduce>(panel, r + quad * 4 + i);
      quads[quad] = FoldQuad(kFold, key[0], key[1], key[2], key[3]);
    }
    StoreKeys(JoinQuads(kFold, quads), panel.rows - r, panel.out + r);
  }
}

// A sum, and the largest weight of the group's heads, of one key.
template <GroupReduce kReduce>
HYDRANT_INLINE void KeySumAndMax(const PanelStatistic& panel, int row, Vec* sum, Vec* largest) {
  *sum = *largest = Zero();
  for (int lane = 0; lane < kQueryTile; lane += kLanes) {
    const float* weights = panel.weights + row * kQueryTile + lane;
    const float* factors = panel.factors + lane;
    Vec w = Zero();
    for (int g = 0; g < panel.group; ++g) {
      const Vec weight = Load(weights + g * kKeyPanel * kQueryTile);
      const Vec factor = Load(factors + g * kQueryTile);
      w = JoinHeads<kReduce>(w, weight, factor);
      *largest = hn::Max(*largest, hn::Mul(weight, factor));
    }
    *sum = hn::Add(*sum, w);
  }
  if (kReduce == GroupReduce::kMean)
    *sum = hn::Mul(*sum, Set(1.0f / static_cast<float>(panel.group)));
}

// Computes both statistics in one pass over the weights. maxima: [rows].
template <GroupReduce kReduce>
void ReduceSumAndMax(const PanelStatistic& panel, float* maxima) {
  for (int r = 0; r < panel.rows; r += kLanes) {
    Vec sums[kLanes / 4], largest[kLanes / 4];
    for (int quad = 0; quad < kLanes / 4; ++quad) {
      Vec sum[4], max[4];
      for (int i = 0; i < 4; ++i) KeySumAndMax<kReduce>(panel, r + quad * 4 + i, &sum[i], &max[i]);
      sums[quad] = FoldQuad(Sum(), sum[0], sum[1], sum[2], sum[3]);
      largest[quad] = FoldQuad(Largest(), max[0], max[1], max[2], max[3]);
    }
    StoreKeys(JoinQuads(Sum(), sums), panel.rows - r, panel.out + r);
    StoreKeys(JoinQuads(Largest(), largest), panel.rows - r, maxima + r);
  }
}

HYDRANT_INLINE void ReduceSumAndMax(GroupReduce reduce, const PanelStatistic& panel,
                                    float* maxima) {
  switch (reduce) {
    case GroupReduce::kMean:
      return ReduceSumAndMax<GroupReduce::kMean>(panel, maxima);
    case GroupReduce::kMax:
      return ReduceSumAndMax<GroupReduce::kMax>(panel, maxima);
    case GroupReduce::kSumOfSquares:
      return ReduceSumAndMax<GroupReduce::kSumOfSquares>(panel, maxima);
  }
}

template <Kind kKind>
HYDRANT_INLINE void ReducePanel(GroupReduce reduce, const PanelStatistic& panel) {
  switch (reduce) {
    case GroupReduce::kMean:
      return ReducePanel<kKind, GroupReduce::kMean>(panel);
    case GroupReduce::kMax:
      return ReducePanel<kKind, GroupReduce::kMax>(panel);
    case GroupReduce::kSumOfSquares:
      return ReducePanel<kKind, GroupReduce::kSumOfSquares>(panel);
  }
}

HYDRANT_INLINE void ReducePanel(Kind kind, GroupReduce reduce, const PanelStatistic& panel) {
  switch (kind) {
    case Kind::kSum:
      return ReducePanel<Kind::kSum>(reduce, panel);
    case Kind::kMax:
      return ReducePanel<Kind::kMax>(reduce, panel);
    case Kind::kBelowMean:
      return ReducePanel<Kind::kBelowMean>(reduce, panel);
  }
}

// The bounds below which a query's GroupWeight() counts as below the mean; 0 for queries
// outside the statistic's range.
HYDRANT_INLINE void FindLimits(const PrefillShape& shape, const PrefillTile& tile,
                               const TileStatistic& statistic, float* limits) {
  const bool sum_for_mean = statistic.reduce == GroupReduce::kMean;
  const float mean_of_one = (1.0f - kBelowMeanMargin) * (sum_for_mean ? shape.group : 1);
  for (int i = 0; i < kQueryTile; ++i) {
    const int seen = tile.first_position + i + 1;
    const int keys = tile.num_prefix_keys + (seen < tile.end_key ? seen : tile.end_key);
    limits[i] = i >= statistic.begin && i < statistic.end ? mean_of_one / keys : 0.0f;
  }
}

// Attends over every panel. Results: unnormalised outputs, maxima and sums, and the
// weights if they are kept.
void AttendPanels(const PrefillShape& shape, const PrefillTile& tile,
                  const PrefillScratchLayout& layout, float* scratch) {
  const int64_t pack_floats = static_cast<int64_t>(shape.head_dim) * kQueryTile;
  alignas(64) float decay[kQueryTile];
  for (int p = tile.first_panel(); p < tile.num_panels(); ++p) {
    const Panel panel = PanelOf(shape, tile, p);
    const PanelOperands operands =
        TakePanel(shape, panel.k, tile.out != nullptr ? panel.v : nullptr, panel.rows,
                  scratch + layout.operands);
    const int kept = layout.keep_weights ? p : 0;
    for (int pack = 0; pack < layout.packs; ++pack) {
      const int64_t row = static_cast<int64_t>(kept) * layout.packs + pack;
      float* weights =
          scratch + layout.weights + (layout.keep_weights ? row : 0) * kKeyPanel * kQueryTile;
      float* maxima = scratch + layout.maxima + pack * kQueryTile;
      PackLogits(shape, tile, layout, panel, operands, pack, scratch, weights);
      PanelWeights(panel.rows, layout.keep_weights, weights, maxima,
                   scratch + layout.sums + pack * kQueryTile, decay, scratch + layout.rounded);
      if (tile.out != nullptr)
        PanelOutput(shape, operands, panel.rows, weights, decay, scratch + layout.rounded,
                    scratch + layout.outputs + pack * pack_floats);
      float* panel_maxima = scratch + layout.panel_maxima + row * kQueryTile;
      for (int i = 0; i < kQueryTile; ++i) panel_maxima[i] = maxima[i];
    }
  }
}

// Recomputes the weights of a panel relative to the final maxima, for statistics without kept
// weights. A pack is then a query head.
void RecomputePanel(const PrefillShape& shape, const PrefillTile& tile,
                    const PrefillScratchLayout& layout, const Panel& panel, float* scratch) {
  const PanelOperands operands =
      TakePanel(shape, panel.k, nullptr, panel.rows, scratch + layout.operands);
  for (int g = 0; g < shape.group; ++g) {
    float* weights = scratch + layout.weights + static_cast<int64_t>(g) * kKeyPanel * kQueryTile;
    const float* maxima = scratch + layout.maxima + g * kQueryTile;
    PackLogits(shape, tile, layout, panel, operands, g, scratch, weights);
    for (int r = 0; r < panel.rows; ++r) {
      for (int lane = 0; lane < kQueryTile; lane += kLanes) {
        float* row = weights + r * kQueryTile + lane;
        Store(row, WeightOf(hn::Sub(Load(row), Load(maxima + lane))));
      }
    }
    float* panel_maxima = scratch + layout.panel_maxima + g * kQueryTile;
    for (int i = 0; i < kQueryTile; ++i) panel_maxima[i] = maxima[i];
  }
}

// max: a maximum over the same queries, computed in the same pass; null: none.
void CountPanel(const PrefillShape& shape, const PrefillTile& tile, const TileStatistic& statistic,
                const TileStatistic* max, const PrefillScratchLayout& layout, const Panel& panel,
                int64_t first_row, const float* limits, float* scratch) {
  for (int g = 0; g < shape.group; ++g) {
    PanelFactors(scratch + layout.maxima + g * kQueryTile, scratch + layout.sums + g * kQueryTile,
                 scratch + layout.panel_maxima + (first_row + g) * kQueryTile, statistic.begin,
                 statistic.end, scratch + layout.factors + g * kQueryTile);
  }
  const PanelStatistic of_panel = {
      .weights = scratch + layout.weights + first_row * kKeyPanel * kQueryTile,
      .factors = scratch + layout.factors,
      .limits = limits,
      .group = shape.group,
      .rows = panel.rows,
      .blind = panel.first_key - tile.first_position,
      .out = statistic.out + panel.column};
  if (max != nullptr) return ReduceSumAndMax(statistic.reduce, of_panel, max->out + panel.column);
  ReducePanel(statistic.kind, statistic.reduce, of_panel);
}

// Whether two statistics are computed in one pass: a sum and a maximum over the same queries.
HYDRANT_INLINE bool AreSumAndMax(const TileStatistic& a, const TileStatistic& b) {
  return a.out != nullptr && b.out != nullptr && a.kind == Kind::kSum && b.kind == Kind::kMax &&
         b.reduce == GroupReduce::kMax && a.begin == b.begin && a.end == b.end;
}

void CountTile(const PrefillShape& shape, const PrefillTile& tile,
               const PrefillScratchLayout& layout, float* scratch) {
  alignas(64) float limits[kMaxColumnStatistics][kQueryTile];
  for (int s = 0; s < kMaxColumnStatistics; ++s)
    FindLimits(shape, tile, tile.statistics[s], limits[s]);
  for (int p = 0; p < tile.num_panels(); ++p) {
    const Panel panel = PanelOf(shape, tile, p);
    if (!layout.keep_weights) RecomputePanel(shape, tile, layout, panel, scratch);
    const int64_t first_row = layout.keep_weights ? static_cast<int64_t>(p) * shape.group : 0;
    for (int s = 0; s < kMaxColumnStatistics; ++s) {
      const TileStatistic& statistic = tile.statistics[s];
      if (statistic.out == nullptr) continue;
      const bool two =
          s + 1 < kMaxColumnStatistics && AreSumAndMax(statistic, tile.statistics[s + 1]);
      const TileStatistic* max = two ? &tile.statistics[s + 1] : nullptr;
      CountPanel(shape, tile, statistic, max, layout, panel, first_row, limits[s], scratch);
      if (two) ++s;
    }
  }
}

// Initialises outputs, maxima and sums. A sink precedes all keys.
void StartPack(const PrefillShape& shape, const PrefillTile& tile,
               const PrefillScratchLayout& layout, int pack, float* scratch) {
  const int64_t pack_floats = static_cast<int64_t>(shape.head_dim) * kQueryTile;
  float* outputs = scratch + layout.outputs + pack * pack_floats;
  for (int64_t i = 0; i < pack_floats; ++i) outputs[i] = 0.0f;
  for (int i = 0; i < kQueryTile; ++i) {
    const int head = LaneOf(layout, pack, i).head;
    const bool has_sink = tile.sinks != nullptr && head < shape.group;
    scratch[layout.maxima + pack * kQueryTile + i] =
        has_sink ? tile.sinks[head] + kHeadroom : kMinusInfinity;
    scratch[layout.sums + pack * kQueryTile + i] = has_sink ? kTopWeight : 0.0f;
  }
}

void AttendTile(const PrefillShape& shape, const PrefillTile& tile, float* scratch) {
  const PrefillScratchLayout layout = LayoutOf(shape, tile);
  const int64_t pack_floats = static_cast<int64_t>(shape.head_dim) * kQueryTile;
  int64_t offsets[kQueryTile];
  for (int pack = 0; pack < layout.packs; ++pack) {
    QueryOffsets(shape, tile, layout, pack, offsets);
    LoadQueries(shape, tile.q, offsets, scratch + layout.queries + pack * pack_floats);
    StartPack(shape, tile, layout, pack, scratch);
  }
  AttendPanels(shape, tile, layout, scratch);
  if (tile.counted()) CountTile(shape, tile, layout, scratch);
  for (int pack = 0; pack < layout.packs && tile.out != nullptr; ++pack) {
    QueryOffsets(shape, tile, layout, pack, offsets);
    StoreOutput(shape, scratch + layout.outputs + pack * pack_floats,
                scratch + layout.sums + pack * kQueryTile, offsets, tile.out);
  }
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
