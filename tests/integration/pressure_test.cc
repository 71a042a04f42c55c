// Scheduler and engine together, in pools that are too small. A sequence that was swapped out and
// in again gets the tokens of its run alone, bit for bit (--batch-invariant); so does one without
// swap space that prefills its prompt again. A sequence that allows it shrinks to its best entries.
#include <gtest/gtest.h>

#include "engine/cache/cache_plan.h"
#include "tests/device.h"
#include "tests/engine/cache/plan_view.h"
#include "tests/engine/run/random_model.h"
#include "tests/integration/driven_server.h"

namespace hydrant {
namespace {

class PressureTest : public ::testing::TestWithParam<std::tuple<std::string, Family>> {
 protected:
  void SetUp() override { HYDRANT_SKIP_WITHOUT_DEVICE(std::get<0>(GetParam())); }

  std::unique_ptr<Server> MakeServer(int num_blocks, int64_t swap_space_bytes,
                                     const std::string& swap_directory = "") const {
    EngineOptions options =
        InvariantOptions(std::get<0>(GetParam()), std::get<1>(GetParam()).kv_dtype);
    options.num_blocks_override = num_blocks;
    options.swap_space_bytes = swap_space_bytes;
    options.swap_directory = swap_directory;
    return std::make_unique<Server>(model_, options);
  }
  // Grows from 60 entries to 110 or 140: from 4 pages a head to 7 or 9.
  Request MakeRequest(const std::string& policy, int i) const {
    Request request;
    request.prompt = RandomTokens(60, model_->config().vocab_size, 10 + i);
    request.cache.policy = policy;
    if (policy != "full") request.cache.max_cache_tokens = 110;
    if (policy == "co2") request.cache.params["measurement_steps"] = "30";
    request.question_tokens = i == 3 ? 20 : 0;
    request.sampling.temperature = 0.8;
    request.sampling.seed = 100 + i;
    if (i % 2 == 0) {
      request.sampling.repetition_penalty = 1.2;
      request.sampling.frequency_penalty = 0.3;
      request.sampling.presence_penalty = 0.2;
    }
    request.stopping.max_tokens = 80;
    request.stopping.ignore_eos = true;
    return request;
  }
  // Runs four requests in a pool for two and a half.
  ServingStats RunTogether(const std::string& policy, int64_t swap_space_bytes,
                           const std::string& swap_directory = "") const {
    std::vector<Request> requests;
    std::vector<Answer> alone;
    int64_t most = 0;
    for (int i = 0; i < 4; ++i) {
      requests.push_back(MakeRequest(policy, i));
      alone.push_back(MakeServer(4000, 0)->Run(requests.back()));
      most = std::max(most, alone.back().usage.kv_pages_peak);
    }
    const auto server =
        MakeServer(static_cast<int>(most) * 5 / 2, swap_space_bytes, swap_directory);
    std::vector<RequestHandle> handles;
    handles.reserve(requests.size());
    for (const Request& request : requests) handles.push_back(server->Add(request));
    server->RunToEnd();
    for (size_t i = 0; i < handles.size(); ++i) {
      const Answer& answer = (*server)[handles[i]];
      EXPECT_EQ(answer.tokens, alone[i].tokens)
          << policy << ", " << i << ", swapped out " << answer.usage.swaps << " times, preempted "
          << answer.usage.preemptions;
    }
    EXPECT_EQ(server->Stats().swapped_pages, 0);
    return server->Stats();
  }

