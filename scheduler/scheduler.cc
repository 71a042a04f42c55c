#include "scheduler/scheduler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "scheduler/sequence_usage.h"

namespace hydrant {

namespace {

int64_t WatermarkPages(const EngineLimits& limits, const SchedulerOptions& options) {
  return static_cast<int64_t>(std::ceil(options.watermark * limits.num_blocks));
}

// Steps bring logprobs in the order of the prompt, from the first token of a reading on.
void AddPromptLogprobs(int begin, std::span<const TokenLogprobs> of_prompt, Sequence* sequence) {
  if (of_prompt.empty()) return;
  std::vector<TokenLogprobs>& all = sequence->output.prompt_logprobs;
  all.resize(begin);
  all.insert(all.end(), of_prompt.begin(), of_prompt.end());
}

}  // namespace

Scheduler::Scheduler(const EngineLimits& limits, const SchedulerOptions& options,
                     const Tokenizer* tokenizer)
    : limits_(limits),
      options_(options),
      tokenizer_(tokenizer),
      kv_cache_(limits),
      table_(options.tenant_weights),
      contexts_(limits.NumContextPages(), limits.MaxContexts(), &kv_cache_, &directory_),
      reuse_(limits_, WatermarkPages(limits, options), &table_, &kv_cache_, &ledger_),
      slo_(limits_, options_, &table_, &kv_cache_, &reuse_),
      compactor_(limits_, &table_, &kv_cache_, &ledger_),
      reclaimer_(limits_, {.table = &table_,
                           .kv_cache = &kv_cache_,
                           .ledger = &ledger_,
                           .compactor = &compactor_,
                           .reuse = &reuse_,
                           .slo = &slo_}),
      admission_(limits_, WatermarkPages(limits, options),
                 {.table = &table_,
                  .kv_cache = &kv_cache_,
                  .contexts = &contexts_,
                  .reclaimer = &reclaimer_,
                  .reuse = &reuse_,
                  .slo = &slo_}),
      builder_(limits_, &table_, &kv_cache_, &ledger_, &slo_),
      delivery_(limits_, options_, tokenizer, &table_, &slo_) {}

Scheduler::~Scheduler() {
  for (Sequence* sequence : table_.live()) {
    kv_cache_.Release(&sequence->cache.blocks);
    reuse_.Abandon(sequence);
  }
  for (Sequence* sequence : table_.queue().InOrder()) reclaimer_.DropSwapped(sequence);
}

void Scheduler::Add(RequestHandle handle, CheckedRequest checked, TimeUs now) {
  const std::string tenant = checked.request.tenant;
  Sequence* const sequence = table_.Add(
      tenant, MakeSequence(handle, std::move(checked), now, next_arrival_++, *tokenizer_));
  if (sequence->request.sample_of.has_value()) {
    Sequence* const parent = table_.Find(*sequence->request.sample_of);
    if (parent != nullptr && !parent->progress.prefilled) parent->samples.push_back(handle);
  }
  slo_.SetBeginBy(sequence);
}

void Scheduler::Cancel(RequestHandle handle, absl::Status why) {
  cancels_.emplace_back(handle, std::move(why));
}

const Batch& Scheduler::Schedule(TimeUs now) {
  BeginBatch(now);
  PackStates();
  EndCancelled(now);
  EndLate(now);
  SendResolvedPlans();
  masks_.Begin(table_.live());
  reuse_.ForkSamples(now, &batch_);
  compactor_.CompactRunning(&batch_);
  if (GrowRunning(now)) {
    AdmitWaiting(now);
  } else {
    wait_reason_ = WaitReason::kPages;
  }
  slo_.ObserveAdmissions(now, WaitsForRoom());
  ledger_.current().swaps = HasSwaps(batch_);
  builder_.AddDecode(now, &batch_);
  builder_.AddPrefill(now, &batch_);
  if (batch_.HasWork()) ledger_.Commit();
  if (ledger_.Empty()) {
    slo_.Idle();
    if (MustWaitForMask()) {  // no step is in flight, so waiting delays no other work
      masks_.WaitForFirst();
      return Schedule(now);
    }
  }
  delivery_.SendProgress(now);
  return batch_;
}

void Scheduler::BeginBatch(TimeUs now) {
  batch_.Clear();
  std::swap(batch_.list, ended_updates_.list);
  arena_wanted_ = false;
  ledger_.Begin(now);
  table_.queue().ForgetIdle();
}

// Compactions of earlier steps leave more slabs than the state needs.
void Scheduler::PackStates() {
  for (Sequence* sequence : table_.live()) {
    SequenceBlocks& blocks = sequence->cache.blocks;
    if (blocks.HasSpareSlab()) kv_cache_.PackState(&blocks, &batch_);
  }
}

void Scheduler::EndCancelled(TimeUs now) {
  for (auto& [handle, why] : cancels_) {
    Sequence* const sequence = table_.Find(handle);
    if (sequence == nullptr) continue;
    End(Failed{.status = std::move(why), .reason = "CANCELLED"}, now, sequence);
  }
  cancels_.clear();
}

// Past their deadline, or past the time when they must have begun.
void Scheduler::EndLate(TimeUs now) {
  while (Sequence* sequence = table_.PastDeadline(now)) {
    const int32_t tokens = sequence->account.usage.completion_tokens;
    End(Failed{.status = absl::DeadlineExceededError(
                   absl::StrCat("deadline passed ", tokens, " tokens into the answer")),
               .reason = "DEADLINE"},
        now, sequence);
  }
  while (Sequence* sequence = slo_.NextLate(now)) End(slo_.Refusal(*sequence, now), now, sequence);
}

void Scheduler::SendResolvedPlans() {
  for (Sequence* sequence : table_.live()) {
    SequenceCache& cache = sequence->cache;
    if (std::exchange(cache.plan_is_new, false))
      batch_.Add(SlotPlan{cache.blocks.slot, cache.plan});
  }
}

bool Scheduler::MustWaitForMask() const {
  return std::ranges::any_of(
      table_.live(), [](const Sequence* sequence) { return sequence->output.waits_for_mask; });
}

// False: a sequence was preempted.
bool Scheduler::GrowRunning(TimeUs now) {
  // So many sequences ahead, the memory that will be written is prefetched.
  constexpr size_t kAhead = 4;
  const uint64_t preempted_before = reclaimer_.num_preemptions() + reclaimer_.num_swaps();
  growing_ = table_.live();  // some of them may leave meanwhile
  for (size_t i = 0; i < growing_.size(); ++i) {
    if (i + 2 * kAhead < growing_.size())
      KvCacheManager::PrefetchGrowingHeads(growing_[i + 2 * kAhead]->cache.blocks);
    if (i + kAhead < growing_.size()) {
      const Sequence& later = *growing_[i + kAhead];
      kv_cache_.PrefetchGrowth(later.progress.num_seen + 1, later.cache.blocks);
    }
    Sequence* const sequence = growing_[i];
    if (sequence->phase != Phase::kRunning) continue;
    const TokenRange* read = sequence->cache.IsSettled() ? sequence->NextAppend() : nullptr;
    if (read == nullptr && !sequence->MayDecode()) continue;
    if (read != nullptr) compactor_.BeginAppend(*read, sequence, &batch_);
    const int64_t tokens = read != nullptr ? read->end : sequence->progress.num_seen + 1;
    switch (reclaimer_.Grow(tokens, now, sequence, &batch_)) {
      case Reclaimer::Growth::kPreempted:
        break;
      case Reclaimer::Growth::kTooLarge:
        End(Failed{.status = absl::InternalError("pool too small for one sequence"),
                   .reason = "ENGINE_FAULT"},
            now, sequence);
        break;
      case Reclaimer::Growth::kGrown:
        if (read != nullptr) {
          BeginRead(sequence);
        } else {
          compactor_.CompactInPlace(sequence, &batch_);
        }
    }
  }
  return reclaimer_.num_preemptions() + reclaimer_.num_swaps() == preempted_before;
}

// The sequence waits while prompts that are being read have all of the arena; no others are
// admitted meanwhile.
void Scheduler::BeginRead(Sequence* sequence) {
  const auto tokens = static_cast<int64_t>(sequence->PrefillTokens().size());
  if (!kv_cache_.TryOpenArena(tokens, &sequence->cache.blocks)) {
    arena_wanted_ = true;
    return;
  }
  sequence->MoveTo(Phase::kReading);
  sequence->progress.cursor = PrefillCursor();
}

void Scheduler::AdmitWaiting(TimeUs now) {
  wait_reason_ = arena_wanted_ ? WaitReason::kPrefillArena : WaitReason::kArrived;
  if (arena_wanted_ || table_.queue().empty()) return;
  reuse_.ListReaders();
  const RunningLoad load = table_.AnyBeginBy() ? slo_.DecodingLoad() : RunningLoad();
  FairQueue::Turns turns(&table_.queue());
  while (Sequence* sequence = turns.Next()) {
    if (reuse_.WaitsForPrompt(*sequence) || reuse_.WaitsForPrefix(*sequence)) {
      wait_reason_ = WaitReason::kPrefix;
      continue;
    }
    if (slo_.IsLate(*sequence, load, now)) {
      End(slo_.Refusal(*sequence, now), now, sequence);
      continue;
    }
    const bool was_whole = sequence->account.usage.compressed_by.empty();
    const std::optional<WaitReason> lacked = admission_.TryAdmit(sequence, &batch_);
    if (lacked.has_value()) {
      wait_reason_ = *lacked;
      return;
    }
    if (was_whole && !sequence->account.usage.compressed_by.empty()) SendFallback(*sequence);
    Admit(sequence, now);
  }
}

// The client of a sequence that was admitted with its fallback cache hears of it.
void Scheduler::SendFallback(const Sequence& sequence) {
  wait_reason_ = WaitReason::kPages;  // the pool was short all the same
  ++num_compressed_;
  delivery_.Send(sequence, Progress{.prompt_tokens = sequence.progress.num_prompt_tokens,
                                    .compressed_by = sequence.account.usage.compressed_by});
}

// The sequence holds its pages.
void Scheduler::Admit(Sequence* sequence, TimeUs now) {
  table_.LeaveQueue(sequence);
  EndPreemption(now, sequence);
  Usage& usage = sequence->account.usage;
  if (sequence->progress.num_seen > 0) {
    Resume(sequence, now);
  } else {
    sequence->MoveTo(Phase::kReading);
    reuse_.Open(sequence);
    usage.probe_tokens = static_cast<int32_t>(sequence->PrefillTokens().size()) -
                         sequence->progress.num_context_tokens;
  }
  usage.kv_pages_peak = std::max(usage.kv_pages_peak, sequence->cache.blocks.num_pages);
  slo_.Admitted(sequence, now);
  table_.AddLive(sequence);
  masks_.Add(sequence);
}

// An admitted sequence has a cache, its own from host memory or its context's, and reads what
// follows from the next step on.
void Scheduler::Resume(Sequence* sequence, TimeUs now) {
  SequenceProgress& progress = sequence->progress;
  SequenceAccount& account = sequence->account;
  sequence->MoveTo(Phase::kResuming);
  progress.num_done = progress.num_seen;
  if (sequence->output.sampling.penalties.Any()) {
    auto& swap = std::get<SwapIn>(batch_.list.back());
    swap.prompt = progress.Prompt();
    swap.output = progress.SeenOutput();
  }
  if (!account.prefill_started_at.has_value()) account.prefill_started_at = now;
  if (std::exchange(progress.prefilled, true)) return;
  prompt_tokens_ += progress.num_prompt_tokens;
  account.usage.cached_tokens = static_cast<int32_t>(progress.num_seen);
}

bool Scheduler::WaitsForRoom() const {
  return !table_.queue().empty() && wait_reason_ != WaitReason::kArrived &&
         wait_reason_ != WaitReason::kPrefix;
}

void Scheduler::Apply(const StepResult& result, TimeUs now) {
  HYDRANT_CHECK(!ledger_.Empty());
  // It stays in the ledger meanwhile, where a sequence that ends is kept.
  const StepRecord& step = ledger_.oldest();
  ResultReader reader(step, result);
  delivery_.Reserve(step.decoded.size() + step.parts.size());  // most rows bring one
  ++num_steps_;
  for (const ScheduledToken& row : step.decoded) {
    const ResultReader::Token sampled = reader.Next(row);
    Sequence* const sequence = row.cache.Live();
    if (sequence != nullptr) Sampled(row.index, sampled, now, sequence);
  }
  ApplyParts(step, result, &reader, now);
  ApplyCompactions(step, result);
  slo_.ObserveStep(step, now);
  if (Empty()) slo_.Idle();
  ledger_.RemoveOldest();
}

void Scheduler::ApplyParts(const StepRecord& step, const StepResult& result, ResultReader* reader,
                           TimeUs now) {
  for (size_t i = 0; i < step.parts.size(); ++i) {
    const ScheduledPart& part = step.parts[i];
    Sequence* const sequence = part.cache.Live();
    const std::span<const TokenLogprobs> of_prompt = reader->NextOfPrompt(part);
    if (sequence != nullptr && !sequence->progress.prefilled)
      AddPromptLogprobs(part.scored.begin, of_prompt, sequence);
    if (!part.EndsRun()) continue;
    const ResultReader::Token sampled = reader->Next(part);
    ApplySamples(part, reader, now);
    if (sequence == nullptr) continue;
    PromptRead(sequence);
    const bool compresses = part.index == sequence->progress.num_context_tokens;
    const bool pools = sequence->request.pooling != EmbeddingPooling::kNone;
    if (part.cache.IsOpen() && compresses) {  // else it was appended
      Compressed(result.prompt_reports[i], sequence);
      // A prompt without a finite result is not for others.
      if (sampled.token != kNoToken || pools) reuse_.Filled(sequence);
    } else if (part.cache.IsOpen() && !result.prompt_reports[i].entries.empty()) {
      kv_cache_.ApplyTurnReport(result.prompt_reports[i].entries, part.index,
                                &sequence->cache.blocks);
    }
    if (pools) {
      const size_t run = step.decoded.size() + i;
      End(delivery_.Pooled(result.embeddings.at(run), now, sequence), now, sequence);
    } else {
      Sampled(part.index, sampled, now, sequence);
    }
  }
}

// First tokens of other samples of a prompt.
void Scheduler::ApplySamples(const ScheduledPart& part, ResultReader* reader, TimeUs now) {
  const Sequence* const parent = part.cache.Live();
  for (const RequestHandle handle : part.samples) {
    const ResultReader::Token sampled = reader->NextSample(part);
    Sequence* const sample = table_.Find(handle);
    if (sample == nullptr || !sample->IsWaiting()) continue;
    const int64_t index = sample->progress.num_prompt_tokens;
    if (sample->progress.NumKnown() > index) continue;
    if (parent != nullptr && !sample->account.prefill_started_at.has_value())
      sample->account.prefill_started_at = parent->account.prefill_started_at;
    Sampled(index, sampled, now, sample);
  }
}

void Scheduler::PromptRead(Sequence* sequence) {
  if (std::exchange(sequence->progress.prefilled, true)) return;
  prompt_tokens_ += sequence->progress.num_prompt_tokens;
  if (sequence->request.wants_prompt_logprobs)
    delivery_.Send(*sequence, PromptLogprobs{std::exchange(sequence->output.prompt_logprobs, {})});
}

// The prompt has become a cache.
void Scheduler::Compressed(const CacheReport& report, Sequence* sequence) {
  SequenceCache& cache = sequence->cache;
  if (cache.plan.resolve_at == ResolveAt::kPrefilled) {
    cache.plan = Resolve(cache.plan, {.fits = {}, .of_prompt = report.observations});
    cache.plan_is_new = true;
  }
  // A turn that follows may have been scheduled already, where the prompt's lengths were known.
  if (cache.plan.retention->ReportsPrompt())
    kv_cache_.ApplyReport(cache.plan, report.entries, report.pages, &cache.blocks);
  TrimReservation(sequence, &kv_cache_);
  RecordCompression(report, limits_, sequence);
}

void Scheduler::ApplyCompactions(const StepRecord& step, const StepResult& result) {
  for (size_t i = 0; i < step.compacted.size(); ++i) {
    const std::vector<int32_t>& entries = result.compaction_reports[i].entries;
    Sequence* const sequence = step.compacted[i].Live();
    if (sequence == nullptr || !step.compacted[i].IsOpen() || entries.empty()) continue;
    kv_cache_.SetCaps(entries, &sequence->cache.blocks);
    TrimReservation(sequence, &kv_cache_);
  }
}

void Scheduler::Sampled(int64_t index, const ResultReader::Token& sampled, TimeUs now,
                        Sequence* sequence) {
  if (sampled.kept_entries != nullptr) delivery_.SendKeptEntries(*sampled.kept_entries, sequence);
  std::optional<Ending> ending =
      delivery_.Sampled(index, sampled.token, sampled.logprobs, now, sequence);
  if (ending.has_value()) End(*std::move(ending), now, sequence);
}

// Tells the client, and frees all that the sequence holds.
void Scheduler::End(Ending ending, TimeUs now, Sequence* sequence) {
  CloseUsage(limits_, now, sequence);
  evicted_entries_ +=
      static_cast<uint64_t>(std::llround(sequence->account.usage.kv_tokens_evicted_mean));
  std::shared_ptr<const Context> context;
  if (std::holds_alternative<Finished>(ending)) {
    slo_.ObserveEnd(*sequence, now);
    context = Keep(*sequence);
  }
  delivery_.SendEnd(std::move(ending), std::move(context), *sequence);
  if (sequence->IsWaiting()) {
    reclaimer_.DropSwapped(sequence);
  } else {
    kv_cache_.Release(&sequence->cache.blocks);
    reuse_.Abandon(sequence);
  }
  ledger_.KeepEnded(table_.Remove(sequence));
}

// The context that a finished sequence leaves; null: none.
std::shared_ptr<const Context> Scheduler::Keep(const Sequence& sequence) {
  const SequenceCache& cache = sequence.cache;
  // A token that was on its way when its sequence was preempted may end it while it reads again.
  const bool whole = sequence.IsDecoding() && cache.blocks.lengths_known &&
                     cache.plan.resolve_at == ResolveAt::kResolved;
  if (sequence.request.keep_as.handle.empty() || !whole) return nullptr;
  std::shared_ptr<const Context> context = ContextOf(sequence);
  const auto before = static_cast<std::ptrdiff_t>(ended_updates_.list.size());
  if (!contexts_.Keep(context, cache.blocks, &ended_updates_)) return nullptr;
  if (cache.plan_is_new) {  // the kept scores are those of the decided plan
    ended_updates_.list.insert(ended_updates_.list.begin() + before,
                               SlotPlan{cache.blocks.slot, cache.plan});
  }
  return context;
}

void Scheduler::FailAll(const absl::Status& status, const std::string& reason, TimeUs now) {
  const auto fail = [&](Sequence* sequence) {
    End(Failed{.status = status, .reason = reason}, now, sequence);
  };
  while (!table_.live().empty()) fail(table_.live().front());
  for (Sequence* sequence : table_.queue().InOrder()) fail(sequence);
  cancels_.clear();
  ledger_.Clear();
  ended_updates_ = CacheUpdates();
}

SchedulerState Scheduler::State() const {
  return {.limits = limits_,
          .table = table_,
          .kv_cache = kv_cache_,
          .prefix_cache = reuse_.blocks(),
          .contexts = contexts_,
          .ledger = ledger_,
          .batch = batch_,
          .swapped_pages = reclaimer_.NumSwappedPages()};
}

ServingStats Scheduler::Stats() const {
  ServingStats stats = {.waiting = static_cast<int>(table_.queue().size()),
                        .queued_tokens = table_.queued_tokens(),
                        .pages_total = kv_cache_.NumPages(),
                        .pages_free = kv_cache_.NumFreePages(),
                        .pages_spared = kv_cache_.NumSparedPages(),
                        .state_pages = kv_cache_.NumSlabs(),
                        .steps = num_steps_,
                        .preemptions = reclaimer_.num_preemptions(),
                        .shrinks = compactor_.num_shrinks(),
                        .compressed = num_compressed_,
                        .swaps = reclaimer_.num_swaps(),
                        .swapped_pages = reclaimer_.NumSwappedPages(),
                        .prompt_tokens = prompt_tokens_,
                        .generation_tokens = delivery_.generation_tokens(),
                        .prefix_cache = reuse_.blocks().Stats(),
                        .contexts = contexts_.size(),
                        .contexts_evicted = contexts_.num_evicted()};
  for (const Sequence* sequence : table_.live())
    ++(sequence->IsDecoding() ? stats.running : stats.prefilling);
  if (!table_.queue().empty()) {
    stats.wait_reason = wait_reason_;
    stats.longest_wait_us = delivery_.longest_wait_us();
  }
  return stats;
}

}  // namespace hydrant
