// Queries and keys of prefill attention in 8 bits, for kernels of tiles that want no output. Each
// row of q and k has a scale of its own, its largest number / 127. Included after
// prefill_panel_blocks-inl.h.
//
// A key is KeyStride() words: its numbers, four a word, then its scale, then what its sums begin
// with. Queries are unsigned for the instructions' sake, 128 more than they are, which adds 128
// times the sum of the key's numbers; that is taken off at the beginning.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

HYDRANT_INLINE constexpr int KeyStride(int head_dim) { return ByteKeyStride(head_dim); }

// Of a logit less the maximum.
HYDRANT_INLINE Vec WeightOf(Vec x) { return RoughExp(x); }

// The largest magnitude of n numbers.
HYDRANT_INLINE float LargestOf(const float* row, int n) {
  Vec largest = Zero();
  for (int d = 0; d < n; d += kLanes)
    largest = Max(largest, _mm512_abs_ps(MaskLoad(FirstN(n - d), row + d)));
  return _mm512_reduce_max_ps(largest);
}

// kLanes of n numbers in steps of 1 / inverse, to nearest; zero behind the last.
HYDRANT_INLINE __m512i Steps(const float* row, int n, float inverse) {
  return _mm512_cvtps_epi32(Mul(MaskLoad(FirstN(n), row), Set(inverse)));
}

// Up to kLanes words of n numbers, 128 up; zero words behind the last.
HYDRANT_INLINE Vec WordsOfRow(const float* row, int n, float inverse) {
  __m512i words = _mm512_setzero_si512();
  Unroll<4>(HYDRANT_UNROLLED(i) {
    const int left = n - i * kLanes;
    if (left > 0) {
      const __m512i up =
          _mm512_add_epi32(Steps(row + i * kLanes, left, inverse), _mm512_set1_epi32(128));
      words = _mm512_inserti32x4(words, _mm512_cvtepi32_epi8(up), i);
    }
  });
  return _mm512_castsi512_ps(words);
}

// [words of head_dim, kQueryTile], then [kQueryTile] scales, which hold the logits' scale, too. Of
// lanes without a query the scale is zero.
HYDRANT_INLINE void LoadQueries(const PrefillShape& shape, const float* q, const int64_t* offsets,
                                float* to) {
  const int words = NumByteWords(shape.head_dim);
  alignas(64) float inverse[kQueryTile];
  for (int i = 0; i < kQueryTile; ++i) {
    const float largest = offsets[i] >= 0 ? LargestOf(q + offsets[i], shape.head_dim) : 0.0f;
    inverse[i] = largest > 0.0f ? 127.0f / largest : 0.0f;
    to[words * kQueryTile + i] = largest / 127.0f * shape.scale;
  }
  RowsToLanes(q, offsets, words, to, [&](const float* row, int lane, int first) {
    return WordsOfRow(row + 4 * first, shape.head_dim - 4 * first, inverse[lane]);
  });
}

void RoundKeys(const float* keys, int rows, int head_dim, float* to) {
  const int words = NumByteWords(head_dim);
  for (int r = 0; r < rows; ++r, keys += head_dim, to += KeyStride(head_dim)) {
    const float largest = LargestOf(keys, head_dim);
    const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
    __m512i sum = _mm512_setzero_si512();
    for (int d = 0; d < head_dim; d += kLanes) {
      const __m512i steps = Steps(keys + d, head_dim - d, inverse);
      sum = _mm512_add_epi32(sum, steps);
      const auto valid = static_cast<__mmask8>(FirstN(words - d / 4));
      _mm_mask_storeu_epi32(to + d / 4, valid & 15, _mm512_cvtepi32_epi8(steps));
    }
    to[words] = largest / 127.0f;
    reinterpret_cast<int32_t*>(to)[words + 1] = -128 * _mm512_reduce_add_epi32(sum);
  }
}

// They have been rounded before.
HYDRANT_INLINE PanelOperands TakePanel(const PrefillShape&, const float* k, const float* /*v*/,
                                       int /*rows*/, float* /*scratch*/) {
  return {k, nullptr};
}

// REQUIRES: never called, as no tile wants an output
void PanelOutput(const PrefillShape&, const PanelOperands&, int, const float*, const float*, float*,
                 float*) {
  __builtin_trap();
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
