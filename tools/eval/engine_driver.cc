#include "tools/eval/engine_driver.h"

#include <cstdio>
#include <string>
#include <utility>

#include "engine/cache/policy_registry.h"
#include "engine/run/engine_probe.h"
#include "kernels/check.h"

namespace hydrant::eval {

EngineDriver::EngineDriver(Engine* engine, uint64_t seed)
    : engine_(engine), kv_cache_(engine->limits(), seed) {}

EngineDriver::~EngineDriver() {
  for (Sequence& sequence : sequences_) kv_cache_.Release(&sequence.blocks);
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
  const KvCacheManager::OpenArgs args = {.plan = &plan,
                                         .prompt_tokens = arena_tokens,
                                         .tokens = plan.prompt.tokens,
                                         .final_tokens = plan.prompt.tokens + new_tokens};
  HYDRANT_CHECK(kv_cache_.TryOpen(args, &sequence.blocks, &batch_));
  return Put(std::move(sequence));
}

int EngineDriver::Put(Sequence sequence) {
  const int slot = sequence.blocks.slot;
  if (static_cast<size_t>(slot) >= sequences_.size()) sequences_.resize(slot + 1);
  sequences_[slot] = std::move(sequence);
  return slot;
}

int EngineDriver::Fork(int slot, int new_tokens) {
  Sequence& from = sequences_[slot];
  Sequence sequence = {.sampling = from.sampling,
                       .position = from.position,
                       .newest = from.newest,
                       .logits_row = from.logits_row,
                       .plan = from.plan,
                       .entries = from.entries,
                       .turns = from.turns};
  const KvCacheManager::OpenArgs args = {
      .plan = &from.plan, .tokens = from.position, .final_tokens = from.position + new_tokens};
  HYDRANT_CHECK(kv_cache_.TryFork(args, &from.blocks, &sequence.blocks, &batch_));
  return Put(std::move(sequence));
}

void EngineDriver::Release(int slot) {
  kv_cache_.Release(&sequences_[slot].blocks);
  sequences_[slot] = {};
}

void EngineDriver::PrefillAll(int slot) {
  PrefillPart(slot, 0, engine_->limits().num_layers, 0,
              static_cast<int>(sequences_[slot].prompt.size()));
}

void EngineDriver::PrefillPart(int slot, int layer_begin, int layer_end, int token_begin,
                               int token_end) {
  const Sequence& sequence = sequences_[slot];
  const TokenRun run = {.slot = slot,
                        .commit = Commit::kCompress,
                        .in_prompt = true,
                        .tokens = sequence.prompt,
                        .part = {layer_begin, layer_end, token_begin, token_end},
                        .arena_begin = sequence.blocks.arena_begin,
                        .prompt = {.whole_prompt = sequence.prompt,
                                   .penalties = sequence.sampling.penalties.Any(),
                                   .sharing_slots = sequence.sharing_slots,
                                   .logprobs = sequence.prompt_logprobs}};
  SampledRow sampling = sequence.sampling;
  sampling.position = static_cast<int32_t>(sequence.plan.prompt.tokens);
  AddRun(run, sampling);
}

// Adds a part of a run in the arena; where it ends the run, a token is sampled.
void EngineDriver::AddRun(const TokenRun& run, const SampledRow& sampling) {
  batch_.runs.push_back(run);
  if (run.Ends(engine_->limits().num_layers)) batch_.AddSampled(sampling);
}

void EngineDriver::Decode(int slot) {
  DecodeToken(slot, sequences_[slot].newest, sequences_[slot].position);
}

void EngineDriver::DecodeToken(int slot, TokenId token, int position) {
  Sequence& sequence = sequences_[slot];
  SampledRow sampling = sequence.sampling;
  sampling.position = position + 1;
  Compact(position, &sequence);
  sequence.decoded = token;
  decoded_.push_back({{.slot = slot, .first_position = position}, sampling});
  sequence.position = position + 1;
}

// Compacts if it is due, and takes pages for the next token. A compaction in place follows the copies
// of shared pages that it changes.
void EngineDriver::Compact(int position, Sequence* sequence) {
  SequenceBlocks* const blocks = &sequence->blocks;
  PageCompaction compaction;
  const bool due = sequence->plan.CompactsAfter(position);
  if (due) compaction = sequence->plan.retention->CompactionAfter(sequence->plan, position);
  const bool in_place = compaction.keep_of_heads.empty() && !compaction.then.has_value();
  if (due && !in_place) {
    auto& of_slot = batch_.Add(SlotCompaction{blocks->slot, position});
    if (compaction.keep_of_heads.empty()) {
      kv_cache_.Compact(*compaction.then, position, blocks);
    } else {
      kv_cache_.SetCaps(compaction.keep_of_heads, blocks);
      of_slot.plan = sequence->plan;
    }
  }
  HYDRANT_CHECK(kv_cache_.TryGrow(position + 1, blocks, &batch_));
  if (due && in_place) batch_.Add(SlotCompaction{blocks->slot, position});
}

void EngineDriver::Append(int slot, std::vector<TokenId> tokens, std::optional<TurnRun> turn) {
  BeginRun(slot, std::move(tokens), turn);
  AppendPart(slot, 0, engine_->limits().num_layers, 0,
             static_cast<int>(sequences_[slot].run.size()));
}

void EngineDriver::BeginRun(int slot, std::vector<TokenId> tokens, std::optional<TurnRun> turn) {
  Sequence& sequence = sequences_[slot];
  sequence.run = std::move(tokens);
  if (turn.has_value()) sequence.keep = std::vector<int32_t>(turn->keep.begin(), turn->keep.end());
  sequence.turn = turn;
  if (turn.has_value()) sequence.turn->keep = sequence.keep;
  sequence.position += static_cast<int>(sequence.run.size());
  HYDRANT_CHECK(kv_cache_.TryGrow(sequence.position, &sequence.blocks, &batch_));
  kv_cache_.CloseArena(&sequence.blocks);
  HYDRANT_CHECK(
      kv_cache_.TryOpenArena(static_cast<int64_t>(sequence.run.size()), &sequence.blocks));
}

void EngineDriver::AppendTurn(int slot, const CacheSpec& spec, std::vector<TokenId> tokens) {
  Sequence& sequence = sequences_[slot];
  const TokenRange range = {sequence.position,
                            sequence.position + static_cast<int32_t>(tokens.size())};
  const std::optional<TurnRun> turn = BeginTurn(range, spec, &sequence);
  sequence.turns.push_back(range);
  Append(slot, std::move(tokens), turn);
}

// Counts the budget of a later turn, as CacheCompactor::BeginAppend.
std::optional<TurnRun> EngineDriver::BeginTurn(const TokenRange& range, const CacheSpec& spec,
                                               Sequence* sequence) {
  CachePlan& plan = sequence->plan;
  const std::span full(sequence->blocks.spans.data(),
                       static_cast<size_t>(engine_->limits().BudgetHeads()));
  sequence->keep = KeepAfterAppend(range, plan, spec, sequence->turns, full);
  if (!sequence->keep.empty()) kv_cache_.AnnounceCompaction(range.end, &sequence->blocks);
  const AppendBudget budget = BudgetAfterAppend(plan, spec, range.end);
  if (RaisesBudget(range, plan) && budget.cap != plan.cap) {
    SlotAppend append = {.slot = sequence->blocks.slot, .budget = budget};
    kv_cache_.RaiseCaps(budget.cap - plan.cap, range.begin, &sequence->blocks);
    plan.cap = budget.cap;
    for (const HeadSpan& span : full) append.caps.push_back(span.cap);
    batch_.Add(std::move(append));
  }
  if (!plan.ScoresTurns()) return std::nullopt;
  return TurnRun{.scored_end = ScoredEnd(range, plan, sequence->turns), .keep = sequence->keep};
}

void EngineDriver::AppendPart(int slot, int layer_begin, int layer_end, int token_begin,
                              int token_end) {
  Sequence& sequence = sequences_[slot];
  SampledRow sampling = sequence.sampling;
  sampling.position = sequence.position;
  const TokenRun run = {.slot = slot,
                        .commit = Commit::kAppend,
                        .in_prompt = true,
                        .tokens = sequence.run,
                        .first_position = sequence.position - static_cast<int>(sequence.run.size()),
                        .part = {layer_begin, layer_end, token_begin, token_end},
                        .arena_begin = sequence.blocks.arena_begin,
                        .turn = sequence.turn};
  AddRun(run, sampling);
}

void EngineDriver::Hold(int slot, std::vector<TokenId> tokens) {
  Sequence& sequence = sequences_[slot];
  sequence.run = std::move(tokens);
  const auto n = static_cast<int>(sequence.run.size());
  kv_cache_.CloseArena(&sequence.blocks);
  HYDRANT_CHECK(kv_cache_.TryOpenArena(n, &sequence.blocks));
  batch_.runs.push_back({.slot = slot,
                         .commit = Commit::kLater,
                         .tokens = sequence.run,
                         .first_position = sequence.position,
                         .part = {.layer_end = engine_->limits().num_layers, .token_end = n},
                         .arena_begin = sequence.blocks.arena_begin});
  for (int i = 0; i < n; ++i) {
    SampledRow& row = batch_.AddSampled(sequence.sampling);
    row.position = sequence.position + i + 1;
    row.is_newest = false;
  }
}

void EngineDriver::CommitHeld(int slot, int count) {
  Sequence& sequence = sequences_[slot];
  HYDRANT_CHECK(count <= static_cast<int>(sequence.run.size()));
  HYDRANT_CHECK(kv_cache_.TryGrow(sequence.position + count, &sequence.blocks, &batch_));
  batch_.Add(SlotCommit{.slot = slot,
                        .tokens = std::span(sequence.run).first(count),
                        .first_position = sequence.position,
                        .arena_begin = sequence.blocks.arena_begin});
  sequence.position += count;
}

void EngineDriver::Shrink(int slot, int32_t mean) {
  Sequence& sequence = sequences_[slot];
  const int budget_heads = engine_->limits().BudgetHeads();
  std::vector<int32_t> held(budget_heads);
  for (int head = 0; head < budget_heads; ++head)
    held[head] = sequence.blocks.spans[head].EntriesAfter(sequence.position);
  sequence.plan = hydrant::Shrink(sequence.plan, sequence.position, held, mean);
}

void EngineDriver::Step() {
  StepResult& result = result_;
  AddDecoded();
  const absl::Status status = engine_->Execute(batch_, &result);
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  HYDRANT_CHECK(status.ok());
  logits_.clear();
  for (Sequence& sequence : sequences_) sequence.logits_row = -1;
  const Batch ran = std::exchange(batch_, {});
  size_t next_compaction = 0;
  ran.ForEach<SlotCompaction>([&](const SlotCompaction& compaction) {
    const std::vector<int32_t>& entries = result.compaction_reports[next_compaction++].entries;
    if (entries.empty()) return;
    Sequence& sequence = sequences_[compaction.slot];
    sequence.entries = entries;
    kv_cache_.SetCaps(entries, &sequence.blocks);
  });
  TakeTokens(ran);
  size_t report = 0;
  for (const TokenRun& run : ran.InArena()) {
    for (const int slot : run.Slots()) {
      const CacheReport& of_slot = result.prompt_reports[report++];
      if (!run.Ends(engine_->limits().num_layers)) continue;
      if (run.BuildsCache()) TakeReport(slot, of_slot);
      if (run.CompactsTurn())
        kv_cache_.ApplyTurnReport(of_slot.entries, sequences_[slot].position,
                                  &sequences_[slot].blocks);
    }
  }
  CloseArenas(ran);
  for (Sequence& sequence : sequences_) kv_cache_.PackState(&sequence.blocks, &batch_);
}

// Frees the arena of runs that have ended; a held one stays for its commit.
void EngineDriver::CloseArenas(const Batch& ran) {
  for (const TokenRun& run : ran.InArena()) {
    if (!run.Ends(engine_->limits().num_layers) || run.commit == Commit::kLater) continue;
    for (const int slot : run.Slots()) kv_cache_.CloseArena(&sequences_[slot].blocks);
  }
}

// Decoded runs come first in a batch, whatever was added first.
void EngineDriver::AddDecoded() {
  std::vector<TokenRun> runs;
  std::vector<SampledRow> sampled;
  for (auto& [run, row] : decoded_) {
    run.tokens = std::span(&sequences_[run.slot].decoded, 1);
    row.run = static_cast<int>(runs.size());
    runs.push_back(run);
    sampled.push_back(row);
  }
  for (SampledRow& row : batch_.sampled) row.run += static_cast<int>(runs.size());
  batch_.runs.insert(batch_.runs.begin(), runs.begin(), runs.end());
  batch_.sampled.insert(batch_.sampled.begin(), sampled.begin(), sampled.end());
  decoded_.clear();
}

// Sampled tokens; sharing slots get that of their prompt.
void EngineDriver::TakeTokens(const Batch& ran) {
  for (const TokenRun& run : ran.runs) sequences_[run.slot].held_samples.clear();
  for (size_t row = 0; row < ran.sampled.size(); ++row) {
    const TokenRun& run = ran.runs[ran.sampled[row].run];
    const TokenId token = result_.tokens[row];
    for (const int slot : run.Slots()) {
      sequences_[slot].newest = token;
      sequences_[slot].logits_row = static_cast<int>(row);
      if (run.commit == Commit::kLater) sequences_[slot].held_samples.push_back(token);
    }
  }
}

// A prompt was compressed into a cache.
void EngineDriver::TakeReport(int slot, const CacheReport& report) {
  Sequence& sequence = sequences_[slot];
  sequence.entries = report.entries;
  sequence.retained_mass = report.retained_mass;
  sequence.observations = report.observations;
  if (sequence.plan.resolve_at == ResolveAt::kPrefilled) {
    sequence.plan = Resolve(sequence.plan, {.fits = {}, .of_prompt = report.observations});
    batch_.Add(SlotPlan{slot, sequence.plan});
  }
  if (!sequence.blocks.lengths_known)
    kv_cache_.ApplyReport(sequence.plan, report.entries, report.pages, &sequence.blocks);
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
  return LogitsAt(sequences_[slot].logits_row);
}

std::span<const float> EngineDriver::HeldLogits(int slot, int i) {
  const auto count = static_cast<int>(sequences_[slot].held_samples.size());
  return LogitsAt(sequences_[slot].logits_row - (count - 1 - i));
}

std::span<const float> EngineDriver::LogitsAt(int row) {
  if (logits_.empty()) logits_ = EngineProbe(*engine_).ReadLogits();
  const size_t vocab = engine_->config().vocab_size;
  return {logits_.data() + row * vocab, vocab};
}

}  // namespace hydrant::eval
