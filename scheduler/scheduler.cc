#include "scheduler/scheduler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "scheduler/mass_summary.h"

namespace hydrant {

namespace {

bool GoesBefore(const Sequence* a, const Sequence* b) { return a->order < b->order; }

SampledRow ToSampledRow(const SamplingParams& sampling) {
  SampledRow row =
      SamplingRow{.temperature = static_cast<float>(sampling.temperature),
                  .top_p = static_cast<float>(sampling.top_p),
                  .min_p = static_cast<float>(sampling.min_p),
                  .top_k = std::max(0, sampling.top_k),
                  .seed = sampling.seed.value_or(0),
                  .penalties = {.repetition = static_cast<float>(sampling.repetition_penalty),
                                .presence = static_cast<float>(sampling.presence_penalty),
                                .frequency = static_cast<float>(sampling.frequency_penalty)}};
  row.logprobs = sampling.logprobs;
  return row;
}

bool Swaps(const CacheUpdates& updates) {
  return updates.Count<SwapOut>() + updates.Count<SwapIn>() > 0;
}

// What is read of a prompt that a probe follows; empty: there is none.
std::vector<TokenId> Probed(const Sequence& sequence, const std::vector<TokenId>& probe) {
  if (probe.empty()) return {};
  std::vector<TokenId> probed(sequence.tokens.begin(),
                              sequence.tokens.begin() + sequence.num_context_tokens);
  probed.insert(probed.end(), probe.begin(), probe.end());
  return probed;
}

}  // namespace

Scheduler::Scheduler(const EngineLimits& limits, const SchedulerOptions& options,
                     const Tokenizer* tokenizer)
    : limits_(limits),
      options_(options),
      tokenizer_(tokenizer),
      watermark_pages_(static_cast<int64_t>(std::ceil(options.watermark * limits.num_blocks))),
      space_(limits),
      prefix_cache_(limits.num_prefix_blocks),
      contexts_(limits.NumContextPages(), limits.MaxContexts(), &space_, &directory_),
      waiting_(options.tenant_weights),
      pacer_(options, options.max_num_batched_tokens.value_or(limits.prefill_rows)) {}

Scheduler::~Scheduler() {
  for (Sequence* sequence : live_) {
    space_.Release(&sequence->space);
    prefix_cache_.Abandon(&sequence->prefix);
  }
  for (Sequence* sequence : waiting_.InOrder()) DropSwapped(sequence);
}

void Scheduler::Add(RequestHandle handle, CheckedRequest checked, TimeUs now) {
  Request& request = checked.request;
  auto sequence = std::make_unique<Sequence>(Sequence{
      .handle = handle,
      .only_reads = request.only_reads,
      .max_total_tokens = checked.max_total_tokens,
      .last_heard_at = now,
      .tokens = std::move(request.prompt),
      .keep_as = std::move(request.keep_as),
      .sampling = ToSampledRow(request.sampling),
      .logits = LogitsProcessor::Create(request.sampling, request.stopping, *tokenizer_),
      .output = OutputProcessor(tokenizer_, request.stopping, request.skip_special_tokens),
      .plan = checked.plan,
      .request_id = std::move(request.request_id),
      .order = {now + request.priority * QueueOrder::kClassUs, next_arrival_++},
      .deadline = request.deadline,
      .slo = request.slo,
      .priority = request.priority,
      .on_pressure = request.on_pressure,
      .largest_cap = checked.largest_cap,
      .pooling = request.pooling,
      .wants_prompt_logprobs = request.sampling.prompt_logprobs && !request.sample_of.has_value(),
      .prefix_keys = std::move(checked.prefix_keys),
      .prompt_is_told = request.prompt_is_told,
      .from = std::move(request.from),
      .sample_of = request.sample_of,
      .spec = std::move(request.cache),
      .under_pressure = std::move(checked.under_pressure),
      .salt = std::move(request.cache_salt),
      .submitted_at = now,
  });
  sequence->num_prompt_tokens = static_cast<int32_t>(sequence->tokens.size());
  sequence->num_context_tokens = static_cast<int32_t>(sequence->plan.prompt.tokens);
  if (sequence->from != nullptr) sequence->read_later = sequence->from->read_later;
  const int64_t seen =
      sequence->from != nullptr ? sequence->from->num_seen : sequence->num_context_tokens;
  // One token costs less in a decode row.
  if (limits_.window_layers == 0 && sequence->num_prompt_tokens - seen > 1)
    sequence->read_later.push_back({static_cast<int32_t>(seen), sequence->num_prompt_tokens});
  sequence->probed = Probed(*sequence, checked.probe);
  // What a broken stream had delivered of the resumed tokens comes out here and is dropped; what it
  // had held back stays.
  for (const TokenId id : request.resume_token_ids) {
    sequence->output.Push(id);
    sequence->tokens.push_back(id);
    if (sequence->logits != nullptr) sequence->logits->Accept(id);
  }
  sequence->usage.prompt_tokens = sequence->num_prompt_tokens;
  sequence->usage.completion_tokens = sequence->num_resumed = sequence->output.num_tokens();
  if (sequence->sample_of.has_value()) {
    const auto parent = sequences_.find(*sequence->sample_of);
    if (parent != sequences_.end() && !parent->second->was_read)
      parent->second->samples.push_back(handle);
  }
  queued_tokens_ += sequence->NumKnown();
  waiting_.Open(request.tenant, sequence.get());
  waiting_.Add(sequence.get());
  if (sequence->deadline.has_value()) deadlines_.emplace(*sequence->deadline, handle);
  if (BoundOf(*sequence, {}).has_value())
    SetBeginBy(sequence.get(), BeginBy(*sequence, DecodingLoad()));
  HYDRANT_CHECK(sequences_.emplace(handle, std::move(sequence)).second);
}

void Scheduler::Cancel(RequestHandle handle, absl::Status why) {
  cancels_.emplace_back(handle, std::move(why));
}

const Batch& Scheduler::Schedule(TimeUs now) {
  batch_.Clear();
  std::swap(batch_.list, ended_updates_.list);
  cut_.clear();
  batch_.decode.clear();
  batch_.prefill.clear();
  batch_.masks.clear();
  preempted_in_step_ = arena_wanted_ = false;
  more_samples_ = 0;

  waiting_.ForgetIdle();
  PackStates();
  EndCancelled(now);
  EndLate(now);
  RefuseLate(now);
  SendDecisions();
  LookAtMasks();
  ForkSamples(now);
  CutRunning();
  GrowRunning(now);
  if (!preempted_in_step_) AdmitWaiting(now);
  ObserveAdmissions(now);
  in_flight_.push_back(std::move(spare_));
  in_flight_.back().work = StepWork();
  in_flight_.back().scheduled_at = now;
  in_flight_.back().decode.clear();
  in_flight_.back().prefill.clear();
  in_flight_.back().cut = cut_;
  in_flight_.back().swaps = Swaps(batch_);
  ScheduleDecode(now);
  SchedulePrefill(now);
  if (!batch_.HasWork()) {
    spare_ = std::move(in_flight_.back());
    in_flight_.pop_back();
  }
  if (in_flight_.empty()) {
    applied_at_.reset();       // no step delays the next work
    if (HasToWaitForMask()) {  // and no step is in flight, so waiting delays no other work
      slow_masks_.WaitForFirst();
      return Schedule(now);
    }
  }
  SendProgress(now);
  return batch_;
}

void Scheduler::EndCancelled(TimeUs now) {
  for (auto& [handle, why] : cancels_) {
    const auto it = sequences_.find(handle);
    if (it != sequences_.end()) Fail(it->second.get(), std::move(why), "CANCELLED", now);
  }
  cancels_.clear();
}

void Scheduler::EndLate(TimeUs now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    Sequence* sequence = sequences_.at(deadlines_.begin()->second).get();
    Fail(sequence,
         absl::DeadlineExceededError(absl::StrCat(
             "deadline passed ", sequence->usage.completion_tokens, " tokens into the answer")),
         "DEADLINE", now);
  }
}

