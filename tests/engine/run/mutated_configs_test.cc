// A config.json with a field changed, removed or added: either the model is refused, or its logits
// equal those that transformers computes from the same folder (tests/goldens/mutated_configs.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/run/engine.h"
#include "tools/eval/engine_driver.h"

namespace hydrant {
namespace {

namespace fs = std::filesystem;
using eval::EngineDriver;
using Json = nlohmann::json;

Json ReadJson(const fs::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return Json::parse(file);
}

// Copies the case's folder, with a patched config.json. Replaces the previous copy.
fs::path WriteFolder(const Json& c) {
  const fs::path from = fs::path("tests/data/engine") / c["folder"].get<std::string>();
  const fs::path to = fs::path(testing::TempDir()) / "mutated_configs_test";
  fs::remove_all(to);
  fs::copy(from, to);
  Json config = ReadJson(from / "config.json");
  config.merge_patch(c["patch"]);
  if (c.contains("set")) {
    for (const std::string field : c["set"]) config[field] = nullptr;
  }
  std::ofstream(to / "config.json") << config.dump();
  return to;
}

// Logits of the last id, or the error that refused the model.
absl::StatusOr<std::vector<float>> LogitsOf(const fs::path& folder,
                                            const std::vector<TokenId>& ids) {
  absl::StatusOr<std::unique_ptr<ModelSource>> source =
      OpenModel(folder.string(), LoadFormat::kAuto);
  if (!source.ok()) return source.status();
  EngineOptions options;
  options.device = "cpu";
  options.dtype = WeightDType::kFloat32;
  options.num_blocks_override = 1024;
  options.max_num_seqs = 1;
  // It selects LongRoPE's factors; transformers selects them by the length of the sequence.
  options.max_model_len = static_cast<int>(ids.size()) + 1;
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      Engine::Create(std::shared_ptr<const ModelSource>(*std::move(source)), options, nullptr);
  if (!engine.ok()) return engine.status();
  EngineDriver driver(engine->get(), 1);
  const auto n = static_cast<int64_t>(ids.size());
  const int slot = driver.Add(ids, *PlanCache({}, {n}), 1);
  driver.PrefillAll(slot);
  driver.Step();
  return driver.Logits(slot);
}

TEST(MutatedConfigsTest, AreRefusedOrEqualTransformers) {
  const Json goldens = ReadJson("tests/data/engine/mutated_configs.json");
  const std::vector<TokenId> ids = goldens["ids"];
  const int stride = goldens["stride"];
  ASSERT_GE(goldens["cases"].size(), 300u);
  int equal = 0, refused = 0, refused_although_computed = 0;
  for (const Json& c : goldens["cases"]) {
    SCOPED_TRACE(c.dump());
    const auto logits = LogitsOf(WriteFolder(c), ids);
    if (!logits.ok()) {
      ++refused;
      refused_although_computed += c["logits"].is_null() ? 0 : 1;
      EXPECT_THAT(std::string(logits.status().message()),
                  ::testing::Not(::testing::HasSubstr("\n")));
      continue;
    }
    EXPECT_FALSE(c["logits"].is_null()) << "computed what transformers does not";
    if (c["logits"].is_null()) continue;
    const std::vector<double> expected = c["logits"];
    double worst = 0;
    for (size_t i = 0; i < expected.size(); ++i)
      worst = std::max(worst, std::abs((*logits)[i * stride] - expected[i]));
    EXPECT_LT(worst, 1e-3);
    ++equal;
  }
  std::printf("%d equal, %d refused, %d of which transformers computes\n", equal, refused,
              refused_although_computed);
  EXPECT_GT(equal, 100);
}

}  // namespace
}  // namespace hydrant
