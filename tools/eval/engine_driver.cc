#include "tools/eval/engine_driver.h"

#include <cstdio>
#include <string>
#include <utility>

#include "engine/run/engine_probe.h"
#include "kernels/check.h"

namespace hydrant::eval {

EngineDriver::EngineDriver(Engine* engine, uint64_t seed)
    : engine_(engine), space_(engine->limits(), seed) {}

EngineDriver::~EngineDriver() {
  for (Sequence& sequence : sequences_) space_.Release(&sequence.space);
}

int EngineDriver::Add(std::vector<TokenId> prompt, const CachePlan& plan, int new_tokens,
                      const SampledRow& sampling, bool prompt_logprobs) {
  const auto n = static_cast<int64_t>(prompt.size());
  // Tokens beyond the plan's prompt are a probe.
  HYDRANT_CHECK(plan.prompt.tokens == n || (plan.prompt.tokens < n && plan.ReadsProbe()));
  const int slot = Open(plan, n, new_tokens);
  sequences_[slot].prompt = std::move(prompt);
  sequences_[slot].sampling = sampling;
  sequences_[slot].prompt_logprobs = prompt_logprobs;
  return slot;
}

int EngineDriver::AddSharing(int slot, const CachePlan& plan, int new_tokens) {
  HYDRANT_CHECK(plan.prompt.tokens == sequences_[slot].plan.prompt.tokens);
  const int sharing = Open(plan, 0, new_tokens);
  sequences_[sharing].sampling = sequences_[slot].sampling;
  sequences_[slot].sharing_slots.push_back(sharing);
  return sharing;
}

int EngineDriver::Open(const CachePlan& plan, int64_t arena_tokens, int new_tokens) {
  Sequence sequence = {.position = static_cast<int>(plan.prompt.tokens), .plan = plan};
  const CacheSpace::OpenArgs args = {.plan = &plan,
                                     .prompt_tokens = arena_tokens,
                                     .tokens = plan.prompt.tokens,
                                     .final_tokens = plan.prompt.tokens + new_tokens};
  HYDRANT_CHECK(space_.TryOpen(args, &sequence.space, &batch_));
  HYDRANT_CHECK(sequence.space.slot == static_cast<int>(sequences_.size()));
  sequences_.push_back(std::move(sequence));
  return sequences_.back().space.slot;
}

void EngineDriver::PrefillAll(int slot) {
  PrefillPart(slot, 0, engine_->limits().num_layers, 0,
              static_cast<int>(sequences_[slot].prompt.size()));
}

void EngineDriver::PrefillPart(int slot, int layer_begin, int layer_end, int token_begin,
                               int token_end) {
  const Sequence& sequence = sequences_[slot];
  SampledRow sampling = sequence.sampling;
  sampling.position = static_cast<int32_t>(sequence.plan.prompt.tokens);
  batch_.prefill.push_back({.slot = slot,
                            .prompt = sequence.prompt,
                            .arena_begin = sequence.space.arena_begin,
                            .layer_begin = layer_begin,
                            .layer_end = layer_end,
                            .token_begin = token_begin,
                            .token_end = token_end,
                            .sampling = sampling,
                            .whole_prompt = sequence.prompt,
                            .sharing_slots = sequence.sharing_slots,
                            .prompt_logprobs = sequence.prompt_logprobs});
}

void EngineDriver::Decode(int slot) {
  DecodeToken(slot, sequences_[slot].newest, sequences_[slot].position);
}

void EngineDriver::DecodeToken(int slot, TokenId token, int position) {
  Sequence& sequence = sequences_[slot];
  SampledRow sampling = sequence.sampling;
  sampling.position = position + 1;
  if (sequence.plan.CutsAfter(position)) {
    const PageCut cut = sequence.plan.life->CutAfter(sequence.plan, position);
    auto& of_slot = batch_.Add(SlotCut{slot, position});
    if (!cut.keep_of_heads.empty()) {
      space_.Cap(cut.keep_of_heads, &sequence.space);
      of_slot.plan = sequence.plan;
    } else if (cut.then.has_value()) {
      space_.Cut(*cut.then, position, &sequence.space);
    }
  }
  HYDRANT_CHECK(space_.TryGrow(position + 1, &sequence.space, &batch_));
  batch_.decode.push_back({slot, token, position, sampling});
  sequence.position = position + 1;
}

void EngineDriver::Append(int slot, std::vector<TokenId> tokens, std::vector<int32_t> keep) {
  BeginRun(slot, std::move(tokens), std::move(keep));
  AppendPart(slot, 0, engine_->limits().num_layers, 0,
             static_cast<int>(sequences_[slot].run.size()));
}

void EngineDriver::BeginRun(int slot, std::vector<TokenId> tokens, std::vector<int32_t> keep) {
  Sequence& sequence = sequences_[slot];
  sequence.run = std::move(tokens);
  sequence.keep = std::move(keep);
  sequence.position += static_cast<int>(sequence.run.size());
  HYDRANT_CHECK(space_.TryGrow(sequence.position, &sequence.space, &batch_));
  space_.CloseArena(&sequence.space);
  HYDRANT_CHECK(space_.TryOpenArena(static_cast<int64_t>(sequence.run.size()), &sequence.space));
}

void EngineDriver::AppendPart(int slot, int layer_begin, int layer_end, int token_begin,
                              int token_end) {
  Sequence& sequence = sequences_[slot];
  SampledRow sampling = sequence.sampling;
  sampling.position = sequence.position;
  batch_.prefill.push_back({.slot = slot,
                            .prompt = sequence.run,
                            .arena_begin = sequence.space.arena_begin,
                            .layer_begin = layer_begin,
                            .layer_end = layer_end,
                            .token_begin = token_begin,
                            .token_end = token_end,
                            .sampling = sampling,
                            .num_seen = sequence.position - static_cast<int>(sequence.run.size()),
                            .keep = sequence.keep});
  if (batch_.prefill.back().EndsPrompt(engine_->limits().num_layers) && !sequence.keep.empty())
    space_.CutTo(sequence.keep, sequence.position, &sequence.space);
}

void EngineDriver::Shrink(int slot, int32_t mean) {
  Sequence& sequence = sequences_[slot];
  const int budget_heads = engine_->limits().BudgetHeads();
  std::vector<int32_t> held(budget_heads);
  for (int head = 0; head < budget_heads; ++head)
    held[head] = sequence.space.spans[head].EntriesAfter(sequence.position);
  sequence.plan = hydrant::Shrink(sequence.plan, sequence.position, held, mean);
}

void EngineDriver::Step() {
  StepResult& result = result_;
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
  size_t next_cut = 0;
  ran.ForEach<SlotCut>([&](const SlotCut& cut) {
    const std::vector<int32_t>& entries = result.cut_reports[next_cut++].entries;
    if (entries.empty()) return;
    Sequence& sequence = sequences_[cut.slot];
    sequence.entries = entries;
    space_.Cap(entries, &sequence.space);
  });
  size_t report = 0;
  for (size_t i = 0; i < ran.prefill.size(); ++i) {
    const PrefillSlice& slice = ran.prefill[i];
    const bool ends = slice.EndsPrompt(engine_->limits().num_layers);
    for (const int slot : slice.Slots()) {
      const CacheReport& of_slot = result.prompt_reports[report++];
      if (!ends) continue;
      sequences_[slot].newest = result.prefill_tokens[i];
      sequences_[slot].logits_row = row;
      if (!slice.Appends()) TakeReport(slot, of_slot);
    }
    if (ends) ++row;
  }
  for (Sequence& sequence : sequences_) space_.PackState(&sequence.space, &batch_);
}

// A prompt was compressed into a cache.
void EngineDriver::TakeReport(int slot, const CacheReport& report) {
  Sequence& sequence = sequences_[slot];
  sequence.entries = report.entries;
  sequence.retained_mass = report.retained_mass;
  sequence.observations = report.observations;
  if (sequence.plan.open == OpenUntil::kPromptRead) {
    sequence.plan = Decide(sequence.plan, {.fits = {}, .of_prompt = report.observations});
    batch_.Add(SlotDecision{slot, sequence.plan});
  }
  if (!sequence.space.lengths_known)
    space_.SetKept(sequence.plan, report.entries, report.pages, &sequence.space);
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
  if (logits_.empty()) logits_ = EngineProbe(*engine_).ReadLogits();
  const size_t vocab = engine_->config().vocab_size;
  return {logits_.data() + sequences_[slot].logits_row * vocab, vocab};
}

}  // namespace hydrant::eval
