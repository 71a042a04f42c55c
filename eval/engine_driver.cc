#include "eval/engine_driver.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <utility>

#include "engine/cache/policies/self_tuning.h"
#include "scheduler/check.h"

namespace hydrant::eval {

EngineDriver::EngineDriver(Engine* engine, uint64_t seed)
    : engine_(engine), free_blocks_(engine->limits().num_blocks) {
  std::iota(free_blocks_.begin(), free_blocks_.end(), 0);
  std::shuffle(free_blocks_.begin(), free_blocks_.end(), std::mt19937_64(seed));
}

int EngineDriver::Add(std::vector<TokenId> prompt, const CachePlan& plan, int new_tokens,
                      const SamplingRow& sampling) {
  const int n = static_cast<int>(prompt.size());
  const auto kept = static_cast<int>(plan.prompt.tokens);  // the rest is a probe
  HYDRANT_CHECK(kept == n || (kept < n && plan.ReadsProbe()));
  HYDRANT_CHECK(next_arena_token_ + n <= engine_->limits().prefill_arena_tokens);
  const int slot = Place(plan, new_tokens);
  sequences_[slot].prompt = std::move(prompt);
  sequences_[slot].sampling = sampling;
  sequences_[slot].arena_begin = next_arena_token_;
  next_arena_token_ += n;
  return slot;
}

int EngineDriver::Listen(int slot, const CachePlan& plan, int new_tokens) {
  HYDRANT_CHECK(plan.prompt.tokens == sequences_[slot].plan.prompt.tokens);
  const int listener = Place(plan, new_tokens);
  sequences_[listener].sampling = sequences_[slot].sampling;
  sequences_[slot].listeners.push_back(listener);
  return listener;
}

// A slot, and pages for all that its plan may hold.
int EngineDriver::Place(const CachePlan& plan, int new_tokens) {
  const EngineLimits& limits = engine_->limits();
  const int slot = static_cast<int>(sequences_.size());
  const int32_t entries = plan.MostUntil(plan.prompt.tokens + new_tokens);
  const int width = (entries + limits.block_size - 1) / limits.block_size;
  const int64_t count = int64_t{width} * limits.num_layers * limits.num_kv_heads;
  HYDRANT_CHECK(slot < limits.max_num_seqs);
  HYDRANT_CHECK(count <= static_cast<int64_t>(free_blocks_.size()));
  HYDRANT_CHECK(next_table_entry_ + count <= limits.table_entries);
  batch_.setups.push_back({slot, plan});
  batch_.rows.push_back({slot, next_table_entry_, width});
  for (int64_t i = 0; i < count; ++i) {
    batch_.updates.push_back({next_table_entry_ + i, free_blocks_.back()});
    free_blocks_.pop_back();
  }
  sequences_.push_back({.position = static_cast<int>(plan.prompt.tokens),
                        .plan = plan,
                        .row_begin = next_table_entry_,
                        .row_width = width});
  next_table_entry_ += count;
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
                            token_begin, token_end, sampling, sequence.prompt, sequence.listeners});
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
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  HYDRANT_CHECK(status.ok());
  logits_.clear();
  for (Sequence& sequence : sequences_) sequence.logits_row = -1;
  const Batch ran = std::exchange(batch_, {});
  int row = 0;
  for (size_t i = 0; i < ran.decode.size(); ++i) {
    sequences_[ran.decode[i].slot].newest = result.decode_tokens[i];
    sequences_[ran.decode[i].slot].logits_row = row++;
  }
  for (size_t i = 0; i < ran.shrinks.size(); ++i) {
    const std::vector<int32_t>& entries = result.shrink_reports[i].entries;
    if (!entries.empty()) sequences_[ran.shrinks[i].slot].entries = entries;
  }
  size_t report = 0;
  for (size_t i = 0; i < ran.prefill.size(); ++i) {
    const PrefillSlice& slice = ran.prefill[i];
    std::vector<int> slots = {slice.slot};
    slots.insert(slots.end(), slice.listeners.begin(), slice.listeners.end());
    const bool ends = slice.EndsPrompt(engine_->limits().num_layers);
    for (const int slot : slots) {
      const CacheReport& of_slot = result.prompt_reports[report++];
      if (!ends) continue;
      sequences_[slot].newest = result.prefill_tokens[i];
      sequences_[slot].logits_row = row;
      TakeReport(slot, of_slot);
    }
    if (ends) ++row;
  }
}

// A prompt has become a cache.
void EngineDriver::TakeReport(int slot, const CacheReport& report) {
  Sequence& sequence = sequences_[slot];
  sequence.entries = report.entries;
  sequence.retained_mass = report.retained_mass;
  sequence.trial_masses = report.trial_masses;
  if (sequence.plan.tuning.IsOpen()) {
    sequence.plan = Tuned(sequence.plan, report.trial_masses);
    batch_.retunes.push_back({slot, sequence.plan});
  }
  if (!report.entries.empty() && !sequence.plan.IsDeferred()) GivePagesPast(report.entries, slot);
}

// Dealing pages leaves nothing of use in a row past what its head was dealt.
void EngineDriver::GivePagesPast(const std::vector<int32_t>& entries, int slot) {
  const Sequence& sequence = sequences_[slot];
  const int block = engine_->limits().block_size;
  for (size_t head = 0; head < entries.size(); ++head) {
    for (int page = (entries[head] + block - 1) / block; page < sequence.row_width; ++page) {
      HYDRANT_CHECK(!free_blocks_.empty());
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

std::span<const float> EngineDriver::LogitsRow(int slot) {
  if (logits_.empty()) logits_ = engine_->ReadLogits();
  const size_t vocab = engine_->config().vocab_size;
  return {logits_.data() + sequences_[slot].logits_row * vocab, vocab};
}

}  // namespace hydrant::eval