// What the steps before have cut leaves pages for state that are too many.
void Scheduler::PackStates() {
  for (Sequence* sequence : live_) {
    if (sequence->space.HasSpareSlab()) space_.PackState(&sequence->space, &batch_);
  }
}

// Chooses the masks that the next step waits for: those of the oldest sequences, as many as take a
// few milliseconds. SlowMasks makes the others, while steps go on without their sequences.
void Scheduler::LookAtMasks() {
  mask_steps_left_ = kMaskStepsBesideAStep;
  for (Sequence* sequence : live_) LookAtMask(sequence);
}

void Scheduler::LookAtMask(Sequence* sequence) {
  if (sequence->logits == nullptr || sequence->logits->grammar() == nullptr) return;
  const std::shared_ptr<NextMask>& mask = sequence->logits->grammar();
  const bool is_wanted = sequence->DrawsNext() && !mask->IsMade();
  const bool is_slow = is_wanted && mask->ExpectedSteps() > mask_steps_left_;
  if (is_wanted && !is_slow) mask_steps_left_ -= mask->ExpectedSteps();
  if (is_slow && !sequence->waits_for_mask) slow_masks_.Add(mask);
  sequence->waits_for_mask = is_slow;
}

bool Scheduler::HasToWaitForMask() const {
  return std::ranges::any_of(live_, &Sequence::waits_for_mask);
}

void Scheduler::SendDecisions() {
  for (Sequence* sequence : live_) {
    if (std::exchange(sequence->was_decided, false))
      batch_.Add(SlotDecision{sequence->space.slot, sequence->plan});
  }
}

void Scheduler::GoLive(Sequence* sequence) {
  live_.insert(std::upper_bound(live_.begin(), live_.end(), sequence, GoesBefore), sequence);
}

bool Scheduler::IsCutNow(const Sequence& sequence) const {
  return sequence.state == SequenceState::kRunning && sequence.MayDecode() &&
         sequence.num_shrunk == sequence.shrinks.size() &&
         sequence.plan.CutsAfter(sequence.num_seen) && !Names(cut_, sequence);
}

void Scheduler::AddCut(Sequence* sequence) {
  batch_.Add(SlotCut{sequence->space.slot, static_cast<int32_t>(sequence->num_seen)});
  cut_.push_back(CacheOf(sequence));
}

// The cuts that free pages; other sequences may get these pages in the same step. The other cuts,
// which move entries within pages, follow when the sequence has grown: by then shared pages have
// been copied.
void Scheduler::CutRunning() {
  for (Sequence* sequence : live_) {
    if (sequence->num_shrunk < sequence->shrinks.size()) {
      if (sequence->state != SequenceState::kRunning || !sequence->MayDecode()) continue;
      const ShrinkAt& again = sequence->shrinks[sequence->num_shrunk];
      if (again.tokens == sequence->num_seen) ShrinkNow(sequence, again.mean);
      continue;
    }
    if (!IsCutNow(*sequence)) continue;
    const CachePlan& plan = sequence->plan;
    const PageCut cut = plan.life->CutAfter(plan, sequence->num_seen);
    if (!cut.then.has_value()) continue;
    AddCut(sequence);
    space_.Cut(*cut.then, sequence->num_seen, &sequence->space);
    LowerPromise(sequence);
  }
}

void Scheduler::GrowRunning(TimeUs now) {
  // So many sequences ahead, what will be written on is on its way from memory.
  constexpr size_t kAhead = 4;
  growing_ = live_;  // some of them may leave meanwhile
  for (size_t i = 0; i < growing_.size(); ++i) {
    if (i + 2 * kAhead < growing_.size())
      CacheSpace::PrefetchGrowingHeads(growing_[i + 2 * kAhead]->space);
    if (i + kAhead < growing_.size()) {
      const Sequence& later = *growing_[i + kAhead];
      space_.PrefetchGrowth(later.num_seen + 1, later.space);
    }
    Sequence* sequence = growing_[i];
    if (sequence->state != SequenceState::kRunning) continue;
    const TokenRange* read = sequence->IsSettled() ? sequence->NextRead() : nullptr;
    if (read == nullptr && !sequence->MayDecode()) continue;
    if (read != nullptr) BeginTurn(sequence, *read);
    if (!TryGrow(sequence, read != nullptr ? read->end : sequence->num_seen + 1, now)) continue;
    if (read != nullptr) BeginRead(sequence);
    if (read == nullptr && IsCutNow(*sequence)) AddCut(sequence);
  }
}

