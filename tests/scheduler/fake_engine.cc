#include "tests/scheduler/fake_engine.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/cache/policies/self_tuning.h"
#include "engine/cache/prompt_statistics.h"
#include "gtest/gtest.h"
#include "tests/engine/cache/plan_view.h"
#include "tests/scheduler/fake_tokenizer.h"

namespace hydrant {

namespace {

constexpr PageIds kNoPage = {-1, -1};

bool IsOpen(const CachePlan& plan) { return plan.resolve_at == ResolveAt::kPrefilled; }

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15ull + b + 0x632BE59BD9B4E019ull;
  x ^= x >> 31;
  x *= 0xD6E8FEB86659FD93ull;
  return x ^ (x >> 32);
}

}  // namespace

EngineLimits SmallLimits() {
  return {.num_layers = 2,
          .num_kv_heads = 2,
          .block_size = 4,
          .num_blocks = 256,
          .table_entries = 512,
          .max_num_seqs = 16,
          .max_model_len = 128,
          .prefill_arena_tokens = 256};
}

FakeEngine::FakeEngine(const EngineLimits& limits)
    : limits_(limits),
      slots_(limits.max_num_seqs),
      table_(limits.table_entries, kNoPage),
      stamps_(limits.num_blocks, limits.slab.EndOfStates(limits.num_blocks), 1, limits.block_size),
      host_stamps_(limits.num_host_pages, int64_t{limits.num_host_pages} * kAllStateLines,
                   kAllStateLines, limits.block_size),
      kept_(limits.max_offloaded_caches),
      prefix_(static_cast<size_t>(limits.num_prefix_blocks) * limits.num_layers, 0) {}

absl::Status FakeEngine::RunStep(const Batch& batch, StepResult* result) {
  if (!next_error.ok()) return next_error;
  ++num_steps_;
  EXPECT_TRUE(batch.HasWork());
  last_step_ = {.decoded = {batch.Decoded().begin(), batch.Decoded().end()},
                .parts = {batch.InArena().begin(), batch.InArena().end()},
                .sampled = batch.sampled,
                .num_updates = batch.table.size()};
  result->compaction_reports.clear();
  const TableUpdate* next = batch.table.data();
  batch.Visit(
      [&](const TableWrites& writes) {
        WriteTable({next, writes.count});
        next += writes.count;
      },
      [&](const SlotCompaction& compaction) {
        result->compaction_reports.push_back(Compact(compaction));
      },
      [&](const auto& update) { Apply(update); });
  EXPECT_EQ(next, batch.table.data() + batch.table.size());
  CheckArena(batch);
  CheckSamples(batch);
  std::set<int> used;
  result->tokens.clear();
  result->prompt_reports.clear();
  result->embeddings.assign(batch.runs.size(), {});
  result->logprobs.clear();
  result->kept_entries.clear();
  result->prompt_logprobs.clear();
  std::span<const SampledRow> rows = batch.sampled;
  for (size_t i = 0; i < batch.runs.size(); ++i) {
    const TokenRun& run = batch.runs[i];
    EXPECT_TRUE(used.insert(run.slot).second) << "slot " << run.slot << " is in the batch twice";
    EXPECT_EQ(run.IsDecoded(), i < batch.NumDecoded()) << "decoded runs come first";
    if (run.IsDecoded()) {
      last_step_.tokens.push_back(run.tokens.front());
      Decode(run);
      Sample(batch, i, true, &rows, result);
      continue;
    }
    const bool ends = Prefill(run);
    slots_[run.slot].latest = kNoToken;
    Sample(batch, i, ends, &rows, result);
    result->prompt_reports.push_back(Report(run));
    for (int token = run.part.token_begin; token < run.ScoredEnd(limits_.num_layers); ++token) {
      result->prompt_logprobs.push_back(LogprobsOf(run.prompt.whole_prompt[token + 1], token + 1));
    }
    last_step_.prefill_token_layers +=
        static_cast<double>(run.part.token_end - run.part.token_begin) *
        (run.part.layer_end - run.part.layer_begin);
  }
  EXPECT_TRUE(rows.empty()) << "rows are in the order of the runs";
  return absl::OkStatus();
}

// Samples the rows of a run, and removes them from `rows`.
void FakeEngine::Sample(const Batch& batch, size_t run, bool ends,
                        std::span<const SampledRow>* rows, StepResult* result) {
  Slot& slot = slots_[batch.runs[run].slot];
  size_t count = 0;
  for (; !rows->empty() && rows->front().run == static_cast<int>(run); ++count) {
    const SampledRow& row = rows->front();
    EXPECT_EQ(row.position, slot.fed);
    EXPECT_EQ(row.is_newest, count == 0);
    const TokenId token = Choose(slot, row);
    if (row.is_newest) slot.latest = token;
    result->tokens.push_back(token);
    AddLogprobs(row, token, &result->logprobs);
    if (row.kept_entries) result->kept_entries.push_back(KeptOf(slot, row.position));
    *rows = rows->subspan(1);
  }
  EXPECT_EQ(count > 0, ends) << "a run samples where it ends";
}

