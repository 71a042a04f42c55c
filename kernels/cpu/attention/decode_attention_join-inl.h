// Joins the parts of one head: the output, then scores and victim in one pass over the head's
// slots. Included once per instruction set, after attention_simd.h.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

// Computes the factors from a part's weights to shares of the whole, exp(part_max - max) / sum, and
// writes them over part_max; those of the numerator's weights over part_numerator_max. (max and sum
// are the denominator's and include the sink.)
HYDRANT_INLINE void JoinFactors(const DecodeHead& head, int parts, int group) {
  const bool weighted = head.part_numerator_max != head.part_max;
  const auto max_of_parts = [=](const float* maxima, int g) {
    float max = maxima[g];
    for (int part = 1; part < parts; ++part) {
      const float other = maxima[part * group + g];
      max = other > max ? other : max;
    }
    return max;
  };
  for (int g = 0; g < group; ++g) {
    float max = max_of_parts(head.part_max, g);
    if (head.sinks != nullptr && head.sinks[g] > max) max = head.sinks[g];
    const float excess = max_of_parts(head.part_numerator_max, g) - max - kMaxLogExcess;
    const float numerator_top = excess > 0.0f ? max + excess : max;
    const auto to_factor = [](float top, float* part_max) {
      return *part_max = hn::GetLane(Exp(Set(*part_max - top)));
    };
    float sum = head.sinks == nullptr ? 0.0f : hn::GetLane(Exp(Set(head.sinks[g] - max)));
    for (int part = 0; part < parts; ++part) {
      const int row = part * group + g;
      sum += to_factor(max, &head.part_max[row]) * head.part_sum[row];
      if (weighted) to_factor(numerator_top, &head.part_numerator_max[row]);
    }
    for (int part = 0; part < parts; ++part) {
      const int row = part * group + g;
      head.part_max[row] /= sum;
      if (weighted) head.part_numerator_max[row] /= sum;
    }
  }
}

// The sum of transformed values is transformed; this undoes it.
HYDRANT_INLINE void TransformBack(int head_dim, float* out) {
  cpu::HadamardTransform(head_dim, out);
  for (int d = 0; d < head_dim; d += kLanes) Store(out + d, hn::Mul(Load(out + d), Set(kFromPage)));
}

HYDRANT_INLINE void JoinOutput(const DecodeArgs& shape, const DecodeHead& head, int parts) {
  const int dim = RoundUpDim(shape.head_dim);
  for (int g = 0; g < shape.group; ++g) {
    float* out = head.out + g * shape.head_dim;
    for (int d = 0; d < shape.head_dim; d += kLanes) {
      Vec sum = Zero();
      for (int part = 0; part < parts; ++part) {
        const int row = part * shape.group + g;
        sum =
            hn::MulAdd(Set(head.part_numerator_max[row]), Load(head.part_out + row * dim + d), sum);
      }
      const int left = shape.head_dim - d;
      if (left >= kLanes) {
        Store(out + d, sum);
      } else {
        StoreFirst(left, out + d, sum);
      }
    }
    if (IsTransformed(shape.dtype)) TransformBack(shape.head_dim, out);
  }
}

// Best victim so far, per lane.
struct VictimLanes {
  Vec score;
  IntVec position;
  IntVec entry;
};

HYDRANT_INLINE VictimLanes NoVictim() {
  return {Set(__builtin_inff()), hn::Set(kInts, INT32_MAX), hn::Set(kInts, -1)};
}

HYDRANT_INLINE Mask IntsLess(IntVec a, IntVec b) { return hn::RebindMask(kFloats, hn::Lt(a, b)); }

// The victim rule of kernels/victim.h: a NaN score counts as -infinity.
HYDRANT_INLINE void Consider(Mask live, Vec score, IntVec position, IntVec entry, int32_t lowest,
                             int32_t highest, VictimLanes* best) {
  score = hn::IfThenElse(hn::Eq(score, score), score, Set(-__builtin_inff()));
  const Mask eligible = hn::And(hn::And(live, IntsLess(hn::Set(kInts, lowest - 1), position)),
                                IntsLess(position, hn::Set(kInts, highest + 1)));
  const Mask tie = hn::And(hn::Eq(score, best->score), IntsLess(position, best->position));
  const Mask better = hn::And(eligible, hn::Or(hn::Lt(score, best->score), tie));
  best->score = hn::IfThenElse(better, score, best->score);
  const hn::Mask<Ints> better_ints = hn::RebindMask(kInts, better);
  best->position = hn::IfThenElse(better_ints, position, best->position);
  best->entry = hn::IfThenElse(better_ints, entry, best->entry);
}

