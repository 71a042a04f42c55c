// A panel's logits to weights, in fp32. Included once per instruction set, before
// prefill_attention_tile-inl.h, by kernels that do not include prefill_softmax_pairs-inl.h.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

// Weights are relative to the largest logit so far plus kHeadroom, in nats; kTopWeight is then
// the weight of the largest.
inline constexpr float kHeadroom = 0.0f;
inline constexpr float kTopWeight = 1.0f;

// Raises the running maximum by a panel's logits, converts them to weights relative to it, and adds
// those to the running sum. decay[lanes]: the factor for earlier sums and outputs.
HYDRANT_INLINE void PanelWeights(int rows, bool /*kept*/, float* logits, float* maxima, float* sums,
                                 float* decay, float* /*rounded*/) {
  constexpr int kVectors = kQueryTile / kLanes;  // independent sums hide the latency of an addition
  Vec max[kVectors], sum[kVectors];
  Unroll<kVectors>(HYDRANT_UNROLLED(i) { max[i] = Load(maxima + i * kLanes); });
  for (int r = 0; r < rows; ++r) {
    const float* row = logits + r * kQueryTile;
    Unroll<kVectors>(HYDRANT_UNROLLED(i) { max[i] = hn::Max(max[i], Load(row + i * kLanes)); });
  }
  Unroll<kVectors>(HYDRANT_UNROLLED(i) {
    const Vec factor = Exp(hn::Sub(Load(maxima + i * kLanes), max[i]));
    sum[i] = hn::Mul(Load(sums + i * kLanes), factor);
    Store(decay + i * kLanes, factor);
    Store(maxima + i * kLanes, max[i]);
  });
  for (int r = 0; r < rows; ++r) {
    float* row = logits + r * kQueryTile;
    Unroll<kVectors>(HYDRANT_UNROLLED(i) {
      const Vec w = WeightOf(hn::Sub(Load(row + i * kLanes), max[i]));
      Store(row + i * kLanes, w);
      sum[i] = hn::Add(sum[i], w);
    });
  }
  Unroll<kVectors>(HYDRANT_UNROLLED(i) { Store(sums + i * kLanes, sum[i]); });
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