void FakeEngine::Apply(const SlotCommit& /*commit*/) {
  ADD_FAILURE() << "the scheduler commits no run later";
}

// The pool page that contains a state.
int32_t FakeEngine::SlabOf(int64_t state_index) const {
  int64_t line = state_index / limits_.block_size;
  if (limits_.slab.values_line > 0) line %= limits_.slab.values_line;
  return static_cast<int32_t>(line * limits_.slab.line_bytes / limits_.slab.keys_bytes);
}

void FakeEngine::CopyPage(const PageCopy& page, int state_lines, const Stamps& from,
                          Stamps* to) const {
  const auto copy = [&](const std::vector<uint64_t>& source, int64_t source_line,
                        std::vector<uint64_t>* target, int64_t target_line) {
    ASSERT_GE(source_line, 0);
    ASSERT_GE(target_line, 0);
    ASSERT_LE((source_line + 1) * limits_.block_size, source.size());
    ASSERT_LE((target_line + 1) * limits_.block_size, target->size());
    std::copy_n(source.begin() + source_line * limits_.block_size, limits_.block_size,
                target->begin() + target_line * limits_.block_size);
  };
  if (page.to.data != kNotCopied) {
    copy(from.data, page.from.data, &to->data, page.to.data);
    to->holds_state[page.to.data] = false;
  }
  if (page.to.state == kNotCopied) return;
  EXPECT_GT(state_lines, 0);
  for (int line = 0; line < state_lines; ++line) {
    copy(from.state, int64_t{page.from.state} * from.lines_a_page + line, &to->state,
         int64_t{page.to.state} * to->lines_a_page + line);
  }
  if (to == &stamps_) to->holds_state[SlabOf(int64_t{page.to.state} * limits_.block_size)] = true;
}

void FakeEngine::Apply(const SwapOut& swap) {
  const Slot& slot = slots_[swap.slot];
  EXPECT_FALSE(slot.prompt.empty() || slot.IsReading()) << "there is no cache yet";
  EXPECT_FALSE(IsOpen(slot.plan));
  kept_.at(swap.index) = slot;
  for (const PageCopy& page : swap.pages) CopyPage(page, swap.state_lines, stamps_, &host_stamps_);
}

void FakeEngine::Apply(const SlotCopies& list) {
  const Stamps before = stamps_;
  std::set<std::pair<bool, int32_t>> read, written;  // (is it state, id)
  for (const PageCopy& page : list.pages) {
    for (const bool state : {false, true}) {
      const int32_t to = state ? page.to.state : page.to.data;
      if (to == kNotCopied) continue;
      read.insert({state, state ? page.from.state : page.from.data});
      EXPECT_TRUE(written.insert({state, to}).second) << "page " << to << " is written twice";
    }
    CopyPage(page, list.state_lines, before, &stamps_);
    ++(page.to.data == kNotCopied ? num_state_copies_ : num_copies_);
  }
  for (const auto& page : written) EXPECT_FALSE(read.contains(page)) << "page " << page.second;
}

void FakeEngine::Apply(const SlotFork& fork) {
  Slot& slot = slots_[fork.slot];
  EXPECT_TRUE(slot.prompt.empty()) << "the slot has been set up for it";
  const Slot fresh = std::exchange(slot, slots_[fork.from]);
  EXPECT_FALSE(slot.prompt.empty() || slot.IsReading()) << "there is no cache yet";
  slot.row_begin = fresh.row_begin;
  slot.row_width = fresh.row_width;
  slot.plan = fresh.plan;
  slot.owner = fresh.owner;
  ++num_forks_;
}

// There are rows for all runs and for further samples of prompts.
void FakeEngine::CheckSamples(const Batch& batch) {
  const auto more = std::ranges::count(batch.sampled, false, &SampledRow::is_newest);
  EXPECT_LE(batch.runs.size() + more, static_cast<size_t>(limits_.max_num_seqs));
}

void FakeEngine::Apply(const SwapIn& swap) {
  Slot& slot = slots_[swap.slot];
  EXPECT_TRUE(slot.prompt.empty()) << "the slot has been set up for it";
  const Slot fresh = std::exchange(slot, kept_.at(swap.index));
  EXPECT_FALSE(slot.prompt.empty()) << "nothing was kept there";
  slot.row_begin = fresh.row_begin;
  slot.row_width = fresh.row_width;
  slot.owner = fresh.owner;
  slot.latest = kNoToken;  // belongs to the slot, not to the cache
  for (const PageCopy& page : swap.pages) CopyPage(page, swap.state_lines, host_stamps_, &stamps_);
}

void FakeEngine::CopyOffloaded(const OffloadedCache& from, const OffloadedCache& to) {
  kept_.at(to.index) = kept_.at(from.index);
  ASSERT_EQ(from.host_pages.size(), to.host_pages.size());
  for (size_t i = 0; i < to.host_pages.size(); ++i) {
    const PageIds source = {from.host_pages[i], from.host_pages[i]};
    const PageIds target = {to.host_pages[i], to.host_pages[i]};
    CopyPage({source, target}, kAllStateLines, host_stamps_, &host_stamps_);
  }
}

