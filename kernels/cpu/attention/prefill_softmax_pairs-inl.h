// A panel's logits to weights in bf16, two keys per pair, for kernels with products of two terms
// per instruction. Replaces prefill_softmax-inl.h; included after prefill_attention_pairs-inl.h.
//
// A weight is computed from its logarithm in words of 1/128 octave, a 16-bit integer: read as bf16,
// that is the weight with a linear instead of an exponential mantissa (Schraudolph, "A Fast,
// Compact Approximation of the Exponential Function", Neural Computation 1999). A table corrects it
// to within 1 % of the weight (root mean square 0.26 %; rounding to bf16 0.4 % and 0.17 %). The
// sums are over these same weights.
//
// The largest logit of a lane's first visible panel weighs 2^-kHeadroomOctaves. Later
// logits may exceed it by kHeadroomOctaves and a little more before a rescaling is needed,
// so a panel is read once.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

inline constexpr int kHeadroomOctaves = 32;
inline constexpr float kHeadroom = kHeadroomOctaves * 0.69314718f;
inline constexpr float kTopWeight = 1.0f / (uint64_t{1} << kHeadroomOctaves);
inline constexpr float kWordStep = 128 * kLog2E;  // words per nat
inline constexpr float kOneAsWord = 127 * 128;
// Words from twice the weight of 1 on have one of these bits, and smaller words have none.
inline constexpr int32_t kTooLarge = static_cast<int32_t>(0xc000c000);

// 128 (2^f - 1) - 128 f, rounded, averaged over the four steps of f = i / 32 .. (i + 1) / 32.
alignas(64) inline constexpr int16_t kOfMantissa[32] = {
    0,   -2,  -3,  -4,  -5,  -6,  -7,  -7, -8, -9, -9, -10, -10, -10, -11, -11,
    -11, -11, -11, -11, -10, -10, -10, -9, -8, -8, -7, -6,  -5,  -4,  -2,  -1};

// Pair i: the weights of first[i] and second[i]; 0 for -infinity. origin: the word of a logit of 0.
// A logit ten million above one that weighs 1 overflows 32 bits, and counts as 0.
HYDRANT_INLINE IntVec WeightPairs(Vec first, Vec second, Vec origin) {
  const auto words = [&](Vec logits) {
    return RoundToInts(hn::MulAdd(logits, Set(kWordStep), origin)).raw;
  };
  const __m512i logs = _mm512_packus_epi32(words(first), words(second));
  const __m512i turns =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
  const __m512i of_mantissa =
      _mm512_permutexvar_epi16(_mm512_srli_epi16(logs, 2), _mm512_load_si512(kOfMantissa));
  return IntVec{_mm512_shuffle_epi8(_mm512_add_epi16(logs, of_mantissa), turns)};
}

// State of one vector of lanes.
struct LaneWeights {
  Vec maximum;  // reference of the weights; -infinity: no logit seen
  Vec sum;
  Mask risen;  // lanes with a weight that is too large, to be recomputed
};

// The weights of a panel, relative to before.maximum.
HYDRANT_INLINE LaneWeights MakeWeights(int rows, const float* logits, const LaneWeights& before,
                                       float* to) {
  const Mask unseen = hn::Eq(before.maximum, Set(kMinusInfinity));
  const Vec origin = hn::IfThenElse(
      unseen, before.maximum, hn::Sub(Set(kOneAsWord), hn::Mul(before.maximum, Set(kWordStep))));
  Vec sums[2] = {before.sum, Zero()};  // independent sums hide the latency of an addition
  IntVec all = hn::Set(kInts, 0);
  const auto add = [&](int row, Vec first, Vec second, Vec* sum) {
    const IntVec pairs = WeightPairs(first, second, origin);
    all = hn::Or(all, pairs);
    *sum = hn::Add(*sum, hn::Add(EvenWeights(pairs), OddWeights(pairs)));
    hn::StoreU(pairs, kInts, reinterpret_cast<int32_t*>(to + row / 2 * kQueryTile));
  };
  const auto at = [&](int row) { return Load(logits + row * kQueryTile); };
  int r = 0;
  for (; r + 3 < rows; r += 4) {
    add(r, at(r), at(r + 1), &sums[0]);
    add(r + 2, at(r + 2), at(r + 3), &sums[1]);
  }
  for (; r < rows; r += 2) add(r, at(r), r + 1 < rows ? at(r + 1) : Set(kMinusInfinity), &sums[0]);
  return {before.maximum, hn::Add(sums[0], sums[1]),
          Mask{_mm512_test_epi32_mask(all.raw, hn::Set(kInts, kTooLarge).raw)}};
}

// Sets the maximum of `lanes` to the largest logit of the panel, if they see one.
HYDRANT_INLINE LaneWeights Raise(int rows, const float* logits, Mask lanes,
                                 const LaneWeights& before, float* decay) {
  Vec largest = Set(kMinusInfinity);
  for (int r = 0; r < rows; ++r) largest = hn::Max(largest, Load(logits + r * kQueryTile));
  lanes = hn::And(lanes, hn::Lt(Set(kPastLogit), largest));
  const Vec maximum = hn::IfThenElse(lanes, hn::Add(largest, Set(kHeadroom)), before.maximum);
  const Vec factor = hn::IfThenElse(lanes, Exp(hn::Sub(before.maximum, maximum)), Set(1.0f));
  Store(decay, hn::Mul(Load(decay), factor));
  return {maximum, hn::Mul(before.sum, factor), Mask{}};
}

// The same weights in fp32, in place of the logits.
HYDRANT_INLINE void KeepWeights(int rows, const float* pairs, float* to) {
  for (int r = 0; r < rows; r += 2, pairs += kQueryTile, to += 2 * kQueryTile) {
    for (int lane = 0; lane < kQueryTile; lane += kLanes) {
      const IntVec words = hn::LoadU(kInts, reinterpret_cast<const int32_t*>(pairs + lane));
      Store(to + lane, EvenWeights(words));
      Store(to + kQueryTile + lane, OddWeights(words));
    }
  }
}

// Converts a panel's logits to pairs of weights relative to the running maximum, raises that where
// necessary, and adds the weights to the running sum. decay[lanes]: the factor for earlier outputs.
// kept: also writes the weights in place of the logits.
HYDRANT_INLINE void PanelWeights(int rows, bool kept, float* logits, float* maxima, float* sums,
                                 float* decay, float* pairs) {
  for (int lane = 0; lane < kQueryTile; lane += kLanes) {
    Store(decay + lane, Set(1.0f));
    LaneWeights before = {Load(maxima + lane), Load(sums + lane), Mask{}};
    const Mask unseen = hn::Eq(before.maximum, Set(kMinusInfinity));
    if (!hn::AllFalse(kFloats, unseen))
      before = Raise(rows, logits + lane, unseen, before, decay + lane);
    LaneWeights made = MakeWeights(rows, logits + lane, before, pairs + lane);
    if (!hn::AllFalse(kFloats, made.risen)) {
      before = Raise(rows, logits + lane, made.risen, before, decay + lane);
      made = MakeWeights(rows, logits + lane, before, pairs + lane);
    }
    Store(maxima + lane, made.maximum);
    Store(sums + lane, made.sum);
  }
  if (kept) KeepWeights(rows, pairs, logits);
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
