#include "engine/cache/turns.h"

#include <algorithm>

namespace hydrant {

std::vector<int32_t> KeepAfterAppend(const TokenRange& turn, const CachePlan& plan,
                                     const CacheSpec& spec, std::span<const TokenRange> ranges,
                                     std::span<const HeadSpan> spans) {
  if (!RaisesBudget(turn, plan)) return {};
  const std::vector<int32_t> now = BudgetAfterAppend(plan, spec, turn.end).compact_to;
  if (now.empty()) return {};
  int64_t last_end = plan.prompt.tokens;
  for (const TokenRange& range : ranges) {
    if (range.end <= turn.begin && RaisesBudget(range, plan)) last_end = range.end;
  }
  std::vector<int32_t> last = BudgetAfterAppend(plan, spec, last_end).compact_to;
  if (last_end == plan.prompt.tokens) {
    for (size_t layer = 0; layer < last.size(); ++layer)
      last[layer] = plan.LayerBudget(static_cast<int>(layer));
  }
  const int heads = plan.prompt.num_kv_heads;
  std::vector<int32_t> keep(now.size() * heads);
  bool any_leave = false;
  for (size_t head = 0; head < keep.size(); ++head) {
    const size_t layer = head / heads;
    const int32_t held = spans[head].EntriesAfter(turn.end);
    const int64_t more = now[layer] - std::min<int64_t>(last[layer], last_end);
    const int64_t wanted =
        std::max<int64_t>(spans[head].EntriesAfter(last_end) + more, plan.Protected());
    keep[head] = static_cast<int32_t>(std::clamp<int64_t>(wanted, 1, held));
    any_leave = any_leave || keep[head] < held;
  }
  return any_leave ? keep : std::vector<int32_t>();
}

int32_t ScoredEnd(const TokenRange& turn, const CachePlan& plan,
                  std::span<const TokenRange> ranges) {
  if (plan.rule.predicted) return turn.begin;
  int32_t end = plan.ScoresPrompt() ? static_cast<int32_t>(plan.prompt.tokens) : 0;
  for (const TokenRange& range : ranges) {
    if (range.end <= turn.begin) end = std::max(end, range.end);
  }
  return end;
}

CachePlan PlanAfterAppends(CachePlan plan, const CacheSpec& spec,
                           const std::vector<TokenRange>& ranges) {
  for (const TokenRange& range : ranges) {
    if (RaisesBudget(range, plan)) plan.cap = BudgetAfterAppend(plan, spec, range.end).cap;
  }
  return plan;
}

}  // namespace hydrant
