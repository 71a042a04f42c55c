// A tile of queries over all of its keys: softmax with a running maximum, panel by panel (the
// online form of Milakov and Gimelshein, arXiv 1805.02867), then the tile's statistics. Included
// once per instruction set, after attention_softcap-inl.h and prefill_attention_panel-inl.h.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

inline constexpr float kMinusInfinity = -__builtin_inff();
// Below every logit, but finite: less a maximum of -infinity, -infinity would be NaN.
inline constexpr float kPastLogit = -1e30f;

// [head_dim, kQueryTile] from rows of queries; lanes past the last query are zero.
HYDRANT_INLINE void LoadQueries(const float* q, int64_t stride, int count, int head_dim,
                                float scale, float* to) {
  for (int d = 0; d < head_dim; ++d) {
    for (int i = 0; i < kQueryTile; ++i)
      to[d * kQueryTile + i] = i < count ? q[i * stride + d] * scale : 0.0f;
  }
}

HYDRANT_INLINE void StoreOutput(float* from, const float* sums, int head_dim, int count,
                                int64_t stride, float* out) {
  for (int lane = 0; lane < kQueryTile; lane += kLanes) {
    const Vec factor = Div(Set(1.0f), Load(sums + lane));
    for (int d = 0; d < head_dim; ++d) {
      float* row = from + d * kQueryTile + lane;
      Store(row, Mul(Load(row), factor));
    }
  }
  for (int i = 0; i < count; ++i) {
    for (int d = 0; d < head_dim; ++d) out[i * stride + d] = from[d * kQueryTile + i];
  }
}

// Query i does not see keys past its own: -inf where first_key + r > first_position + i.
HYDRANT_INLINE void MaskFuture(int first_key, int rows, int first_position, float* logits) {
  for (int r = 0; r < rows; ++r) {
    const int blind = first_key + r - first_position;  // this many queries do not see the key
    for (int i = 0; i < blind; ++i) logits[r * kQueryTile + i] = kMinusInfinity;
  }
}

// Query i does not see keys past its window: those up to first_position + i - window. A panel may
// lie before all that a query sees, whose weights are then any number: the first key that it does
// see wipes them out, because e^(kPastLogit - logit) is 0.
HYDRANT_INLINE void MaskPast(int first_key, int rows, int first_position, int window,
                             float* logits) {
  for (int r = 0; r < rows; ++r) {
    const int last = first_key + r - first_position + window;  // queries from there on do not see
    for (int i = last > 0 ? last : 0; i < kQueryTile; ++i) logits[r * kQueryTile + i] = kPastLogit;
  }
}

// The keys of a panel: first those of the prefix, in panels of their own, then the run's.
struct Panel {
  const float* k;
  const float* v;
  int rows;
  int first_key;  // counted within the run; of the prefix so low that no query is before it
  int column;     // where its statistics lie
};

HYDRANT_INLINE Panel PanelOf(const PrefillShape& shape, const PrefillTile& tile, int panel) {
  const int prefix_panels = NumPanels(tile.num_prefix_keys);
  const bool of_prefix = panel < prefix_panels;
  const int first = (of_prefix ? panel : panel - prefix_panels) * kKeyPanel;
  const int left = (of_prefix ? tile.num_prefix_keys : tile.num_keys()) - first;
  const int64_t offset = static_cast<int64_t>(first) * shape.head_dim;
  return {.k = (of_prefix ? tile.prefix_k : tile.k) + offset,
          .v = (of_prefix ? tile.prefix_v : tile.v) + offset,
          .rows = left < kKeyPanel ? left : kKeyPanel,
          .first_key = of_prefix ? -kKeyPanel : first,
          .column = of_prefix ? first : tile.num_prefix_keys + first};
}

// Logits of one panel and one query head, capped and masked.
HYDRANT_INLINE void HeadLogits(const PrefillShape& shape, const PrefillTile& tile,
                               const Panel& panel, const float* queries, float* logits) {
  PanelLogits(panel.k, panel.rows, shape.head_dim, queries, logits);
  if (shape.softcap != 0.0f) CapLogits(shape.softcap, panel.rows * kQueryTile, 0.0f, logits);
  if (panel.first_key + panel.rows > tile.first_position)
    MaskFuture(panel.first_key, panel.rows, tile.first_position, logits);
  if (panel.first_key <= tile.first_position + kQueryTile - 1 - tile.window)
    MaskPast(panel.first_key, panel.rows, tile.first_position, tile.window, logits);
}