void FakeEngine::Apply(const SlotSetup& setup) {
  ASSERT_GE(setup.slot, 0);
  ASSERT_LT(setup.slot, limits_.max_num_seqs);
  slots_[setup.slot] = Slot();
  slots_[setup.slot].plan = setup.plan;
  slots_[setup.slot].owner = ++num_owners_;
  slots_[setup.slot].shared_tokens = setup.shared_tokens;
  slots_[setup.slot].unassigned_pages = setup.unassigned_pages;
  EXPECT_EQ(setup.shared_tokens % limits_.block_size, 0);
  num_shared_tokens_ += setup.shared_tokens;
}

void FakeEngine::Apply(const TableRow& row) {
  ASSERT_GE(row.row_begin, 0);
  ASSERT_LE(row.row_begin +
                static_cast<int64_t>(row.row_width) * limits_.num_layers * limits_.num_kv_heads,
            limits_.table_entries);
  slots_[row.slot].row_begin = row.row_begin;
  slots_[row.slot].row_width = row.row_width;
  // All ids of a moved row must be written again.
  const Slot& slot = slots_[row.slot];
  std::fill_n(
      table_.begin() + row.row_begin,
      int64_t{row.row_width} * AllHeads() + (slot.lengths.empty() ? slot.unassigned_pages : 0),
      kNoPage);
}

void FakeEngine::WriteTable(std::span<const TableUpdate> writes) {
  for (const TableUpdate& update : writes) {
    ASSERT_GE(update.index, 0);
    ASSERT_LT(update.index, limits_.table_entries);
    ASSERT_GE(update.block.data, 0);
    ASSERT_LT(update.block.data, limits_.num_blocks);
    ASSERT_GE(update.block.state, kNoState);
    ASSERT_LT(update.block.state, limits_.slab.EndOfStates(limits_.num_blocks));
    table_[update.index] = update.block;
  }
}

void FakeEngine::Apply(const SlotPlan& decision) {
  CachePlan& plan = slots_[decision.slot].plan;
  EXPECT_TRUE(IsOpen(plan));
  EXPECT_FALSE(IsOpen(decision.plan));
  EXPECT_EQ(slots_[decision.slot].fed, plan.prompt.tokens);
  plan = decision.plan;
  WriteState(&slots_[decision.slot]);
}

void FakeEngine::Apply(const SlotAppend& turn) {
  Slot& slot = slots_[turn.slot];
  EXPECT_FALSE(slot.prompt.empty() || slot.IsReading());
  EXPECT_GT(turn.budget.cap, slot.plan.cap);
  ASSERT_EQ(turn.caps.size(), static_cast<size_t>(NumHeads()));
  const int32_t more = turn.budget.cap - slot.plan.cap;
  for (int head = 0; head < NumHeads(); ++head) EXPECT_EQ(turn.caps[head], slot.caps[head] + more);
  std::copy(turn.caps.begin(), turn.caps.end(), slot.caps.begin());
  slot.plan.cap = turn.budget.cap;
  ++num_turns_;
}

// The last entry moves to the first place, and the other kept entries keep their places: an
// arbitrary choice. A hash decides which entries ragged heads keep.
CacheReport FakeEngine::Compact(const SlotCompaction& compaction) {
  CacheReport report;
  Slot& slot = slots_[compaction.slot];
  ReadEntries(slot);  // a compaction may move any of them
  if (compaction.plan.has_value()) {
    EXPECT_TRUE(CanShrink(slot.plan));
    EXPECT_LT(compaction.plan->cap, *std::max_element(slot.lengths.begin(), slot.lengths.end()));
    slot.plan = *compaction.plan;
    slot.shrinks = Mix(slot.shrinks, compaction.tokens);
    ++num_shrinks_;
  }
  EXPECT_FALSE(IsOpen(slot.plan));
  EXPECT_EQ(slot.fed, compaction.tokens);
  EXPECT_TRUE(slot.plan.CompactsAfter(compaction.tokens)) << "too early, or too late";
  slot.compact_at = slot.fed;
  const std::vector<int32_t> lengths = slot.lengths;
  const PageCompaction how = slot.plan.retention->CompactionAfter(slot.plan, compaction.tokens);
  for (int head = 0; head < NumHeads(); ++head) {
    int32_t& length = slot.lengths[head];
    const int32_t keep = how.keep_of_heads.empty() ? how.keep[head / limits_.num_kv_heads]
                                                   : how.keep_of_heads.at(head);
    EXPECT_LE(length, how.max_length);
    EXPECT_GE(length, keep);
    EXPECT_GE(keep, slot.plan.Protected());
    EXPECT_GT(keep, slot.plan.rule.sinks);
    length = keep;
  }
  if (slot.plan.retention->HeadsDiffer(slot.plan)) {
    report.entries = ShareOut(slot, slot.plan.MaxShare(slot.fed));
    std::copy(report.entries.begin(), report.entries.end(), slot.lengths.begin());
  }
  MoveLastEntries(slot, lengths);
  for (int head = 0; head < NumHeads() && how.growth >= 0; ++head)
    slot.caps[head] = how.growth == kNoCap ? kNoCap : slot.lengths[head] + how.growth;
  return report;
}

