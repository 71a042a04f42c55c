#include "tests/engine/driver.h"

#include <algorithm>
#include <numeric>

#include "engine/cache/self_tuning.h"
#include "gtest/gtest.h"

namespace hydrant {

EngineDriver::EngineDriver(Engine* engine, uint64_t seed)
    : engine_(engine), free_blocks_(engine->limits().num_blocks) {
  std::iota(free_blocks_.begin(), free_blocks_.end(), 0);
  std::shuffle(free_blocks_.begin(), free_blocks_.end(), std::mt19937_64(seed));
}

int EngineDriver::Add(std::vector<TokenId> prompt, const CachePlan& plan, int new_tokens,
                      const SamplingRow& sampling) {
  const EngineLimits& limits = engine_->limits();
  const int slot = static_cast<int>(sequences_.size());
  const int n = static_cast<int>(prompt.size());
  const auto kept = static_cast<int>(plan.prompt.tokens);  // the rest is a probe
  const int entries = plan.MostUntil(kept + new_tokens);
  const int width = (entries + limits.block_size - 1) / limits.block_size;
  const int64_t count = int64_t{width} * limits.num_layers * limits.num_kv_heads;
  EXPECT_LT(slot, limits.max_num_seqs);
  EXPECT_TRUE(kept == n || (kept < n && plan.prompt_score == PromptScore::kProbe))
      << "the plan is another prompt's";
  EXPECT_LE(count, static_cast<int64_t>(free_blocks_.size()));
  EXPECT_LE(next_table_entry_ + count, limits.table_entries);
  EXPECT_LE(next_arena_token_ + n, limits.prefill_arena_tokens);
  batch_.setups.push_back({slot, plan});
  batch_.rows.push_back({slot, next_table_entry_, width});
  for (int64_t i = 0; i < count; ++i) {
    batch_.updates.push_back({next_table_entry_ + i, free_blocks_.back()});
    free_blocks_.pop_back();
  }
  sequences_.push_back({.prompt = std::move(prompt),
                        .sampling = sampling,
                        .arena_begin = next_arena_token_,
                        .position = kept,
                        .plan = plan,
                        .row_begin = next_table_entry_,
                        .row_width = width});
  next_table_entry_ += count;
  next_arena_token_ += n;
  return slot;
}

void EngineDriver::PrefillAll(int slot) {
  PrefillPart(slot, 0, engine_->limits().num_layers, 0,
              static_cast<int>(sequences_[slot].prompt.size()));
}

void EngineDriver::PrefillPart(int slot, int layer_begin, int layer_end, int token_begin,
                               int token_end) {
  const Sequence& sequence = sequences_[slot];
  SamplingRow sampling = sequence.sampling;
  sampling.position = static_cast<int32_t>(sequence.plan.prompt.tokens);
  batch_.prefill.push_back({slot, sequence.prompt, sequence.arena_begin, layer_begin, layer_end,
                            token_begin, token_end, sampling, sequence.prompt});
}

void EngineDriver::Decode(int slot) {
  DecodeToken(slot, sequences_[slot].newest, sequences_[slot].position);
}

void EngineDriver::DecodeToken(int slot, TokenId token, int position) {
  SamplingRow sampling = sequences_[slot].sampling;
  sampling.position = position + 1;
  batch_.decode.push_back({slot, token, position, sampling});
  sequences_[slot].position = position + 1;
  if (sequences_[slot].plan.ShrinksAfter(position)) batch_.shrinks.push_back({slot, position});
}

void EngineDriver::Step() {
  StepResult result;
  const absl::Status status = engine_->Execute(batch_, &result);
  ASSERT_TRUE(status.ok()) << status;
  for (Sequence& sequence : sequences_) sequence.logits_row = -1;
  int row = 0;
  for (size_t i = 0; i < batch_.decode.size(); ++i) {
    sequences_[batch_.decode[i].slot].newest = result.decode_tokens[i];
    sequences_[batch_.decode[i].slot].logits_row = row++;
  }
  for (size_t i = 0; i < batch_.prefill.size(); ++i) {
    if (!batch_.prefill[i].EndsPrompt(engine_->limits().num_layers)) continue;
    Sequence& sequence = sequences_[batch_.prefill[i].slot];
    sequence.newest = result.prefill_tokens[i];
    sequence.logits_row = row++;
    sequence.entries = result.prompt_reports[i].entries;
    sequence.retained_mass = result.prompt_reports[i].retained_mass;
    sequence.trial_masses = result.prompt_reports[i].trial_masses;
  }
  for (size_t i = 0; i < batch_.shrinks.size(); ++i) {
    const std::vector<int32_t>& entries = result.shrink_reports[i].entries;
    if (!entries.empty()) sequences_[batch_.shrinks[i].slot].entries = entries;
  }
  const std::vector<PrefillSlice> slices = std::move(batch_.prefill);
  batch_ = {};
  for (const PrefillSlice& slice : slices) {
    Sequence& sequence = sequences_[slice.slot];
    if (!slice.EndsPrompt(engine_->limits().num_layers)) continue;
    if (sequence.plan.tuning.IsOpen()) {
      sequence.plan = Tuned(sequence.plan, sequence.trial_masses);
      batch_.retunes.push_back({slice.slot, sequence.plan});
    }
    if (sequence.entries.empty()) continue;
    if (!sequence.plan.IsDeferred()) GivePagesPast(sequence.entries, slice.slot);
  }
}

// Dealing pages leaves nothing of use in a row past what its head was dealt.
void EngineDriver::GivePagesPast(const std::vector<int32_t>& entries, int slot) {
  const Sequence& sequence = sequences_[slot];
  const int block = engine_->limits().block_size;
  for (size_t head = 0; head < entries.size(); ++head) {
    for (int page = (entries[head] + block - 1) / block; page < sequence.row_width; ++page) {
      ASSERT_FALSE(free_blocks_.empty());
      const auto row = sequence.row_begin + static_cast<int64_t>(head) * sequence.row_width;
      batch_.updates.push_back({row + page, free_blocks_.back()});
      free_blocks_.pop_back();
    }
  }
}

std::vector<TokenId> EngineDriver::Generate(int slot, int count) {
  std::vector<TokenId> tokens;
  PrefillAll(slot);
  Step();
  tokens.push_back(last_token(slot));
  while (static_cast<int>(tokens.size()) < count) {
    Decode(slot);
    Step();
    tokens.push_back(last_token(slot));
  }
  return tokens;
}

std::vector<float> EngineDriver::Logits(int slot) const {
  const std::vector<float> all = engine_->ReadLogits();
  const size_t vocab = engine_->config().vocab_size;
  const size_t row = sequences_[slot].logits_row;
  return {all.begin() + row * vocab, all.begin() + (row + 1) * vocab};
}

}  // namespace hydrant
