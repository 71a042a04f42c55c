#include "tests/engine/run/equal_batch.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>

namespace hydrant {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

CachePlan PlanFor(const std::string& policy, int prompt_tokens) {
  CacheSpec spec;
  spec.policy = policy;
  if (policy != "full") spec.cache_ratio = 0.2;
  return *PlanCache(spec, {prompt_tokens});
}

int RowWidth(const EngineLimits& limits, const CachePlan& plan, int tokens) {
  return (plan.EntriesAfter(tokens) + limits.block_size - 1) / limits.block_size;
}

}  // namespace

int64_t EqualBatch::Pages(const EngineLimits& limits, const std::string& policy, int count,
                          int prompt_tokens, int new_tokens) {
  const CachePlan plan = PlanFor(policy, prompt_tokens);
  const int64_t pages = int64_t{RowWidth(limits, plan, prompt_tokens + new_tokens)} *
                        limits.num_layers * limits.num_kv_heads;
  // With 32 bytes of keys per entry; a slab with larger entries has more lines.
  constexpr int kLinesOfASlab = 8;
  return count * (pages + PagesOf(pages * plan.state_lines, kLinesOfASlab));
}

EqualBatch::EqualBatch(Engine* engine, const std::string& policy, int count, int prompt_tokens,
                       int new_tokens, bool shuffled)
    : engine_(engine), plan_(PlanFor(policy, prompt_tokens)) {
  const EngineLimits& limits = engine_->limits();
  blocks_.resize(limits.num_blocks);
  std::iota(blocks_.rbegin(), blocks_.rend(), 0);
  if (shuffled) std::shuffle(blocks_.begin(), blocks_.end(), std::mt19937(7));
  std::mt19937_64 rng(1);
  prompts_.assign(count, {});
  for (int slot = 0; slot < count; ++slot) {
    for (int i = 0; i < std::max(1, prompt_tokens); ++i)
      prompts_[slot].push_back(static_cast<TokenId>(rng() % engine_->config().vocab_size));
    AddSequence(slot, RowWidth(limits, plan_, prompt_tokens + new_tokens));
  }
}

void EqualBatch::AddSequence(int slot, int width) {
  const EngineLimits& limits = engine_->limits();
  const int64_t pages = int64_t{width} * limits.num_layers * limits.num_kv_heads;
  const int64_t first = slot * pages;
  batch_.Add(SlotSetup{slot, plan_});
  batch_.Add(TableRow{slot, first, width});
  // Heads of windowed layers have no state; they come last.
  const bool evicts = plan_.state_lines != kNoStateLines;
  const int64_t with_state = evicts ? pages / limits.num_layers * limits.BudgetLayers() : 0;
  const int64_t states_a_slab =
      evicts ? std::max<int64_t>(1, limits.slab.StatesIn(plan_.state_lines)) : 1;
  int32_t slab = 0;
  for (int64_t i = 0; i < pages; ++i) {
    PageIds page = {.data = TakeBlock(), .state = kNoState};
    if (i < with_state) {
      if (i % states_a_slab == 0) slab = TakeBlock();
      page.state = limits.slab.StatesOf(slab, plan_.state_lines).At(i % states_a_slab);
    }
    batch_.AddTableWrite({first + i, page});
  }
}

int32_t EqualBatch::TakeBlock() {
  if (blocks_.empty()) {
    std::fprintf(stderr, "the pool of %d pages is too small\n", engine_->limits().num_blocks);
    std::exit(1);
  }
  const int32_t block = blocks_.back();
  blocks_.pop_back();
  return block;
}

double EqualBatch::Prefill(int prompt_tokens) {
  const double start = Now();
  for (size_t slot = 0; slot < prompts_.size(); ++slot) {
    batch_.runs.push_back(
        {.slot = static_cast<int>(slot),
         .commit = Commit::kCompress,
         .in_prompt = true,
         .tokens = prompts_[slot],
         .part = {.layer_end = engine_->limits().num_layers, .token_end = prompt_tokens}});
    batch_.AddSampled(SamplingRow{.temperature = 0.0f, .position = prompt_tokens});
    Execute();
  }
  return Now() - start;
}

double EqualBatch::Decode(int first_position, int steps) {
  const double start = Now();
  for (int step = 0; step < steps; ++step) {
    std::vector<TokenId> tokens(prompts_.size());
    for (size_t slot = 0; slot < prompts_.size(); ++slot) {
      const int position = first_position + step;
      tokens[slot] = (prompts_[slot][0] + step) % engine_->config().vocab_size;
      batch_.runs.push_back({.slot = static_cast<int>(slot),
                             .tokens = std::span(tokens).subspan(slot, 1),
                             .first_position = position});
      batch_.AddSampled(SamplingRow{.temperature = 0.0f, .position = position + 1});
    }
    Execute();
  }
  return Now() - start;
}

void EqualBatch::Execute() {
  const absl::Status status = engine_->Execute(batch_, &result_);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    std::exit(1);
  }
  batch_ = {};
}

}  // namespace hydrant