// A context that another prompt follows may hold more. Does nothing the second time.
void Scheduler::BeginTurn(Sequence* sequence, const TokenRange& range) {
  CachePlan& plan = sequence->plan;
  sequence->keep.clear();
  if (sequence->from == nullptr || !IsTurn(range, plan)) return;
  const std::span full(sequence->space.spans.data(),
                       static_cast<size_t>(limits_.FullLayers()) * limits_.num_kv_heads);
  sequence->keep = KeptAfterTurn(range, plan, sequence->spec, sequence->read_later, full);
  if (!sequence->keep.empty()) space_.WillBeCut(range.end, &sequence->space);
  SlotTurn turn = {.slot = sequence->space.slot,
                   .budget = BudgetOfTurn(plan, sequence->spec, range.end)};
  if (turn.budget.cap == plan.cap) return;
  space_.Raise(turn.budget.cap - plan.cap, sequence->num_seen, &sequence->space);
  plan.cap = turn.budget.cap;
  for (const HeadSpan& span : full) turn.caps.push_back(span.cap);
  batch_.Add(std::move(turn));
}

// Its heads hold no more than is known now, unless another turn is to come.
void Scheduler::LowerPromise(Sequence* sequence) {
  if (sequence->from == nullptr) space_.LowerPromise(&sequence->space);
}

// Preempts others for it; false: that was the end of it, or of its turn.
bool Scheduler::TryGrow(Sequence* sequence, int64_t tokens, TimeUs now) {
  if (tokens <= sequence->space.capacity) return true;
  while (!space_.TryGrow(tokens, &sequence->space, &batch_)) {
    if (live_.size() > 1 && TryShrink()) continue;
    Sequence* victim = live_.size() > 1 ? PickVictim() : nullptr;
    if (victim == nullptr) {  // CheckRequest has excluded it, and so does a promise
      ForgetUpdates(*sequence);
      Fail(sequence, absl::InternalError("pool too small for one sequence"), "ENGINE_FAULT", now);
      return false;
    }
    Preempt(victim);
    victim->page_time.Hold(0, now);
    victim->absence = {.since = now, .swapped = victim->IsSwapped()};
    if (victim == sequence) return false;
  }
  sequence->usage.kv_pages_peak =
      std::max(sequence->usage.kv_pages_peak, sequence->space.num_pages);
  return true;
}

// It waits where prompts that are being read have all of the arena; no others are opened meanwhile.
void Scheduler::BeginRead(Sequence* sequence) {
  const auto tokens = static_cast<int64_t>(sequence->PrefillTokens().size());
  if (!space_.TryOpenArena(tokens, &sequence->space)) {
    arena_wanted_ = true;
    return;
  }
  sequence->state = SequenceState::kPrefilling;
  sequence->cursor = PrefillCursor();
}

void Scheduler::AdmitWaiting(TimeUs now) {
  wait_reason_ = arena_wanted_ ? WaitReason::kPrefillArena : WaitReason::kArrived;
  if (arena_wanted_ || waiting_.empty()) return;
  ListPrefixReaders();
  const RunningLoad load = begin_by_.empty() ? RunningLoad() : DecodingLoad();
  FairQueue::Turns turns(&waiting_);
  while (Sequence* sequence = turns.Next()) {
    if (WaitsForPrompt(*sequence) || WaitsForPrefix(*sequence)) {
      wait_reason_ = WaitReason::kPrefix;
      continue;
    }
    if (IsLate(*sequence, load, now)) {
      Refuse(sequence, now);
      continue;
    }
    if (!TryAdmit(sequence)) return;
    waiting_.Erase(sequence);
    Admit(sequence, now);
  }
}

// It holds what it needs.
void Scheduler::Admit(Sequence* sequence, TimeUs now) {
  queued_tokens_ -= sequence->NumKnown();
  EndAbsence(sequence, now);
  if (sequence->state == SequenceState::kWaiting) {
    ++admitted_;
    admitted_tokens_ += sequence->NumKnown();
  }
  if (sequence->num_seen > 0) {
    GoOn(sequence, now);
  } else {
    sequence->state = SequenceState::kPrefilling;
    OpenPrefix(sequence);
    AddPrefixReader(sequence);
    sequence->usage.probe_tokens =
        static_cast<int32_t>(sequence->PrefillTokens().size()) - sequence->num_context_tokens;
  }
  sequence->usage.kv_pages_peak =
      std::max(sequence->usage.kv_pages_peak, sequence->space.num_pages);
  sequence->prompt_work = WorkOfPrompt(*sequence);
  ExpectFirstToken(sequence, now);
  SetBeginBy(sequence, std::nullopt);
  sequence->tenant->Charge(std::max(1.0, pacer_.ReadingUs(sequence->prompt_work)));
  GoLive(sequence);
  LookAtMask(sequence);
}

void Scheduler::EndAbsence(Sequence* sequence, TimeUs now) {
  const std::optional<Absence> absence = std::exchange(sequence->absence, std::nullopt);
  if (!absence.has_value()) return;
  Usage& usage = sequence->usage;
  const TimeUs lasted = now - absence->since;
  (absence->swapped ? usage.swapped_us : usage.preempted_us) += lasted;
  if (usage.away.size() < kMostTimesAway)
    usage.away.push_back({absence->since - sequence->submitted_at, lasted, absence->swapped});
}

bool Scheduler::TryAdmit(Sequence* sequence) {
  if (sequence->state == SequenceState::kPreempted && !HasRoomToComeBack(*sequence)) {
    wait_reason_ = WaitReason::kPreempted;
    return false;
  }
  if (MustLearnFirst(*sequence)) {
    wait_reason_ = WaitReason::kTtft;
    return false;
  }
  if (!KeepsTpot(*sequence)) {
    wait_reason_ = WaitReason::kTpot;
    return false;
  }
  return TryDecideAndOpen(sequence) || TryCompressed(sequence);
}

bool Scheduler::TryDecideAndOpen(Sequence* sequence) {
  if (sequence->plan.open != OpenUntil::kAdmission) return TryOpen(sequence);
  CachePlan open = std::exchange(sequence->plan, DecideByRoom(*sequence));
  const bool opened = TryOpen(sequence);
  if (!opened) sequence->plan = std::move(open);  // it is asked again; else it keeps its plan
  return opened;
}

