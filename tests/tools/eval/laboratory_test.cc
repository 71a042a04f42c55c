// Laboratory on a tiny model: many arms and dialogues give the same results as each alone, and the
// oracle keeps the entries needed later.
#include "tools/eval/laboratory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace hydrant::eval {
namespace {

using ::testing::HasSubstr;

constexpr char kModel[] = "tests/data/engine/tiny_mha";

std::unique_ptr<Laboratory> Open(bool append = false, int max_arms = 16,
                                 std::optional<int> blocks = std::nullopt) {
  LaboratoryOptions options;
  options.append = append;
  options.max_arms = max_arms;
  options.engine.dtype = WeightDType::kFloat32;
  options.engine.num_threads = 2;
  options.engine.batch_invariant = true;
  options.engine.max_model_len = 512;
  options.engine.num_blocks_override = blocks.value_or(4096);
  auto laboratory = Laboratory::Create(kModel, options);
  EXPECT_TRUE(laboratory.ok()) << laboratory.status();
  return *std::move(laboratory);
}

Arm Named(const std::string& policy, int budget, bool is_oracle = false) {
  Arm arm = {.name = policy, .cache = {}, .is_oracle = is_oracle};
  if (!is_oracle) arm.cache.policy = policy;
  arm.cache.max_cache_tokens = budget;
  return arm;
}

std::vector<TokenId> Tokens(const Laboratory& laboratory, int count, int seed) {
  std::vector<TokenId> tokens;
  for (int i = seed; i < seed + count; ++i)
    tokens.push_back((i * i * 7 + i * 3) % laboratory.config().vocab_size);
  return tokens;
}

Trial MakeTrial(const Laboratory& laboratory, int context, int given, int generate) {
  Trial trial;
  const std::vector<TokenId> all = Tokens(laboratory, context + given, 0);
  trial.context.assign(all.begin(), all.begin() + context);
  trial.dialogues = {{{.foreseen = {all.begin() + context, all.end()}, .generate = generate}}};
  return trial;
}

std::vector<Arm> AllArms() {
  std::vector<Arm> arms;
  for (const PolicyInfo& info : ListPolicies()) {
    if (info.name == "full" || info.name == "learned") continue;  // no predictor here
    arms.push_back(Named(info.name, 40));
  }
  return arms;
}

void ExpectEqual(const std::vector<Answer>& a, const std::vector<Answer>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].nll, b[i].nll);
    EXPECT_EQ(a[i].agreement, b[i].agreement);
    EXPECT_EQ(a[i].divergence, b[i].divergence);
    EXPECT_EQ(a[i].text, b[i].text);
  }
}

void ExpectEqual(const Outcome& a, const Outcome& b) {
  ASSERT_EQ(a.answers.size(), b.answers.size());
  for (size_t i = 0; i < a.answers.size(); ++i) ExpectEqual(a.answers[i], b.answers[i]);
  EXPECT_EQ(a.kept, b.kept);
  EXPECT_EQ(a.retained_mass, b.retained_mass);
}

TEST(Laboratory, CompanyChangesNothing) {
  const auto laboratory = Open();
  const Trial trial = MakeTrial(*laboratory, 150, 30, 8);
  const std::vector<Arm> arms = AllArms();
  const std::vector<Outcome> together = laboratory->Run(trial, arms);
  ASSERT_EQ(together.size(), arms.size() + 1);
  EXPECT_EQ(together[0].first().divergence, 0.0);
  EXPECT_EQ(together[0].entries, 150 * static_cast<int64_t>(together[0].kept.size()));
  const auto crowded = Open(false, 4);  // in groups of four
  const std::vector<Outcome> grouped = crowded->Run(trial, arms);
  for (size_t i = 0; i < arms.size(); ++i) {
    SCOPED_TRACE(arms[i].name);
    ASSERT_TRUE(together[i + 1].refused.ok()) << together[i + 1].refused;
    const std::vector<Outcome> alone = laboratory->Run(trial, {arms[i]});
    ExpectEqual(together[i + 1], alone[1]);
    ExpectEqual(together[0], alone[0]);
    ExpectEqual(together[i + 1], grouped[i + 1]);
  }
}

TEST(Laboratory, AnAmpleBudgetIsTheFullCache) {
  const auto laboratory = Open();
  const std::vector<Outcome> outcomes =
      laboratory->Run(MakeTrial(*laboratory, 100, 20, 5), {Named("h2o", 400)});
  ExpectEqual(outcomes[0], outcomes[1]);
  EXPECT_EQ(outcomes[1].first().agreement, 1.0);
}

// With `append` the compacted cache grows by every token.
TEST(Laboratory, KeptEntriesAreOfTheContext) {
  const auto laboratory = Open();
  const std::vector<Arm> arms = AllArms();
  const std::vector<Outcome> outcomes = laboratory->Run(MakeTrial(*laboratory, 150, 20, 5), arms);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    SCOPED_TRACE(i == 0 ? "full" : arms[i - 1].name);
    const KeptEntries& kept = outcomes[i].kept_entries;
    ASSERT_EQ(kept.num_tokens(), 150);
    if (i > 0 && arms[i - 1].name.starts_with("subgen")) continue;  // samples share positions
    int64_t bits = 0;
    for (int layer = 0; layer < kept.num_layers(); ++layer) {
      for (int head = 0; head < kept.num_kv_heads(); ++head) {
        for (const uint8_t byte : kept.OfHead(layer, head)) bits += std::popcount(byte);
      }
    }
    EXPECT_EQ(bits, outcomes[i].entries);
  }
}

