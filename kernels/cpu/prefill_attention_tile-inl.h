// A tile of queries over all of its keys: softmax with a running maximum, panel by panel (the
// online form of Milakov and Gimelshein, arXiv 1805.02867), then the tile's column sums. Included
// once per instruction set, after prefill_attention_panel-inl.h.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

inline constexpr float kMinusInfinity = -__builtin_inff();

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

// The keys of a panel: first those of the prefix, in panels of their own, then the run's.
struct Panel {
  const float* k;
  const float* v;
  int rows;
  int first_key;  // counted within the run; of the prefix so low that no query is before it
  int sums;       // where its column sums lie
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
          .sums = of_prefix ? first : tile.num_prefix_keys + first};
}

// Logits of one panel and one query head, masked.
HYDRANT_INLINE void HeadLogits(const PrefillShape& shape, const PrefillTile& tile,
                               const Panel& panel, const float* queries, float* logits) {
  PanelLogits(panel.k, panel.rows, shape.head_dim, queries, logits);
  if (panel.first_key + panel.rows > tile.first_position)
    MaskFuture(panel.first_key, panel.rows, tile.first_position, logits);
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
// queries outside [begin, end). In place of panel_max.
HYDRANT_INLINE void PanelFactors(const float* maxima, const float* sums, int begin, int end,
                                 float* panel_maxima) {
  for (int lane = 0; lane < kQueryTile; lane += kLanes) {
    const Vec factor =
        Div(Exp(Sub(Load(panel_maxima + lane), Load(maxima + lane))), Load(sums + lane));
    const Vec existing = Select(QueriesBefore(end, lane), factor, Zero());
    Store(panel_maxima + lane, Select(QueriesBefore(begin, lane), Zero(), existing));
  }
}

// The group's weight (GroupReduce) of one key, summed over the tile's queries down to one vector of
// lanes.
template <GroupReduce kReduce>
HYDRANT_INLINE Vec KeyWeight(const float* weights, const float* factors, int group) {
  Vec total = Zero();
  for (int lane = 0; lane < kQueryTile; lane += kLanes) {
    Vec w = Zero();
    for (int g = 0; g < group; ++g) {
      const Vec a = Mul(Load(weights + g * kKeyPanel * kQueryTile + lane),
                        Load(factors + g * kQueryTile + lane));
      if (kReduce == GroupReduce::kMax) {
        w = Max(w, a);
      } else if (kReduce == GroupReduce::kMean) {
        w = Add(w, a);
      } else {
        w = Fma(a, a, w);
      }
    }
    total = Add(total, w);
  }
  return kReduce == GroupReduce::kMean ? Mul(total, Set(1.0f / static_cast<float>(group))) : total;
}

// sums[r] for the rows of one panel. Rows past the last one in a vector are computed from what
// scratch holds, and dropped.
template <GroupReduce kReduce>
void PanelColumnSums(const float* weights, const float* factors, int group, int rows, float* sums) {
  for (int r = 0; r < rows; r += kLanes) {
    Vec quads[kLanes / 4];
    for (int quad = 0; quad < kLanes / 4; ++quad) {
      Vec key[4];
      for (int i = 0; i < 4; ++i)
        key[i] = KeyWeight<kReduce>(weights + (r + quad * 4 + i) * kQueryTile, factors, group);
      quads[quad] = FoldQuad(key[0], key[1], key[2], key[3]);
    }
    const Vec all = JoinQuads(quads);
    if (r + kLanes <= rows) {
      Store(sums + r, all);
    } else {
      MaskStore(FirstN(rows - r), sums + r, all);
    }
  }
}

HYDRANT_INLINE void ReducePanel(GroupReduce reduce, const float* weights, const float* factors,
                                int group, int rows, float* sums) {
  switch (reduce) {
    case GroupReduce::kMean:
      return PanelColumnSums<GroupReduce::kMean>(weights, factors, group, rows, sums);
    case GroupReduce::kMax:
      return PanelColumnSums<GroupReduce::kMax>(weights, factors, group, rows, sums);
    case GroupReduce::kSumOfSquares:
      return PanelColumnSums<GroupReduce::kSumOfSquares>(weights, factors, group, rows, sums);
  }
}

// Attends over every panel; leaves unnormalised outputs, maxima and sums, and the weights where
// they are kept.
void AttendPanels(const PrefillShape& shape, const PrefillTile& tile,
                  const PrefillScratchLayout& layout, float* scratch) {
  const int64_t head_floats = static_cast<int64_t>(shape.head_dim) * kQueryTile;
  alignas(64) float decay[kQueryTile];
  for (int p = 0; p < tile.num_panels(); ++p) {
    const Panel panel = PanelOf(shape, tile, p);
    const int kept = layout.keep_weights ? p : 0;
    for (int g = 0; g < shape.group; ++g) {
      const int64_t row = static_cast<int64_t>(kept) * shape.group + g;
      float* weights = scratch + layout.weights + row * kKeyPanel * kQueryTile;
      float* maxima = scratch + layout.maxima + g * kQueryTile;
      HeadLogits(shape, tile, panel, scratch + layout.queries + g * head_floats, weights);
      PanelWeights(panel.rows, weights, maxima, scratch + layout.sums + g * kQueryTile, decay);
      PanelOutput(panel.v, panel.rows, shape.head_dim, weights, decay,
                  scratch + layout.outputs + g * head_floats);
      float* panel_maxima = scratch + layout.panel_maxima + row * kQueryTile;
      for (int i = 0; i < kQueryTile; ++i) panel_maxima[i] = maxima[i];
    }
  }
}

// The logits of a panel once more, for column sums whose weights were not kept; relative to the
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

void TileColumnSums(const PrefillShape& shape, const PrefillTile& tile,
                    const PrefillScratchLayout& layout, float* scratch) {
  for (int p = 0; p < tile.num_panels(); ++p) {
    const Panel panel = PanelOf(shape, tile, p);
    if (!layout.keep_weights) RecomputePanel(shape, tile, layout, panel, scratch);
    const int64_t first = layout.keep_weights ? static_cast<int64_t>(p) * shape.group : 0;
    float* factors = scratch + layout.panel_maxima + first * kQueryTile;
    for (int g = 0; g < shape.group; ++g) {
      PanelFactors(scratch + layout.maxima + g * kQueryTile, scratch + layout.sums + g * kQueryTile,
                   tile.first_summed, tile.num_queries, factors + g * kQueryTile);
    }
    ReducePanel(shape.reduce, scratch + layout.weights + first * kKeyPanel * kQueryTile, factors,
                shape.group, panel.rows, tile.column_sums + panel.sums);
  }
}

void AttendTile(const PrefillShape& shape, const PrefillTile& tile, float* scratch) {
  const PrefillScratchLayout layout =
      LayoutOf(shape, tile.num_panels(), tile.column_sums != nullptr);
  const int64_t head_floats = static_cast<int64_t>(shape.head_dim) * kQueryTile;
  for (int g = 0; g < shape.group; ++g) {
    LoadQueries(tile.q + static_cast<int64_t>(g) * shape.head_dim, shape.query_stride,
                tile.num_queries, shape.head_dim, shape.scale,
                scratch + layout.queries + g * head_floats);
  }
  for (int64_t i = 0; i < shape.group * head_floats; ++i) scratch[layout.outputs + i] = 0.0f;
  for (int i = 0; i < shape.group * kQueryTile; ++i) {
    scratch[layout.maxima + i] = kMinusInfinity;
    scratch[layout.sums + i] = 0.0f;
  }
  AttendPanels(shape, tile, layout, scratch);
  if (tile.column_sums != nullptr) TileColumnSums(shape, tile, layout, scratch);
  for (int g = 0; g < shape.group; ++g) {
    StoreOutput(scratch + layout.outputs + g * head_floats, scratch + layout.sums + g * kQueryTile,
                shape.head_dim, tile.num_queries, shape.query_stride,
                tile.out + static_cast<int64_t>(g) * shape.head_dim);
  }
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
