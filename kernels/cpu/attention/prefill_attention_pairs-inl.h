// Operands of prefill attention in bf16, for kernels with products of two terms per instruction. q,
// k, v and weights are rounded to nearest. Queries are scaled by a power of two, and summed logits
// by the rest of the scale, so queries that are exact in bf16 stay exact. Included after
// prefill_panel_blocks-inl.h.
//
// A pair is two bf16 numbers in 32 bits: for queries and keys two neighbours along head_dim, for
// weights and values two keys. With an odd count the last one's partner is zero.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

// The weight of a logit minus the maximum.
HYDRANT_INLINE Vec WeightOf(Vec x) { return RoughExp(x); }

HYDRANT_INLINE constexpr int Pairs(int count) { return (count + 1) / 2; }
// Floats per row of a product, and per row in the lanes.
HYDRANT_INLINE constexpr int OperandStride(int head_dim) { return Pairs(head_dim); }
HYDRANT_INLINE constexpr int LaneWords(int head_dim) { return Pairs(head_dim); }

// The scale without its mantissa, and the remaining factor, which is 1 if head_dim is a power of 4.
HYDRANT_INLINE float QueryScale(float scale) {
  return hn::GetLane(hn::And(Set(scale), Set(__builtin_inff())));
}
HYDRANT_INLINE float LogitScale(float scale) { return scale / QueryScale(scale); }

// Pair i: first[i], second[i].
HYDRANT_INLINE __m512i PairUp(Vec first, Vec second) {
  alignas(64) static constexpr uint16_t kTurns[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kTurns),
                                  (__m512i)_mm512_cvtne2ps_pbh(second.raw, first.raw));
}

// The first kLanes pairs of a row of `left` elements, times `factor`; zero past the end.
HYDRANT_INLINE __m512i PairsOfRow(const float* row, int left, float factor) {
  const Vec low = LoadFirst(left, row);
  const Vec high = LoadFirst(left > kLanes ? left - kLanes : 0, row + kLanes);
  return (__m512i)_mm512_cvtne2ps_pbh(hn::Mul(high, Set(factor)).raw,
                                      hn::Mul(low, Set(factor)).raw);
}

// [pairs of head_dim, kQueryTile] from rows of queries, scaled; lanes without a query are zero.
HYDRANT_INLINE void LoadQueries(const PrefillShape& shape, const float* q, const int64_t* offsets,
                                float* to) {
  const float factor = QueryScale(shape.scale);
  RowsToLanes(q, offsets, Pairs(shape.head_dim), to, [&](const float* row, int, int first) {
    return Vec{
        _mm512_castsi512_ps(PairsOfRow(row + 2 * first, shape.head_dim - 2 * first, factor))};
  });
}

// Keys [rows, pairs of head_dim].
HYDRANT_INLINE void RoundKeys(const float* keys, int rows, int head_dim, float* to) {
  for (int r = 0; r < rows; ++r, keys += head_dim, to += Pairs(head_dim)) {
    for (int d = 0; d < head_dim; d += kPair) {
      const int left = head_dim - d;
      _mm512_mask_storeu_epi32(to + d / 2, FirstN(Pairs(left)).raw,
                               PairsOfRow(keys + d, left, 1.0f));
    }
  }
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