// Whose whole cache lacks room gets the one of policy_under_pressure, where that fits, and so do
// its samples. Who has begun before goes on as it was.
bool Scheduler::TryCompressed(Sequence* sequence) {
  const std::shared_ptr<const PlannedCache> other = sequence->under_pressure;
  if (other == nullptr || sequence->state != SequenceState::kWaiting ||
      sequence->sample_of.has_value())
    return false;
  const WaitReason lacked = wait_reason_;
  if (lacked != WaitReason::kPages && lacked != WaitReason::kBlockTables) return false;
  CachePlan whole = std::exchange(sequence->plan, other->plan);
  sequence->probed = Probed(*sequence, other->probe);
  if (!KeepsTpot(*sequence) || !TryDecideAndOpen(sequence)) {
    sequence->plan = std::move(whole);
    sequence->probed.clear();  // the full cache reads none
    wait_reason_ = lacked;
    return false;
  }
  sequence->spec = other->spec;
  sequence->usage.compressed_by = other->spec.policy;
  for (const RequestHandle handle : sequence->samples) {
    const auto it = sequences_.find(handle);
    if (it == sequences_.end()) continue;
    it->second->plan = sequence->plan;
    it->second->probed = sequence->probed;
    it->second->spec = other->spec;
    it->second->usage.compressed_by = other->spec.policy;
  }
  ++totals_.compressed;
  Send(*sequence,
       Progress{.prompt_tokens = sequence->num_prompt_tokens, .compressed_by = other->spec.policy});
  return true;
}

// Who leaves the budget to us gets one whose whole life fits into an equal part of what is free for
// all who wait, or whose prompt does, where it may be cut later; and so with what the target for
// the time per output token leaves.
CachePlan Scheduler::DecideByRoom(const Sequence& sequence) const {
  const int64_t free = std::max<int64_t>(0, space_.NumUnpromisedPages() - watermark_pages_);
  const auto waiting = static_cast<int64_t>(waiting_.size());
  const int64_t last = sequence.max_total_tokens - 1;
  const int64_t tokens = sequence.on_pressure == OnPressure::kEvict ? sequence.NumKnown() : last;
  return Decide(sequence.plan, {.fits =
                                    [&](const CachePlan& plan) {
                                      return CacheSpace::FitsAlone(limits_, plan, last) &&
                                             space_.PagesFor(plan, tokens) <= free / waiting &&
                                             KeepsTpot(sequence, plan, waiting);
                                    },
                                .free_pages = free,
                                .num_waiting = waiting,
                                .tpot_us = pacer_.Tpot(sequence.slo),
                                .of_prompt = {}});
}

bool Scheduler::TryOpen(Sequence* sequence) {
  if (sequence->IsSwapped()) return TrySwapIn(sequence);
  CacheSpace::OpenArgs args = {
      .plan = &sequence->plan,
      .prompt_tokens = static_cast<int64_t>(sequence->PrefillTokens().size()),
      .tokens = sequence->NumKnown(),
      .final_tokens = sequence->max_total_tokens - 1,
      .pages_kept_free = live_.empty() ? 0 : watermark_pages_,
      .others_may_follow = sequence->SharesPages()};
  const Context* from = sequence->from.get();
  const KeptSpace* kept = from == nullptr ? nullptr : contexts_.Use(*from);
  if (from != nullptr) sequence->plan = kept != nullptr ? from->plan : from->first_plan;
  const CachePlan largest = sequence->IsPromised() ? sequence->LargestPlan() : CachePlan();
  if (sequence->IsPromised()) args.promised = &largest;
  const std::span<const PrefixKey> keys = sequence->prefix_keys;
  if (kept != nullptr) {
    args.tokens = from->num_seen;
  } else if (!keys.empty() && sequence->SharesPages()) {
    args.prefix = keys.first(UsableTokens(*sequence, nullptr) / kPrefixBlockTokens);
  }
  const int64_t shared =
      kept == nullptr ? space_.NumSharedWhenOpened(args) : space_.NumSharedWhenOpened(args, *kept);
  if (!FitsLater(*sequence, shared)) return false;
  const bool opened = kept == nullptr ? space_.TryOpen(args, &sequence->space, &batch_)
                                      : space_.TrySwapIn(args, *kept, &sequence->space, &batch_);
  if (opened && kept != nullptr) sequence->num_seen = from->num_seen;
  if (!opened) wait_reason_ = space_.wait_reason();
  return opened;
}

// An admitted sequence has the cache of its context, and reads what follows from the next step on.
void Scheduler::GoOn(Sequence* sequence, TimeUs now) {
  sequence->state = SequenceState::kRunning;
  sequence->num_done = sequence->num_seen;
  sequence->was_swapped_in = true;
  if (sequence->sampling.penalties.Any()) {
    auto& swap = std::get<SwapIn>(batch_.list.back());
    swap.prompt = sequence->Prompt();
    swap.output = sequence->SeenOutput();
  }
  if (!sequence->prefill_started_at.has_value()) sequence->prefill_started_at = now;
  if (std::exchange(sequence->was_read, true)) return;
  totals_.prompt_tokens += sequence->num_prompt_tokens;
  sequence->usage.cached_tokens = static_cast<int32_t>(sequence->num_seen);
}

void Scheduler::ScheduleDecode(TimeUs now) {
  for (Sequence* sequence : live_) {
    // Whatever has changed them since the last step.
    if (sequence->space.num_pages != sequence->page_time.pages())
      sequence->page_time.Hold(sequence->space.num_pages, now);
    if (std::exchange(sequence->was_swapped_in, false)) continue;
    if (sequence->state != SequenceState::kRunning || !sequence->MayDecode()) continue;
    const auto position = static_cast<int32_t>(sequence->num_seen++);
    const bool known = position < sequence->NumKnown();
    batch_.decode.push_back({.slot = sequence->space.slot,
                             .token = known ? sequence->tokens[position] : kNoToken,
                             .position = position,
                             .sampling = sequence->sampling,
                             .in_prompt = position < sequence->num_prompt_tokens});
    SampledRow& row = batch_.decode.back().sampling;
    row.position = position + 1;
    EditLogits(*sequence, position + 1, &row);
    in_flight_.back().decode.push_back({CacheOf(sequence), position + 1, row.logprobs});
    in_flight_.back().work += {.rows = 1, .pages = static_cast<double>(sequence->space.num_pages)};
  }
}

