// Compiled without contraction into fused multiply-add: WeighLogits must have
// the bits of SampleWeight.
#include "kernels/cpu/elementwise/sample.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/ops/sample_weight.h"
#include "kernels/random.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/sample.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hydrant::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The highest candidate logit, +infinity as FLT_MAX; -infinity where no logit is finite.
float HighestLogit(const float* logits, size_t n) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto largest = hn::Set(d, FLT_MAX);
  auto highest = lowest, highest_finite = lowest;
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto value = hn::LoadU(d, logits + i);
    const auto number = hn::IfThenElse(hn::IsNaN(value), lowest, value);
    highest = hn::Max(highest, hn::Min(number, largest));
    highest_finite =
        hn::Max(highest_finite, hn::IfThenElse(hn::Gt(number, largest), lowest, number));
  }
  float result = hn::GetLane(hn::MaxOfLanes(d, highest));
  float finite = hn::GetLane(hn::MaxOfLanes(d, highest_finite));
  for (; i < n; ++i) {
    result = std::max(result, CandidateLogit(logits[i]));
    if (std::isfinite(logits[i])) finite = std::max(finite, logits[i]);
  }
  return finite >= -FLT_MAX ? result : -std::numeric_limits<float>::infinity();
}

// SampleWeight of each logit into weights, by the same steps.
void WeighLogits(const float* logits, size_t n, double highest, double inverse_temperature,
                 uint64_t* weights) {
  namespace w = sample_weight;
  const hn::ScalableTag<double> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<float, decltype(d)> df;
  const size_t lanes = hn::Lanes(d);
  const auto round_shift = hn::Set(d, w::kRoundShift);
  const auto mask = hn::Set(du, w::kMantissaMask);
  constexpr size_t kTogether = 4;  // independent chains hide the latency of each step
  size_t i = 0;
  for (; i + kTogether * lanes <= n; i += kTogether * lanes) {
    hn::Vec<decltype(d)> r[kTogether], shifted[kTogether], exp_r[kTogether];
    for (size_t v = 0; v < kTogether; ++v) {
      auto logit = hn::LoadU(df, logits + i + v * lanes);
      logit = hn::IfThenElse(hn::Gt(logit, hn::Set(df, FLT_MAX)), hn::Set(df, FLT_MAX), logit);
      auto x = hn::Mul(hn::Sub(hn::PromoteTo(d, logit), hn::Set(d, highest)),
                       hn::Set(d, inverse_temperature));
      x = hn::IfThenElse(hn::Ge(x, hn::Set(d, w::kLowest)), x, hn::Set(d, w::kLowest));
      shifted[v] = hn::Add(hn::Mul(x, hn::Set(d, w::kLog2E)), round_shift);
      const auto k = hn::Sub(shifted[v], round_shift);
      r[v] = hn::Sub(hn::Sub(x, hn::Mul(k, hn::Set(d, w::kLn2High))),
                     hn::Mul(k, hn::Set(d, w::kLn2Low)));
      exp_r[v] = hn::Set(d, w::kCoefficients[w::kDegree]);
    }
    for (int c = w::kDegree - 1; c >= 0; --c) {
      for (size_t v = 0; v < kTogether; ++v)
        exp_r[v] = hn::Add(hn::Mul(exp_r[v], r[v]), hn::Set(d, w::kCoefficients[c]));
    }
    for (size_t v = 0; v < kTogether; ++v) {
      const auto exponent =
          hn::Add(hn::BitCast(du, shifted[v]), hn::Set(du, uint64_t{1023 + kWeightBits}));
      const auto scaled = hn::Mul(exp_r[v], hn::BitCast(d, hn::ShiftLeft<52>(exponent)));
      const auto weight = hn::And(hn::BitCast(du, hn::Add(scaled, hn::Set(d, w::kTwo52))), mask);
      hn::StoreU(weight, du, weights + i + v * lanes);
    }
  }
  for (; i < n; ++i)
    weights[i] = SampleWeight((CandidateLogit(logits[i]) - highest) * inverse_temperature);
}

// The first index from `begin` with a logit of at least `threshold`, or n; NaN fails.
size_t FindAtLeast(const float* logits, size_t begin, size_t n, float threshold) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto threshold_v = hn::Set(d, threshold);
  size_t i = begin;
  for (; i + lanes <= n; i += lanes) {
    const intptr_t found = hn::FindFirstTrue(d, hn::Ge(hn::LoadU(d, logits + i), threshold_v));
    if (found >= 0) return i + static_cast<size_t>(found);
  }
  for (; i < n; ++i) {
    if (logits[i] >= threshold) return i;
  }
  return n;
}

