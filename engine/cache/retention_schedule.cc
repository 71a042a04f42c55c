#include "engine/cache/retention_schedule.h"

#include <algorithm>
#include <utility>

#include "engine/cache/cache_plan.h"
#include "kernels/kv_pages.h"
#include "kernels/ops/share_budget.h"

namespace hydrant {
namespace {

int32_t PromptTokens(const CachePlan& plan) { return static_cast<int32_t>(plan.prompt.tokens); }

// Pages of a layer with `entries` entries in each head.
int64_t PagesOfEqualHeads(const CachePlan& plan, int64_t entries, int block_size) {
  return PagesOf(entries, block_size) * plan.prompt.num_kv_heads;
}

// The sum of of_layer(layer), which is the same for layers with equal budgets.
template <typename OfLayer>
int64_t SumOverLayers(const CachePlan& plan, const OfLayer& of_layer) {
  if (plan.layer_budgets.empty()) return of_layer(0) * plan.prompt.num_layers;
  int64_t sum = 0;
  for (int layer = 0; layer < plan.prompt.num_layers; ++layer) sum += of_layer(layer);
  return sum;
}

template <typename OfLayer>
int32_t MaxOfLayers(const CachePlan& plan, const OfLayer& of_layer) {
  int32_t most = of_layer(0);
  for (int layer = 1; layer < static_cast<int>(plan.layer_budgets.size()); ++layer)
    most = std::max(most, of_layer(layer));
  return most;
}

std::vector<int32_t> KeepOfLayers(const CachePlan& plan, int32_t tokens) {
  std::vector<int32_t> keep(plan.prompt.num_layers);
  for (int layer = 0; layer < plan.prompt.num_layers; ++layer)
    keep[layer] = std::min(plan.LayerBudget(layer), tokens);
  return keep;
}

}  // namespace

HeadSpan RetentionSchedule::InitialSpan(const CachePlan& plan, int layer) const {
  const int32_t budget = plan.LayerBudget(layer), growth = plan.Growth();
  return {.dropped = std::max(0, PromptTokens(plan) - budget),
          .cap = growth == kNoCap ? kNoCap : budget + growth};
}

int64_t RetentionSchedule::InitialSpanEnd(const CachePlan& /*plan*/) const { return kAnyLength; }

int32_t RetentionSchedule::EntriesAfter(const CachePlan& plan, int64_t tokens) const {
  return MaxOfLayers(plan,
                     [&](int layer) { return InitialSpan(plan, layer).EntriesAfter(tokens); });
}

int32_t RetentionSchedule::MeanEntriesAfter(const CachePlan& plan, int64_t tokens) const {
  return EntriesAfter(plan, tokens);
}

int32_t RetentionSchedule::PeakEntries(const CachePlan& plan, int64_t tokens) const {
  return MaxOfLayers(plan, [&](int layer) { return InitialSpan(plan, layer).PeakEntries(tokens); });
}

int32_t RetentionSchedule::MaxKeep(const CachePlan& plan) const {
  return std::min(PromptTokens(plan), plan.LargestBudget());
}

int64_t RetentionSchedule::PeakPages(const CachePlan& plan, int64_t tokens, int block_size) const {
  return SumOverLayers(plan, [&](int layer) {
    return PagesOfEqualHeads(plan, InitialSpan(plan, layer).PeakEntries(tokens), block_size);
  });
}

bool RetentionSchedule::CompactsPrompt(const CachePlan& plan) const {
  const int32_t least = plan.layer_budgets.empty() ? plan.budget
                                                   : *std::min_element(plan.layer_budgets.begin(),
                                                                       plan.layer_budgets.end());
  return plan.prompt.tokens > least;
}

LayerCompaction RetentionSchedule::CompactLayer(const CachePlan& plan, int layer) const {
  return {.keep = std::min(PromptTokens(plan), plan.LayerBudget(layer))};
}

HeadSpan ReportedRetention::InitialSpan(const CachePlan& plan, int /*layer*/) const {
  return plan.Keeping(MaxKeep(plan));
}

int64_t ReportedRetention::InitialSpanEnd(const CachePlan& plan) const {
  return plan.prompt.tokens;
}

int32_t ReportedRetention::EntriesAfter(const CachePlan& plan, int64_t tokens) const {
  return plan.Keeping(MaxKeep(plan)).EntriesAfter(tokens);
}

// A lower bound if heads exceed their budget to reach min_retained_mass.
int32_t ReportedRetention::MeanEntriesAfter(const CachePlan& plan, int64_t tokens) const {
  return plan.Keeping(std::min(PromptTokens(plan), plan.LargestBudget())).EntriesAfter(tokens);
}

int32_t ReportedRetention::PeakEntries(const CachePlan& plan, int64_t tokens) const {
  return EntriesAfter(plan, tokens);
}

int64_t LayerSharedRetention::UnassignedPages(const CachePlan& plan, int block_size) const {
  const int64_t heads = plan.prompt.num_kv_heads;
  return SumOverLayers(plan, [&](int layer) {
    return MaxPagesTogether(plan.LayerBudget(layer) * heads, heads, block_size);
  });
}

int32_t LayerSharedRetention::MaxKeep(const CachePlan& plan) const {
  return plan.MaxShare(plan.prompt.tokens);
}

int64_t LayerSharedRetention::PeakPages(const CachePlan& plan, int64_t tokens,
                                        int block_size) const {
  const int64_t heads = plan.prompt.num_kv_heads;
  return SumOverLayers(plan, [&](int layer) {
    const int64_t average = plan.Keeping(plan.LayerBudget(layer)).PeakEntries(tokens);
    return MaxPagesTogether(average * heads, heads, block_size);
  });
}

LayerCompaction LayerSharedRetention::CompactLayer(const CachePlan& plan, int layer) const {
  return {.keep = plan.LayerBudget(layer), .shared = true};
}

int32_t CandidateRetention::MaxKeep(const CachePlan& plan) const {
  return std::min(PromptTokens(plan), entries_);
}

// With min_retained_mass, or a decision that changes the scores, heads can be compacted only after
// the last layer.
bool CandidateRetention::CompactsDuringPrefill(const CachePlan& plan) const {
  return plan.share.scope == BudgetScope::kModel && min_retained_mass_ == 0.0f &&
         plan.resolve_at != ResolveAt::kPrefilled;
}

// After every eighth of the layers, unless all entries so far may survive the final compaction.
bool CandidateRetention::CompactsAt(const CachePlan& plan, int layers) const {
  constexpr int kParts = 8;
  const int part = (plan.prompt.num_layers + kParts - 1) / kParts;
  if (!CompactsDuringPrefill(plan) || layers % part != 0 || layers >= plan.prompt.num_layers)
    return false;
  const int64_t base = plan.budget - plan.Protected();
  return int64_t{layers} * (MaxKeep(plan) - plan.Protected()) > base * plan.prompt.num_layers;
}

// Upper bound of the pages of the first `layers` layers after their compaction: the best entries of
// the whole model may lie in them, and every head keeps its guaranteed part.
int64_t CandidateRetention::MaxHeldAfterLayers(const CachePlan& plan, int layers,
                                               int block_size) const {
  const int64_t base = plan.budget - plan.Protected();
  const int64_t heads = int64_t{layers} * plan.prompt.num_kv_heads;
  const int64_t alike =
      (plan.share.floor_ppm * base + kPartsPerMillion - 1) / kPartsPerMillion + plan.Protected();
  const int64_t best = base * plan.prompt.num_layers * plan.prompt.num_kv_heads;
  return std::min(MaxPagesTogether(best + alike * heads, heads, block_size),
                  layers * PagesOfEqualHeads(plan, MaxKeep(plan), block_size));
}

int64_t CandidateRetention::UnassignedPages(const CachePlan& plan, int block_size) const {
  if (!CompactsDuringPrefill(plan)) return 0;
  const int64_t candidates = PagesOfEqualHeads(plan, MaxKeep(plan), block_size);
  int64_t behind = 0, most = 0;
  for (int layers = 1, since = 1; layers <= plan.prompt.num_layers; ++layers, ++since) {
    most = std::max(most, behind + since * candidates);
    if (!CompactsAt(plan, layers)) continue;
    behind = MaxHeldAfterLayers(plan, layers, block_size);
    since = 0;
  }
  return most;
}

int64_t CandidateRetention::PeakPages(const CachePlan& plan, int64_t tokens, int block_size) const {
  const int64_t heads = plan.prompt.num_kv_heads, layers = plan.prompt.num_layers;
  const auto average = [&](int layer) -> int64_t {
    const bool any_may_grow = min_retained_mass_ > 0.0f;
    return plan.Keeping(any_may_grow ? MaxKeep(plan) : plan.LayerBudget(layer)).PeakEntries(tokens);
  };
  const int64_t candidates = CompactsDuringPrefill(plan)
                                 ? UnassignedPages(plan, block_size)
                                 : layers * PagesOfEqualHeads(plan, MaxKeep(plan), block_size);
  int64_t then = SumOverLayers(
      plan, [&](int layer) { return MaxPagesTogether(average(layer) * heads, heads, block_size); });
  // Larger than the sum over the layers, which rounds down in each.
  if (plan.share.scope == BudgetScope::kModel) {
    const int64_t entries = SumOverLayers(plan, [&](int layer) { return average(layer) * heads; });
    then = MaxPagesTogether(entries, layers * heads, block_size);
  }
  return std::max(candidates, then);
}

LayerCompaction CandidateRetention::CompactLayer(const CachePlan& plan, int /*layer*/) const {
  return {.keep = MaxKeep(plan)};
}

std::optional<PageCompaction> CandidateRetention::PromptCompaction(const CachePlan& plan,
                                                                   int layers) const {
  if (layers < plan.prompt.num_layers) {
    if (!CompactsAt(plan, layers)) return std::nullopt;
    return PageCompaction{.keep = KeepOfLayers(plan, PromptTokens(plan)),
                          .share = plan.share,
                          .first_layers = layers,
                          .max_length = MaxKeep(plan)};
  }
  return PageCompaction{.keep = KeepOfLayers(plan, PromptTokens(plan)),
                        .share = plan.share,
                        .max_length = MaxKeep(plan),
                        .growth = plan.Growth(),
                        .min_retained_mass = min_retained_mass_,
                        .max_for_mass = max_for_mass_};
}

bool DelayedCompaction::HeadsDiffer(const CachePlan& plan) const {
  return plan.share.scope != BudgetScope::kHead;
}

int32_t DelayedCompaction::EntriesAfter(const CachePlan& plan, int64_t tokens) const {
  if (tokens <= tokens_) return static_cast<int32_t>(tokens);
  if (HeadsDiffer(plan)) return plan.MaxShare(tokens_);
  return static_cast<int32_t>(std::min<int64_t>(tokens, plan.cap));
}

int32_t DelayedCompaction::MeanEntriesAfter(const CachePlan& plan, int64_t tokens) const {
  return HeadsDiffer(plan) && tokens > tokens_ ? plan.cap : EntriesAfter(plan, tokens);
}

int32_t DelayedCompaction::PeakEntries(const CachePlan& plan, int64_t tokens) const {
  return std::max(EntriesAfter(plan, tokens),
                  EntriesAfter(plan, std::min<int64_t>(tokens, tokens_)));
}

int64_t DelayedCompaction::PeakPages(const CachePlan& plan, int64_t tokens, int block_size) const {
  const int64_t whole = std::min<int64_t>(tokens, tokens_);
  const int64_t now = tokens <= tokens_ ? tokens : std::min<int64_t>(tokens, plan.cap);
  return plan.prompt.num_layers * PagesOfEqualHeads(plan, std::max(whole, now), block_size);
}

LayerCompaction DelayedCompaction::CompactLayer(const CachePlan& plan, int /*layer*/) const {
  return {.keep = PromptTokens(plan)};
}

PageCompaction DelayedCompaction::CompactionAfter(const CachePlan& plan, int64_t tokens) const {
  return {.keep = std::vector<int32_t>(plan.prompt.num_layers, plan.cap),
          .share = plan.share,
          .max_length = static_cast<int32_t>(tokens),
          .growth = 0,
          .then = HeadSpan{.cap = EntriesAfter(plan, tokens + 1)}};
}

ShrunkRetention::ShrunkRetention(int64_t tokens, int32_t held, std::vector<int32_t> keep)
    : tokens_(tokens),
      held_(held),
      keep_(std::move(keep)),
      widest_(*std::max_element(keep_.begin(), keep_.end())) {}

HeadSpan ShrunkRetention::InitialSpan(const CachePlan& /*plan*/, int /*layer*/) const {
  return {.cap = widest_};
}

int32_t ShrunkRetention::MeanEntriesAfter(const CachePlan& plan, int64_t /*tokens*/) const {
  return plan.cap;
}

int64_t ShrunkRetention::PeakPages(const CachePlan& /*plan*/, int64_t /*tokens*/,
                                   int block_size) const {
  int64_t pages = 0;
  for (const int32_t entries : keep_) pages += PagesOf(entries, block_size);
  return pages;
}

PageCompaction ShrunkRetention::CompactionAfter(const CachePlan& plan, int64_t /*tokens*/) const {
  return {.keep = std::vector<int32_t>(plan.prompt.num_layers, plan.cap),
          .share = {},
          .keep_of_heads = keep_,
          .max_length = held_,
          .growth = 0,
          .then = HeadSpan{.cap = widest_}};
}

HeadSpan ChunkedEviction::InitialSpan(const CachePlan& plan, int layer) const {
  HeadSpan span = RetentionSchedule::InitialSpan(plan, layer);
  span.drop = drop_;
  return span;
}

bool ChunkedEviction::CompactsAfter(const CachePlan& plan, int64_t tokens) const {
  return InitialSpan(plan, 0).EntriesAfter(tokens) == plan.cap;
}

PageCompaction ChunkedEviction::CompactionAfter(const CachePlan& plan, int64_t /*tokens*/) const {
  return {.keep = std::vector<int32_t>(plan.prompt.num_layers, plan.cap - drop_),
          .share = {},
          .max_length = plan.cap};
}

}  // namespace hydrant
