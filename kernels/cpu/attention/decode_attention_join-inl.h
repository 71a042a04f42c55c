// Joins the parts of one head: the output, then scores and victim in one pass over the head's
// slots. Included once per instruction set, after the SIMD wrappers (attention_simd_*.h).

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
      return *part_max = FirstLane(Exp(Set(*part_max - top)));
    };
    float sum = head.sinks == nullptr ? 0.0f : FirstLane(Exp(Set(head.sinks[g] - max)));
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
  for (int d = 0; d < head_dim; d += kLanes) Store(out + d, Mul(Load(out + d), Set(kFromPage)));
}

HYDRANT_INLINE void JoinOutput(const DecodeArgs& shape, const DecodeHead& head, int parts) {
  const int dim = RoundUpDim(shape.head_dim);
  for (int g = 0; g < shape.group; ++g) {
    float* out = head.out + g * shape.head_dim;
    for (int d = 0; d < shape.head_dim; d += kLanes) {
      Vec sum = Zero();
      for (int part = 0; part < parts; ++part) {
        const int row = part * shape.group + g;
        sum = Fma(Set(head.part_numerator_max[row]), Load(head.part_out + row * dim + d), sum);
      }
      const int left = shape.head_dim - d;
      if (left >= kLanes) {
        Store(out + d, sum);
      } else {
        MaskStore(FirstN(left), out + d, sum);
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
  return {Set(__builtin_inff()), IntSet(INT32_MAX), IntSet(-1)};
}

// The victim rule of kernels/victim.h: a NaN score counts as -infinity.
HYDRANT_INLINE void Consider(Mask live, Vec score, IntVec position, IntVec entry, int32_t lowest,
                             int32_t highest, VictimLanes* best) {
  score = Select(Equal(score, score), score, Set(-__builtin_inff()));
  const Mask eligible =
      And(And(live, IntLess(IntSet(lowest - 1), position)), IntLess(position, IntSet(highest + 1)));
  const Mask tie = And(Equal(score, best->score), IntLess(position, best->position));
  const Mask better = And(eligible, Or(Less(score, best->score), tie));
  best->score = Select(better, score, best->score);
  best->position = IntSelect(better, position, best->position);
  best->entry = IntSelect(better, entry, best->entry);
}

HYDRANT_INLINE int32_t PickVictim(const VictimLanes& best) {
  float score[kLanes];
  int32_t position[kLanes];
  int32_t entry[kLanes];
  Store(score, best.score);
  IntStore(position, best.position);
  IntStore(entry, best.entry);
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

// The group's weight on kLanes entries, before gain (DecodeRule).
template <GroupReduce kReduce>
HYDRANT_INLINE Vec GroupWeight(const float* weights, int64_t stride, const float* factors,
                               int group, Mask live) {
  Vec w = Zero();
  for (int g = 0; g < group; ++g) {
    const Vec a = Mul(MaskLoad(live, weights + g * stride), Set(factors[g]));
    if (kReduce == GroupReduce::kMax) {
      w = Max(w, a);
    } else if (kReduce == GroupReduce::kMean) {
      w = Add(w, a);
    } else {
      w = Fma(a, a, w);
    }
  }
  return kReduce == GroupReduce::kMean ? Mul(w, Set(1.0f / static_cast<float>(group))) : w;
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
      const Mask live = FirstN(run - i);
      const IntVec position = IntMaskLoad(live, shape.positions + slot + i);
      Vec score;
      if (kByPosition) {
        score = ToFloat(position);
      } else {
        const Vec w = GroupWeight<kReduce>(head.shares + e + i, head.weight_stride, factors,
                                           shape.group, live);
        float* stored = shape.scores + state + i;
        score = Fma(Set(rule.gain), w, Mul(Set(rule.decay), MaskLoad(live, stored)));
        MaskStore(live, stored, score);
      }
      Consider(live, score, position, IntAdd(IntSet(e + i), IntIota()), lowest, highest, &best);
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
