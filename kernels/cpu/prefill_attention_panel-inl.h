// The two products of a panel of keys with a tile of queries, register-blocked. Included once per
// instruction set, after the vector words (attention_simd_*.h). Queries lie in the lanes; two
// vectors of them are worked on at a time.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

inline constexpr int kPair = 2 * kLanes;

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
      acc[r][0] = Fma(key, q0, acc[r][0]);
      acc[r][1] = Fma(key, q1, acc[r][1]);
    });
  }
  Unroll<kRows>(HYDRANT_UNROLLED(r) {
    Store(logits + r * kQueryTile, acc[r][0]);
    Store(logits + r * kQueryTile + kLanes, acc[r][1]);
  });
}

// out[c, lanes] = out[c, lanes] * decay[lanes] + sum over the rows of values[row, c] * weights[row,
// lanes], for kColumns.
template <int kColumns>
HYDRANT_INLINE void OutputBlock(const float* values, int rows, int head_dim, const float* weights,
                                const float* decay, float* out) {
  Vec acc[kColumns][2];
  Unroll<kColumns>(HYDRANT_UNROLLED(c) {
    acc[c][0] = Mul(Load(out + c * kQueryTile), Load(decay));
    acc[c][1] = Mul(Load(out + c * kQueryTile + kLanes), Load(decay + kLanes));
  });
  for (int row = 0; row < rows; ++row) {
    const Vec w0 = Load(weights + row * kQueryTile);
    const Vec w1 = Load(weights + row * kQueryTile + kLanes);
    Unroll<kColumns>(HYDRANT_UNROLLED(c) {
      const Vec value = Set(values[static_cast<int64_t>(row) * head_dim + c]);
      acc[c][0] = Fma(value, w0, acc[c][0]);
      acc[c][1] = Fma(value, w1, acc[c][1]);
    });
  }
  Unroll<kColumns>(HYDRANT_UNROLLED(c) {
    Store(out + c * kQueryTile, acc[c][0]);
    Store(out + c * kQueryTile + kLanes, acc[c][1]);
  });
}

// Calls block(Int<n>, first) for pieces of [0, count) of at most kPanelTile, as equal as they come:
// registers stay busy at the end too.
template <int kSize, typename Block>
HYDRANT_INLINE void CallBlock(int size, int first, const Block& block) {
  if constexpr (kSize > 1) {
    if (size < kSize) return CallBlock<kSize - 1>(size, first, block);
  }
  block(Int<kSize>(), first);
}

template <typename Block>
HYDRANT_INLINE void ForBlocks(int count, const Block& block) {
  const int blocks = (count + kPanelTile - 1) / kPanelTile;
  for (int i = 0, first = 0; i < blocks; ++i) {
    const int size = (count - first + blocks - i - 1) / (blocks - i);
    CallBlock<kPanelTile>(size, first, block);
    first += size;
  }
}

void PanelLogits(const float* keys, int rows, int head_dim, const float* queries, float* logits) {
  for (int lane = 0; lane < kQueryTile; lane += kPair) {
    ForBlocks(rows, [&](auto size, int first) {
      LogitBlock<decltype(size)::value>(keys + static_cast<int64_t>(first) * head_dim, head_dim,
                                        queries + lane, logits + first * kQueryTile + lane);
    });
  }
}

void PanelOutput(const float* values, int rows, int head_dim, const float* weights,
                 const float* decay, float* out) {
  for (int lane = 0; lane < kQueryTile; lane += kPair) {
    ForBlocks(head_dim, [&](auto size, int first) {
      OutputBlock<decltype(size)::value>(values + first, rows, head_dim, weights + lane,
                                         decay + lane, out + first * kQueryTile + lane);
    });
  }
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
