// Every request gets the tokens of its run alone, regardless of other sequences in the pool: random
// schedules on real engines, with pools from scarce to ample.
//
//   HYDRANT_SCHEDULE_REQUESTS  number of requests instead of 4,000
//   HYDRANT_SCHEDULE_SEED      the first seed, instead of 1; one schedule has 400 requests
//   HYDRANT_SCHEDULE_MODEL     a GGUF file or Hugging Face folder instead of random weights, with
//                              its weights as stored and pages of its own default type
#include "tests/scheduler/engine_schedule.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <vector>

#include "absl/strings/str_join.h"
#include "engine/cache/policy_registry.h"
#include "tests/engine/run/random_model.h"
#include "tests/sanitized.h"

namespace hydrant {
namespace {

constexpr int kVocab = 160;  // ids in prompts and in samples
constexpr int kConversations = 160;
constexpr int kRequestsASchedule = 400;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

struct PoolShape {
  int pages = 0;
  int block_size = 4;
  int contexts = 0;  // pages of host memory
  int swaps = 0;     // pages of host memory
  bool prefixes = false;
  bool runs_ahead = false;
  DType dtype = DType::kF32;
  int head_dim = 16;
  const char* family = "llama";
};

const char* ModelPath() { return std::getenv("HYDRANT_SCHEDULE_MODEL"); }

std::shared_ptr<const ModelSource> ModelOf(const PoolShape& shape) {
  if (ModelPath() == nullptr)
    return MakeRandomModel(InFamily(SmallConfig(4, 2, shape.head_dim), shape.family), 7);
  absl::StatusOr<std::unique_ptr<ModelSource>> model = OpenModel(ModelPath(), LoadFormat::kAuto);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

std::unique_ptr<Engine> MakeEngine(const PoolShape& shape) {
  const std::shared_ptr<const ModelSource> model = ModelOf(shape);
  const ModelConfig& config = model->config();
  EngineOptions options;
  options.score_predictor = MakeRandomPredictor(config);
  options.num_threads = 1;
  options.batch_invariant = true;
  if (ModelPath() == nullptr) {
    options.dtype = WeightDType::kFloat32;
    options.kv_cache_dtype = shape.dtype;
  }
  options.block_size = shape.block_size;
  options.sampled_vocab = kVocab;
  // Page counts are given for two layers with two KV heads each.
  const int heads = config.num_layers * config.num_kv_heads;
  options.num_blocks_override = shape.pages * heads / 4;
  options.max_num_seqs = 24;
  options.max_model_len = 160;
  options.prefill_arena_tokens = 320;
  const int64_t page_bytes = int64_t{shape.block_size} * (2 * config.head_dim * 4 + 16);  // about
  options.context_memory_bytes = shape.contexts * heads / 4 * page_bytes;
  options.swap_space_bytes = shape.swaps * heads / 4 * page_bytes;
  options.prefix_cache_memory_bytes = shape.prefixes ? int64_t{heads} << 18 : 0;
  options.async_scheduling = shape.runs_ahead;
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(model, options, nullptr);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

// 4 heads: the longest conversation takes some 100 pages of 4 entries.
const PoolShape kPools[] = {
    {.pages = 1100, .contexts = 2000, .swaps = 0},
    {.pages = 130, .contexts = 1000, .swaps = 400},
    {.pages = 160, .contexts = 300, .swaps = 0, .prefixes = true},
    {.pages = 200, .contexts = 1500, .swaps = 600, .prefixes = true, .runs_ahead = true},
    {.pages = 60,
     .block_size = 16,
     .contexts = 400,
     .swaps = 200,
     .dtype = DType::kQ8_0,
     .head_dim = 32},
    {.pages = 60, .block_size = 16, .contexts = 400, .swaps = 200, .dtype = DType::kE4M3},
    // The first of two layers has a window of 25.
    {.pages = 140, .contexts = 1000, .swaps = 300, .family = "gemma2"},
};
const PoolShape kAmple = {.pages = 8000, .contexts = 8000};

PoolShape AmpleAs(const PoolShape& shape) {
  PoolShape ample = kAmple;
  ample.block_size = shape.block_size;
  ample.dtype = shape.dtype;
  ample.head_dim = shape.head_dim;
  ample.family = shape.family;
  return ample;
}

EngineScheduleCounts RunSchedules(uint64_t first, uint64_t num_requests, const PoolShape& shape,
                                  StepExecutor* engine) {
  const std::unique_ptr<Engine> ample = MakeEngine(AmpleAs(shape));
  AnswersAlone alone(ample.get(), kConversations);
  EngineScheduleCounts counts;
  for (uint64_t seed = first; counts.requests < num_requests; ++seed)
    counts.Add(RunEngineSchedule(seed, kRequestsASchedule, engine, &alone));
  return counts;
}

class EngineScheduleTest : public ::testing::TestWithParam<int> {};

TEST_P(EngineScheduleTest, EveryRequestIsAsAlone) {
  const PoolShape& shape = kPools[GetParam()];
  const uint64_t first = FromEnvironment("HYDRANT_SCHEDULE_SEED", 1);
  const uint64_t requests = FromEnvironment("HYDRANT_SCHEDULE_REQUESTS", 4'000) / std::size(kPools);
  const std::unique_ptr<Engine> engine = MakeEngine(shape);
  const EngineScheduleCounts counts = RunSchedules(first, requests, shape, engine.get());
  std::cout << "seeds from " << first << ": " << counts.requests << " requests, " << counts.compared
            << " compared, " << counts.continued << " went on from contexts, " << counts.forks
            << " samples, " << counts.swaps << " swaps, " << counts.preemptions << " preemptions, "
            << counts.shrinks << " shrinks, " << counts.cancels << " cancels\n";
  EXPECT_EQ(counts.differ, 0u);
  EXPECT_EQ(counts.failed, 0u);
  EXPECT_TRUE(counts.faults.empty()) << absl::StrJoin(counts.faults, "\n");
  EXPECT_GT(counts.continued, 0u);
  EXPECT_GT(counts.forks, 0u);
  EXPECT_EQ(counts.swaps > 0, shape.swaps > 0);
  for (const auto& [policy, count] : counts.differ_of)
    std::cout << "  " << policy << ": " << count << " of " << counts.compared_of.at(policy) << "\n";
  for (const Policy* policy : Policies())
    EXPECT_TRUE(counts.compared_of.contains(std::string(policy->Info().name)))
        << policy->Info().name;
}

INSTANTIATE_TEST_SUITE_P(Pools, EngineScheduleTest, ::testing::Range<int>(0, std::size(kPools)));

// Applies a batch in a wrong order: caches are compacted after page copies have been written,
// possibly into pages that the compactions free.
class CompactsLast : public StepExecutor {
 public:
  explicit CompactsLast(StepExecutor* engine) : engine_(engine) {}
  const EngineLimits& limits() const override { return engine_->limits(); }
  OffloadMemory offload_memory() const override { return engine_->offload_memory(); }
  PrefixMemory prefix_memory() const override { return engine_->prefix_memory(); }
  absl::Status Collect(StepResult* result) override { return engine_->Collect(result); }
  void Enqueue(const Batch& batch) override {
    Batch wrong = batch;
    std::stable_partition(wrong.list.begin(), wrong.list.end(), [](const CacheUpdate& update) {
      return !std::holds_alternative<SlotCompaction>(update);
    });
    engine_->Enqueue(wrong);
  }

 private:
  StepExecutor* const engine_;
};

TEST(EngineScheduleFaultTest, AWrongOrderIsFound) {
  if (kSanitized) {
    GTEST_SKIP() << "two sequences write one page, and compaction then reads past a head's entries";
  }
  const std::unique_ptr<Engine> engine = MakeEngine(kPools[0]);
  CompactsLast wrong(engine.get());
  const EngineScheduleCounts counts = RunSchedules(1, 800, kPools[0], &wrong);
  std::cout << counts.differ << " of " << counts.compared << " differ\n";
  EXPECT_GT(counts.differ + counts.failed, 0u);
}

}  // namespace
}  // namespace hydrant