// Raises the running maximum by a panel's logits, turns them into weights relative to it, and adds
// those to the running sum. decay[lanes]: what earlier sums and outputs must be multiplied by.
HYDRANT_INLINE void PanelWeights(int rows, float* logits, float* maxima, float* sums,
                                 float* decay) {
  for (int lane = 0; lane < kQueryTile; lane += kLanes) {
    const Vec old_max = Load(maxima + lane);
    Vec max = old_max;
    for (int r = 0; r < rows; ++r) max = Max(max, Load(logits + r * kQueryTile + lane));
    const Vec factor = Exp(Sub(old_max, max));
    Vec sum = Mul(Load(sums + lane), factor);
    for (int r = 0; r < rows; ++r) {
      float* row = logits + r * kQueryTile + lane;
      const Vec w = Exp(Sub(Load(row), max));
      Store(row, w);
      sum = Add(sum, w);
    }
    Store(maxima + lane, max);
    Store(sums + lane, sum);
    Store(decay + lane, factor);
  }
}

// The lanes of queries [0, count) among those from `lane` on.
HYDRANT_INLINE Mask QueriesBefore(int count, int lane) {
  return FirstN(count > lane ? count - lane : 0);
}

// What turns a panel's weights into attention weights, per query: exp(panel_max - max) / sum; 0 for
// queries outside [begin, end).
HYDRANT_INLINE void PanelFactors(const float* maxima, const float* sums, const float* panel_maxima,
                                 int begin, int end, float* factors) {
  for (int lane = 0; lane < kQueryTile; lane += kLanes) {
    const Vec factor =
        Div(Exp(Sub(Load(panel_maxima + lane), Load(maxima + lane))), Load(sums + lane));
    const Vec existing = Select(QueriesBefore(end, lane), factor, Zero());
    Store(factors + lane, Select(QueriesBefore(begin, lane), Zero(), existing));
  }
}

using Kind = ColumnStatistic::Kind;

// One statistic of one panel.
struct PanelStatistic {
  const float* weights;  // [group, kKeyPanel, kQueryTile]
  const float* factors;  // [group, kQueryTile]
  const float* limits;   // [kQueryTile], of kBelowMean: weights less than this count
  int group;
  int rows;
  int blind;   // queries before this one do not see the panel's first key
  float* out;  // [rows]
};

// The group's weight (GroupReduce, a mean as a sum) of one key, for a vector of queries.
template <GroupReduce kReduce>
HYDRANT_INLINE Vec GroupWeight(const float* weights, const float* factors, int group) {
  Vec w = Zero();
  for (int g = 0; g < group; ++g) {
    const Vec a = Mul(Load(weights + g * kKeyPanel * kQueryTile), Load(factors + g * kQueryTile));
    if (kReduce == GroupReduce::kMax) {
      w = Max(w, a);
    } else if (kReduce == GroupReduce::kMean) {
      w = Add(w, a);
    } else {
      w = Fma(a, a, w);
    }
  }
  return w;
}

// What the tile's queries give to key `row`, down to one vector of lanes.
template <Kind kKind, GroupReduce kReduce>
HYDRANT_INLINE Vec KeyStatistic(const PanelStatistic& panel, int row) {
  Vec total = Zero();
  for (int lane = 0; lane < kQueryTile; lane += kLanes) {
    const Vec w = GroupWeight<kReduce>(panel.weights + row * kQueryTile + lane,
                                       panel.factors + lane, panel.group);
    if (kKind == Kind::kMax) {
      total = Max(total, w);
    } else if (kKind == Kind::kBelowMean) {
      const Vec below = Select(Less(w, Load(panel.limits + lane)), Set(1.0f), Zero());
      total = Add(total, Select(QueriesBefore(panel.blind + row, lane), Zero(), below));
    } else {
      total = Add(total, w);
    }
  }
  return kReduce == GroupReduce::kMean && kKind != Kind::kBelowMean
             ? Mul(total, Set(1.0f / static_cast<float>(panel.group)))
             : total;
}