void FakeEngine::CheckArena(const Batch& batch) {
  std::vector<std::pair<int, int>> ranges;
  for (const TokenRun& run : batch.InArena()) {
    const int end = run.arena_begin + static_cast<int>(run.tokens.size());
    EXPECT_GE(run.arena_begin, 0);
    EXPECT_LE(end, limits_.prefill_arena_tokens);
    ranges.emplace_back(run.arena_begin, end);
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    EXPECT_LE(ranges[i - 1].second, ranges[i].first) << "two prompts overlap in the arena";
  }
}

PageIds FakeEngine::PageOf(const Slot& slot, int head, int32_t entry) {
  const int32_t column = entry / limits_.block_size;
  if (column >= slot.row_width) {
    ADD_FAILURE() << "entry " << entry << " lies beyond a row of " << slot.row_width << " blocks";
    return {};
  }
  const PageIds page =
      table_[slot.row_begin + static_cast<int64_t>(head) * slot.row_width + column];
  if (page == kNoPage) {
    ADD_FAILURE() << "entry " << entry << " of head " << head << " has no block";
    return {};
  }
  return page;
}

// After a new token: a rule that changes entry state rewrites the state of all entries.
void FakeEngine::WriteState(Slot* slot) {
  if (!slot->plan.rule.ChangesState()) return;
  slot->state = Mix(slot->history, slot->owner);
  for (int head = 0; head < NumHeads(); ++head) {
    for (int32_t entry = 0; entry < slot->lengths[head]; ++entry) {
      const int64_t first = StateIndex(*slot, head, entry);
      ASSERT_GE(first, 0) << "a page has no state";
      for (int line = 0; line < slot->plan.state_lines; ++line)
        stamps_.state[first + int64_t{line} * limits_.block_size] = slot->state + line;
      stamps_.holds_state[SlabOf(first)] = true;
    }
  }
}

void FakeEngine::WriteEntry(const Slot& slot, int head, int32_t entry, int32_t position) {
  stamps_.holds_state[PageOf(slot, head, entry).data] = false;
  stamps_.data[StampIndex(slot, head, entry)] =
      Mix(slot.histories.at(position), head) << 32 | static_cast<uint32_t>(position);
}

// Entries kept by each ragged head, from a hash of the sequence: their sum is the plan's budget,
// and no head exceeds `widest`.
std::vector<int32_t> FakeEngine::ShareOut(const Slot& slot, int32_t widest) const {
  const CachePlan& plan = slot.plan;
  std::vector<int32_t> entries(NumHeads());
  const int sharing = plan.share.scope == BudgetScope::kModel ? NumHeads() : limits_.num_kv_heads;
  for (int first = 0; first < NumHeads(); first += sharing) {
    int64_t left = int64_t{sharing} * plan.LayerBudget(first / limits_.num_kv_heads);
    for (int head = first; head < first + sharing; ++head) {
      const int64_t others = int64_t{first + sharing - head - 1} * plan.Protected();
      const int64_t most = std::min<int64_t>(left - others, widest);
      const int64_t least =
          std::max<int64_t>(plan.Protected(), left - int64_t{first + sharing - head - 1} * widest);
      const uint64_t draw = Mix(slot.history, head);
      entries[head] = static_cast<int32_t>(
          least >= most ? most : least + static_cast<int64_t>(draw % (most - least + 1)));
      left -= entries[head];
    }
  }
  return entries;
}

void FakeEngine::Compress(Slot* slot) {
  const CachePlan& plan = slot->plan;
  const auto n = static_cast<int32_t>(plan.prompt.tokens);
  slot->caps.resize(NumHeads());
  slot->lengths.resize(NumHeads());
  if (!IsReported(plan)) {
    for (int head = 0; head < NumHeads(); ++head) {
      const HeadSpan span = plan.retention->InitialSpan(plan, head / limits_.num_kv_heads);
      slot->caps[head] = span.cap;
      slot->lengths[head] = span.EntriesAfter(n);
    }
    return;
  }
  slot->lengths = ShareOut(*slot, MaxKeep(plan));
  for (int head = 0; head < NumHeads(); ++head) {
    if (MinRetainedMass(plan) > 0.0f && Mix(slot->history, head) % 5 == 0) slot->lengths[head] = n;
    slot->caps[head] = plan.Keeping(slot->lengths[head]).cap;
  }
  if (slot->unassigned_pages > 0) AssignPages(*slot, slot->lengths);
}

