// Logits of a panel of keys with a tile of queries in 8 bits, four terms an instruction: as
// prefill_attention_panel-inl.h, whose words it gives another meaning. Included after
// prefill_attention_bytes-inl.h.

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
    Store(logits + r * kQueryTile, Mul(ToFloat(acc[r][0]), Mul(scale, Load(queries))));
    Store(logits + r * kQueryTile + kLanes,
          Mul(ToFloat(acc[r][1]), Mul(scale, Load(queries + kLanes))));
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

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
