// Queries, keys and values of prefill attention in 8 bits. Each row of q, k and v has its own
// scale, its largest magnitude / 127. Included after prefill_panel_blocks-inl.h.
//
// A key takes KeyStride() words: its elements, four per word, then its scale, then the
// initial value of its sums. The instruction needs unsigned queries, so queries are stored
// with 128 added, which adds 128 times the sum of the key's elements to each product; the
// initial value subtracts it.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

HYDRANT_INLINE constexpr int KeyStride(int head_dim) { return ByteKeyStride(head_dim); }
// Floats per row of a product, and per row in the lanes.
HYDRANT_INLINE constexpr int OperandStride(int head_dim) { return ByteKeyStride(head_dim); }
HYDRANT_INLINE constexpr int LaneWords(int head_dim) { return NumByteWords(head_dim) + 1; }
HYDRANT_INLINE constexpr int64_t ValuesBefore(int key, int head_dim) {
  return int64_t{1} * (key / kByteValueRows) * ByteValueStride(head_dim);
}

// The weight of a logit minus the maximum.
HYDRANT_INLINE Vec WeightOf(Vec x) { return RoughExp(x); }

// The largest magnitude of n numbers; NaN if one is NaN: its bits exceed all others.
HYDRANT_INLINE float LargestOf(const float* row, int n) {
  __m512i largest = _mm512_setzero_si512();
  for (int d = 0; d < n; d += kLanes) {
    const Vec magnitudes = hn::Abs(LoadFirst(n - d, row + d));
    largest = _mm512_max_epi32(largest, _mm512_castps_si512(magnitudes.raw));
  }
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(largest))));
}

// kLanes of n numbers in units of 1 / inverse, rounded to nearest; zero past the end.
HYDRANT_INLINE __m512i Steps(const float* row, int n, float inverse) {
  return RoundToInts(hn::Mul(LoadFirst(n, row), Set(inverse))).raw;
}

// Up to kLanes words of n numbers, with 128 added; zero words past the end.
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
  return Vec{_mm512_castsi512_ps(words)};
}

// [words of head_dim, kQueryTile], then [kQueryTile] scales, which include the logits' scale. Lanes
// without a query have scale zero.
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
      const auto valid = static_cast<__mmask8>(FirstN(words - d / 4).raw);
      _mm_mask_storeu_epi32(to + d / 4, valid & 15, _mm512_cvtepi32_epi8(steps));
    }
    to[words] = largest / 127.0f;
    reinterpret_cast<int32_t*>(to)[words + 1] = -128 * _mm512_reduce_add_epi32(sum);
  }
}

// Packs the low bytes of four vectors of numbers: word i has four[0][i] in its lowest byte.
// kSigned: numbers from -128 to 127; otherwise from 0 to 255.
template <bool kSigned>
HYDRANT_INLINE __m512i BytesOf(const __m512i (&four)[4]) {
  __m512i bytes;
  if constexpr (kSigned) {
    bytes = _mm512_packs_epi16(_mm512_packs_epi32(four[0], four[1]),
                               _mm512_packs_epi32(four[2], four[3]));
  } else {
    bytes = _mm512_packus_epi16(_mm512_packs_epi32(four[0], four[1]),
                                _mm512_packs_epi32(four[2], four[3]));
  }
  const __m128i turns = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(turns));
}

void RoundValues(const float* values, int rows, int head_dim, float* to) {
  for (int first = 0; first < rows; first += kByteValueRows, to += ByteValueStride(head_dim)) {
    const float* const four = values + int64_t{1} * first * head_dim;
    float inverse[kByteValueRows];
    for (int r = 0; r < kByteValueRows; ++r) {
      const float largest = first + r < rows ? LargestOf(four + r * head_dim, head_dim) : 0.0f;
      inverse[r] = largest > 0.0f ? 127.0f / largest : 0.0f;
      to[head_dim + r] = largest / 127.0f;
    }
    for (int d = 0; d < head_dim; d += kLanes) {
      __m512i steps[kByteValueRows];
      for (int r = 0; r < kByteValueRows; ++r) {
        steps[r] = first + r < rows ? Steps(four + r * head_dim + d, head_dim - d, inverse[r])
                                    : _mm512_setzero_si512();
      }
      _mm512_mask_storeu_epi32(to + d, FirstN(head_dim - d).raw, BytesOf<true>(steps));
    }
  }
}

// The operands were rounded before.
HYDRANT_INLINE PanelOperands TakePanel(const PrefillShape&, const float* k, const float* v,
                                       int /*rows*/, float* /*scratch*/) {
  return {k, v};
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