// Distributes the unassigned pages over heads; the engine decides which page goes to which head,
// here by a hash. Table entries past a head's pages hold no page.
void FakeEngine::AssignPages(const Slot& slot, const std::vector<int32_t>& entries) {
  const int64_t begin = slot.row_begin + int64_t{AllHeads()} * slot.row_width;
  ASSERT_LE(begin + slot.unassigned_pages, limits_.table_entries);
  std::vector<PageIds> list(table_.begin() + begin, table_.begin() + begin + slot.unassigned_pages);
  std::fill_n(table_.begin() + begin, slot.unassigned_pages, kNoPage);
  for (int head = 0; head < NumHeads(); ++head) {
    const auto pages = static_cast<int>(PagesOf(entries[head], limits_.block_size));
    EXPECT_LE(pages, slot.row_width);
    for (int i = 0; i < pages; ++i) {
      ASSERT_FALSE(list.empty());
      std::swap(list[Mix(slot.history, head * 1000 + i) % list.size()], list.back());
      ASSERT_NE(list.back(), kNoPage);
      table_[slot.row_begin + static_cast<int64_t>(head) * slot.row_width + i] = list.back();
      list.pop_back();
    }
  }
}

CacheReport FakeEngine::Report(const TokenRun& run) const {
  const Slot& slot = slots_[run.slot];
  CacheReport report;
  if (!run.Ends(limits_.num_layers)) return report;
  if (run.CompactsTurn())
    report.entries.assign(slot.lengths.begin(), slot.lengths.begin() + NumHeads());
  if (!run.BuildsCache()) return report;
  for (int i = 0; IsOpen(slot.plan) && i < kTrials * NumHeads(); ++i)
    report.observations.push_back(static_cast<float>(Mix(slot.history, i) % 1000) / 1000.0f);
  if (!slot.plan.Compresses()) return report;
  const std::span kept = std::span(slot.lengths).first(NumHeads());
  if (IsReported(slot.plan)) report.entries.assign(kept.begin(), kept.end());
  for (int head = 0; head < NumHeads() && slot.unassigned_pages > 0; ++head) {
    const PageIds* row = table_.data() + slot.row_begin + int64_t{head} * slot.row_width;
    report.pages.insert(report.pages.end(), row, row + PagesOf(kept[head], limits_.block_size));
  }
  for (const int32_t length : kept)
    report.retained_mass.push_back(static_cast<float>(length) / static_cast<float>(slot.fed));
  return report;
}

bool FakeEngine::HasItsState(const Slot& slot, int head, int32_t entry) {
  if (!HasState(slot, head)) return PageOf(slot, head, entry).state == kNoState;
  const int64_t first = StateIndex(slot, head, entry);
  if (first < 0) return false;
  if (!slot.plan.rule.ChangesState()) return true;
  if (!stamps_.holds_state[SlabOf(first)]) return false;
  for (int line = 0; line < slot.plan.state_lines; ++line) {
    if (stamps_.state[first + int64_t{line} * limits_.block_size] != slot.state + line)
      return false;
  }
  return true;
}

uint64_t FakeEngine::ReadEntries(const Slot& slot) {
  uint64_t sum = 0;
  for (int head = 0; head < AllHeads(); ++head) {
    for (int32_t entry = 0; entry < slot.lengths[head]; ++entry) {
      if (!HasItsState(slot, head, entry)) {
        ADD_FAILURE() << "the state of entry " << entry << " of head " << head
                      << " was changed by another sequence";
        return 0;
      }
      if (stamps_.holds_state[PageOf(slot, head, entry).data]) {
        ADD_FAILURE() << "entry " << entry << " of head " << head << " lies where state is";
        return 0;
      }
      const uint64_t stamp = stamps_.data[StampIndex(slot, head, entry)];
      const auto position = static_cast<uint32_t>(stamp);
      if (position >= slot.histories.size() ||
          stamp >> 32 != (Mix(slot.histories[position], head) & 0xFFFFFFFFull)) {
        ADD_FAILURE() << "entry " << entry << " of head " << head
                      << " was overwritten by another sequence";
        return 0;
      }
      sum += Mix(entry + 1, static_cast<uint32_t>(stamp)) * (head + 1);
    }
  }
  return sum;
}

KeptEntries FakeEngine::KeptOf(const Slot& slot, int num_tokens) {
  KeptEntries kept(limits_.num_layers, limits_.num_kv_heads, num_tokens);
  for (int head = 0; head < AllHeads(); ++head) {
    std::vector<int32_t> positions;
    positions.reserve(slot.lengths[head]);
    for (int32_t entry = 0; entry < slot.lengths[head]; ++entry)
      positions.push_back(static_cast<int32_t>(stamps_.data[StampIndex(slot, head, entry)]));
    kept.Add(head / limits_.num_kv_heads, head % limits_.num_kv_heads, positions);
  }
  return kept;
}

TokenLogprobs FakeEngine::LogprobsOf(TokenId token, int64_t position) {
  TokenLogprobs logprobs = {.token = token, .logprob = -static_cast<float>(position), .rank = 7};
  logprobs.top_tokens.fill(token);
  return logprobs;
}

void FakeEngine::AddLogprobs(const SampledRow& sampling, TokenId token,
                             std::vector<TokenLogprobs>* to) {
  if (sampling.logprobs) to->push_back(LogprobsOf(token, sampling.position));
}

