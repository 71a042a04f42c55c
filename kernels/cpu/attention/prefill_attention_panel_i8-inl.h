// The two products of a key panel with a query tile in 8 bits, four terms per instruction: the
// interface of prefill_attention_panel-inl.h. Included after prefill_attention_bytes-inl.h.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

template <int kRows>
HYDRANT_INLINE void QuadLogitBlock(const float* keys, int head_dim, const float* queries,
                                   float* logits) {
  const int words = NumByteWords(head_dim), stride = KeyStride(head_dim);
  const auto* const key = reinterpret_cast<const int32_t*>(keys);
  __m512i acc[kRows][2];
  Unroll<kRows>(HYDRANT_UNROLLED(r) {
    acc[r][0] = acc[r][1] = _mm512_set1_epi32(key[r * stride + words + 1]);
  });
  for (int w = 0; w < words; ++w, queries += kQueryTile) {
    const __m512i q0 = _mm512_loadu_si512(queries);
    const __m512i q1 = _mm512_loadu_si512(queries + kLanes);
    Unroll<kRows>(HYDRANT_UNROLLED(r) {
      const __m512i four = _mm512_set1_epi32(key[r * stride + w]);
      AddByteDots(q0, four, &acc[r][0]);
      AddByteDots(q1, four, &acc[r][1]);
    });
  }
  Unroll<kRows>(HYDRANT_UNROLLED(r) {
    const Vec scale = Set(keys[r * stride + words]);
    Store(logits + r * kQueryTile,
          hn::Mul(hn::ConvertTo(kFloats, IntVec{acc[r][0]}), hn::Mul(scale, Load(queries))));
    Store(logits + r * kQueryTile + kLanes, hn::Mul(hn::ConvertTo(kFloats, IntVec{acc[r][1]}),
                                                    hn::Mul(scale, Load(queries + kLanes))));
  });
}

void PanelLogits(const PrefillShape& shape, const PanelOperands& panel, int rows,
                 const float* queries, float* logits) {
  ForBlocks(rows, [&](auto size, int first) {
    QuadLogitBlock<decltype(size)::value>(
        panel.k + static_cast<int64_t>(first) * KeyStride(shape.head_dim), shape.head_dim, queries,
        logits + first * kQueryTile);
  });
}

// Factors that convert a panel's weights to bytes, per query. A weight is first multiplied by the
// scale of its value, so that a key with much attention but a small value, as first tokens often
// have, leaves the others their bits.
struct ByteWeights {
  Vec up[2];     // weight to byte
  Vec share[2];  // byte to weight
};

HYDRANT_INLINE ByteWeights ByteWeightsOf(const float* values, int head_dim, int rows,
                                         const float* weights) {
  constexpr float kLeast = 1e-30f;
  Vec largest[2] = {Set(kLeast), Set(kLeast)};
  for (int r = 0; r < rows; ++r, weights += kQueryTile) {
    const Vec scale = Set(values[ValuesBefore(r, head_dim) + head_dim + r % kByteValueRows]);
    Unroll<2>(HYDRANT_UNROLLED(i) {
      largest[i] = hn::Max(largest[i], hn::Mul(Load(weights + i * kLanes), scale));
    });
  }
  ByteWeights to;
  Unroll<2>(HYDRANT_UNROLLED(i) {
    to.share[i] = hn::Mul(largest[i], Set(1.0f / 255.0f));
    to.up[i] = hn::Div(Set(255.0f), largest[i]);
  });
  return to;
}

// Weights [rows / 4, kQueryTile], four bytes per word.
HYDRANT_INLINE void RoundWeights(const float* values, int head_dim, int rows, const float* weights,
                                 const ByteWeights& by, float* to) {
  for (int first = 0; first < rows; first += kByteValueRows, to += kQueryTile) {
    const float* const scales = values + ValuesBefore(first, head_dim) + head_dim;
    Unroll<2>(HYDRANT_UNROLLED(i) {
      __m512i bytes[kByteValueRows];
      Unroll<kByteValueRows>(HYDRANT_UNROLLED(r) {
        const float* const row = weights + (first + r) * kQueryTile + i * kLanes;
        const Vec weight = first + r < rows ? hn::Mul(Load(row), Set(scales[r])) : Zero();
        bytes[r] = RoundToInts(hn::Mul(weight, by.up[i])).raw;
      });
      _mm512_storeu_si512(to + i * kLanes, BytesOf<false>(bytes));
    });
  }
}

template <int kColumns>
HYDRANT_INLINE void QuadOutputBlock(const float* values, int head_dim, int rows,
                                    const float* weights, const ByteWeights& by, const float* decay,
                                    float* out) {
  const int stride = ByteValueStride(head_dim);
  const auto* value = reinterpret_cast<const int32_t*>(values);
  __m512i acc[kColumns][2];
  Unroll<kColumns>(HYDRANT_UNROLLED(c) { acc[c][0] = acc[c][1] = _mm512_setzero_si512(); });
  for (int first = 0; first < rows; first += kByteValueRows, value += stride) {
    const __m512i w0 = _mm512_loadu_si512(weights);
    const __m512i w1 = _mm512_loadu_si512(weights + kLanes);
    weights += kQueryTile;
    Unroll<kColumns>(HYDRANT_UNROLLED(c) {
      const __m512i four = _mm512_set1_epi32(value[c]);
      AddByteDots(w0, four, &acc[c][0]);
      AddByteDots(w1, four, &acc[c][1]);
    });
  }
  Unroll<kColumns>(HYDRANT_UNROLLED(c) {
    Unroll<2>(HYDRANT_UNROLLED(i) {
      float* const to = out + c * kQueryTile + i * kLanes;
      const Vec before = hn::Mul(Load(to), Load(decay + i * kLanes));
      Store(to, hn::MulAdd(hn::ConvertTo(kFloats, IntVec{acc[c][i]}), by.share[i], before));
    });
  });
}

void PanelOutput(const PrefillShape& shape, const PanelOperands& panel, int rows,
                 const float* weights, const float* decay, float* rounded, float* out) {
  const ByteWeights by = ByteWeightsOf(panel.v, shape.head_dim, rows, weights);
  RoundWeights(panel.v, shape.head_dim, rows, weights, by, rounded);
  ForBlocks(shape.head_dim, [&](auto size, int first) {
    QuadOutputBlock<decltype(size)::value>(panel.v + first, shape.head_dim, rows, rounded, by,
                                           decay, out + first * kQueryTile);
  });
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
