// The two products of a key panel with a query tile in bf16, two terms per instruction, with fp32
// sums: the interface of prefill_attention_panel-inl.h. Included after
// prefill_attention_pairs-inl.h.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

// Floats per key in the tile.
HYDRANT_INLINE constexpr int KeyStride(int head_dim) { return head_dim; }
HYDRANT_INLINE constexpr int64_t ValuesBefore(int key, int head_dim) {
  return int64_t{1} * key * head_dim;
}

HYDRANT_INLINE __m512bh LoadPairs(const float* p) {
  return (__m512bh)_mm512_loadu_si512(reinterpret_cast<const void*>(p));
}
HYDRANT_INLINE __m512bh SetPair(const float* p) {
  return (__m512bh)_mm512_castps_si512(_mm512_set1_ps(*p));
}
HYDRANT_INLINE Vec AddProducts(__m512bh a, __m512bh b, Vec sum) {
  return Vec{_mm512_dpbf16_ps(sum.raw, a, b)};
}
// Values [pairs of rows, head_dim].
HYDRANT_INLINE void RoundValues(const float* values, int rows, int head_dim, float* to) {
  for (int r = 0; r < rows; r += 2, values += 2 * head_dim, to += head_dim) {
    for (int c = 0; c < head_dim; c += kLanes) {
      const int left = head_dim - c;
      const Vec second = r + 1 < rows ? LoadFirst(left, values + head_dim + c) : Zero();
      _mm512_mask_storeu_epi32(to + c, FirstN(left).raw,
                               PairUp(LoadFirst(left, values + c), second));
    }
  }
}

HYDRANT_INLINE PanelOperands TakePanel(const PrefillShape& shape, const float* k, const float* v,
                                       int rows, float* scratch) {
  float* const values = scratch + kKeyPanel * Pairs(shape.head_dim);
  RoundKeys(k, rows, shape.head_dim, scratch);
  if (v != nullptr) RoundValues(v, rows, shape.head_dim, values);
  return {scratch, values};
}

template <int kRows>
HYDRANT_INLINE void PairLogitBlock(const float* keys, int pairs, float scale, const float* queries,
                                   float* logits) {
  Vec acc[kRows][2];
  Unroll<kRows>(HYDRANT_UNROLLED(r) { acc[r][0] = acc[r][1] = Zero(); });
  for (int d = 0; d < pairs; ++d) {
    const __m512bh q0 = LoadPairs(queries + d * kQueryTile);
    const __m512bh q1 = LoadPairs(queries + d * kQueryTile + kLanes);
    Unroll<kRows>(HYDRANT_UNROLLED(r) {
      const __m512bh key = SetPair(keys + static_cast<int64_t>(r) * pairs + d);
      acc[r][0] = AddProducts(key, q0, acc[r][0]);
      acc[r][1] = AddProducts(key, q1, acc[r][1]);
    });
  }
  Unroll<kRows>(HYDRANT_UNROLLED(r) {
    Store(logits + r * kQueryTile, hn::Mul(acc[r][0], Set(scale)));
    Store(logits + r * kQueryTile + kLanes, hn::Mul(acc[r][1], Set(scale)));
  });
}

void PanelLogits(const PrefillShape& shape, const PanelOperands& panel, int rows,
                 const float* queries, float* logits) {
  const int pairs = Pairs(shape.head_dim);
  const float scale = LogitScale(shape.scale);
  ForBlocks(rows, [&](auto size, int first) {
    PairLogitBlock<decltype(size)::value>(panel.k + static_cast<int64_t>(first) * pairs, pairs,
                                          scale, queries, logits + first * kQueryTile);
  });
}

template <int kColumns>
HYDRANT_INLINE void PairOutputBlock(const float* values, int pairs, int head_dim,
                                    const float* weights, const float* decay, float* out) {
  Vec acc[kColumns][2];
  Unroll<kColumns>(HYDRANT_UNROLLED(c) {
    acc[c][0] = hn::Mul(Load(out + c * kQueryTile), Load(decay));
    acc[c][1] = hn::Mul(Load(out + c * kQueryTile + kLanes), Load(decay + kLanes));
  });
  for (int row = 0; row < pairs; ++row) {
    const __m512bh w0 = LoadPairs(weights + row * kQueryTile);
    const __m512bh w1 = LoadPairs(weights + row * kQueryTile + kLanes);
    Unroll<kColumns>(HYDRANT_UNROLLED(c) {
      const __m512bh value = SetPair(values + static_cast<int64_t>(row) * head_dim + c);
      acc[c][0] = AddProducts(value, w0, acc[c][0]);
      acc[c][1] = AddProducts(value, w1, acc[c][1]);
    });
  }
  Unroll<kColumns>(HYDRANT_UNROLLED(c) {
    Store(out + c * kQueryTile, acc[c][0]);
    Store(out + c * kQueryTile + kLanes, acc[c][1]);
  });
}

void PanelOutput(const PrefillShape& shape, const PanelOperands& panel, int rows,
                 const float* /*weights*/, const float* decay, float* rounded, float* out) {
  ForBlocks(shape.head_dim, [&](auto size, int first) {
    PairOutputBlock<decltype(size)::value>(panel.v + first, Pairs(rows), shape.head_dim, rounded,
                                           decay, out + first * kQueryTile);
  });
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