// For the row that draws what comes behind so many tokens, where that is not known.
void Scheduler::EditLogits(const Sequence& sequence, int64_t num_tokens, SampledRow* row) {
  if (sequence.logits == nullptr || num_tokens < sequence.NumKnown()) return;
  const int64_t prompt = sequence.num_prompt_tokens;
  const std::span<const TokenId> output = std::span(sequence.tokens).subspan(prompt);
  if (sequence.logits->Edit(num_tokens - prompt, output, row))
    batch_.masks.push_back(sequence.logits.get());
}

void Scheduler::SchedulePrefill(TimeUs now) {
  prefilling_.clear();
  open_prompts_.clear();
  for (Sequence* sequence : live_) {
    if (sequence->state != SequenceState::kPrefilling || sequence->waits_for_mask) continue;
    prefilling_.push_back(sequence);
    open_prompts_.push_back({static_cast<int>(sequence->PrefillTokens().size()), sequence->cursor,
                             sequence->FirstToken()});
  }
  if (prefilling_.empty()) return;
  const RunningLoad decoding = batch_.decode.empty() ? RunningLoad() : DecodingLoad();
  const double budget = pacer_.PromptTokens(decoding) * limits_.num_layers;
  const PrefillCosts costs = {pacer_.step_time().AttentionScale()};
  for (const PrefillRun& run : PlanPrefill(open_prompts_, limits_.num_layers, budget, costs)) {
    Sequence* sequence = prefilling_[run.prompt];
    batch_.prefill.push_back(
        {.slot = sequence->space.slot,
         .prompt = sequence->PrefillTokens(),
         .arena_begin = sequence->space.arena_begin,
         .layer_begin = run.layer_begin,
         .layer_end = run.layer_end,
         .token_begin = run.token_begin,
         .token_end = run.token_end,
         .sampling = sequence->sampling,
         .whole_prompt = sequence->Prompt(),
         .pooling = sequence->pooling,
         .prompt_logprobs = sequence->wants_prompt_logprobs && !sequence->was_read,
         .first_token = sequence->FirstToken(),
         .num_seen = static_cast<int32_t>(sequence->num_seen)});
    PrefillSlice& slice = batch_.prefill.back();
    if (slice.Appends()) {
      slice.keep = sequence->keep;
    } else {
      slice.cached_blocks = sequence->prefix.cached;
      slice.new_blocks = sequence->prefix.fresh;
      slice.checkpoints = sequence->prefix.checkpoints;
    }
    slice.sampling.position = static_cast<int32_t>(SeenAfter(*sequence));
    if (slice.EndsPrompt(limits_.num_layers))
      EditLogits(*sequence, slice.sampling.position, &slice.sampling);
    AdvancePrompt(sequence, slice, AddSamples(sequence, &slice));
    if (!sequence->prefill_started_at.has_value()) sequence->prefill_started_at = now;
  }
}

// Whoever waits, is being read or replays is silent; a scan every quarter of the interval is near
// enough.
void Scheduler::SendProgress(TimeUs now) {
  if (now < next_progress_scan_) return;
  next_progress_scan_ = now + std::max<TimeUs>(1, options_.progress_interval_us / 4);
  auto send = [&](Sequence* sequence, int32_t queue_position, int32_t done) {
    if (now - sequence->last_heard_at < options_.progress_interval_us) return;
    sequence->last_heard_at = now;
    Send(*sequence, Progress{queue_position, done, sequence->num_prompt_tokens,
                             sequence->usage.compressed_by});
  };
  int32_t queue_position = 0;
  longest_wait_us_ = 0;
  for (Sequence* sequence : waiting_.InOrder()) {
    send(sequence, ++queue_position, 0);
    if (!sequence->prefill_started_at.has_value())
      longest_wait_us_ = std::max(longest_wait_us_, now - sequence->submitted_at);
  }
  for (Sequence* sequence : live_) {
    send(sequence, 0, static_cast<int32_t>(PromptTokensRead(*sequence)));
  }
}

// Layers count alike, and a reading that is longer than the prompt as much as the prompt.
int64_t Scheduler::PromptTokensRead(const Sequence& sequence) const {
  if (sequence.state == SequenceState::kRunning)
    return std::min<int64_t>(std::max(sequence.num_seen, int64_t{sequence.num_context_tokens}),
                             sequence.num_prompt_tokens);
  if (sequence.num_seen > 0) return sequence.num_seen;
  const int64_t first = sequence.FirstToken();
  const auto reading = static_cast<int64_t>(sequence.PrefillTokens().size()) - first;
  const int64_t done = sequence.cursor.layer * reading + sequence.cursor.token - first;
  return done * sequence.num_prompt_tokens / (reading * limits_.num_layers);
}

// Tokens that have been seen when what is being read has been read. A probe leaves nothing.
int64_t Scheduler::SeenAfter(const Sequence& sequence) {
  const TokenRange* read = sequence.NextRead();
  return read != nullptr ? read->end : sequence.num_context_tokens;
}

void Scheduler::AdvancePrompt(Sequence* sequence, const PrefillSlice& slice,
                              std::vector<RequestHandle> samples) {
  const bool layer_done = slice.token_end == static_cast<int>(slice.prompt.size());
  sequence->cursor = {layer_done ? slice.layer_end : slice.layer_begin,
                      layer_done ? slice.first_token : slice.token_end};
  in_flight_.back().work += WorkOf(slice);
  const bool ends = slice.EndsPrompt(limits_.num_layers);
  const int64_t seen = SeenAfter(*sequence);
  in_flight_.back().prefill.push_back(
      {{CacheOf(sequence), ends ? seen : kNothing, ends && slice.sampling.logprobs},
       std::move(samples),
       {slice.token_begin, slice.ScoredEnd(limits_.num_layers)}});
  if (!ends) return;
  space_.CloseArena(&sequence->space);
  sequence->state = SequenceState::kRunning;
  sequence->num_seen = seen;
  if (!sequence->keep.empty()) space_.CutTo(sequence->keep, seen, &sequence->space);
}

