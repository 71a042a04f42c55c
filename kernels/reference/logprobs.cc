#include "kernels/ops/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/ops/sample_weight.h"
#include "kernels/reference/ops.h"

namespace hydrant::reference {
namespace {

TokenLogprobs LogprobsOfRow(const float* logits, int vocab, uint32_t token) {
  TokenLogprobs result = {.token = token};
  result.top_tokens.fill(UINT32_MAX);
  result.top_logprobs.fill(-std::numeric_limits<float>::infinity());
  result.logprob = std::numeric_limits<float>::quiet_NaN();
  std::vector<uint32_t> order(vocab);
  std::iota(order.begin(), order.end(), 0u);
  const auto before = [logits](uint32_t a, uint32_t b) {
    const float x = CandidateLogit(logits[a]), y = CandidateLogit(logits[b]);
    return x != y ? x > y : a < b;
  };
  std::sort(order.begin(), order.end(), before);
  const double highest = CandidateLogit(logits[order[0]]);
  if (std::isinf(highest)) return result;
  double sum = 0.0;
  for (int i = 0; i < vocab; ++i) sum += std::exp(CandidateLogit(logits[i]) - highest);
  const auto logprob = [&](uint32_t id) {
    return static_cast<float>(CandidateLogit(logits[id]) - highest - std::log(sum));
  };
  for (int i = 0; i < std::min(kTopLogprobs, vocab); ++i) {
    result.top_tokens[i] = order[i];
    result.top_logprobs[i] = logprob(order[i]);
  }
  if (token >= static_cast<uint32_t>(vocab)) return result;
  result.logprob = logprob(token);
  result.rank =
      static_cast<int32_t>(std::find(order.begin(), order.end(), token) - order.begin()) + 1;
  return result;
}

}  // namespace

void Logprobs(const LogprobsArgs& args) {
  for (int row = 0; row < args.num_rows; ++row)
    args.out[row] = LogprobsOfRow(args.Row(row), args.vocab, args.tokens[row]);
}

}  // namespace hydrant::reference
