// Compiled without contraction into fused multiply-add: WeighLogits must have the bits of
// SampleWeight.
#include "kernels/cpu/sample.h"

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
#define HWY_TARGET_INCLUDE "kernels/cpu/sample.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
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

// SampleWeight of each logit into weights; returns their sum. The steps are SampleWeight's.
uint64_t WeighLogits(const float* logits, size_t n, double highest, double inverse_temperature,
                     uint64_t* weights) {
  namespace w = sample_weight;
  const hn::ScalableTag<double> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<float, decltype(d)> df;
  const size_t lanes = hn::Lanes(d);
  const auto round_shift = hn::Set(d, w::kRoundShift);
  const auto mask = hn::Set(du, w::kMantissaMask);
  auto sum = hn::Zero(du);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    auto logit = hn::LoadU(df, logits + i);
    logit = hn::IfThenElse(hn::Gt(logit, hn::Set(df, FLT_MAX)), hn::Set(df, FLT_MAX), logit);
    auto x = hn::Mul(hn::Sub(hn::PromoteTo(d, logit), hn::Set(d, highest)),
                     hn::Set(d, inverse_temperature));
    x = hn::IfThenElse(hn::Ge(x, hn::Set(d, w::kLowest)), x, hn::Set(d, w::kLowest));
    const auto shifted = hn::Add(hn::Mul(x, hn::Set(d, w::kLog2E)), round_shift);
    const auto k = hn::Sub(shifted, round_shift);
    const auto r = hn::Sub(hn::Sub(x, hn::Mul(k, hn::Set(d, w::kLn2High))),
                           hn::Mul(k, hn::Set(d, w::kLn2Low)));
    auto exp_r = hn::Set(d, w::kCoefficients[w::kDegree]);
    for (int c = w::kDegree - 1; c >= 0; --c) {
      exp_r = hn::Add(hn::Mul(exp_r, r), hn::Set(d, w::kCoefficients[c]));
    }
    const auto exponent =
        hn::Add(hn::BitCast(du, shifted), hn::Set(du, uint64_t{1023 + kWeightBits}));
    const auto scaled = hn::Mul(exp_r, hn::BitCast(d, hn::ShiftLeft<52>(exponent)));
    const auto weight = hn::And(hn::BitCast(du, hn::Add(scaled, hn::Set(d, w::kTwo52))), mask);
    hn::StoreU(weight, du, weights + i);
    sum = hn::Add(sum, weight);
  }
  uint64_t total = hn::GetLane(hn::SumOfLanes(du, sum));
  for (; i < n; ++i) {
    weights[i] = SampleWeight((CandidateLogit(logits[i]) - highest) * inverse_temperature);
    total += weights[i];
  }
  return total;
}

// The first index from `begin` whose logit is at least `threshold`, or n. NaN never is.
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

}  // namespace HWY_NAMESPACE
}  // namespace hydrant::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hydrant::cpu {
namespace {
HWY_EXPORT(HighestLogit);
HWY_EXPORT(WeighLogits);
HWY_EXPORT(FindAtLeast);

using Candidate = Sampler::Candidate;
using Scratch = Sampler::Scratch;

bool RanksBefore(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// One row at work.
struct Row {
  const float* logits;
  size_t vocab;
  const SamplingRow& sampling;
  float highest;
  uint64_t total;  // of all weights
};

// The logit of rank top_k: a buffer of twice that size is cut down to the best half whenever it is
// full, and the cut rises, so most of the vocabulary is passed over by one comparison of a vector.
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

// The entries of at least this logit and weight, by ascending id.
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

// Of those equal to the top_k'th logit the lowest ids stay. Candidates hold no logit below it.
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

// The last candidate in rank of the smallest prefix that weighs `need` or more: quickselect by
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

// A weight below which no candidate can be in the top_p prefix: all those below total (1 - top_p) /
// vocab together weigh less than total (1 - top_p). Half of it, for the rounding of weights.
uint64_t NegligibleWeight(const Row& row) {
  const double tail = 1.0 - static_cast<double>(row.sampling.top_p);
  return static_cast<uint64_t>(0.5 * tail * static_cast<double>(row.total) /
                               static_cast<double>(row.vocab));
}

// Applies top_k, min_p and top_p in this order and leaves the candidates in the scratch.
void Restrict(const Row& row, Scratch& scratch) {
  const SamplingRow& sampling = row.sampling;
  const bool cuts_k = sampling.top_k > 0 && static_cast<size_t>(sampling.top_k) < row.vocab;
  const bool cuts_p = sampling.top_p < 1.0f;
  float least_logit = -FLT_MAX;
  if (cuts_k) least_logit = TopKThreshold(row, sampling.top_k, scratch.highest);
  uint64_t least_weight = 0;
  if (sampling.min_p > 0.0f) {
    least_weight = MinPWeight(sampling.min_p);
  } else if (cuts_p && !cuts_k) {
    least_weight = NegligibleWeight(row);
  }
  Collect(row, least_logit, least_weight, scratch);
  if (cuts_k) CutTies(least_logit, sampling.top_k, scratch.candidates);
  if (!cuts_p) return;
  const bool all_counted = !cuts_k && sampling.min_p <= 0.0f;
  CutTopP(sampling.top_p, all_counted ? row.total : Total(scratch.candidates), scratch);
}

uint32_t Draw(const std::vector<Candidate>& candidates, uint64_t random_bits) {
  uint64_t target = RandomBelow(random_bits, Total(candidates));
  for (const Candidate& candidate : candidates) {
    if (target < candidate.weight) return candidate.id;
    target -= candidate.weight;
  }
  return UINT32_MAX;  // not reached: the target is below the total
}

uint32_t DrawUnrestricted(const Row& row, const uint64_t* weights, uint64_t random_bits) {
  uint64_t target = RandomBelow(random_bits, row.total);
  for (size_t i = 0; i < row.vocab; ++i) {
    if (target < weights[i]) return static_cast<uint32_t>(i);
    target -= weights[i];
  }
  return UINT32_MAX;  // not reached
}

uint32_t SampleRow(const float* logits, size_t vocab, const SamplingRow& sampling,
                   Scratch& scratch) {
  Row row{logits, vocab, sampling, HWY_DYNAMIC_DISPATCH(HighestLogit)(logits, vocab), 0};
  if (row.highest < -FLT_MAX) return UINT32_MAX;
  if (sampling.temperature <= 0.0f) {
    return static_cast<uint32_t>(HWY_DYNAMIC_DISPATCH(FindAtLeast)(logits, 0, vocab, row.highest));
  }
  scratch.weights.resize(vocab);
  row.total = HWY_DYNAMIC_DISPATCH(WeighLogits)(logits, vocab, row.highest,
                                                1.0 / static_cast<double>(sampling.temperature),
                                                scratch.weights.data());
  const uint64_t random_bits = RandomBits(sampling.seed, sampling.position);
  if (IsUnrestricted(sampling, static_cast<int>(vocab))) {
    return DrawUnrestricted(row, scratch.weights.data(), random_bits);
  }
  Restrict(row, scratch);
  return Draw(scratch.candidates, random_bits);
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