void Scheduler::Apply(const StepResult& result, TimeUs now) {
  HYDRANT_CHECK(!in_flight_.empty());
  // Stays in its place meanwhile: a sequence that ends is taken out of it.
  StepInFlight& step = in_flight_.front();
  HYDRANT_CHECK(result.decode_tokens.size() == step.decode.size());
  HYDRANT_CHECK(result.prefill_tokens.size() == step.prefill.size());
  HYDRANT_CHECK(result.prompt_reports.size() == step.prefill.size());
  HYDRANT_CHECK(result.cut_reports.size() == step.cut.size());
  size_t more = 0;  // of result.more_tokens
  LogprobReader logprobs(step, result);
  // Most rows bring one, and events are large: they shall not move as the list grows.
  events_.reserve(events_.size() + step.decode.size() + step.prefill.size());
  ++totals_.steps;
  for (size_t i = 0; i < step.decode.size(); ++i) {
    const ScheduledToken& row = step.decode[i];
    Sequence* sequence = row.cache.Live();
    const TokenLogprobs* of_token = logprobs.Next(row);
    if (sequence != nullptr) Sampled(sequence, row.index, result.decode_tokens[i], of_token, now);
  }
  for (size_t i = 0; i < step.prefill.size(); ++i) {
    const ScheduledSlice& slice = step.prefill[i];
    const int64_t index = slice.index;
    const auto& cache = slice.cache;
    Sequence* sequence = cache.Live();
    const TokenLogprobs* of_token = logprobs.Next(slice);
    const std::span<const TokenLogprobs> of_prompt = logprobs.NextOfPrompt(slice);
    for (const RequestHandle sample : slice.samples) {
      SampledFirst(sample, sequence, result.more_tokens.at(more++), logprobs.NextOfSample(slice),
                   now);
    }
    if (sequence != nullptr && !sequence->was_read) AddPromptLogprobs(sequence, slice, of_prompt);
    if (sequence == nullptr || index == kNothing) continue;
    if (!std::exchange(sequence->was_read, true)) {
      totals_.prompt_tokens += sequence->num_prompt_tokens;
      if (sequence->wants_prompt_logprobs)
        Send(*sequence, PromptLogprobs{std::exchange(sequence->prompt_logprobs, {})});
    }
    const bool compressed = index == sequence->num_context_tokens;  // else it was appended
    if (cache.IsOpen() && compressed) {
      Compressed(sequence, result.prompt_reports[i]);
      const bool sampled = result.prefill_tokens[i] != kNoToken;
      // What ended in no number is not for others.
      if (sampled || sequence->pooling != EmbeddingPooling::kNone) {
        if (lists_filled_) {
          const std::vector<PrefixKey>& keys = sequence->prefix.keys;
          filled_.insert(filled_.end(), keys.begin(), keys.end());
        }
        PrefixText text;
        if (sequence->prompt_is_told) text = {sequence->prefix_keys, sequence->Prompt()};
        prefix_cache_.Fill(&sequence->prefix, text);
        // What follows the prompt may be being read by now, and counts when it has been.
        const int64_t tokens = sequence->state == SequenceState::kPrefilling ? SeenAfter(*sequence)
                                                                             : sequence->num_seen;
        if (sequence->SharesPages())
          space_.Publish(sequence->plan, tokens, sequence->prefix_keys, &sequence->space);
      }
    }
    if (sequence->pooling != EmbeddingPooling::kNone) {
      Pooled(sequence, result.embeddings.at(i), now);
    } else {
      Sampled(sequence, index, result.prefill_tokens[i], of_token, now);
    }
  }
  for (size_t i = 0; i < step.cut.size(); ++i) {
    const std::vector<int32_t>& entries = result.cut_reports[i].entries;
    Sequence* sequence = step.cut[i].Live();
    if (sequence == nullptr || !step.cut[i].IsOpen() || entries.empty()) continue;
    space_.Cap(entries, &sequence->space);
    LowerPromise(sequence);
  }
  ObserveStep(step.work, step.scheduled_at, now);
  step.ended.clear();
  spare_ = std::move(step);
  in_flight_.pop_front();
  blocks_under_way_ = std::max(0, blocks_under_way_ - 1);
}

Scheduler::LogprobReader::LogprobReader(const StepInFlight& step, const StepResult& result)
    : next_(result.logprobs.data()), next_of_prompts_(result.prompt_logprobs.data()) {
  const auto wants = [](const ScheduledToken& row) { return row.logprobs; };
  next_of_samples_ = next_ + std::ranges::count_if(step.decode, wants) +
                     std::ranges::count_if(step.prefill, wants);
  size_t of_samples = 0, of_prompts = 0;
  for (const ScheduledSlice& slice : step.prefill) {
    if (slice.logprobs) of_samples += slice.samples.size();
    of_prompts += slice.scored.end - slice.scored.begin;
  }
  HYDRANT_CHECK(result.logprobs.size() == next_of_samples_ - next_ + of_samples);
  HYDRANT_CHECK(result.prompt_logprobs.size() == of_prompts);
}

// Steps bring them in the order of the prompt, from where they begin on when it is read again.
void Scheduler::AddPromptLogprobs(Sequence* sequence, const ScheduledSlice& slice,
                                  std::span<const TokenLogprobs> of_prompt) {
  if (of_prompt.empty()) return;
  sequence->prompt_logprobs.resize(slice.scored.begin);
  sequence->prompt_logprobs.insert(sequence->prompt_logprobs.end(), of_prompt.begin(),
                                   of_prompt.end());
}

