// Queries, keys and values of prefill attention in 8 bits. Each row of q, k and v has its own
// scale, its largest magnitude / 127. Included after byte_lanes-inl.h and prefill_panel_blocks-inl.h.
//
// A key takes KeyStride() words: its elements, four per word, then its scale, then the
// initial value of its sums. Where the instruction needs unsigned queries, they are stored with 128
// added, which adds 128 times the sum of the key's elements to each product; the initial value
// subtracts it.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

inline constexpr int kQueryOffset = kUnsignedFirst ? 128 : 0;

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
  IntVec largest = hn::Zero(kInts);
  for (int d = 0; d < n; d += kLanes)
    largest = hn::Max(largest, hn::BitCast(kInts, hn::Abs(LoadFirst(n - d, row + d))));
  return hn::GetLane(hn::BitCast(kFloats, hn::MaxOfLanes(kInts, largest)));
}

// kLanes of n numbers in units of 1 / inverse, rounded to nearest; zero past the end.
HYDRANT_INLINE IntVec Steps(const float* row, int n, float inverse) {
  return RoundToInts(hn::Mul(LoadFirst(n, row), Set(inverse)));
}

// Up to kLanes words of n numbers, with kQueryOffset added; zero words past the end.
HYDRANT_INLINE Vec WordsOfRow(const float* row, int n, float inverse) {
  alignas(64) float words[kLanes] = {};
  Unroll<4>(HYDRANT_UNROLLED(i) {
    const int left = n - i * kLanes;
    if (left > 0) {
      const IntVec steps = Steps(row + i * kLanes, left, inverse);
      StoreBytes<FirstByte>(hn::Add(steps, hn::Set(kInts, kQueryOffset)), words + i * (kLanes / 4));
    }
  });
  return Load(words);
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
    IntVec sum = hn::Zero(kInts);
    for (int d = 0; d < head_dim; d += kLanes) {
      const IntVec steps = Steps(keys + d, head_dim - d, inverse);
      sum = hn::Add(sum, steps);
      float bytes[kLanes / 4];
      StoreBytes<int8_t>(steps, bytes);
      for (int w = 0; w < kLanes / 4 && d / 4 + w < words; ++w) to[d / 4 + w] = bytes[w];
    }
    to[words] = largest / 127.0f;
    reinterpret_cast<int32_t*>(to)[words + 1] =
        -kQueryOffset * hn::GetLane(hn::SumOfLanes(kInts, sum));
  }
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
      IntVec steps[kByteValueRows];
      for (int r = 0; r < kByteValueRows; ++r) {
        steps[r] = first + r < rows ? Steps(four + r * head_dim + d, head_dim - d, inverse[r])
                                    : hn::Zero(kInts);
      }
      StoreFirst(head_dim - d, to + d, hn::BitCast(kFloats, PackBytes<int8_t>(steps)));
    }
  }
}

// The operands were rounded before.
HYDRANT_INLINE PanelOperands TakePanel(const PrefillShape&, const float* k, const float* v,
                                       int /*rows*/, float* /*scratch*/) {
  return {k, v};
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
