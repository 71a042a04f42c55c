// Soft-capping of logits. Included once per instruction set, after the SIMD
// wrappers (attention_simd_*.h).

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

HYDRANT_INLINE Vec Tanh(Vec x) {
  const Vec size = Max(x, Sub(Zero(), x));
  const Vec above = Sub(Set(1.0f), Div(Set(2.0f), Add(Exp(Add(size, size)), Set(1.0f))));
  const Vec square = Mul(x, x);
  Vec p = Fma(Set(kTanhC11), square, Set(kTanhC9));
  p = Fma(p, square, Set(kTanhC7));
  p = Fma(p, square, Set(kTanhC5));
  p = Fma(p, square, Set(kTanhC3));
  const Vec below = Fma(Mul(p, square), x, x);
  const Vec with_sign = Select(Less(x, Zero()), Sub(Zero(), above), above);
  return Select(Less(size, Set(kTanhBorder)), below, with_sign);
}

// logit -> softcap * tanh(logit / softcap), in place. Elements from `count` to the end of the
// last vector become `rest`.
HYDRANT_INLINE void CapLogits(float softcap, int count, float rest, float* logits) {
  const Vec inverse = Set(1.0f / softcap);
  for (int i = 0; i < count; i += kLanes) {
    const Vec capped = Mul(Set(softcap), Tanh(Mul(Load(logits + i), inverse)));
    Store(logits + i, Select(FirstN(count - i), capped, Set(rest)));
  }
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