// Walks the entries of [begin, end) with logit >= `least_logit` and weight >= `least_weight`.
// Returns the first at which their cumulative weight exceeds `target`, or `end`. Subtracts the
// weights before it from `target`.
size_t FindByWeight(const float* logits, const uint64_t* weights, size_t begin, size_t end,
                    float least_logit, uint64_t least_weight, uint64_t* target) {
  const hn::ScalableTag<double> d;
  const hn::RebindToSigned<decltype(d)> di;  // weights are below 2^63
  const hn::Rebind<float, decltype(d)> df;
  const size_t lanes = hn::Lanes(d);
  const auto largest = hn::Set(df, FLT_MAX);
  const auto least_logits = hn::Set(d, static_cast<double>(least_logit));
  const auto least_weights = hn::Set(di, static_cast<int64_t>(least_weight));
  size_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    const auto logit = hn::PromoteTo(d, hn::Min(hn::LoadU(df, logits + i), largest));
    const auto weight = hn::LoadU(di, reinterpret_cast<const int64_t*>(weights + i));
    const auto is_high = hn::RebindMask(di, hn::Ge(logit, least_logits));
    const auto passes = hn::And(is_high, hn::Not(hn::Lt(weight, least_weights)));
    const auto sum =
        static_cast<uint64_t>(hn::GetLane(hn::SumOfLanes(di, hn::IfThenElseZero(passes, weight))));
    if (*target < sum) break;
    *target -= sum;
  }
  for (; i < end; ++i) {
    if (!(CandidateLogit(logits[i]) >= least_logit) || weights[i] < least_weight) continue;
    if (*target < weights[i]) return i;
    *target -= weights[i];
  }
  return end;
}

