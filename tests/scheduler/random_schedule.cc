#include "tests/scheduler/random_schedule.h"

#include <algorithm>
#include <iostream>
#include <set>
#include <string>

#include "tests/scheduler/fake_grammar.h"

namespace hydrant {
namespace {

std::optional<TokenId> Accidents(uint64_t seed, int32_t position) {
  const uint64_t dice = (seed * 977 + position * 131) % 997;
  if (dice == 0) return kNoToken;
  if (dice == 1) return FakeTokenizer::kEog;
  return std::nullopt;
}

}  // namespace

std::vector<ScheduleEvent> DrawEvents(uint64_t seed, const ScheduleSize& size) {
  std::mt19937_64 random(seed);
  const auto chance = [&](int percent) { return static_cast<int>(random() % 100) < percent; };
  const int lost_at = chance(10) ? static_cast<int>(random() % size.steps) : size.steps;
  std::vector<ScheduleEvent> events;
  for (int step = 0; step < size.steps; ++step) {
    const std::pair<Incident, int> percents[] = {{Incident::kArrival, size.arrivals},
                                                 {Incident::kContexts, 50},
                                                 {Incident::kCancel, 4},
                                                 {Incident::kDisconnect, 2},
                                                 {Incident::kShortage, size.shortages}};
    for (const auto& [what, percent] : percents)
      if (chance(percent)) events.push_back({step, what, random()});
    if (step == lost_at) events.push_back({step, Incident::kEngineError, random()});
  }
  return events;
}

std::string NameOf(Incident what) {
  switch (what) {
    case Incident::kArrival:
      return "arrival";
    case Incident::kContexts:
      return "contexts move";
    case Incident::kCancel:
      return "cancel";
    case Incident::kDisconnect:
      return "disconnect";
    case Incident::kShortage:
      return "shortage";
    case Incident::kEngineError:
      return "engine error";
  }
  return "";
}

void ScheduleCounts::Add(const ScheduleCounts& other) {
  uint64_t ScheduleCounts::*const all[] = {&ScheduleCounts::preemptions,
                                           &ScheduleCounts::swaps,
                                           &ScheduleCounts::shrinks,
                                           &ScheduleCounts::compressed,
                                           &ScheduleCounts::guaranteed,
                                           &ScheduleCounts::hit_tokens,
                                           &ScheduleCounts::evicted_blocks,
                                           &ScheduleCounts::continued,
                                           &ScheduleCounts::contexts_evicted,
                                           &ScheduleCounts::loaded,
                                           &ScheduleCounts::compared,
                                           &ScheduleCounts::appended,
                                           &ScheduleCounts::turns,
                                           &ScheduleCounts::forks,
                                           &ScheduleCounts::copies,
                                           &ScheduleCounts::state_copies,
                                           &ScheduleCounts::shared_tokens,
                                           &ScheduleCounts::finished,
                                           &ScheduleCounts::cancelled,
                                           &ScheduleCounts::gone,
                                           &ScheduleCounts::slow,
                                           &ScheduleCounts::late,
                                           &ScheduleCounts::lost,
                                           &ScheduleCounts::refused,
                                           &ScheduleCounts::starved};
  for (const auto count : all) this->*count += other.*count;
}

RandomSchedule::RandomSchedule(uint64_t seed, const ScheduleSize& size, bool tells)
    : size_(size),
      tells_(tells),
      random_(seed),
      policy_(RandomPolicy()),
      harness_(RandomLimits(), RandomOptions()),
      times_(seed) {
  if (tells_) {
    const EngineLimits& limits = harness_.engine.limits();
    std::cout << limits.num_layers << " layers, " << limits.WindowLayers() << " with a window of "
              << limits.Window() << ", KV heads: " << limits.num_kv_heads << ", "
              << limits.num_blocks << " pages of " << limits.block_size << ", lines of "
              << limits.slab.line_bytes << " bytes in keys of " << limits.slab.keys_bytes
              << ", values from line " << limits.slab.values_line << ", " << limits.table_entries
              << " table entries, " << limits.num_host_pages << " host pages, "
              << limits.max_num_seqs << " slots, " << limits.max_model_len << " tokens at most, "
              << limits.max_steps_in_flight << " steps in flight" << std::endl;
  }
  harness_.engine.choose = Accidents;
  harness_.engine.checks_replays = true;
  harness_.step_time = [this](const Batch& batch) {
    return 200 + 100 * static_cast<TimeUs>(batch.NumDecoded()) +
           static_cast<TimeUs>(times_() % 2'000);
  };
}

EngineLimits RandomSchedule::RandomLimits() {
  EngineLimits limits;
  limits.num_layers = 1 + Below(size_.max_layers);
  limits.num_kv_heads = 1 + Below(2);
  limits.block_size = 1 << Below(5);
  const int heads = limits.num_layers * limits.num_kv_heads;
  limits.max_model_len = size_.most_model_len / 6 + Below(size_.most_model_len * 5 / 6);
  // From a pool smaller than one full sequence to a pool for several.
  limits.num_blocks = heads * (2 + limits.max_model_len * (1 + Below(8)) / (2 * limits.block_size));
  limits.slab.line_bytes = 4 * limits.block_size;
  limits.slab.keys_bytes = limits.slab.line_bytes * (6 + Below(20)) / 2;
  limits.slab.values_line = 0;
  if (Below(2) == 0) limits.slab.values_line = limits.slab.EndOfStates(limits.num_blocks);
  limits.table_entries = limits.num_blocks * (1 + Below(3));
  limits.max_num_seqs = 1 + Below(size_.max_seqs);
  limits.prefill_arena_tokens = limits.max_model_len * (1 + Below(4));
  limits.max_steps_in_flight = 1 + Below(3);
  if (Below(3) != 0) limits.num_prefix_blocks = Below(48);
  limits.query_blocks = 1 + Below(3);
  limits.sums_a_prefix_block = 16 << Below(4);
  if (Below(3) != 0) {
    limits.num_host_pages = Below(4 * limits.num_blocks);
    limits.max_offloaded_caches = Below(16);
  }
  if (Below(2) == 0) {  // next to the pages of contexts
    limits.num_swap_pages = Below(3 * limits.num_blocks);
    limits.num_host_pages += limits.num_swap_pages;
    limits.max_offloaded_caches += limits.num_swap_pages > 0 ? limits.max_num_seqs : 0;
  }
  if (Below(2) == 0) {
    const int layers = Below(limits.num_layers + 1);
    if (layers > 0) limits.SetWindow(layers, 1 + Below(limits.max_model_len));
  }
  return limits;
}

CacheSpec RandomSchedule::RandomPolicy() {
  const std::vector<std::string> policies = {"h2o",    "ada-h2o", "snapkv", "co2",
                                             "subgen", "auto",    "echo",   "reconstruct"};
  CacheSpec spec;
  if (Below(2) == 0) return spec;
  spec.policy = policies[Below(static_cast<int>(policies.size()))];
  if (spec.policy == "auto") {
    spec.min_cache_tokens = 1 + Below(20);  // up to the free room
  } else {
    spec.max_cache_tokens = 4 + Below(30);
  }
  if (spec.policy == "co2") spec.params = {{"measurement_steps", "8"}};
  return spec;
}

SchedulerOptions RandomSchedule::RandomOptions() {
  SchedulerOptions options;
  options.max_num_batched_tokens = 1 + Below(100);
  options.watermark = Below(4) * 0.05;
  options.policy_under_pressure = policy_;
  options.progress_interval_us = 1 + Below(50'000);
  if (Below(3) == 0) options.target_tpot_us = 1 + Below(5'000);
  if (Below(6) == 0) options.target_ttft_us = 1 + Below(400'000);
  return options;
}

ScheduleCounts RandomSchedule::Run(std::span<const ScheduleEvent> events) {
  auto next = events.begin();
  for (int step = 0; step < size_.steps && !testing::Test::HasFailure(); ++step) {
    for (; next != events.end() && next->step == step; ++next) Happen(*next);
    harness_.Step();
    DisconnectSlowReaders();
  }
  while (!leases_.empty()) Release();
  while (!loading_.empty()) EndLoad();
  if (!testing::Test::HasFailure()) harness_.RunToEnd();
  if (!testing::Test::HasFailure()) CheckStreams();
  Count();
  return counts_;
}

void RandomSchedule::Happen(const ScheduleEvent& event) {
  random_.seed(event.seed);
  if (tells_) std::cout << "step " << event.step << ": " << NameOf(event.what) << std::endl;
  switch (event.what) {
    case Incident::kArrival:
      return Arrive();
    case Incident::kContexts:
      return MoveContexts();
    case Incident::kCancel:
      return CancelOne();
    case Incident::kDisconnect:
      return Disconnect();
    case Incident::kShortage:
      return BeginShortage();
    case Incident::kEngineError:
      harness_.engine.next_error = absl::UnknownError("the schedule's");
      return;
  }
}

// Draws a cache for `request`, which is complete but for it; some caches change the request, too.
CacheSpec RandomSchedule::RandomCache(Request* request) {
  const int longest = harness_.engine.limits().max_model_len;
  CacheSpec cache;
  if (Below(2) == 0) cache = LocalCache(1 + Below(40));
  if (Below(4) == 0) {  // more when another prompt follows
    cache = CacheSpec();
    cache.policy = Below(2) == 0 ? "h2o" : "ada-h2o";
    cache.cache_ratio = 0.1 * (1 + Below(8));
    cache.min_cache_tokens = 1 + Below(8);
  }
  if (Below(4) == 0) {
    cache.policy = "snapkv";  // its budget, then growth
    cache.max_cache_tokens = 2 + Below(40);
    if (Below(2) == 0)
      cache.params["decode_cap"] = std::to_string(*cache.max_cache_tokens + Below(30));
  }
  if (Below(5) == 0) {
    cache = LocalCache(1 + Below(30));
    cache.policy = "co2";  // the whole prompt at first, then its budget
    cache.params = {{"measurement_steps", std::to_string(Below(25))}};
    if (Below(2) == 0) cache.params["self_tuning"] = "true";
    if (*cache.max_cache_tokens >= 4 && Below(2) == 0)
      cache.params["budget_scope"] = Below(2) == 0 ? "model" : "layer";
  }
  if (Below(4) == 0) {  // heads with different numbers of entries
    const std::vector<std::string> policies = {"ada-h2o", "ada-snapkv", "h2o", "ada-pyramid"};
    cache = LocalCache(2 + Below(30));
    cache.policy = policies[Below(4)];
    if (Below(2) == 0) cache.params["head_floor"] = "0";
    if (cache.policy == "h2o") {
      cache.params["budget_scope"] = Below(2) == 0 ? "model" : "layer";
      cache.params["candidates"] = std::to_string(1 + Below(4));
    }
    if (Below(3) == 0) cache.min_retained_mass = 0.5;
  }
  if (Below(8) == 0) {
    cache = LocalCache(2 + Below(30));
    cache.policy = "streaming";  // may exceed the context
    cache.sink_tokens = Below(2);
    cache.params = {{"rolling", "true"}};
    request->stopping.max_tokens = 1 + Below(2 * longest);
  }
  if (Below(6) == 0) {
    cache = LocalCache(4 + Below(30));
    cache.policy = "subgen";  // "shrinks" to its current size
  }
  if (Below(6) == 0) {
    cache = LocalCache(2 + Below(30));
    cache.policy = "scissorhands";  // shrinks repeatedly
    cache.params = {{"drop_tokens", std::to_string(1 + Below(*cache.max_cache_tokens - 1))}};
  }
  if (Below(8) == 0) {
    cache = LocalCache(2 + Below(20));
    cache.policy = "reconstruct";  // prefills more than its prompt
  }
  if (Below(8) == 0) {
    cache = CacheSpec();
    cache.policy = "auto";  // up to the free room
    cache.min_cache_tokens = Below(10);
    if (Below(2) == 0) cache.min_retained_mass = 0.5;
  }
  return cache;
}

Request RandomSchedule::RandomRequest() {
  const int longest = harness_.engine.limits().max_model_len;
  const uint64_t seed = 1 + Below(1'000'000);
  Request request = MakeRequest(1 + Below(Below(4) == 0 ? longest : size_.longest_prompt),
                                1 + Below(size_.longest_answer), seed);
  if (Below(2) == 0) BeginAlike(&request.prompt);
  if (Below(10) == 0) request.cache_salt = "salt";
  if (Below(10) == 0) request.prefix_caching = false;
  request.cache = RandomCache(&request);
  if (policy_.policy != "full" && Below(3) == 0) request.cache = CacheSpec();
  if (Below(4) == 0) request.question_tokens = Below(static_cast<int>(request.prompt.size()));
  if (Below(5) == 0) request.stopping.max_tokens.reset();
  if (Below(5) == 0) request.stopping.stop = {std::to_string(25 + Below(70)), "7 3"};
  if (Below(8) == 0) request.deadline = harness_.now + Below(60'000);
  if (Below(8) == 0) request.slo.ttft_us = 1 + Below(60'000);
  if (Below(8) == 0) request.slo.tpot_us = 1 + Below(5'000);
  if (Below(4) == 0) request.priority = Below(7) - 3;
  if (Below(2) == 0) request.tenant = std::to_string(Below(4));
  if (Below(2) == 0) AllowEviction(&request);
  if (Below(8) == 0) {
    for (int i = Below(20); i >= 0; --i) request.resume_token_ids.push_back(Below(900));
  }
  if (Below(3) == 0) request.keep_as.handle = "context " + std::to_string(seed);
  if (Below(30) == 0) request.keep_as.pinned = true;
  if (Below(3) == 0) GoOn(&request);
  if (request.from != nullptr || !request.keep_as.handle.empty())
    request.on_pressure = OnPressure::kPreempt;
  if (request.on_pressure == OnPressure::kPreempt && Below(4) == 0) {
    request.on_pressure = OnPressure::kNever;
    if (!request.stopping.max_tokens.has_value())
      request.stopping.max_tokens = 1 + Below(size_.longest_answer);
  }
  if (Below(3) == 0) SayOfTokens(&request);
  return request;
}

void RandomSchedule::SayOfTokens(Request* request) {
  SamplingParams& sampling = request->sampling;
  sampling.logprobs = Below(4) == 0;
  sampling.prompt_logprobs = Below(6) == 0 && request->question_tokens == 0 &&
                             request->from == nullptr && request->context.empty() &&
                             !request->find_context && request->resume_token_ids.empty();
  request->report_kept_entries = Below(6) == 0 && !request->cache.params.contains("rolling") &&
                                 request->from == nullptr && request->context.empty() &&
                                 !request->find_context;
  if (Below(5) == 0) {
    for (int i = Below(6) + 2; i > 0; --i) sampling.allowed_token_ids.push_back(Below(1000));
  }
  for (int i = Below(3); i > 0; --i) {
    std::vector<TokenId>& word = sampling.bad_words.emplace_back();
    const std::vector<TokenId>& of = sampling.allowed_token_ids;
    for (int j = Below(3); j >= 0; --j)
      word.push_back(of.empty() ? Below(1000) : of[Below(static_cast<int>(of.size()))]);
  }
  if (Below(8) == 0) sampling.logit_bias = {{static_cast<TokenId>(Below(1000)), 1.0}};
  if (Below(4) == 0)
    request->stopping.min_tokens =
        Below(static_cast<int>(request->stopping.max_tokens.value_or(9)));
  if (Below(8) == 0 && request->resume_token_ids.empty())
    sampling.grammar = std::make_shared<FakeGrammar>(1 + Below(size_.longest_answer));
}

void RandomSchedule::Arrive() {
  Request request = RandomRequest();
  Call call = {.first = handles_.size()};
  const bool one = request.on_pressure == OnPressure::kEvict || !request.resume_token_ids.empty();
  if (!one && Below(5) == 0) call.samples = 2 + Below(4);
  if (call.samples > 1) request.keep_as = {};
  if (Below(8) == 0) call.max_unread = Below(size_.longest_answer);
  if (tells_) {
    std::cout << "  " << request.prompt.size() << " prompt tokens, " << request.cache.policy
              << ", samples: " << call.samples << (call.max_unread ? ", reads nothing" : "")
              << std::endl;
  }
  const uint64_t seed = *request.sampling.seed;
  for (size_t i = 0; i < call.samples; ++i) {
    request.sampling.seed = seed + i * 1000;
    if (i > 0) request.sample_of = handles_[call.first];
    requests_.push_back(request);
    handles_.push_back(harness_.Add(request));
  }
  calls_.push_back(call);
}

void RandomSchedule::AllowEviction(Request* request) const {
  const CacheSpec& cache = request->cache;
  const std::set<std::string> can = {"local",      "h2o",         "ada-h2o",     "snapkv",
                                     "ada-snapkv", "ada-pyramid", "reconstruct", "auto"};
  if (!can.contains(cache.policy)) return;
  if (cache.params.contains("rolling") || cache.min_retained_mass.has_value()) return;
  request->on_pressure = OnPressure::kEvict;
  request->keep_as = {};
  request->cache.min_cache_tokens =
      request->cache.min_cache_tokens.value_or(2 + *request->sampling.seed % 30);
}

// Continues from the context of an ended request, if one is left.
void RandomSchedule::GoOn(Request* request) {
  Request next;
  next.prompt.assign(request->prompt.begin(),
                     request->prompt.begin() + std::min<size_t>(request->prompt.size(), 20));
  next.sampling = request->sampling;
  next.stopping.max_tokens = 1 + Below(size_.longest_answer / 2);
  next.keep_as = request->keep_as;
  next.deadline = request->deadline;
  if (!loaded_.empty() && Below(3) == 0) {
    const ContextId& id = loaded_[Below(static_cast<int>(loaded_.size()))];
    next.context = id.handle;
    next.cache_salt = id.salt;
    (void)harness_.scheduler.contexts().Resolve(&next);
  }
  for (size_t back = 1 + Below(10); back <= handles_.size() && next.from == nullptr; ++back) {
    const Stream& stream = harness_[handles_[handles_.size() - back]];
    if (!stream.finished.has_value() || stream.finished->context == nullptr) continue;
    next.context = stream.finished->context->id.handle;
    next.cache_salt = requests_[handles_.size() - back].cache_salt;
    (void)harness_.scheduler.contexts().Resolve(&next);
  }
  if (next.from == nullptr) return;
  ++counts_.continued;
  *request = std::move(next);
}

// Replaces the prompt, or a prefix of it, by one of a few texts.
void RandomSchedule::BeginAlike(std::vector<TokenId>* prompt) {
  const size_t text = Below(3);
  const size_t shared = Below(2) == 0 ? prompt->size() : Below(static_cast<int>(prompt->size()));
  for (size_t i = 0; i < shared; ++i)
    (*prompt)[i] = static_cast<TokenId>((text * 57 + i * i) % 256);
}

void RandomSchedule::CancelOne() {
  if (handles_.empty()) return;
  const int back = Below(std::min<int>(20, static_cast<int>(handles_.size())));
  harness_.scheduler.Cancel(handles_[handles_.size() - 1 - back], absl::CancelledError("cancel"));
}

// May choose a request that the scheduler has not started, or that has ended.
void RandomSchedule::Disconnect() {
  if (calls_.empty()) return;
  const int back = Below(std::min<int>(8, static_cast<int>(calls_.size())));
  EndCall(calls_[calls_.size() - 1 - back], absl::CancelledError("gone"));
}

void RandomSchedule::EndCall(const Call& call, const absl::Status& why) {
  for (size_t i = 0; i < call.samples; ++i)
    harness_.scheduler.Cancel(handles_[call.first + i], why);
}

// As in GenerateStream: the client reads nothing, and all samples share one buffer.
void RandomSchedule::DisconnectSlowReaders() {
  for (const Call& call : calls_) {
    if (!call.max_unread.has_value()) continue;
    size_t unread = 0;
    bool live = false;
    for (size_t i = 0; i < call.samples; ++i) {
      const Stream& stream = harness_[handles_[call.first + i]];
      unread += stream.text.size();
      live |= !stream.Ended();
    }
    if (live && unread > *call.max_unread) EndCall(call, absl::ResourceExhaustedError("slow"));
  }
}

// Takes a part of every resource, or all of one.
void RandomSchedule::BeginShortage() {
  Shortage::Parts parts;
  int* const all[] = {&parts.pages, &parts.host_pages, &parts.table_entries, &parts.arena_tokens,
                      &parts.slots};
  if (Below(2) == 0) {
    *all[Below(5)] = 100;
  } else {
    for (int* const part : all) *part = Below(101);
  }
  if (tells_) {
    std::cout << "  percent of free pages " << parts.pages << ", host pages " << parts.host_pages
              << ", table entries " << parts.table_entries << ", arena tokens "
              << parts.arena_tokens << ", slots " << parts.slots << std::endl;
  }
  harness_.BeginShortage(parts);
}

bool RandomSchedule::EngineIsLost() const { return !harness_.engine.next_error.ok(); }

// The latest remaining context, at times an earlier one.
ContextId RandomSchedule::AnyContext() {
  for (size_t back = 1; back <= std::min<size_t>(handles_.size(), 100); ++back) {
    const Stream& stream = harness_[handles_[handles_.size() - back]];
    if (!stream.finished.has_value() || stream.finished->context == nullptr) continue;
    const ContextId& id = stream.finished->context->id;
    if (Below(3) != 0 && harness_.scheduler.contexts().Find(id, 0) != nullptr) return id;
  }
  return {};
}

// The operations of an archive, each at any time: a save holds a lease for a while, a load holds
// reserved pages until they are filled or freed.
void RandomSchedule::MoveContexts() {
  if (EngineIsLost()) return;
  if (Below(100) < 30) {
    ContextTable::Lease lease = contexts().Acquire(AnyContext());
    if (lease.context != nullptr) leases_.push_back(std::move(lease));
  }
  if (!leases_.empty()) BeginLoad();
  if (Below(2) == 0 && !leases_.empty()) Release();
  if (Below(3) != 0 && !loading_.empty()) EndLoad();
  if (Below(100) < 10) contexts().Remove(AnyContext());
}

void RandomSchedule::Release() {
  contexts().Release(leases_.back());
  leases_.pop_back();
}

void RandomSchedule::BeginLoad() {
  const ContextTable::Lease& saved = leases_[Below(static_cast<int>(leases_.size()))];
  if (harness_.scheduler.HasSwapsInFlight()) return;  // its pages are not written yet
  OffloadedCache room = contexts().Reserve(saved.offloaded->spans, saved.offloaded->pages);
  if (room.IsEmpty()) return;
  harness_.engine.CopyOffloaded(*saved.offloaded, room);
  auto context = std::make_shared<Context>(*saved.context);
  context->id.handle = "loaded " + std::to_string(Below(5));
  loading_.emplace_back(std::move(context), std::move(room));
}

void RandomSchedule::EndLoad() {
  auto [context, room] = std::move(loading_.back());
  loading_.pop_back();
  if (Below(4) == 0) return contexts().Unreserve(std::move(room));
  loaded_.push_back(context->id);
  ++counts_.loaded;
  contexts().Add(std::move(context), std::move(room));
}

// Preemption intervals do not overlap, lie within the request's lifetime, and are all listed.
void RandomSchedule::CheckTimesAway(const Usage& usage) {
  TimeUs swapped_us = 0, preempted_us = 0, from = 0;
  for (const PreemptionInterval& interval : usage.preemption_intervals) {
    ASSERT_GE(interval.after_us, from);
    ASSERT_GE(interval.us, 0);
    from = interval.after_us + interval.us;
    (interval.swapped ? swapped_us : preempted_us) += interval.us;
  }
  ASSERT_LE(from, usage.queue_us + usage.prefill_us + usage.decode_us);
  ASSERT_LE(usage.preemption_intervals.size(), kMaxPreemptionIntervals);
  if (usage.preemption_intervals.size() == kMaxPreemptionIntervals) return;
  ASSERT_EQ(swapped_us, usage.swapped_us);
  ASSERT_EQ(preempted_us, usage.preempted_us);
}

void RandomSchedule::CheckStreams() {
  for (size_t i = 0; i < handles_.size(); ++i) {
    const Stream& stream = harness_[handles_[i]];
    ASSERT_NE(stream.finished.has_value(), stream.failed.has_value()) << "stream " << handles_[i];
    const Usage& usage =
        stream.finished.has_value() ? stream.finished->usage : stream.failed->usage;
    ASSERT_NO_FATAL_FAILURE(CheckTimesAway(usage)) << "stream " << handles_[i];
    if (requests_[i].on_pressure != OnPressure::kNever) continue;
    // Regardless of pressure.
    ASSERT_EQ(usage.preemptions + usage.swaps + usage.shrinks, 0);
    if (usage.kv_pages_peak > 0) ++counts_.guaranteed;
  }
  if (handles_.empty()) return;
  if (!size_.compares_all) return CheckStream(times_() % handles_.size());
  for (size_t i = 0; i < handles_.size(); ++i) CheckStream(i);
}

// The stream is equal to, or a prefix of, the tokens of the same request run alone.
void RandomSchedule::CheckStream(size_t i) {
  const Stream& stream = harness_[handles_[i]];
  if (stream.token_ids.empty()) return;
  // A run alone would not have shrunk the cache.
  const Usage& usage = stream.finished.has_value() ? stream.finished->usage : stream.failed->usage;
  if (usage.shrinks > 0) return;
  Request request = requests_[i];
  // A run alone would have had its full cache.
  if (!usage.compressed_by.empty()) {
    ASSERT_EQ(usage.compressed_by, policy_.policy);
    request.cache = policy_;
  }
  SCOPED_TRACE(
      testing::Message() << "stream " << handles_[i] << ", " << request.cache.policy
                         << ", compressed by '" << usage.compressed_by << "', preempted "
                         << usage.preemptions << " times, swapped " << usage.swaps
                         << (request.sample_of.has_value() ? ", a sample" : "")
                         << (request.on_pressure == OnPressure::kNever ? ", promised" : ""));
  // A run alone would have had more room.
  const CacheSpec& cache = request.cache;
  if (cache.policy == "auto" && !cache.min_retained_mass && request.from == nullptr) return;
  EngineLimits ample = harness_.engine.limits();
  ample.num_blocks = 3 * ample.num_layers * ample.num_kv_heads * (ample.max_model_len + 1);
  if (ample.slab.values_line > 0) {
    ample.slab.values_line = 0;
    ample.slab.values_line = ample.slab.EndOfStates(ample.num_blocks);
  }
  ample.table_entries = 2 * ample.num_blocks;  // rows, and pages not yet assigned to a head
  ample.max_steps_in_flight = 1;
  ample.num_host_pages = ample.num_swap_pages = ample.max_offloaded_caches =
      0;  // without contexts the prompt is prefilled instead
  SchedulerHarness alone(ample);
  // No injected tokens before the first that the original run sampled.
  int64_t seen = request.from == nullptr ? 0 : request.from->num_seen;
  if (request.sample_of.has_value()) seen = static_cast<int64_t>(request.prompt.size()) - 1;
  alone.engine.choose = [seen](uint64_t seed, int32_t position) {
    return position <= seen ? std::nullopt : Accidents(seed, position);
  };
  request.deadline.reset();
  request.slo = {};
  request.sample_of.reset();
  const RequestHandle handle = alone.Add(std::move(request));
  alone.RunToEnd();
  const Stream& expected = alone[handle];
  ASSERT_LE(stream.token_ids.size(), expected.token_ids.size());
  ASSERT_TRUE(
      std::equal(stream.token_ids.begin(), stream.token_ids.end(), expected.token_ids.begin()));
  if (stream.finished.has_value() && expected.finished.has_value() &&
      stream.token_ids.size() == expected.token_ids.size()) {
    ASSERT_EQ(stream.text, expected.text);
  }
  ++counts_.compared;
}

void RandomSchedule::Count() {
  const ServingStats stats = harness_.scheduler.Stats();
  counts_.preemptions = stats.preemptions;
  counts_.swaps = stats.swaps;
  counts_.shrinks = stats.shrinks;
  counts_.compressed = stats.compressed;
  counts_.hit_tokens = stats.prefix_cache.hit_tokens;
  counts_.evicted_blocks = stats.prefix_cache.evicted_blocks;
  counts_.contexts_evicted = stats.contexts_evicted;
  const FakeEngine& engine = harness_.engine;
  counts_.appended = engine.num_appended();
  counts_.turns = engine.num_turns();
  counts_.forks = engine.num_forks();
  counts_.copies = engine.num_copies();
  counts_.state_copies = engine.num_state_copies();
  counts_.shared_tokens = engine.num_shared_tokens();
  for (const auto& [handle, stream] : harness_.streams) {
    counts_.finished += stream.finished.has_value() ? 1 : 0;
    if (!stream.failed.has_value()) continue;
    const std::string& reason = stream.failed->reason;
    const absl::string_view message = stream.failed->status.message();
    counts_.cancelled += message == "cancel" ? 1 : 0;
    counts_.gone += message == "gone" ? 1 : 0;
    counts_.slow += message == "slow" ? 1 : 0;
    counts_.late += reason == "DEADLINE" ? 1 : 0;
    counts_.lost += message == "the schedule's" ? 1 : 0;
    counts_.starved += message == "pool too small for one sequence" ? 1 : 0;
    counts_.refused += reason != "CANCELLED" && reason != "DEADLINE" && reason != "ENGINE_FAULT";
  }
}

}  // namespace hydrant