// The first allowed token at or after the hashed one.
TokenId FakeEngine::Choose(const Slot& slot, const SampledRow& sampling) {
  const TokenId token = ChooseFromAll(slot, sampling);
  for (const TokenBias& bias : sampling.biases) {
    if (bias.bias == 100.0f) return bias.token;
  }
  if (sampling.mask.empty()) return token;
  constexpr TokenId kVocab = FakeTokenizer::kVocab;
  if (token >= kVocab) return token;  // an injected failure
  for (TokenId i = 0; i < kVocab; ++i) {
    const TokenId next = (token + i) % kVocab;
    if ((sampling.mask[next / 32] >> next % 32 & 1) != 0) return next;
  }
  return kNoToken;
}

TokenId FakeEngine::ChooseFromAll(const Slot& slot, const SamplingRow& sampling) {
  if (choose) {
    const std::optional<TokenId> chosen = choose(sampling.seed, sampling.position);
    if (chosen.has_value()) return *chosen;
  }
  const uint64_t hash =
      Mix(Mix(sampling.seed, sampling.position), slot.history ^ ReadEntries(slot));
  const auto token = static_cast<TokenId>(256 + hash % (FakeTokenizer::kEog - 256));
  if (checks_replays && RetentionAs<ShrunkRetention>(slot.plan) != nullptr) {
    const TokenId before =
        drawn_.try_emplace({sampling.seed, Mix(slot.history, slot.shrinks)}, token).first->second;
    EXPECT_EQ(before, token) << "another token than the first time";
  }
  return token;
}

void FakeEngine::Decode(const TokenRun& run) {
  Slot& slot = slots_[run.slot];
  EXPECT_FALSE(slot.prompt.empty() || slot.IsReading()) << "decodes before its prompt was read";
  EXPECT_EQ(run.first_position, slot.fed);
  EXPECT_TRUE(slot.plan.rule.rolling || run.first_position + 1 < limits_.max_model_len);
  EXPECT_FALSE(IsOpen(slot.plan)) << "decodes before its cache is tuned";
  EXPECT_TRUE(!slot.plan.CompactsAfter(slot.fed) || slot.compact_at == slot.fed)
      << "the cache was to be cut first";
  ASSERT_EQ(run.tokens.size(), 1u);
  // A failed sequence continues with token 0 until the host knows.
  const TokenId latest = slot.latest == kNoToken ? 0 : slot.latest;
  const TokenId token = run.tokens.front();
  AppendEntry(&slot, run.first_position, token == kNoToken ? latest : token);
}

void FakeEngine::Feed(Slot* slot, TokenId token) {
  slot->history = Mix(slot->history, token);
  slot->histories.push_back(slot->history);
}

void FakeEngine::AppendEntry(Slot* slot, int32_t position, TokenId token) {
  Feed(slot, token);
  for (int head = 0; head < AllHeads(); ++head) {
    int32_t& length = slot->lengths[head];
    // At the cap the victim's slot is overwritten; which one is any pure function of the position.
    const bool grows = length < slot->caps[head];
    const int32_t entry = grows ? length : static_cast<int32_t>(position % length);
    if (grows) ++length;
    EXPECT_LE(length,
              head < NumHeads() ? slot->plan.EntriesAfter(slot->fed + 1) : limits_.Window());
    WriteEntry(*slot, head, entry, position);
  }
  WriteState(slot);
  ++slot->fed;
}

void FakeEngine::BeginRun(const TokenRun& run) {
  Slot& slot = slots_[run.slot];
  EXPECT_EQ(run.first_position, slot.fed);
  EXPECT_TRUE(slot.plan.AppendsRuns() && !IsOpen(slot.plan));
  EXPECT_FALSE(slot.prompt.empty() || slot.IsReading()) << "follows nothing";
  slot.run.assign(run.tokens.begin(), run.tokens.end());
  slot.arena_begin = run.arena_begin;
  slot.layer = slot.token = slot.first_token = 0;
  slot.cached_blocks.clear();
  slot.new_blocks.clear();
}

void FakeEngine::BeginPrompt(const TokenRun& run) {
  Slot& slot = slots_[run.slot];
  slot.prompt.assign(run.tokens.begin(), run.tokens.end());
  slot.arena_begin = run.arena_begin;
  slot.first_token = slot.token = run.prompt.first_token;
  slot.cached_blocks.assign(run.prompt.cached_blocks.begin(), run.prompt.cached_blocks.end());
  slot.new_blocks.assign(run.prompt.new_blocks.begin(), run.prompt.new_blocks.end());
  std::set<int32_t> blocks;
  for (const std::vector<int32_t>* ids : {&slot.cached_blocks, &slot.new_blocks}) {
    for (const int32_t id : *ids) {
      ASSERT_GE(id, 0);
      ASSERT_LT(id, limits_.num_prefix_blocks);
      EXPECT_TRUE(blocks.insert(id).second) << "prefix block " << id << " is named twice";
    }
  }
}