// Rows past the last one in a vector are computed from what scratch holds, and dropped.
template <Kind kKind, GroupReduce kReduce>
void ReducePanel(const PanelStatistic& panel) {
  if constexpr (kKind == Kind::kMax) {
    for (int r = 0; r < panel.rows; ++r)
      panel.out[r] = ReduceMax(KeyStatistic<kKind, kReduce>(panel, r));
    return;
  }
  for (int r = 0; r < panel.rows; r += kLanes) {
    Vec quads[kLanes / 4];
    for (int quad = 0; quad < kLanes / 4; ++quad) {
      Vec key[4];
      for (int i = 0; i < 4; ++i) key[i] = KeyStatistic<kKind, kReduce>(panel, r + quad * 4 + i);
      quads[quad] = FoldQuad(key[0], key[1], key[2], key[3]);
    }
    const Vec all = JoinQuads(quads);
    if (r + kLanes <= panel.rows) {
      Store(panel.out + r, all);
    } else {
      MaskStore(FirstN(panel.rows - r), panel.out + r, all);
    }
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

// What a query's GroupWeight() must be below to count as below the mean; 0 for queries outside the
// statistic's.
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

// Attends over every panel; leaves unnormalised outputs, maxima and sums, and the weights where
// they are kept.
void AttendPanels(const PrefillShape& shape, const PrefillTile& tile,
                  const PrefillScratchLayout& layout, float* scratch) {
  const int64_t head_floats = static_cast<int64_t>(shape.head_dim) * kQueryTile;
  alignas(64) float decay[kQueryTile];
  for (int p = tile.first_panel(); p < tile.num_panels(); ++p) {
    const Panel panel = PanelOf(shape, tile, p);
    const int kept = layout.keep_weights ? p : 0;
    for (int g = 0; g < shape.group; ++g) {
      const int64_t row = static_cast<int64_t>(kept) * shape.group + g;
      float* weights = scratch + layout.weights + row * kKeyPanel * kQueryTile;
      float* maxima = scratch + layout.maxima + g * kQueryTile;
      HeadLogits(shape, tile, panel, scratch + layout.queries + g * head_floats, weights);
      PanelWeights(panel.rows, weights, maxima, scratch + layout.sums + g * kQueryTile, decay);
      if (tile.out != nullptr)
        PanelOutput(panel.v, panel.rows, shape.head_dim, weights, decay,
                    scratch + layout.outputs + g * head_floats);
      float* panel_maxima = scratch + layout.panel_maxima + row * kQueryTile;
      for (int i = 0; i < kQueryTile; ++i) panel_maxima[i] = maxima[i];
    }
  }
}

// The logits of a panel once more, for statistics whose weights were not kept; relative to the
// final maxima.
void RecomputePanel(const PrefillShape& shape, const PrefillTile& tile,
                    const PrefillScratchLayout& layout, const Panel& panel, float* scratch) {
  const int64_t head_floats = static_cast<int64_t>(shape.head_dim) * kQueryTile;
  for (int g = 0; g < shape.group; ++g) {
    float* weights = scratch + layout.weights + static_cast<int64_t>(g) * kKeyPanel * kQueryTile;
    const float* maxima = scratch + layout.maxima + g * kQueryTile;
    HeadLogits(shape, tile, panel, scratch + layout.queries + g * head_floats, weights);
    for (int r = 0; r < panel.rows; ++r) {
      for (int lane = 0; lane < kQueryTile; lane += kLanes) {
        float* row = weights + r * kQueryTile + lane;
        Store(row, Exp(Sub(Load(row), Load(maxima + lane))));
      }
    }
    float* panel_maxima = scratch + layout.panel_maxima + g * kQueryTile;
    for (int i = 0; i < kQueryTile; ++i) panel_maxima[i] = maxima[i];
  }
}

void CountPanel(const PrefillShape& shape, const PrefillTile& tile, const TileStatistic& statistic,
                const PrefillScratchLayout& layout, const Panel& panel, int64_t first_row,
                const float* limits, float* scratch) {
  for (int g = 0; g < shape.group; ++g) {
    PanelFactors(scratch + layout.maxima + g * kQueryTile, scratch + layout.sums + g * kQueryTile,
                 scratch + layout.panel_maxima + (first_row + g) * kQueryTile, statistic.begin,
                 statistic.end, scratch + layout.factors + g * kQueryTile);
  }
  ReducePanel(statistic.kind, statistic.reduce,
              {.weights = scratch + layout.weights + first_row * kKeyPanel * kQueryTile,
               .factors = scratch + layout.factors,
               .limits = limits,
               .group = shape.group,
               .rows = panel.rows,
               .blind = panel.first_key - tile.first_position,
               .out = statistic.out + panel.column});
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
      if (tile.statistics[s].out != nullptr)
        CountPanel(shape, tile, tile.statistics[s], layout, panel, first_row, limits[s], scratch);
    }
  }
}

void AttendTile(const PrefillShape& shape, const PrefillTile& tile, float* scratch) {
  const PrefillScratchLayout layout = LayoutOf(shape, tile.num_panels(), tile.counted());
  const int64_t head_floats = static_cast<int64_t>(shape.head_dim) * kQueryTile;
  for (int g = 0; g < shape.group; ++g) {
    LoadQueries(tile.q + static_cast<int64_t>(g) * shape.head_dim, shape.query_stride,
                tile.num_queries, shape.head_dim, shape.scale,
                scratch + layout.queries + g * head_floats);
  }
  for (int64_t i = 0; i < shape.group * head_floats; ++i) scratch[layout.outputs + i] = 0.0f;
  // A sink comes before all keys.
  for (int i = 0; i < shape.group * kQueryTile; ++i) {
    scratch[layout.maxima + i] =
        tile.sinks == nullptr ? kMinusInfinity : tile.sinks[i / kQueryTile];
    scratch[layout.sums + i] = tile.sinks == nullptr ? 0.0f : 1.0f;
  }
  AttendPanels(shape, tile, layout, scratch);
  if (tile.counted()) CountTile(shape, tile, layout, scratch);
  for (int g = 0; g < shape.group && tile.out != nullptr; ++g) {
    StoreOutput(scratch + layout.outputs + g * head_floats, scratch + layout.sums + g * kQueryTile,
                shape.head_dim, tile.num_queries, shape.query_stride,
                tile.out + static_cast<int64_t>(g) * shape.head_dim);
  }
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
