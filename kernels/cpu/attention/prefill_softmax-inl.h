// A panel's logits to weights, in fp32: included once per instruction set, before
// prefill_attention_tile-inl.h, by kernels that do not include prefill_softmax_pairs-inl.h.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

// Weights are relative to the largest logit so far and so much more, in nats; what the largest
// weighs then.
inline constexpr float kHeadroom = 0.0f;
inline constexpr float kTopWeight = 1.0f;

// Raises the running maximum by a panel's logits, turns them into weights relative to it, and adds
// those to the running sum. decay[lanes]: what earlier sums and outputs must be multiplied by.
HYDRANT_INLINE void PanelWeights(int rows, bool /*kept*/, float* logits, float* maxima, float* sums,
                                 float* decay, float* /*rounded*/) {
  constexpr int kVectors = kQueryTile / kLanes;  // side by side: none waits for its own last one
  Vec max[kVectors], sum[kVectors];
  Unroll<kVectors>(HYDRANT_UNROLLED(i) { max[i] = Load(maxima + i * kLanes); });
  for (int r = 0; r < rows; ++r) {
    const float* row = logits + r * kQueryTile;
    Unroll<kVectors>(HYDRANT_UNROLLED(i) { max[i] = Max(max[i], Load(row + i * kLanes)); });
  }
  Unroll<kVectors>(HYDRANT_UNROLLED(i) {
    const Vec factor = Exp(Sub(Load(maxima + i * kLanes), max[i]));
    sum[i] = Mul(Load(sums + i * kLanes), factor);
    Store(decay + i * kLanes, factor);
    Store(maxima + i * kLanes, max[i]);
  });
  for (int r = 0; r < rows; ++r) {
    float* row = logits + r * kQueryTile;
    Unroll<kVectors>(HYDRANT_UNROLLED(i) {
      const Vec w = WeightOf(Sub(Load(row + i * kLanes), max[i]));
      Store(row + i * kLanes, w);
      sum[i] = Add(sum[i], w);
    });
  }
  Unroll<kVectors>(HYDRANT_UNROLLED(i) { Store(sums + i * kLanes, sum[i]); });
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
