#include "kernels/ops/sample.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/ops/sample_weight.h"
#include "kernels/random.h"
#include "kernels/reference/ops.h"

namespace hydrant::reference {
namespace {

struct Candidate {
  float logit;
  uint32_t id;
  uint64_t weight;
};

bool RanksBefore(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// The candidates in rank order; empty where no logit is finite.
std::vector<Candidate> Ranked(const float* logits, int vocab) {
  std::vector<Candidate> candidates;
  bool any_finite = false;
  for (int i = 0; i < vocab; ++i) {
    any_finite = any_finite || std::isfinite(logits[i]);
    const float logit = CandidateLogit(logits[i]);
    if (std::isfinite(logit)) candidates.push_back({logit, static_cast<uint32_t>(i), 0});
  }
  if (!any_finite) candidates.clear();
  std::sort(candidates.begin(), candidates.end(), RanksBefore);
  return candidates;
}

uint64_t Total(const std::vector<Candidate>& candidates) {
  uint64_t total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  return total;
}

// top_k, min_p and top_p, in this order; each only shortens the ranking.
void Restrict(const SamplingRow& row, std::vector<Candidate>& ranked) {
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < ranked.size()) ranked.resize(row.top_k);
  if (row.min_p > 0.0f) {
    const uint64_t least = MinPWeight(row.min_p);
    std::erase_if(ranked, [&](const Candidate& candidate) { return candidate.weight < least; });
  }
  if (row.top_p < 1.0f) {
    const uint64_t need = TopPWeight(row.top_p, Total(ranked));
    uint64_t sum = 0;
    size_t count = 0;
    while (sum < need) sum += ranked[count++].weight;
    ranked.resize(count);
  }
}

uint32_t SampleRow(const float* logits, int vocab, const SamplingRow& row) {
  std::vector<Candidate> candidates = Ranked(logits, vocab);
  if (candidates.empty()) return UINT32_MAX;
  if (row.temperature <= 0.0f) return candidates[0].id;
  const double highest = candidates[0].logit;
  const double inverse_temperature = 1.0 / static_cast<double>(row.temperature);
  for (Candidate& candidate : candidates) {
    candidate.weight = SampleWeight((candidate.logit - highest) * inverse_temperature);
  }
  Restrict(row, candidates);
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  uint64_t target = RandomBelow(RandomBits(row.seed, row.position), Total(candidates));
  for (const Candidate& candidate : candidates) {
    if (target < candidate.weight) return candidate.id;
    target -= candidate.weight;
  }
  return UINT32_MAX;  // not reached: the target is below the total
}

}  // namespace

void Sample(const SampleArgs& args) {
  for (int i = 0; i < args.num_rows; ++i) {
    args.tokens[i] = SampleRow(args.Row(i), args.vocab, args.rows[i]);
  }
}

}  // namespace hydrant::reference