// Prefix blocks match the setup, and no query that a statistic needs is skipped.
void FakeEngine::CheckPrefix(const TokenRun& run) {
  const Slot& slot = slots_[run.slot];
  const auto same = [](const std::vector<int32_t>& a, std::span<const int32_t> b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  };
  EXPECT_EQ(run.prompt.first_token, slot.first_token);
  EXPECT_LE(slot.shared_tokens, run.prompt.first_token);
  EXPECT_TRUE(same(slot.cached_blocks, run.prompt.cached_blocks));
  EXPECT_TRUE(same(slot.new_blocks, run.prompt.new_blocks));
  EXPECT_EQ(run.prompt.first_token % kPrefixBlockTokens, 0);
  EXPECT_LT(run.prompt.first_token, slot.plan.prompt.tokens);
  EXPECT_EQ(run.prompt.cached_blocks.size(), CachedContents(run).size());
  EXPECT_LE(run.prompt.new_blocks.size(), NewContents(run).size());
  EXPECT_TRUE(std::is_sorted(run.prompt.checkpoints.begin(), run.prompt.checkpoints.end()));
  for (const PromptStatistic& one : StatisticsOf(slot.plan, static_cast<int>(run.tokens.size()))) {
    if (!one.reading.has_value() || one.reading->end_query <= 0) continue;
    const ColumnStatistic& reading = *one.reading;
    const int asked = reading.first_query > 0 ? reading.first_query : reading.end_query;
    EXPECT_LE(run.prompt.first_token, asked);
    if (reading.first_query > 0) continue;
    for (const int32_t checkpoint : run.prompt.checkpoints) EXPECT_LE(checkpoint, asked);
  }
}

// Hash of the prompt's tokens before `end`.
uint64_t FakeEngine::HashOf(const TokenRun& run, int end) {
  uint64_t hash = 0;
  for (const TokenId token : run.tokens.first(end)) hash = Mix(hash, token);
  return hash;
}

// Contents of the blocks of tokens [begin, end): keys and values, and queries if there is an echo.
void FakeEngine::AddTokens(const TokenRun& run, int begin, int end,
                           std::vector<uint64_t>* contents) const {
  const CachePlan& plan = slots_[run.slot].plan;
  const int parts = plan.scorer->Echo(plan).empty() ? 1 : 1 + limits_.query_blocks;
  for (int token = begin; token + kPrefixBlockTokens <= end; token += kPrefixBlockTokens) {
    for (int part = 0; part < parts; ++part)
      contents->push_back(Mix(HashOf(run, token + kPrefixBlockTokens), part));
  }
}

// Contents of blocks of sums: statistics over all queries before a checkpoint.
void FakeEngine::AddSums(const TokenRun& run, int checkpoint,
                         std::vector<uint64_t>* contents) const {
  const CachePlan& plan = slots_[run.slot].plan;
  for (const PromptStatistic& one : StatisticsOf(plan, static_cast<int>(run.tokens.size()))) {
    if (!one.reading.has_value() || one.reading->end_query <= 0) continue;
    if (one.reading->first_query > 0) continue;
    const uint64_t what =
        1000 + 10 * static_cast<int>(one.reading->kind) + static_cast<int>(one.reading->reduce);
    for (int i = 0; i * limits_.sums_a_prefix_block < checkpoint; ++i)
      contents->push_back(Mix(Mix(HashOf(run, checkpoint), what), i));
  }
}

std::vector<uint64_t> FakeEngine::CachedContents(const TokenRun& run) const {
  std::vector<uint64_t> contents;
  AddTokens(run, 0, run.prompt.first_token, &contents);
  AddSums(run, run.prompt.first_token, &contents);
  return contents;
}

std::vector<uint64_t> FakeEngine::NewContents(const TokenRun& run) const {
  std::vector<uint64_t> contents;
  const auto end = static_cast<int>(slots_[run.slot].plan.prompt.tokens);
  AddTokens(run, run.prompt.first_token, end, &contents);
  for (const int32_t checkpoint : run.prompt.checkpoints) AddSums(run, checkpoint, &contents);
  return contents;
}

void FakeEngine::LoadPrefix(const TokenRun& run, int layer) {
  const std::vector<uint64_t> contents = CachedContents(run);
  for (size_t i = 0; i < run.prompt.cached_blocks.size(); ++i) {
    const int32_t block = run.prompt.cached_blocks[i];
    EXPECT_EQ(prefix_[static_cast<size_t>(block) * limits_.num_layers + layer], contents[i])
        << "prefix block " << block << " holds something else";
  }
}

void FakeEngine::SavePrefix(const TokenRun& run, int layer) {
  const std::vector<uint64_t> contents = NewContents(run);
  for (size_t i = 0; i < run.prompt.new_blocks.size(); ++i)
    prefix_[static_cast<size_t>(run.prompt.new_blocks[i]) * limits_.num_layers + layer] =
        contents[i];
}