HYDRANT_INLINE int32_t PickVictim(const VictimLanes& best) {
  float score[kLanes];
  int32_t position[kLanes];
  int32_t entry[kLanes];
  Store(score, best.score);
  hn::StoreU(best.position, kInts, position);
  hn::StoreU(best.entry, kInts, entry);
  int lane = 0;
  for (int i = 1; i < kLanes; ++i) {
    if (entry[i] < 0) continue;
    if (entry[lane] < 0 || score[i] < score[lane] ||
        (score[i] == score[lane] && position[i] < position[lane])) {
      lane = i;
    }
  }
  return entry[lane] < 0 ? 0 : entry[lane];  // all protected: kernels/victim.h
}

// The group's weight on `count` entries, at most kLanes, before gain (DecodeRule).
template <GroupReduce kReduce>
HYDRANT_INLINE Vec GroupWeight(const float* weights, int64_t stride, const float* factors,
                               int group, int count) {
  Vec w = Zero();
  for (int g = 0; g < group; ++g) {
    const Vec a = hn::Mul(LoadFirst(count, weights + g * stride), Set(factors[g]));
    if (kReduce == GroupReduce::kMax) {
      w = hn::Max(w, a);
    } else if (kReduce == GroupReduce::kMean) {
      w = hn::Add(w, a);
    } else {
      w = hn::MulAdd(a, a, w);
    }
  }
  return kReduce == GroupReduce::kMean ? hn::Mul(w, Set(1.0f / static_cast<float>(group))) : w;
}

// Processes runs of entries that share a page and a part, one vector at a time.
template <bool kByPosition, GroupReduce kReduce>
void UpdateScores(const DecodeArgs& shape, const DecodeHead& head) {
  const DecodeRule& rule = *head.rule;
  const int32_t lowest = rule.sinks;
  const int32_t highest = head.position + 1 - rule.recent;
  VictimLanes best = NoVictim();
  for (int e = 0; e < head.num_entries;) {
    const int64_t slot = SlotOf(shape, head, e);
    const int64_t state = kByPosition ? 0 : StateSlotOf(shape, head, e);
    int run = shape.block_size - e % shape.block_size;
    if (run > kPartEntries - e % kPartEntries) run = kPartEntries - e % kPartEntries;
    if (run > head.num_entries - e) run = head.num_entries - e;
    const float* factors = head.part_max + e / kPartEntries * shape.group;
    for (int i = 0; i < run; i += kLanes) {
      const int count = run - i;
      const IntVec position = LoadFirst(kInts, count, shape.positions + slot + i);
      Vec score;
      if (kByPosition) {
        score = hn::ConvertTo(kFloats, position);
      } else {
        const Vec w = GroupWeight<kReduce>(head.shares + e + i, head.weight_stride, factors,
                                           shape.group, count);
        float* stored = shape.scores + state + i;
        score = hn::MulAdd(Set(rule.gain), w, hn::Mul(Set(rule.decay), LoadFirst(count, stored)));
        StoreFirst(count, stored, score);
      }
      Consider(FirstN(count), score, position, hn::Add(hn::Set(kInts, e + i), hn::Iota(kInts, 0)),
               lowest, highest, &best);
    }
    e += run;
  }
  if (head.victim != nullptr) *head.victim = PickVictim(best);
}

void Join(const DecodeArgs& shape, const DecodeHead& head) {
  const int parts = NumParts(head.num_entries);
  JoinFactors(head, parts, shape.group);
  JoinOutput(shape, head, parts);
  if (!head.rule->scored) return;
  if (head.rule->by_position) return UpdateScores<true, GroupReduce::kMean>(shape, head);
  switch (head.rule->reduce) {
    case GroupReduce::kMean:
      return UpdateScores<false, GroupReduce::kMean>(shape, head);
    case GroupReduce::kMax:
      return UpdateScores<false, GroupReduce::kMax>(shape, head);
    case GroupReduce::kSumOfSquares:
      return UpdateScores<false, GroupReduce::kSumOfSquares>(shape, head);
  }
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