// The prompt has become a cache.
void Scheduler::Compressed(Sequence* sequence, const CacheReport& report) {
  SequenceSpace& space = sequence->space;
  if (sequence->plan.open == OpenUntil::kPromptRead) {
    sequence->plan = Decide(sequence->plan, {.fits = {}, .of_prompt = report.observations});
    sequence->was_decided = true;
  }
  if (!space.lengths_known) space_.SetKept(sequence->plan, report.entries, report.pages, &space);
  LowerPromise(sequence);
  Usage& usage = sequence->usage;
  usage.kv_entries_of_prompt = usage.kv_window_entries_of_prompt = 0;
  // What state leaves free goes home with the next step (CacheSpace::PackState).
  const int64_t spare = space.HasSpareSlab() ? space.free_states.size() / space.states_a_slab : 0;
  usage.kv_pages_of_prompt = space.num_pages - spare;
  usage.heads_kept_whole = 0;
  const std::optional<PageCut> cut =
      sequence->plan.life->CutPrompt(sequence->plan, limits_.FullLayers());
  const bool guarded = cut.has_value() && cut->min_retained_mass > 0.0f;
  const size_t full_heads = static_cast<size_t>(limits_.FullLayers()) * limits_.num_kv_heads;
  for (size_t head = 0; head < space.spans.size(); ++head) {
    const HeadSpan& span = space.spans[head];
    const int32_t entries = span.EntriesAfter(sequence->num_context_tokens);
    usage.kv_entries_of_prompt += entries;
    if (head >= full_heads) {
      usage.kv_window_entries_of_prompt += entries;
    } else if (guarded && span.dropped == 0) {
      ++usage.heads_kept_whole;
    }
  }
  if (!report.retained_mass.empty()) usage.retained_mass = Summarize(report.retained_mass);
  usage.policy_report = ReportOf(sequence->plan);
}

// The prompt has been read, and nothing follows it.
void Scheduler::Pooled(Sequence* sequence, const std::vector<float>& embedding, TimeUs now) {
  if (!sequence->IsWaiting()) sequence->num_done = sequence->num_context_tokens;
  const auto is_finite = [](float value) { return std::isfinite(value); };
  if (!std::all_of(embedding.begin(), embedding.end(), is_finite)) {
    Fail(sequence, absl::InternalError("the hidden states of the prompt are not finite"),
         "ENGINE_FAULT", now);
    return;
  }
  ObserveFirstToken(sequence, now);
  Finish(sequence, FinishReason::kLength, now, embedding);
}

// Token number `index` of the sequence has come; one that is known already when it replays.
// `logprobs`: null where they were not asked for.
void Scheduler::Sampled(Sequence* sequence, int64_t index, TokenId token,
                        const TokenLogprobs* logprobs, TimeUs now) {
  if (!sequence->IsWaiting() || sequence->IsSwapped()) sequence->num_done = index;
  const bool is_known = index < sequence->NumKnown();
  if (token == kNoToken && !is_known && sequence->logits != nullptr) {
    if (sequence->logits->IsComplete()) return EndText(sequence, now);
    const absl::Status none = sequence->logits->WhyNoneFollows(index);
    if (!none.ok())
      return Fail(sequence, none, absl::IsInternal(none) ? "ENGINE_FAULT" : "INVALID", now);
  }
  if (token >= tokenizer_->VocabSize()) {  // kNoToken, or an id of the model's padding
    Fail(sequence,
         absl::InternalError(token == kNoToken
                                 ? absl::StrCat("no finite logit at position ", index)
                                 : absl::StrCat("sampled id ", token, " is not in the vocabulary")),
         "ENGINE_FAULT", now);
    return;
  }
  if (is_known) return;
  ObserveFirstToken(sequence, now);
  if (sequence->only_reads) return Finish(sequence, FinishReason::kLength, now);
  ++totals_.generation_tokens;
  OutputProcessor::Output output = sequence->output.Push(token);
  if (sequence->logits != nullptr) sequence->logits->Accept(token);
  sequence->usage.completion_tokens = sequence->output.num_tokens();
  const bool full_length = sequence->NumKnown() + 1 >= sequence->max_total_tokens;
  if (full_length && !output.ends) output.text += sequence->output.Finish();
  Delta delta{.text = std::move(output.text)};
  if (output.deliver_id) {
    sequence->tokens.push_back(token);
    if (sequence->IsWaiting()) ++queued_tokens_;  // preempted with this token on its way
    delta.token_id = token;
    if (logprobs != nullptr) delta.logprobs = *logprobs;
  }
  if (output.deliver_id || !delta.text.empty()) {
    sequence->last_heard_at = now;
    Send(*sequence, std::move(delta));
  }
  if (output.ends) {
    Finish(sequence, FinishReason::kStop, now);
  } else if (full_length) {
    Finish(sequence, FinishReason::kLength, now);
  }
}

// Complete, of a model that has no id that would say so.
void Scheduler::EndText(Sequence* sequence, TimeUs now) {
  std::string text = sequence->output.Finish();
  if (!text.empty()) Send(*sequence, Delta{.text = std::move(text)});
  Finish(sequence, FinishReason::kStop, now);
}

void Scheduler::Finish(Sequence* sequence, FinishReason reason, TimeUs now,
                       std::vector<float> embedding) {
  CloseUsage(sequence, now);
  ObserveOutput(*sequence);
  ObserveTpot(*sequence, now);
  std::shared_ptr<const Context> context = Keep(*sequence);
  Send(*sequence, Finished{.reason = reason,
                           .matched_stop = sequence->output.matched_stop(),
                           .matched_token_id = sequence->output.matched_token_id(),
                           .usage = sequence->usage,
                           .embedding = std::move(embedding),
                           .context = std::move(context)});
  Remove(sequence);
}

// What a sequence that ends has left; null: nothing.
std::shared_ptr<const Context> Scheduler::Keep(const Sequence& sequence) {
  const SequenceSpace& space = sequence.space;
  // A token that was on its way when its sequence was preempted may end it while it reads again.
  const bool whole = sequence.state == SequenceState::kRunning && space.lengths_known &&
                     sequence.plan.open == OpenUntil::kDecided;
  if (sequence.keep_as.handle.empty() || !whole) return nullptr;
  const Context* from = sequence.from.get();
  auto context = std::make_shared<Context>(
      Context{.id = {sequence.salt, sequence.keep_as.handle},
              .tokens = sequence.tokens,
              .num_seen = sequence.num_seen,
              .read_later = sequence.read_later,
              .spec = sequence.spec,
              .first_plan = from != nullptr ? from->first_plan : sequence.plan,
              .plan = sequence.plan,
              .pages = space.NumDataPages(),
              .retained_mass = sequence.usage.retained_mass,
              .created_at = sequence.keep_as.created_at,
              .expires_at = sequence.keep_as.expires_at,
              .pinned = sequence.keep_as.pinned});
  for (const HeadSpan& span : space.spans) context->entries += span.EntriesAfter(sequence.num_seen);
  const auto before = static_cast<std::ptrdiff_t>(ended_updates_.list.size());
  if (!contexts_.Keep(context, space, &ended_updates_)) return nullptr;
  if (sequence.was_decided) {  // the kept scores are those of the decided plan
    ended_updates_.list.insert(ended_updates_.list.begin() + before,
                               SlotDecision{space.slot, sequence.plan});
  }
  return context;
}

