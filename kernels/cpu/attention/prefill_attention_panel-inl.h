// The two products of a key panel with a query tile, register-blocked. Included once per
// instruction set, after prefill_panel_blocks-inl.h. Queries lie in the lanes; two vectors of them
// are processed at a time.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

// Floats per key in the tile.
HYDRANT_INLINE constexpr int KeyStride(int head_dim) { return head_dim; }
HYDRANT_INLINE constexpr int64_t ValuesBefore(int key, int head_dim) {
  return int64_t{1} * key * head_dim;
}

// Floats per row of a product, and per row in the lanes.
HYDRANT_INLINE constexpr int OperandStride(int head_dim) { return head_dim; }
HYDRANT_INLINE constexpr int LaneWords(int head_dim) { return head_dim; }

// The weight of a logit minus the maximum.
HYDRANT_INLINE Vec WeightOf(Vec x) { return Exp(x); }

// logits[r, lanes] = sum over d of keys[r, d] * queries[d, lanes], for kRows keys.
template <int kRows>
HYDRANT_INLINE void LogitBlock(const float* keys, int head_dim, const float* queries,
                               float* logits) {
  Vec acc[kRows][2];
  Unroll<kRows>(HYDRANT_UNROLLED(r) { acc[r][0] = acc[r][1] = Zero(); });
  for (int d = 0; d < head_dim; ++d) {
    const Vec q0 = Load(queries + d * kQueryTile);
    const Vec q1 = Load(queries + d * kQueryTile + kLanes);
    Unroll<kRows>(HYDRANT_UNROLLED(r) {
      const Vec key = Set(keys[static_cast<int64_t>(r) * head_dim + d]);
      acc[r][0] = hn::MulAdd(key, q0, acc[r][0]);
      acc[r][1] = hn::MulAdd(key, q1, acc[r][1]);
    });
  }
  Unroll<kRows>(HYDRANT_UNROLLED(r) {
    Store(logits + r * kQueryTile, acc[r][0]);
    Store(logits + r * kQueryTile + kLanes, acc[r][1]);
  });
}

// out[c, lanes] = out[c, lanes] * decay[lanes] + sum over the rows of values[row, c] * weights[row,
// lanes], for kColumns columns.
template <int kColumns>
HYDRANT_INLINE void OutputBlock(const float* values, int rows, int head_dim, const float* weights,
                                const float* decay, float* out) {
  Vec acc[kColumns][2];
  Unroll<kColumns>(HYDRANT_UNROLLED(c) {
    acc[c][0] = hn::Mul(Load(out + c * kQueryTile), Load(decay));
    acc[c][1] = hn::Mul(Load(out + c * kQueryTile + kLanes), Load(decay + kLanes));
  });
  for (int row = 0; row < rows; ++row) {
    const Vec w0 = Load(weights + row * kQueryTile);
    const Vec w1 = Load(weights + row * kQueryTile + kLanes);
    Unroll<kColumns>(HYDRANT_UNROLLED(c) {
      const Vec value = Set(values[static_cast<int64_t>(row) * head_dim + c]);
      acc[c][0] = hn::MulAdd(value, w0, acc[c][0]);
      acc[c][1] = hn::MulAdd(value, w1, acc[c][1]);
    });
  }
  Unroll<kColumns>(HYDRANT_UNROLLED(c) {
    Store(out + c * kQueryTile, acc[c][0]);
    Store(out + c * kQueryTile + kLanes, acc[c][1]);
  });
}

// [head_dim, kQueryTile] from rows of queries, scaled; lanes without a query are zero.
HYDRANT_INLINE void LoadQueries(const PrefillShape& shape, const float* q, const int64_t* offsets,
                                float* to) {
  RowsToLanes(q, offsets, shape.head_dim, to, [&](const float* row, int /*lane*/, int first) {
    return hn::Mul(LoadFirst(shape.head_dim - first, row + first), Set(shape.scale));
  });
}

// Copies: fp32 keys are not rounded.
HYDRANT_INLINE void RoundKeys(const float* keys, int rows, int head_dim, float* to) {
  for (int64_t i = 0; i < int64_t{1} * rows * head_dim; ++i) to[i] = keys[i];
}

// Keys and values are used in place.
HYDRANT_INLINE PanelOperands TakePanel(const PrefillShape&, const float* k, const float* v,
                                       int /*rows*/, float* /*scratch*/) {
  return {k, v};
}

void PanelLogits(const PrefillShape& shape, const PanelOperands& panel, int rows,
                 const float* queries, float* logits) {
  const int head_dim = shape.head_dim;
  for (int lane = 0; lane < kQueryTile; lane += kPair) {
    ForBlocks(rows, [&](auto size, int first) {
      LogitBlock<decltype(size)::value>(panel.k + static_cast<int64_t>(first) * head_dim, head_dim,
                                        queries + lane, logits + first * kQueryTile + lane);
    });
  }
}

void PanelOutput(const PrefillShape& shape, const PanelOperands& panel, int rows,
                 const float* weights, const float* decay, float* /*rounded*/, float* out) {
  for (int lane = 0; lane < kQueryTile; lane += kPair) {
    ForBlocks(shape.head_dim, [&](auto size, int first) {
      OutputBlock<decltype(size)::value>(panel.v + first, rows, shape.head_dim, weights + lane,
                                         decay + lane, out + first * kQueryTile + lane);
    });
  }
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
