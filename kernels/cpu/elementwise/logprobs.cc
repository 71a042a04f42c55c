#include "kernels/cpu/elementwise/logprobs.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/ops/sample_weight.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/logprobs.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hydrant::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The log of the sum of exp(logit - highest). Terms are summed in fp32 over short runs; the runs'
// sums are added in double.
double LogOfSum(const float* logits, size_t n, float highest) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  constexpr size_t kRun = 64;  // vectors
  const auto highest_v = hn::Set(d, highest), largest = hn::Set(d, FLT_MAX);
  const auto none = hn::Zero(d);
  double total = 0.0;
  size_t i = 0;
  while (i + lanes <= n) {
    auto sum = none;
    for (size_t run = 0; run < kRun && i + lanes <= n; ++run, i += lanes) {
      const auto value = hn::LoadU(d, logits + i);
      const auto x = hn::Sub(hn::Min(value, largest), highest_v);
      sum = hn::Add(sum, hn::IfThenElse(hn::IsNaN(value), none, hn::Exp(d, x)));
    }
    total += hn::GetLane(hn::SumOfLanes(d, sum));
  }
  for (; i < n; ++i) total += std::exp(CandidateLogit(logits[i]) - highest);
  return std::log(total);
}

// Number of logits in [begin, end) above `least`, or equal to it where ties count.
size_t CountAbove(const float* logits, size_t begin, size_t end, float least, bool ties) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto least_v = hn::Set(d, least), largest = hn::Set(d, FLT_MAX);
  size_t count = 0, i = begin;
  for (; i + lanes <= end; i += lanes) {
    auto value = hn::LoadU(d, logits + i);
    value = hn::IfThenElse(hn::Gt(value, largest), largest, value);  // Min() would treat it as NaN
    count += hn::CountTrue(d, ties ? hn::Ge(value, least_v) : hn::Gt(value, least_v));
  }
  for (; i < end; ++i) {
    const float value = CandidateLogit(logits[i]);
    if (value > least || (ties && value == least)) ++count;
  }
  return count;
}

// The first index from `begin` with a logit above `least`, or n. NaN is never above.
size_t FindAbove(const float* logits, size_t begin, size_t n, float least) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto least_v = hn::Set(d, least);
  size_t i = begin;
  for (; i + lanes <= n; i += lanes) {
    const intptr_t found = hn::FindFirstTrue(d, hn::Gt(hn::LoadU(d, logits + i), least_v));
    if (found >= 0) return i + static_cast<size_t>(found);
  }
  for (; i < n; ++i) {
    if (logits[i] > least) return i;
  }
  return n;
}

}  // namespace HWY_NAMESPACE
}  // namespace hydrant::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hydrant::cpu {
namespace {

HWY_EXPORT(LogOfSum);
HWY_EXPORT(CountAbove);
HWY_EXPORT(FindAbove);

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Fills the top ranks with ids and logits. Ids come in ascending order, so the later of two
// equal logits ranks lower.
void FindTop(const float* logits, size_t vocab, TokenLogprobs* out) {
  out->top_tokens.fill(UINT32_MAX);
  out->top_logprobs.fill(kNever);
  size_t i = 0;
  while ((i = HWY_DYNAMIC_DISPATCH(FindAbove)(logits, i, vocab, out->top_logprobs.back())) <
         vocab) {
    const float logit = CandidateLogit(logits[i]);
    // FindAbove treats +infinity as greater than the FLT_MAX that it counts as here.
    size_t place = kTopLogprobs;
    while (place > 0 && out->top_logprobs[place - 1] < logit) --place;
    for (size_t last = kTopLogprobs; last-- > place + 1;) {
      out->top_logprobs[last] = out->top_logprobs[last - 1];
      out->top_tokens[last] = out->top_tokens[last - 1];
    }
    if (place < kTopLogprobs) {
      out->top_logprobs[place] = logit;
      out->top_tokens[place] = static_cast<uint32_t>(i);
    }
    ++i;
  }
  // Tokens with logit -infinity also get ranks.
  size_t known = std::ranges::find(out->top_tokens, UINT32_MAX) - out->top_tokens.begin();
  for (size_t id = 0; id < vocab && known < kTopLogprobs; ++id) {
    if (CandidateLogit(logits[id]) == kNever) out->top_tokens[known++] = static_cast<uint32_t>(id);
  }
}

void LogprobsOfRow(const float* logits, size_t vocab, uint32_t token, TokenLogprobs* out) {
  *out = {.token = token, .logprob = std::numeric_limits<float>::quiet_NaN()};
  FindTop(logits, vocab, out);
  const float highest = out->top_logprobs.front();
  if (highest == kNever) {
    out->top_tokens.fill(UINT32_MAX);
    return;
  }
  const double log_sum = HWY_DYNAMIC_DISPATCH(LogOfSum)(logits, vocab, highest);
  const auto logprob = [&](float logit) {
    return static_cast<float>(double{logit} - highest - log_sum);
  };
  for (float& logit : out->top_logprobs) logit = logprob(logit);
  if (token >= vocab) return;
  const float logit = CandidateLogit(logits[token]);
  out->logprob = logprob(logit);
  const auto above = HWY_DYNAMIC_DISPATCH(CountAbove);
  // NaN counts as -infinity.
  const size_t ids_before = logit == kNever ? token : above(logits, 0, token, logit, true);
  out->rank = static_cast<int32_t>(ids_before + above(logits, token, vocab, logit, false)) + 1;
}

}  // namespace

void Logprobs(const LogprobsArgs& args, ThreadPool& threads) {
  threads.ParallelFor(args.num_rows, [&](int row, int /*thread*/) {
    LogprobsOfRow(args.Row(row), args.vocab, args.tokens[row], args.out + row);
  });
}

}  // namespace hydrant::cpu
#endif  // HWY_ONCE
