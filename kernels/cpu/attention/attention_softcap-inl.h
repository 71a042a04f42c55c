// Soft-capping of logits. Included once per instruction set, after attention_simd.h.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

HYDRANT_INLINE Vec Tanh(Vec x) {
  const Vec size = hn::Max(x, hn::Sub(Zero(), x));
  const Vec above =
      hn::Sub(Set(1.0f), hn::Div(Set(2.0f), hn::Add(Exp(hn::Add(size, size)), Set(1.0f))));
  const Vec square = hn::Mul(x, x);
  Vec p = hn::MulAdd(Set(kTanhC11), square, Set(kTanhC9));
  p = hn::MulAdd(p, square, Set(kTanhC7));
  p = hn::MulAdd(p, square, Set(kTanhC5));
  p = hn::MulAdd(p, square, Set(kTanhC3));
  const Vec below = hn::MulAdd(hn::Mul(p, square), x, x);
  const Vec with_sign = hn::IfThenElse(hn::Lt(x, Zero()), hn::Sub(Zero(), above), above);
  return hn::IfThenElse(hn::Lt(size, Set(kTanhBorder)), below, with_sign);
}

// logit -> softcap * tanh(logit / softcap), in place. Elements from `count` to the end of the
// last vector become `rest`.
HYDRANT_INLINE void CapLogits(float softcap, int count, float rest, float* logits) {
  const Vec inverse = Set(1.0f / softcap);
  for (int i = 0; i < count; i += kLanes) {
    const Vec capped = hn::Mul(Set(softcap), Tanh(hn::Mul(Load(logits + i), inverse)));
    Store(logits + i, hn::IfThenElse(FirstN(count - i), capped, Set(rest)));
  }
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
