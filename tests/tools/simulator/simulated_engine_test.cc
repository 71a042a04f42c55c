// The simulated engine under the scheduler, with every policy: all requests end, and the
// scheduler's invariants hold after every step. HYDRANT_SIM_SEED repeats a run.
#include <cstdlib>
#include <iostream>
#include <random>

#include "engine/cache/policy_registry.h"
#include "gtest/gtest.h"
#include "scheduler/invariants.h"
#include "tools/simulator/mix.h"
#include "tools/simulator/replica.h"

namespace hydrant::sim {
namespace {

uint64_t SeedOr(uint64_t otherwise) {
  const char* value = std::getenv("HYDRANT_SIM_SEED");
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

struct Counts {
  int completed = 0, refused = 0;
  std::string why = {};  // the last refusal
  ServingStats stats = {};
};

class PolicyTest : public testing::Test {
 protected:
  int Below(int n) { return static_cast<int>(random_() % n); }

  ReplicaOptions Options(int steps_in_flight) {
    ReplicaOptions options;
    options.limits.vocab_size = 1000;
    options.limits.engine = {.num_layers = 3,
                             .num_kv_heads = 2,
                             .block_size = 8,
                             .num_blocks = 6 * 90,
                             .table_entries = 6 * 90 * 8 + 6 * 24,
                             .num_prefix_blocks = 40,
                             .num_host_pages = 300,
                             .num_swap_pages = 300,
                             .max_offloaded_caches = 8,
                             .max_num_seqs = 8,
                             .max_model_len = 512,
                             .prefill_arena_tokens = 2048,
                             .max_steps_in_flight = steps_in_flight};
    options.scheduler.max_num_batched_tokens = 96;
    options.cost = DefaultCostModel();
    return options;
  }

  Request Draw(const Arm& arm, int index) {
    Request request = arm.request;
    request.request_id = std::to_string(index);
    request.prompt.resize(1 + Below(150));
    const uint32_t alike = Below(3);  // prompts with a common prefix
    for (size_t i = 0; i < request.prompt.size(); ++i)
      request.prompt[i] = i < 96 ? alike : random_() % 1000;
    request.sampling.seed = random_();
    request.stopping.max_tokens = 1 + Below(120);
    request.stopping.ignore_eos = true;
    request.priority = Below(3) - 1;
    request.tenant = Below(2) == 0 ? "a" : "b";
    if (Below(4) == 0) request.question_tokens = Below(static_cast<int>(request.prompt.size()));
    return request;
  }

  Counts Run(const std::string& text, int steps_in_flight) {
    Counts counts;
    const std::vector<Arm> mix = ParseMix(text).value();
    ReplicaOptions options = Options(steps_in_flight);
    if (text.find("learned") != std::string::npos) options.limits.engine.score_predictor = 1;
    Replica replica(options, random_());
    TimeUs now = 0;
    const int requests = 120;
    for (int sent = 0; sent < requests || replica.NextAt().has_value();) {
      const bool sends = sent < requests && (!replica.NextAt() || Below(6) == 0);
      if (sends) {
        ++sent;
        const auto failed =
            replica.Submit(sent, Draw(mix[Below(static_cast<int>(mix.size()))], sent), now);
        if (failed.has_value()) {
          ++counts.refused;
          counts.why = std::string(failed->status.message());
        }
      } else {
        now = *replica.NextAt();
        replica.Advance();
      }
      const absl::Status status = CheckInvariants(replica.scheduler().State());
      EXPECT_TRUE(status.ok()) << status << " at " << now;
      if (!status.ok()) break;
      for (const Event& event : replica.TakeEvents()) {
        counts.completed += std::holds_alternative<Finished>(event.what) ? 1 : 0;
        EXPECT_FALSE(std::holds_alternative<Failed>(event.what))
            << std::get<Failed>(event.what).status;
      }
    }
    EXPECT_EQ(counts.completed + counts.refused, requests);
    counts.stats = replica.Stats();
    EXPECT_EQ(counts.stats.pages_free, counts.stats.pages_total);
    return counts;
  }

  const uint64_t seed_ = SeedOr(5);
  std::mt19937_64 random_{seed_};
};

class EveryPolicyTest : public PolicyTest, public testing::WithParamInterface<std::string> {};

TEST_P(EveryPolicyTest, AllRequestsEnd) {
  std::cout << "seed " << seed_ << "\n";
  for (const int steps_in_flight : {1, 2}) {
    const Counts counts = Run(GetParam(), steps_in_flight);
    EXPECT_LT(counts.refused, 40) << counts.why;
    EXPECT_GT(counts.stats.steps, 100u);
  }
}

std::vector<std::string> Mixes() {
  std::vector<std::string> mixes;
  std::string all;
  for (const Policy* policy : Policies()) {
    std::string arm = policy->Info().name;
    if (policy->Evicts()) arm += ":cache_ratio=0.4:min_cache_tokens=16";
    all += (all.empty() ? "" : ",") + arm;
    mixes.push_back(std::move(arm));
  }
  mixes.push_back(all);
  // Heads that share budgets, have guarantees, are compacted later or under pressure.
  mixes.insert(mixes.end(),
               {"h2o:cache_ratio=0.3:min_cache_tokens=8:budget_scope=model",
                "h2o:cache_ratio=0.3:min_cache_tokens=8:budget_scope=layer:head_floor=0",
                "h2o:cache_ratio=0.3:min_cache_tokens=8:min_retained_mass=0.9",
                "co2:max_cache_tokens=24:measurement_steps=9:budget_scope=model",
                "co2:max_cache_tokens=24:self_tuning=true", "auto",
                "snapkv:max_cache_tokens=20:decode_cap=40",
                "h2o:max_cache_tokens=160:on_pressure=evict,full"});
  return mixes;
}

INSTANTIATE_TEST_SUITE_P(Mixes, EveryPolicyTest, testing::ValuesIn(Mixes()));

// Checks that pages ran out, with the expected consequences.
TEST_F(PolicyTest, SomeArePreemptedAndSomeSwapped) {
  const Counts counts = Run("full", 1);
  EXPECT_GT(counts.stats.preemptions, 0u);
  EXPECT_GT(counts.stats.swaps, 0u);
  EXPECT_GT(counts.stats.prefix_cache.hit_tokens, 0u);
  EXPECT_GT(Run("h2o:max_cache_tokens=160:on_pressure=evict", 1).stats.shrinks, 0u);
}

}  // namespace
}  // namespace hydrant::sim