TEST(Laboratory, AppendingKeepsNewEntries) {
  const Trial trial = MakeTrial(*Open(), 100, 60, 0);
  const Outcome evicts = Open()->Run(trial, {Named("h2o", 30)})[1];
  const Outcome appends = Open(true)->Run(trial, {Named("h2o", 30)})[1];
  EXPECT_EQ(evicts.kept, appends.kept) << "of the context";
  EXPECT_NE(evicts.first().nll, appends.first().nll);
}

TEST(Laboratory, TheOracleKeepsAsManyInEveryHead) {
  const auto laboratory = Open(true);
  const std::vector<Outcome> outcomes =
      laboratory->Run(MakeTrial(*laboratory, 150, 40, 0),
                      {Named("oracle", 30, true), Named("random", 30), Named("reconstruct", 30)});
  for (const Outcome& outcome : outcomes) ASSERT_TRUE(outcome.refused.ok()) << outcome.refused;
  EXPECT_EQ(outcomes[1].kept, std::vector<int32_t>(outcomes[1].kept.size(), 30));
  EXPECT_LT(outcomes[1].first().divergence, outcomes[2].first().divergence) << "than chance";
}

// They are chosen by another text, and change no other arm.
TEST(Laboratory, GuessedQuestionsChooseOtherEntries) {
  const auto laboratory = Open();
  const Trial trial = MakeTrial(*laboratory, 150, 40, 0);
  Arm questions = Named("reconstruct", 30);
  questions.idea = "idea-questions";
  const std::vector<Outcome> outcomes =
      laboratory->Run(trial, {Named("h2o", 30), questions, Named("reconstruct", 30)});
  for (const Outcome& outcome : outcomes) ASSERT_TRUE(outcome.refused.ok()) << outcome.refused;
  EXPECT_EQ(outcomes[2].entries, outcomes[3].entries);
  EXPECT_NE(outcomes[2].first().nll, outcomes[3].first().nll);
  const std::vector<Outcome> alone =
      laboratory->Run(trial, {Named("h2o", 30), Named("reconstruct", 30)});
  ExpectEqual(outcomes[1].answers[0], alone[1].answers[0]);
  ExpectEqual(outcomes[3].answers[0], alone[2].answers[0]);
}

TEST(Laboratory, RefusalsAreOutcomes) {
  const auto laboratory = Open();
  const std::vector<Outcome> outcomes =
      laboratory->Run(MakeTrial(*laboratory, 300, 10, 0),
                      {Named("reconstruct", 30), Named("h2o", 30), Named("h3o", 3)});
  EXPECT_THAT(std::string(outcomes[1].refused.message()), HasSubstr("exceed 512"));
  EXPECT_TRUE(outcomes[2].refused.ok());
  EXPECT_THAT(std::string(outcomes[3].refused.message()), HasSubstr("'h3o' is unknown"));
}

TEST(Laboratory, MissingModelsAreNamed) {
  const auto laboratory = Laboratory::Create("no/such/model", {});
  EXPECT_THAT(std::string(laboratory.status().message()), HasSubstr("no/such/model"));
}

// Each dialogue goes on from the compressed context as if it were the only one.
TEST(Laboratory, DialoguesDoNotTouchEachOther) {
  const auto laboratory = Open();
  Trial trial = MakeTrial(*laboratory, 150, 0, 0);
  trial.question_later = true;
  trial.dialogues.clear();
  for (int i = 0; i < 3; ++i) {
    Dialogue dialogue;
    for (int turn = 0; turn < 3; ++turn)
      dialogue.push_back({.read = Tokens(*laboratory, 9 + i + turn, 31 * i + turn),
                          .foreseen = Tokens(*laboratory, i, 5),
                          .generate = 6});
    trial.dialogues.push_back(dialogue);
  }
  const std::vector<Arm> arms = AllArms();
  const std::vector<Outcome> together = laboratory->Run(trial, arms);
  for (int i = 0; i < 3; ++i) {
    Trial alone = trial;
    alone.dialogues = {trial.dialogues[i]};
    const std::vector<Outcome> outcomes = laboratory->Run(alone, arms);
    for (size_t arm = 0; arm <= arms.size(); ++arm) {
      SCOPED_TRACE(arm == 0 ? "full" : arms[arm - 1].name);
      ASSERT_TRUE(together[arm].refused.ok()) << together[arm].refused;
      ExpectEqual(together[arm].answers[i], outcomes[arm].answers[0]);
      EXPECT_EQ(together[arm].kept, outcomes[arm].kept);
    }
  }
}

// Tokens of the full cache's answer are given to all, and it agrees with itself.
TEST(Laboratory, AnswersToFollowAreTheFullCaches) {
  const auto laboratory = Open();
  Trial trial = MakeTrial(*laboratory, 120, 0, 0);
  trial.dialogues = {{{.read = Tokens(*laboratory, 8, 3), .follow = 12}}};
  const std::vector<Outcome> followed = laboratory->Run(trial, {Named("local", 20)});
  EXPECT_EQ(followed[0].first().agreement, 1.0);
  EXPECT_LT(followed[1].first().agreement, 1.0);
  EXPECT_GT(followed[1].first().divergence, 0.0);
}

}  // namespace
}  // namespace hydrant::eval