void Scheduler::Fail(Sequence* sequence, absl::Status status, std::string reason, TimeUs now,
                     TimeUs retry_after_us) {
  CloseUsage(sequence, now);
  Send(*sequence, Failed{.status = std::move(status),
                         .reason = std::move(reason),
                         .retry_after_us = retry_after_us,
                         .usage = sequence->usage});
  Remove(sequence);
}

void Scheduler::Send(const Sequence& sequence, decltype(Event::what) what) {
  Event& event = events_.emplace_back();
  event.handle = sequence.handle;
  event.what = std::move(what);
}

void Scheduler::CloseUsage(Sequence* sequence, TimeUs now) {
  Usage& usage = sequence->usage;
  const TimeUs prefill_start = sequence->prefill_started_at.value_or(now);
  const TimeUs first_token = sequence->first_token_at.value_or(now);
  usage.submitted_at = sequence->submitted_at;
  usage.queue_us = prefill_start - sequence->submitted_at;
  usage.prefill_us = first_token - prefill_start;
  usage.decode_us = now - first_token;
  EndAbsence(sequence, now);
  sequence->page_time.Hold(sequence->space.num_pages, now);
  usage.kv_pages_mean = sequence->page_time.Mean();
  const HeldEntries held = EntriesOf(*sequence);
  usage.kv_tokens_kept = held.most;
  usage.kv_tokens_evicted = static_cast<int32_t>(sequence->num_done - held.most);
  usage.kv_tokens_kept_mean = held.mean;
  usage.kv_tokens_evicted_mean = static_cast<double>(sequence->num_done) - held.mean;
  usage.kv_bytes = sequence->space.num_pages * limits_.page_bytes;
  usage.kv_bytes_of_full = limits_.PagesOfFull(sequence->num_done) * limits_.page_bytes;
  evicted_entries_ += static_cast<uint64_t>(std::llround(usage.kv_tokens_evicted_mean));
}

Scheduler::HeldEntries Scheduler::EntriesOf(const Sequence& sequence) const {
  if (limits_.FullLayers() == 0) {
    const auto all = static_cast<int32_t>(std::min<int64_t>(sequence.num_done, limits_.window));
    return {.most = all, .mean = static_cast<double>(all)};
  }
  const std::vector<HeadSpan>& spans =
      sequence.IsSwapped() ? sequence.swapped.spans : sequence.space.spans;
  if (!sequence.space.lengths_known || spans.empty()) {
    return {.most = sequence.plan.EntriesAfter(sequence.num_done),
            .mean = static_cast<double>(sequence.plan.MeanEntriesAfter(sequence.num_done))};
  }
  int32_t most = 0;
  int64_t sum = 0;
  const int heads = limits_.FullLayers() * limits_.num_kv_heads;
  for (int head = 0; head < heads; ++head) {
    const int32_t entries = spans[head].EntriesAfter(sequence.num_done);
    most = std::max(most, entries);
    sum += entries;
  }
  return {.most = most, .mean = static_cast<double>(sum) / heads};
}

Scheduler::CacheId Scheduler::CacheOf(Sequence* sequence) {
  return {sequence, sequence->usage.preemptions};
}

bool Scheduler::Names(const std::vector<CacheId>& caches, const Sequence& sequence) {
  return std::any_of(caches.begin(), caches.end(),
                     [&](const CacheId& cache) { return cache.IsOf(sequence); });
}

void Scheduler::Remove(Sequence* sequence) {
  if (sequence->IsWaiting()) {
    DropSwapped(sequence);
    queued_tokens_ -= sequence->NumKnown();
    waiting_.Erase(sequence);
  } else {
    space_.Release(&sequence->space);
    AbandonPrefix(sequence);
    live_.erase(std::find(live_.begin(), live_.end(), sequence));
  }
  if (sequence->deadline.has_value()) deadlines_.erase({*sequence->deadline, sequence->handle});
  SetBeginBy(sequence, std::nullopt);
  waiting_.Close(sequence);
  sequence->ended = true;
  const auto it = sequences_.find(sequence->handle);
  if (!in_flight_.empty()) in_flight_.back().ended.push_back(std::move(it->second));
  sequences_.erase(it);
}

void Scheduler::FailAll(const absl::Status& status, const std::string& reason, TimeUs now) {
  while (!live_.empty()) Fail(live_.front(), status, reason, now);
  for (Sequence* sequence : waiting_.InOrder()) Fail(sequence, status, reason, now);
  cancels_.clear();
  in_flight_.clear();
  blocks_under_way_ = 0;
  ended_updates_ = CacheUpdates();
}

bool Scheduler::SwapsUnderWay() const {
  return Swaps(ended_updates_) || std::any_of(in_flight_.begin(), in_flight_.end(),
                                              [](const StepInFlight& step) { return step.swaps; });
}

SchedulerStats Scheduler::Stats() const {
  SchedulerStats stats = totals_;
  for (const Sequence* sequence : live_) {
    ++(sequence->state == SequenceState::kRunning ? stats.running : stats.prefilling);
  }
  stats.waiting = static_cast<int>(waiting_.size());
  if (!waiting_.empty()) stats.wait_reason = wait_reason_;
  if (!waiting_.empty()) stats.longest_wait_us = longest_wait_us_;
  stats.queued_tokens = queued_tokens_;
  stats.pages_total = space_.NumPages();
  stats.pages_free = space_.NumFreePages();
  stats.pages_spared = space_.NumSparedPages();
  stats.state_pages = space_.NumSlabs();
  stats.swapped_pages = swapped_pages_;
  stats.prefix_cache = prefix_cache_.Stats();
  stats.contexts = contexts_.size();
  stats.contexts_evicted = contexts_.num_evicted();
  return stats;
}

}  // namespace hydrant