// Checks that the run is the next of a prefill of `tokens`; returns whether it is the last.
bool FakeEngine::Read(const TokenRun& run, const std::vector<TokenId>& tokens) {
  Slot& slot = slots_[run.slot];
  const int n = static_cast<int>(run.tokens.size());
  EXPECT_TRUE(slot.IsReading());
  EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), run.tokens.begin(), run.tokens.end()));
  EXPECT_EQ(run.arena_begin, slot.arena_begin);
  EXPECT_EQ(run.prompt.first_token, slot.first_token);
  EXPECT_EQ(run.part.layer_begin, slot.layer);
  EXPECT_EQ(run.part.token_begin, slot.token);
  EXPECT_LT(run.part.token_begin, run.part.token_end);
  EXPECT_LE(run.part.token_end, n);
  EXPECT_LE(run.part.layer_end, limits_.num_layers);
  EXPECT_EQ(run.part.token_begin % kQueryTile, 0);
  EXPECT_TRUE(run.part.token_end % kQueryTile == 0 || run.part.token_end == n);
  const bool whole = run.BeginsLayer() && run.part.token_end == n;
  EXPECT_TRUE(run.part.layer_end == run.part.layer_begin + 1 ||
              (whole && run.part.layer_end > run.part.layer_begin));
  for (int layer = run.part.layer_begin; layer < run.part.layer_end; ++layer) {
    if (!run.BuildsCache()) {  // names no blocks
      EXPECT_TRUE(run.prompt.cached_blocks.empty() && run.prompt.new_blocks.empty());
      EXPECT_TRUE(run.prompt.checkpoints.empty());
      continue;
    }
    if (run.BeginsLayer()) LoadPrefix(run, layer);
    if (run.part.token_end == n) SavePrefix(run, layer);
  }
  slot.layer = run.part.token_end == n ? run.part.layer_end : run.part.layer_begin;
  slot.token = run.part.token_end == n ? run.prompt.first_token : run.part.token_end;
  if (!run.Ends(limits_.num_layers)) return false;
  slot.arena_begin = -1;
  return true;
}

// Returns whether the run ends.
bool FakeEngine::Prefill(const TokenRun& run) {
  Slot& slot = slots_[run.slot];
  if (run.BuildsCache()) {
    EXPECT_EQ(run.first_position, 0);
    if (slot.prompt.empty()) BeginPrompt(run);
    CheckPrefix(run);
    if (!Read(run, slot.prompt)) return false;
    CompressPrompt(&slot);
    return true;
  }
  EXPECT_EQ(run.commit, Commit::kAppend);
  if (!slot.IsReading()) BeginRun(run);
  if (!Read(run, slot.run)) return false;
  ++num_appended_;
  for (const TokenId token : slot.run) AppendEntry(&slot, static_cast<int32_t>(slot.fed), token);
  if (run.turn.has_value()) {
    EXPECT_LE(run.turn->scored_end, run.first_position);
    CompactTurn(run.turn->keep, &slot);
  }
  return true;
}

// In each head that became shorter, the last entry moves to the front.
void FakeEngine::MoveLastEntries(const Slot& slot, const std::vector<int32_t>& lengths) {
  for (int head = 0; head < NumHeads(); ++head) {
    if (slot.lengths[head] < lengths[head])
      stamps_.data[StampIndex(slot, head, 0)] =
          stamps_.data[StampIndex(slot, head, lengths[head] - 1)];
  }
}

// Heads that share a budget: every second one gives an entry to the next.
std::vector<int32_t> FakeEngine::Pooled(std::span<const int32_t> keep, const Slot& slot) const {
  std::vector<int32_t> entries(keep.begin(), keep.end());
  if (slot.plan.share.scope == BudgetScope::kHead) return entries;
  for (int head = 0; head + 1 < NumHeads(); head += 2) {
    const bool has_one_to_give = entries[head] > std::max(1, slot.plan.Protected());
    if (!has_one_to_give || entries[head + 1] == slot.lengths[head + 1]) continue;
    --entries[head];
    ++entries[head + 1];
  }
  return entries;
}

void FakeEngine::CompactTurn(std::span<const int32_t> keep, Slot* slot) {
  if (keep.empty()) return;
  ++num_turns_;
  ASSERT_EQ(keep.size(), static_cast<size_t>(NumHeads()));
  const std::vector<int32_t> lengths = slot->lengths;
  for (int head = 0; head < NumHeads(); ++head) {
    EXPECT_LE(keep[head], slot->lengths[head]);
    EXPECT_GE(keep[head], std::min(slot->plan.Protected(), slot->lengths[head]));
  }
  const std::vector<int32_t> entries = Pooled(keep, *slot);
  std::copy(entries.begin(), entries.end(), slot->lengths.begin());
  MoveLastEntries(*slot, lengths);
}

// After the prompt's last run.
void FakeEngine::CompressPrompt(Slot* slot) {
  slot->fed = slot->plan.prompt.tokens;  // a probe leaves no entries
  for (int i = 0; i < slot->fed; ++i) Feed(slot, slot->prompt[i]);
  Compress(slot);
  slot->lengths.resize(AllHeads(),
                       static_cast<int32_t>(std::min<int64_t>(slot->fed, limits_.Window())));
  slot->caps.resize(AllHeads(), limits_.Window());
  for (int head = 0; head < AllHeads(); ++head) {
    const int32_t shared = head < NumHeads() ? slot->shared_tokens : 0;
    EXPECT_TRUE(shared == 0 || slot->lengths[head] == slot->fed) << "there is a shorter cache";
    for (int32_t entry = shared; entry < slot->lengths[head]; ++entry)
      WriteEntry(*slot, head, entry, slot->fed - slot->lengths[head] + entry);
  }
  WriteState(slot);
}

}  // namespace hydrant