  std::shared_ptr<const ModelSource> model_ = MakeRandomModel(
      InFamily(SmallConfig(6, 2, std::get<1>(GetParam()).head_dim), std::get<1>(GetParam()).name),
      5);
};

INSTANTIATE_TEST_SUITE_P(Devices, PressureTest, DevicesAndFamilies(), NameOfDeviceAndFamily);

TEST_P(PressureTest, EveryPolicyComesBackAsItWas) {
  const std::set<std::string> of_emulation = {"full", "h2o", "ada-snapkv", "co2", "subgen"};
  for (const PolicyInfo& policy : ListPolicies()) {
    // The emulation of CUDA is slow.
    if (std::get<0>(GetParam()) == "cuda" && !of_emulation.contains(policy.name)) continue;
    const ServingStats stats = RunTogether(policy.name, 16 << 20);
    if (policy.name == "full" || policy.name == "h2o" || policy.name == "snapkv") {
      EXPECT_GT(stats.swaps, 0u) << policy.name;
    }
  }
}

TEST_P(PressureTest, WithoutRoomItReadsAgain) {
  const ServingStats stats = RunTogether("h2o", 0);
  EXPECT_EQ(stats.swaps, 0u);
  EXPECT_GT(stats.preemptions, 0u);
}

TEST_P(PressureTest, InAFile) {
  if (std::get<0>(GetParam()) == "cuda") GTEST_SKIP() << "a GPU copies to memory";
  EXPECT_GT(RunTogether("h2o", 16 << 20, testing::TempDir()).swaps, 0u);
}

// The `cap` entries with the best scores, including all protected ones.
std::set<int32_t> BestOf(const std::vector<int32_t>& positions, const std::vector<float>& scores,
                         int32_t first_protected, int cap) {
  std::vector<std::pair<float, int32_t>> order;
  for (size_t i = 0; i < positions.size(); ++i) {
    const bool kept = positions[i] >= first_protected;
    order.emplace_back(kept ? std::numeric_limits<float>::infinity() : scores[i], positions[i]);
  }
  std::sort(order.rbegin(), order.rend());  // the later of equal scores stays
  std::set<int32_t> best;
  for (int i = 0; i < cap; ++i) best.insert(order[i].second);
  return best;
}

// Heads with a shared budget each keep the same fraction of their entries.
TEST_P(PressureTest, ACutKeepsTheBestEntriesOfEveryHead) {
  if (std::get<1>(GetParam()).name == std::string("gemma3_text"))
    GTEST_SKIP() << "layers with a window are not cut";
  const int heads = model_->config().num_layers * model_->config().num_kv_heads;
  for (const std::string policy : {"ada-h2o", "echo", "auto"}) {
    SCOPED_TRACE(policy);
    // 160 entries a head, for needs of 100 + 50 or more; a slab holds the scores of 16 pages, or
    // the full state of 4.
    const auto server = MakeServer(heads * 10 + (policy == "ada-h2o" ? 1 : 4), 0);
    Request first = MakeRequest("full", 0), second = MakeRequest(policy, 1);
    first.stopping.max_tokens = 40;
    second.stopping.max_tokens = 60;
    second.cache.max_cache_tokens = 50;
    second.cache.min_cache_tokens = 20;
    second.on_pressure = OnPressure::kEvict;
    int cap = policy == "ada-h2o" ? 50 : kNoCap;
    int recent = policy == "ada-h2o" ? 25 : 8;
    server->Add(first);
    server->Step();
    const RequestHandle cut = server->Add(second);
    Answer before;
    int cuts = 0;
    std::set<size_t> sizes;
    while (!server->Empty()) {
      server->Step();
      const Answer now = server->LastReadCache();
      size_t sum = 0, left = 0, fewest = 1000;
      for (size_t head = 0; head < now.positions.size() && !before.positions.empty(); ++head) {
        sum += before.positions[head].size();
        left += now.positions[head].size();
        fewest = std::min(fewest, before.positions[head].size());
      }
      if (left < sum) {
        const int mean = std::max<int>(20, sum / heads * 3 / 4);
        recent = cap != kNoCap ? recent * mean / cap : std::max(recent, mean / 4);
        recent = std::min(recent, static_cast<int>(fewest));
        cap = mean;
        ++cuts;
        for (size_t head = 0; head < now.positions.size(); ++head) {
          const std::vector<int32_t>& held = before.positions[head];
          const auto part = static_cast<int>(held.size() * mean * heads / sum);
          const int keep = std::max(part, recent);
          const auto tokens = static_cast<int32_t>(*std::max_element(held.begin(), held.end()) + 1);
          std::set<int32_t> best = BestOf(held, before.scores[head], tokens - recent, keep);
          best.insert(tokens);  // sampled since; it overwrote one of them
          sizes.insert(keep);
          ASSERT_EQ(static_cast<int>(now.positions[head].size()), keep);
          for (const int32_t position : now.positions[head])
            EXPECT_EQ(best.count(position), 1u) << position;
        }
      }
      before = now;
    }
    EXPECT_GT(cuts, 0);
    EXPECT_GT(sizes.size(), 1u) << "heads keep different numbers";
    const Usage& usage = (*server)[cut].usage;
    EXPECT_EQ(usage.shrinks, cuts);
    EXPECT_EQ(usage.preemptions, 0);
    if (policy == "auto") {
      EXPECT_NE(Reported(usage.policy_report, "why").find("cut to " + std::to_string(cap)),
                std::string::npos)
          << Reported(usage.policy_report, "why");
    }
  }
}

// The later of two sequences shrinks; its cache is read before and after that step.
TEST_P(PressureTest, ACutKeepsTheBestEntries) {
  if (std::get<1>(GetParam()).name == std::string("gemma3_text"))
    GTEST_SKIP() << "layers with a window are not cut";
  const int heads = model_->config().num_layers * model_->config().num_kv_heads;
  const auto server = MakeServer(heads * 13, 0);  // 208 entries a head, for needs of 100 + 120
  Request first = MakeRequest("full", 0), second = MakeRequest("h2o", 1);
  first.stopping.max_tokens = 40;
  second.stopping.max_tokens = 60;
  second.cache.max_cache_tokens = 120;
  second.cache.min_cache_tokens = 20;
  second.on_pressure = OnPressure::kEvict;
  const int32_t recent = 60;  // half of 120
  server->Add(first);
  server->Step();
  const RequestHandle cut = server->Add(second);
  Answer before;
  int cuts = 0;
  while (!server->Empty()) {
    server->Step();
    const Answer now = server->LastReadCache();
    for (size_t head = 0; head < now.positions.size() && !before.positions.empty(); ++head) {
      const std::vector<int32_t>&held = before.positions[head], &kept = now.positions[head];
      if (kept.size() >= held.size()) continue;
      const int cap = static_cast<int>(kept.size());
      ASSERT_EQ(cap, std::max<int>(20, held.size() * 3 / 4));
      const auto tokens = static_cast<int32_t>(*std::max_element(held.begin(), held.end()) + 1);
      std::set<int32_t> best = BestOf(held, before.scores[head], tokens - recent * cap / 120, cap);
      // The next token overwrote one of them.
      best.insert(tokens);
      for (const int32_t position : kept) EXPECT_EQ(best.count(position), 1u) << position;
      EXPECT_EQ(std::set<int32_t>(kept.begin(), kept.end()).size(), kept.size());
      ++cuts;
    }
    before = now;
  }
  EXPECT_GE(cuts, heads);
  EXPECT_GT((*server)[cut].usage.shrinks, 0);
  EXPECT_EQ((*server)[cut].usage.preemptions, 0);
}

// The list of docs/guide/api.md.
TEST_P(PressureTest, WhichPoliciesCanBeCut) {
  if (std::get<0>(GetParam()) == "cuda") GTEST_SKIP() << "its emulation is slow";
  const std::set<std::string> can = {"h2o",       "tova",        "local",   "random",
                                     "snapkv",    "streaming",   "co2",     "ada-snapkv",
                                     "pyramidkv", "ada-pyramid", "ada-h2o", "reconstruct",
                                     "echo",      "auto",        "learned"};
  for (const PolicyInfo& policy : ListPolicies()) {
    Request request = MakeRequest(policy.name, 1);
    const auto alone = MakeServer(4000, 0);
    const int64_t pages = alone->Run(request).usage.kv_pages_peak;
    request.on_pressure = OnPressure::kEvict;
    request.cache.min_cache_tokens = 20;
    if (!can.contains(policy.name)) {
      EXPECT_FALSE(alone->TryRun(request)) << policy.name;
      continue;
    }
    const auto server = MakeServer(static_cast<int>(pages) * 3 / 2, 0);
    const RequestHandle one = server->Add(request), other = server->Add(request);
    server->RunToEnd();
    EXPECT_GT(server->Stats().shrinks, 0u) << policy.name;
    EXPECT_EQ((*server)[one].tokens.size(), 80u) << policy.name;
    EXPECT_EQ((*server)[other].tokens.size(), 80u) << policy.name;
  }
}

TEST(SwapDirectory, ThatIsNotThereIsNamed) {
  EngineOptions options = InvariantOptions("cpu", DType::kF16);
  options.swap_space_bytes = 1 << 20;
  options.swap_directory = "/no/such/folder";
  const auto model = MakeRandomModel(InFamily(SmallConfig(6, 2), "llama"), 5);
  const auto engine = Engine::Create(model, options, nullptr);
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.status().message().find("/no/such/folder"), std::string::npos)
      << engine.status();
}

}  // namespace
}  // namespace hydrant
