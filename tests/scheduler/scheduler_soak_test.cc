// Thousands of random steps: arrivals of every kind, cancels, deadlines, faults, contexts that are
// kept, saved, loaded and deleted, in pools and arenas that are too small, with all invariants
// checked after each step. HYDRANT_SOAK_STEPS
// lengthens it; HYDRANT_SOAK_SEED repeats a run.
#include <cstdlib>
#include <iostream>
#include <random>

#include "gtest/gtest.h"
#include "tests/scheduler/scheduler_harness.h"

namespace hydrant {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

class Soak {
 public:
  explicit Soak(uint64_t seed)
      : random_(seed), policy_(RandomPolicy()), harness_(RandomLimits(), RandomOptions()) {
    harness_.engine.choose = Accidents;
    harness_.step_time = [this](const Batch& batch) {
      return 200 + 100 * static_cast<TimeUs>(batch.decode.size()) + Below(2'000);
    };
  }

  void Run(int steps) {
    for (int i = 0; i < steps && !testing::Test::HasFailure(); ++i) {
      if (Below(100) < 30) Arrive();
      if (Below(100) < 5) CancelOne();
      MoveContexts();
      if (harness_.scheduler.Empty()) Arrive();
      harness_.Step();
    }
    while (!leases_.empty()) Release();
    while (!loading_.empty()) EndLoad();
    harness_.RunToEnd();
    CheckStreams();
  }
  PrefixCacheStats prefix_cache() const { return harness_.scheduler.Stats().prefix_cache; }
  uint64_t contexts_evicted() const { return harness_.scheduler.Stats().contexts_evicted; }
  uint64_t preemptions() const { return harness_.scheduler.Stats().preemptions; }
  uint64_t shrinks() const { return harness_.scheduler.Stats().shrinks; }
  uint64_t compressed() const { return harness_.scheduler.Stats().compressed; }
  uint64_t swaps() const { return harness_.scheduler.Stats().swaps; }
  const FakeEngine& engine() const { return harness_.engine; }
  int num_continued() const { return num_continued_; }
  int num_loaded() const { return num_loaded_; }
  int num_compared() const { return num_compared_; }
  int num_promised() const { return num_promised_; }

 private:
  static std::optional<TokenId> Accidents(uint64_t seed, int32_t position) {
    const uint64_t dice = (seed * 977 + position * 131) % 997;
    if (dice == 0) return kNoToken;
    if (dice == 1) return FakeTokenizer::kEog;
    return std::nullopt;
  }
  int Below(int n) { return static_cast<int>(random_() % n); }

  EngineLimits RandomLimits() {
    EngineLimits limits;
    limits.num_layers = 1 + Below(3);
    limits.num_kv_heads = 1 + Below(2);
    limits.block_size = 1 << Below(5);
    const int heads = limits.num_layers * limits.num_kv_heads;
    limits.max_model_len = 40 + Below(200);
    // From a pool that holds less than one full sequence to one that holds several.
    limits.num_blocks =
        heads * (2 + limits.max_model_len * (1 + Below(8)) / (2 * limits.block_size));
    limits.num_states = limits.num_blocks + Below(limits.num_blocks);
    limits.table_entries = limits.num_blocks * (1 + Below(3));
    limits.max_num_seqs = 1 + Below(16);
    limits.prefill_arena_tokens = limits.max_model_len * (1 + Below(4));
    limits.max_steps_in_flight = 1 + Below(3);
    if (Below(3) != 0) limits.num_prefix_blocks = Below(48);
    limits.query_blocks = 1 + Below(3);
    limits.sums_a_prefix_block = 16 << Below(4);
    if (Below(3) != 0) {
      limits.num_host_pages = Below(4 * limits.num_blocks);
      limits.max_kept_caches = Below(16);
    }
    if (Below(2) == 0) {  // beside the contexts'
      limits.num_swap_pages = Below(3 * limits.num_blocks);
      limits.num_host_pages += limits.num_swap_pages;
      limits.max_kept_caches += limits.num_swap_pages > 0 ? limits.max_num_seqs : 0;
    }
    if (Below(2) == 0) {
      limits.window_layers = Below(limits.num_layers + 1);
      limits.window = limits.window_layers > 0 ? 1 + Below(limits.max_model_len) : 0;
    }
    return limits;
  }
  CacheSpec RandomPolicy() {
    const std::vector<std::string> policies = {"h2o",    "ada-h2o", "snapkv", "co2",
                                               "subgen", "auto",    "echo",   "reconstruct"};
    CacheSpec spec;
    if (Below(2) == 0) return spec;
    spec.policy = policies[Below(static_cast<int>(policies.size()))];
    if (spec.policy == "auto") {
      spec.min_cache_tokens = 1 + Below(20);  // as much as there is room for
    } else {
      spec.max_cache_tokens = 4 + Below(30);
    }
    if (spec.policy == "co2") spec.params = {{"measurement_steps", "8"}};
    return spec;
  }
  SchedulerOptions RandomOptions() {
    SchedulerOptions options;
    options.max_num_batched_tokens = 1 + Below(100);
    options.watermark = Below(4) * 0.05;
    options.policy_under_pressure = policy_;
    options.progress_interval_us = 1 + Below(50'000);
    if (Below(3) == 0) options.target_tpot_us = 1 + Below(5'000);
    if (Below(6) == 0) options.target_ttft_us = 1 + Below(400'000);
    return options;
  }

  void Arrive() {
    const int longest = harness_.engine.limits().max_model_len;
    Request request =
        MakeRequest(1 + Below(Below(4) == 0 ? longest : 30), 1 + Below(60), ++next_seed_);
    if (Below(2) == 0) BeginAlike(&request.prompt);
    if (Below(10) == 0) request.cache_salt = "salt";
    if (Below(10) == 0) request.prefix_caching = false;
    if (Below(2) == 0) request.cache = LocalCache(1 + Below(40));
    if (Below(4) == 0) {  // more when another prompt follows
      request.cache = CacheSpec();
      request.cache.policy = Below(2) == 0 ? "h2o" : "ada-h2o";
      request.cache.cache_ratio = 0.1 * (1 + Below(8));
      request.cache.min_cache_tokens = 1 + Below(8);
    }
    if (Below(4) == 0) {
      request.cache.policy = "snapkv";  // its budget, and then growth
      request.cache.max_cache_tokens = 2 + Below(40);
      if (Below(2) == 0)
        request.cache.params["decode_cap"] =
            std::to_string(*request.cache.max_cache_tokens + Below(30));
    }
    if (Below(5) == 0) {
      request.cache = LocalCache(1 + Below(30));
      request.cache.policy = "co2";  // the whole prompt for a while, then its budget
      request.cache.params = {{"measurement_steps", std::to_string(Below(25))}};
      if (Below(2) == 0) request.cache.params["self_tuning"] = "true";
      if (*request.cache.max_cache_tokens >= 4 && Below(2) == 0) {
        request.cache.params["budget_scope"] = Below(2) == 0 ? "model" : "layer";
      }
    }
    if (Below(4) == 0) {  // heads that keep different numbers of entries
      const std::vector<std::string> policies = {"ada-h2o", "ada-snapkv", "h2o", "ada-pyramid"};
      request.cache = LocalCache(2 + Below(30));
      request.cache.policy = policies[Below(4)];
      if (Below(2) == 0) request.cache.params["head_floor"] = "0";
      if (request.cache.policy == "h2o") {
        request.cache.params["budget_scope"] = Below(2) == 0 ? "model" : "layer";
        request.cache.params["candidates"] = std::to_string(1 + Below(4));
      }
      if (Below(3) == 0) request.cache.min_retained_mass = 0.5;
    }
    if (Below(8) == 0) {
      request.cache = LocalCache(2 + Below(30));
      request.cache.policy = "streaming";  // past the context, at times
      request.cache.sink_tokens = Below(2);
      request.cache.params = {{"rolling", "true"}};
      request.stopping.max_tokens = 1 + Below(2 * longest);
    }
    if (Below(6) == 0) {
      request.cache = LocalCache(4 + Below(30));
      request.cache.policy = "subgen";  // "shrinks" to what it holds
    }
    if (Below(6) == 0) {
      request.cache = LocalCache(2 + Below(30));
      request.cache.policy = "scissorhands";  // shrinks again and again
      request.cache.params = {
          {"drop_tokens", std::to_string(1 + Below(*request.cache.max_cache_tokens - 1))}};
    }
    if (Below(8) == 0) {
      request.cache = LocalCache(2 + Below(20));
      request.cache.policy = "reconstruct";  // reads more than its prompt
    }
    if (Below(8) == 0) {
      request.cache = CacheSpec();
      request.cache.policy = "auto";  // as much as there is room for
      request.cache.min_cache_tokens = Below(10);
      if (Below(2) == 0) request.cache.min_retained_mass = 0.5;
    }
    if (policy_.policy != "full" && Below(3) == 0) request.cache = CacheSpec();
    if (Below(4) == 0) request.question_tokens = Below(static_cast<int>(request.prompt.size()));
    if (Below(5) == 0) request.stopping.max_tokens.reset();
    if (Below(5) == 0) request.stopping.stop = {std::to_string(25 + Below(70)), "7 3"};
    if (Below(8) == 0) request.deadline = harness_.now + Below(60'000);
    if (Below(8) == 0) request.slo.ttft_us = 1 + Below(60'000);
    if (Below(8) == 0) request.slo.tpot_us = 1 + Below(5'000);
    if (Below(4) == 0) request.priority = Below(7) - 3;
    if (Below(2) == 0) request.tenant = std::to_string(Below(4));
    if (Below(2) == 0) MayBeCut(&request);
    if (Below(8) == 0) {
      for (int i = Below(20); i >= 0; --i) request.resume_token_ids.push_back(Below(900));
    }
    if (Below(3) == 0) request.keep_as.handle = "context " + std::to_string(next_seed_);
    if (Below(30) == 0) request.keep_as.pinned = true;
    if (Below(3) == 0) GoOn(&request);
    if (request.from != nullptr || !request.keep_as.handle.empty())
      request.on_pressure = OnPressure::kPreempt;
    if (request.on_pressure == OnPressure::kPreempt && Below(4) == 0) {
      request.on_pressure = OnPressure::kNever;
      if (!request.stopping.max_tokens.has_value()) request.stopping.max_tokens = 1 + Below(60);
    }
    const bool may_fork = request.on_pressure != OnPressure::kEvict;
    const int samples =
        may_fork && Below(5) == 0 && request.resume_token_ids.empty() ? 2 + Below(4) : 1;
    if (samples > 1) request.keep_as = {};
    const std::optional<uint64_t> seed = request.sampling.seed;
    for (int i = 0; i < samples; ++i) {
      request.sampling.seed = *seed + i * 1000;
      if (i > 0) request.sample_of = handles_[handles_.size() - i];
      requests_.push_back(request);
      handles_.push_back(harness_.Add(request));
    }
  }
  void MayBeCut(Request* request) {
    const CacheSpec& cache = request->cache;
    if (cache.policy != "local" && cache.policy != "h2o") return;
    if (!cache.params.empty() || cache.min_retained_mass.has_value()) return;
    request->on_pressure = OnPressure::kEvict;
    request->keep_as = {};
    request->cache.min_cache_tokens = request->cache.min_cache_tokens.value_or(2 + Below(30));
  }
  // From the context of one that has ended, where there still is one.
  void GoOn(Request* request) {
    Request next;
    next.prompt.assign(request->prompt.begin(),
                       request->prompt.begin() + std::min<size_t>(request->prompt.size(), 20));
    next.sampling = request->sampling;
    next.stopping.max_tokens = 1 + Below(30);
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
    ++num_continued_;
    *request = std::move(next);
  }
  ContextTable& contexts() { return harness_.scheduler.context_table(); }
  // The last of those that are there, at times one of those before it.
  ContextId AnyContext() {
    for (size_t back = 1; back <= std::min<size_t>(handles_.size(), 100); ++back) {
      const Stream& stream = harness_[handles_[handles_.size() - back]];
      if (!stream.finished.has_value() || stream.finished->context == nullptr) continue;
      const ContextId& id = stream.finished->context->id;
      if (Below(3) != 0 && harness_.scheduler.contexts().Find(id, 0) != nullptr) return id;
    }
    return {};
  }
  // What an archive does, each part of it at any time: a save leases one for a while, a load has
  // room for a while before it is filled or given back.
  void MoveContexts() {
    if (Below(100) < 15) {
      ContextTable::Lease lease = contexts().Acquire(AnyContext());
      if (lease.context != nullptr) leases_.push_back(std::move(lease));
    }
    if (Below(2) == 0 && !leases_.empty()) BeginLoad();
    if (Below(4) == 0 && !leases_.empty()) Release();
    if (Below(3) == 0 && !loading_.empty()) EndLoad();
    if (Below(100) < 5) contexts().Remove(AnyContext());
  }
  void Release() {
    contexts().Release(leases_.back());
    leases_.pop_back();
  }
  void BeginLoad() {
    const ContextTable::Lease& saved = leases_[Below(static_cast<int>(leases_.size()))];
    if (harness_.scheduler.SwapsUnderWay()) return;  // its pages are not written yet
    KeptSpace room = contexts().Reserve(saved.space->spans, saved.space->pages);
    if (room.IsEmpty()) return;
    harness_.engine.CopyKept(*saved.space, room);
    auto context = std::make_shared<Context>(*saved.context);
    context->id.handle = "loaded " + std::to_string(Below(5));
    loading_.emplace_back(std::move(context), std::move(room));
  }
  void EndLoad() {
    auto [context, room] = std::move(loading_.back());
    loading_.pop_back();
    if (Below(4) == 0) return contexts().GiveBack(std::move(room));
    loaded_.push_back(context->id);
    ++num_loaded_;
    contexts().Add(std::move(context), std::move(room));
  }
  // With a part of one of a few texts, or all of it.
  void BeginAlike(std::vector<TokenId>* prompt) {
    const size_t text = Below(3);
    const size_t shared = Below(2) == 0 ? prompt->size() : Below(static_cast<int>(prompt->size()));
    for (size_t i = 0; i < shared; ++i)
      (*prompt)[i] = static_cast<TokenId>((text * 57 + i * i) % 256);
  }
  void CancelOne() {
    if (handles_.empty()) return;
    harness_.scheduler.Cancel(
        handles_[handles_.size() - 1 - Below(std::min<int>(20, handles_.size()))],
        absl::CancelledError("soak"));
  }
  // Every stream ended once, and got the tokens (perhaps fewer) that the request gets with the
  // engine to itself.
  void CheckStreams() {
    EngineLimits ample = harness_.engine.limits();
    ample.num_blocks = ample.num_layers * ample.num_kv_heads * (ample.max_model_len + 1);
    ample.table_entries = 2 * ample.num_blocks;  // rows, and pages that are no head's yet
    ample.max_steps_in_flight = 1;
    ample.num_host_pages = ample.num_swap_pages = ample.max_kept_caches =
        0;  // what goes on from a context reads it again
    for (size_t i = 0; i < handles_.size(); ++i) {
      const Stream& stream = harness_[handles_[i]];
      ASSERT_NE(stream.finished.has_value(), stream.failed.has_value()) << "stream " << handles_[i];
      if (requests_[i].on_pressure == OnPressure::kNever) CheckKeptItsPages(stream);
      if (stream.token_ids.empty()) continue;
      // Alone nothing would have been cut.
      const Usage& usage =
          stream.finished.has_value() ? stream.finished->usage : stream.failed->usage;
      if (usage.shrinks > 0) continue;
      // Alone it would have had its whole cache.
      if (!usage.compressed_by.empty()) {
        ASSERT_EQ(usage.compressed_by, policy_.policy);
        requests_[i].cache = policy_;
      }
      // Alone it would have had more room.
      const CacheSpec& cache = requests_[i].cache;
      if (cache.policy == "auto" && !cache.min_retained_mass && requests_[i].from == nullptr)
        continue;
      SchedulerHarness alone(ample);
      // No accident where the other did not pass.
      int64_t seen = requests_[i].from == nullptr ? 0 : requests_[i].from->num_seen;
      if (requests_[i].sample_of.has_value())
        seen = static_cast<int64_t>(requests_[i].prompt.size()) - 1;
      alone.engine.choose = [seen](uint64_t seed, int32_t position) {
        return position <= seen ? std::nullopt : Accidents(seed, position);
      };
      requests_[i].deadline.reset();
      requests_[i].slo = {};
      requests_[i].sample_of.reset();
      const RequestHandle handle = alone.Add(requests_[i]);
      alone.RunToEnd();
      const Stream& expected = alone[handle];
      ASSERT_LE(stream.token_ids.size(), expected.token_ids.size());
      ASSERT_TRUE(
          std::equal(stream.token_ids.begin(), stream.token_ids.end(), expected.token_ids.begin()));
      if (stream.finished.has_value() && expected.finished.has_value() &&
          stream.token_ids.size() == expected.token_ids.size()) {
        ASSERT_EQ(stream.text, expected.text);
      }
      ++num_compared_;
    }
  }

  // However scarce the pool was.
  void CheckKeptItsPages(const Stream& stream) {
    const Usage& usage =
        stream.finished.has_value() ? stream.finished->usage : stream.failed->usage;
    ASSERT_EQ(usage.preemptions + usage.swaps + usage.shrinks, 0);
    if (usage.kv_pages_peak > 0) ++num_promised_;
  }

  std::mt19937_64 random_;
  const CacheSpec policy_;  // under pressure
  SchedulerHarness harness_;
  std::vector<RequestHandle> handles_;
  std::vector<Request> requests_;  // [handles_.size()]
  std::vector<ContextTable::Lease> leases_;
  std::vector<std::pair<std::shared_ptr<const Context>, KeptSpace>> loading_;
  std::vector<ContextId> loaded_;
  int num_compared_ = 0;
  int num_promised_ = 0;
  int num_continued_ = 0;
  int num_loaded_ = 0;
  uint64_t next_seed_ = 0;
};

TEST(SchedulerSoakTest, InvariantsHoldUnderRandomLoad) {
  const uint64_t steps = FromEnvironment("HYDRANT_SOAK_STEPS", 200'000);
  const uint64_t first = FromEnvironment("HYDRANT_SOAK_SEED", 1);
  uint64_t preemptions = 0, compared = 0, cached = 0, evicted = 0, continued = 0,
           contexts_evicted = 0, loaded = 0, appended = 0, turns = 0, forks = 0, copies = 0,
           shared = 0, state_copies = 0, swaps = 0, shrinks = 0, compressed = 0, promised = 0;
  constexpr uint64_t kStepsPerSeed = 500;
  for (uint64_t seed = first; seed < first + steps / kStepsPerSeed; ++seed) {
    SCOPED_TRACE(testing::Message() << "HYDRANT_SOAK_SEED=" << seed);
    Soak soak(seed);
    soak.Run(kStepsPerSeed);
    preemptions += soak.preemptions();
    swaps += soak.swaps();
    shrinks += soak.shrinks();
    compressed += soak.compressed();
    compared += soak.num_compared();
    promised += soak.num_promised();
    cached += soak.prefix_cache().hit_tokens;
    evicted += soak.prefix_cache().evicted_blocks;
    continued += soak.num_continued();
    contexts_evicted += soak.contexts_evicted();
    loaded += soak.num_loaded();
    appended += soak.engine().num_appended();
    turns += soak.engine().num_turns();
    forks += soak.engine().num_forks();
    copies += soak.engine().num_copies();
    shared += soak.engine().num_shared_tokens();
    state_copies += soak.engine().num_state_copies();
    if (HasFailure()) return;
  }
  std::cout << "seeds " << first << ".." << first + steps / kStepsPerSeed - 1 << ", " << preemptions
            << " preemptions, " << swaps << " swaps, " << shrinks << " caches cut for others, "
            << compressed << " compressed for want of room, " << cached
            << " tokens from prefix blocks, " << evicted << " of these evicted, " << continued
            << " went on from a context, " << appended << " runs appended, " << turns
            << " raised budgets, " << forks << " samples forked, " << shared
            << " tokens of prompts in others' pages, " << copies << " pages copied, "
            << state_copies << " states alone, " << contexts_evicted << " contexts evicted, "
            << loaded << " loaded, " << promised << " that nothing was taken from, " << compared
            << " streams equal to their run alone\n";
  EXPECT_GT(preemptions, 0u);
  EXPECT_GT(swaps, 0u);
  EXPECT_GT(shrinks, 0u);
  EXPECT_GT(compressed, 0u);
  EXPECT_GT(cached, 0u);
  EXPECT_GT(evicted, 0u);
  EXPECT_GT(continued, 0u);
  EXPECT_GT(contexts_evicted, 0u);
  EXPECT_GT(loaded, 0u);
  EXPECT_GT(promised, 0u);
  EXPECT_GT(appended, 0u);
  EXPECT_GT(turns, 0u);
  EXPECT_GT(forks, 0u);
  EXPECT_GT(shared, 0u);
  EXPECT_GT(copies, 0u);
  EXPECT_GT(state_copies, 0u);
}

}  // namespace
}  // namespace hydrant
