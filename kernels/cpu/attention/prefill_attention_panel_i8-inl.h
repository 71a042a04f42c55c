// The two products of a key panel with a query tile in 8 bits, four terms per instruction: the
// interface of prefill_attention_panel-inl.h. Included after prefill_attention_bytes-inl.h. Two
// vectors of queries are processed at a time.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

HYDRANT_INLINE IntVec LoadWords(const float* p) { return hn::BitCast(kInts, Load(p)); }

// Of two vectors of queries, and kRows keys.
template <int kRows>
HYDRANT_INLINE void QuadLogitBlock(const float* keys, int head_dim, const float* queries,
                                   float* logits) {
  const int words = NumByteWords(head_dim), stride = KeyStride(head_dim);
  const auto* const key = reinterpret_cast<const int32_t*>(keys);
  IntVec acc[kRows][2];
  Unroll<kRows>(
      HYDRANT_UNROLLED(r) { acc[r][0] = acc[r][1] = hn::Set(kInts, key[r * stride + words + 1]); });
  for (int w = 0; w < words; ++w, queries += kQueryTile) {
    const IntVec q0 = LoadWords(queries), q1 = LoadWords(queries + kLanes);
    Unroll<kRows>(HYDRANT_UNROLLED(r) {
      const IntVec four = hn::Set(kInts, key[r * stride + w]);
      AddByteDots(q0, four, &acc[r][0]);
      AddByteDots(q1, four, &acc[r][1]);
    });
  }
  Unroll<kRows>(HYDRANT_UNROLLED(r) {
    const Vec scale = Set(keys[r * stride + words]);
    Unroll<2>(HYDRANT_UNROLLED(i) {
      const Vec scales = hn::Mul(scale, Load(queries + i * kLanes));
      Store(logits + r * kQueryTile + i * kLanes,
            hn::Mul(hn::ConvertTo(kFloats, acc[r][i]), scales));
    });
  });
}

void PanelLogits(const PrefillShape& shape, const PanelOperands& panel, int rows,
                 const float* queries, float* logits) {
  for (int lane = 0; lane < kQueryTile; lane += kPair) {
    ForBlocks(rows, [&](auto size, int first) {
      QuadLogitBlock<decltype(size)::value>(
          panel.k + static_cast<int64_t>(first) * KeyStride(shape.head_dim), shape.head_dim,
          queries + lane, logits + first * kQueryTile + lane);
    });
  }
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
    to.share[i] = hn::Mul(largest[i], Set(1.0f / kMostFirst));
    to.up[i] = hn::Div(Set(kMostFirst), largest[i]);
  });
  return to;
}

// Weights [rows / 4, kQueryTile], four bytes per word.
HYDRANT_INLINE void RoundWeights(const float* values, int head_dim, int rows, const float* weights,
                                 const ByteWeights& by, float* to) {
  for (int first = 0; first < rows; first += kByteValueRows, to += kQueryTile) {
    const float* const scales = values + ValuesBefore(first, head_dim) + head_dim;
    Unroll<2>(HYDRANT_UNROLLED(i) {
      IntVec bytes[kByteValueRows];
      Unroll<kByteValueRows>(HYDRANT_UNROLLED(r) {
        const float* const row = weights + (first + r) * kQueryTile + i * kLanes;
        const Vec weight = first + r < rows ? hn::Mul(Load(row), Set(scales[r])) : Zero();
        bytes[r] = RoundToInts(hn::Mul(weight, by.up[i]));
      });
      Store(to + i * kLanes, hn::BitCast(kFloats, PackBytes<FirstByte>(bytes)));
    });
  }
}

template <int kColumns>
HYDRANT_INLINE void QuadOutputBlock(const float* values, int head_dim, int rows,
                                    const float* weights, const ByteWeights& by, const float* decay,
                                    float* out) {
  const int stride = ByteValueStride(head_dim);
  const auto* value = reinterpret_cast<const int32_t*>(values);
  IntVec acc[kColumns][2];
  Unroll<kColumns>(HYDRANT_UNROLLED(c) { acc[c][0] = acc[c][1] = hn::Zero(kInts); });
  for (int first = 0; first < rows; first += kByteValueRows, value += stride) {
    const IntVec w0 = LoadWords(weights), w1 = LoadWords(weights + kLanes);
    weights += kQueryTile;
    Unroll<kColumns>(HYDRANT_UNROLLED(c) {
      const IntVec four = hn::Set(kInts, value[c]);
      AddByteDots(w0, four, &acc[c][0]);
      AddByteDots(w1, four, &acc[c][1]);
    });
  }
  Unroll<kColumns>(HYDRANT_UNROLLED(c) {
    Unroll<2>(HYDRANT_UNROLLED(i) {
      float* const to = out + c * kQueryTile + i * kLanes;
      const Vec before = hn::Mul(Load(to), Load(decay + i * kLanes));
      Store(to, hn::MulAdd(hn::ConvertTo(kFloats, acc[c][i]), by.share[i], before));
    });
  });
}

void PanelOutput(const PrefillShape& shape, const PanelOperands& panel, int rows,
                 const float* weights, const float* decay, float* rounded, float* out) {
  for (int lane = 0; lane < kQueryTile; lane += kPair) {
    const ByteWeights by = ByteWeightsOf(panel.v, shape.head_dim, rows, weights + lane);
    RoundWeights(panel.v, shape.head_dim, rows, weights + lane, by, rounded + lane);
    ForBlocks(shape.head_dim, [&](auto size, int first) {
      QuadOutputBlock<decltype(size)::value>(panel.v + first, shape.head_dim, rows, rounded + lane,
                                             by, decay + lane, out + first * kQueryTile + lane);
    });
  }
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