// The bin of each logit, by its distance below the highest; bin 0 is the highest. bins_of_one:
// bins per difference of 1.
void FindBins(const float* logits, size_t n, float highest, float bins_of_one, uint16_t* bins) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  const size_t lanes = hn::Lanes(d);
  const auto last = hn::Set(d, static_cast<float>(kNumLogitBins - 1));
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto below = hn::Sub(hn::Set(d, highest), hn::LoadU(d, logits + i));
    const auto bin = hn::Mul(hn::Max(below, hn::Zero(d)), hn::Set(d, bins_of_one));
    const auto number = hn::IfThenElse(hn::Lt(bin, last), bin, last);  // NaN goes to the last bin
    hn::StoreU(hn::DemoteTo(d16, hn::ConvertTo(di, number)), d16, bins + i);
  }
  for (; i < n; ++i) {
    const float bin = std::max(highest - logits[i], 0.0f) * bins_of_one;
    bins[i] = static_cast<uint16_t>(bin < kNumLogitBins - 1 ? bin : kNumLogitBins - 1);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hydrant::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hydrant::cpu {
namespace {
HWY_EXPORT(HighestLogit);
HWY_EXPORT(WeighLogits);
HWY_EXPORT(FindAtLeast);
HWY_EXPORT(FindByWeight);
HWY_EXPORT(FindBins);

using Candidate = Sampler::Candidate;
using Scratch = Sampler::Scratch;

bool RanksBefore(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// The current row.
struct Row {
  const float* logits;
  size_t vocab;
  const SamplingRow& sampling;
  float highest;
};

// The logit of rank top_k. A buffer of twice that size is cut to its best half whenever it is full,
// which raises the threshold, so most of the vocabulary is skipped by one vector comparison.
// -FLT_MAX where fewer than top_k logits are candidates.
float TopKThreshold(const Row& row, size_t top_k, std::vector<float>& best) {
  best.clear();
  float threshold = -FLT_MAX;
  const size_t capacity = std::max<size_t>(2 * top_k, 64);
  for (size_t i = 0;; ++i) {
    i = HWY_DYNAMIC_DISPATCH(FindAtLeast)(row.logits, i, row.vocab, threshold);
    if (i >= row.vocab) break;
    best.push_back(CandidateLogit(row.logits[i]));
    if (best.size() == capacity) {
      std::nth_element(best.begin(), best.begin() + (top_k - 1), best.end(), std::greater<>());
      best.resize(top_k);
      threshold = best[top_k - 1];
    }
  }
  if (best.size() < top_k) return -FLT_MAX;
  std::nth_element(best.begin(), best.begin() + (top_k - 1), best.end(), std::greater<>());
  return best[top_k - 1];
}

// Collects the entries of at least this logit and weight, by ascending id.
void Collect(const Row& row, float least_logit, uint64_t least_weight, Scratch& scratch) {
  scratch.candidates.clear();
  for (size_t i = 0;; ++i) {
    i = HWY_DYNAMIC_DISPATCH(FindAtLeast)(row.logits, i, row.vocab, least_logit);
    if (i >= row.vocab) return;
    if (scratch.weights[i] < least_weight) continue;
    scratch.candidates.push_back(
        {scratch.weights[i], CandidateLogit(row.logits[i]), static_cast<uint32_t>(i)});
  }
}

uint64_t Total(const std::vector<Candidate>& candidates) {
  uint64_t total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  return total;
}

// Among logits equal to the top_k'th the lowest ids stay. REQUIRES: no candidate is below it.
void CutTies(float top_k_logit, size_t top_k, std::vector<Candidate>& candidates) {
  if (candidates.size() <= top_k) return;
  const auto above = std::count_if(candidates.begin(), candidates.end(),
                                   [&](const Candidate& c) { return c.logit > top_k_logit; });
  size_t ties_left = top_k - static_cast<size_t>(above);
  std::erase_if(candidates, [&](const Candidate& c) {
    if (c.logit > top_k_logit) return false;
    return ties_left == 0 ? true : (--ties_left, false);
  });
}

// The lowest-ranked candidate of the smallest prefix that weighs `need` or more: quickselect by
// weight. REQUIRES: 1 <= need <= the candidates' total.
Candidate LastOfPrefix(std::vector<Candidate>& candidates, uint64_t need) {
  auto begin = candidates.begin(), end = candidates.end();
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, RanksBefore);
    uint64_t upper = 0;
    for (auto it = begin; it != middle; ++it) upper += it->weight;
    if (upper >= need) {
      end = middle;
    } else {
      need -= upper;
      begin = middle;
    }
  }
  return *begin;
}

void CutTopP(float top_p, uint64_t total, Scratch& scratch) {
  scratch.selection = scratch.candidates;
  const Candidate last = LastOfPrefix(scratch.selection, TopPWeight(top_p, total));
  std::erase_if(scratch.candidates, [&](const Candidate& c) { return RanksBefore(last, c); });
}

// Leaves in the scratch the candidates that pass top_k, then min_p, then top_p.
void Restrict(const Row& row, uint64_t least_weight, Scratch& scratch) {
  const SamplingRow& sampling = row.sampling;
  const float least_logit = TopKThreshold(row, sampling.top_k, scratch.highest);
  Collect(row, least_logit, least_weight, scratch);
  CutTies(least_logit, sampling.top_k, scratch.candidates);
  if (sampling.top_p < 1.0f) CutTopP(sampling.top_p, Total(scratch.candidates), scratch);
}

uint32_t Draw(const std::vector<Candidate>& candidates, uint64_t random_bits) {
  uint64_t target = RandomBelow(random_bits, Total(candidates));
  for (const Candidate& candidate : candidates) {
    if (target < candidate.weight) return candidate.id;
    target -= candidate.weight;
  }
  return UINT32_MAX;  // not reached: the target is below the total
}

// The kept set without top_k, which may be most of the vocabulary and is not listed: entries of at
// least this weight and this logit; entries equal to that logit only with an id before `ties_end`.
struct Kept {
  uint64_t least_weight;
  float least_logit;
  size_t ties_end;
};

// The kept entry, by id, at which the cumulative weight exceeds `target`; the vocabulary's size if
// none does. Subtracts the weights before it from `target`.
size_t Walk(const Row& row, const Kept& kept, const Scratch& scratch, uint64_t* target) {
  const auto find = [&](size_t begin, size_t end, float least_logit) {
    return HWY_DYNAMIC_DISPATCH(FindByWeight)(row.logits, scratch.weights.data(), begin, end,
                                              least_logit, kept.least_weight, target);
  };
  const size_t found = find(0, kept.ties_end, kept.least_logit);
  if (found < kept.ties_end) return found;
  const float above = std::nextafter(kept.least_logit, std::numeric_limits<float>::infinity());
  return find(kept.ties_end, row.vocab, above);
}

uint32_t Draw(const Row& row, const Kept& kept, const Scratch& scratch, uint64_t random_bits) {
  constexpr uint64_t kMoreThanAll = uint64_t{1} << 63;
  uint64_t left = kMoreThanAll;
  Walk(row, kept, scratch, &left);
  uint64_t target = RandomBelow(random_bits, kMoreThanAll - left);
  return static_cast<uint32_t>(Walk(row, kept, scratch, &target));
}

// The lowest-ranked candidate that top_p keeps. Weights are summed in bins of similar
// logits; only one bin is ranked.
Candidate LastOfTopP(const Row& row, uint64_t least_weight, Scratch& scratch) {
  // Bins per factor of e. The smallest weights are 64 such factors below the highest.
  constexpr float kBinsOfOne = 8.0f;
  const float bins_of_one =
      std::min(kBinsOfOne / row.sampling.temperature, std::numeric_limits<float>::max());
  scratch.bins.resize(row.vocab);
  HWY_DYNAMIC_DISPATCH(FindBins)
  (row.logits, row.vocab, row.highest, bins_of_one, scratch.bins.data());
  constexpr size_t kTables = 4;  // used in rotation: neighbours often share a bin
  uint64_t sums[kTables][kNumLogitBins] = {};
  for (size_t i = 0; i < row.vocab; ++i) {
    const uint64_t weight = scratch.weights[i];
    sums[i % kTables][scratch.bins[i]] += weight >= least_weight ? weight : 0;
  }
  const auto sum_of = [&sums](size_t bin) {
    return sums[0][bin] + sums[1][bin] + sums[2][bin] + sums[3][bin];
  };
  uint64_t total = 0;
  for (size_t bin = 0; bin < kNumLogitBins; ++bin) total += sum_of(bin);
  uint64_t need = TopPWeight(row.sampling.top_p, total);
  size_t bin = 0;
  for (; sum_of(bin) < need; ++bin) need -= sum_of(bin);
  scratch.candidates.clear();
  for (size_t i = 0; i < row.vocab; ++i) {
    if (scratch.bins[i] != bin || scratch.weights[i] < least_weight) continue;
    scratch.candidates.push_back(
        {scratch.weights[i], CandidateLogit(row.logits[i]), static_cast<uint32_t>(i)});
  }
  return LastOfPrefix(scratch.candidates, need);
}

uint32_t SampleRow(const float* logits, size_t vocab, const SamplingRow& sampling,
                   Scratch& scratch) {
  Row row{logits, vocab, sampling, HWY_DYNAMIC_DISPATCH(HighestLogit)(logits, vocab)};
  if (row.highest < -FLT_MAX) return UINT32_MAX;
  if (sampling.temperature <= 0.0f) {
    return static_cast<uint32_t>(HWY_DYNAMIC_DISPATCH(FindAtLeast)(logits, 0, vocab, row.highest));
  }
  scratch.weights.resize(vocab);
  HWY_DYNAMIC_DISPATCH(WeighLogits)
  (logits, vocab, row.highest, 1.0 / static_cast<double>(sampling.temperature),
   scratch.weights.data());
  const uint64_t random_bits = RandomBits(sampling.seed, sampling.position);
  const uint64_t least_weight = sampling.min_p > 0.0f ? MinPWeight(sampling.min_p) : 0;
  if (sampling.top_k > 0 && static_cast<size_t>(sampling.top_k) < vocab) {
    Restrict(row, least_weight, scratch);
    return Draw(scratch.candidates, random_bits);
  }
  Kept kept = {.least_weight = least_weight, .least_logit = -FLT_MAX, .ties_end = vocab};
  if (sampling.top_p < 1.0f) {
    const Candidate last = LastOfTopP(row, least_weight, scratch);
    kept.least_logit = last.logit;
    kept.ties_end = size_t{last.id} + 1;
  }
  return Draw(row, kept, scratch, random_bits);
}

}  // namespace

void Sampler::Sample(const SampleArgs& args, ThreadPool& threads) {
  scratch_.resize(threads.num_threads());
  const size_t vocab = args.vocab;
  threads.ParallelFor(args.num_rows, [&](int row, int thread) {
    args.tokens[row] = SampleRow(args.Row(row), vocab, args.rows[row], scratch_[thread]);
  });
}

}  // namespace hydrant::cpu
#endif  // HWY_ONCE
