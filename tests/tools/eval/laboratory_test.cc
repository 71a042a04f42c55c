// Laboratory on a tiny model: many concurrent arms give the same results as single arms, tasks hide
// their facts, and the oracle keeps the entries needed later.
#include "tools/eval/laboratory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <sstream>

#include "tools/eval/tasks.h"

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

Trial MakeTrial(const Laboratory& laboratory, int context, int given, int generate) {
  Trial trial;
  for (int i = 0; i < context + given; ++i)
    trial.tokens.push_back((i * i * 7 + i * 3) % laboratory.config().vocab_size);
  trial.context = context;
  trial.generate = generate;
  return trial;
}

std::vector<Arm> AllArms() {
  std::vector<Arm> arms;
  for (const PolicyInfo& info : ListPolicies()) {
    if (info.name != "full") arms.push_back(Named(info.name, 40));
  }
  return arms;
}

void ExpectEqual(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.nll, b.nll);
  EXPECT_EQ(a.agreement, b.agreement);
  EXPECT_EQ(a.divergence, b.divergence);
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.kept, b.kept);
  EXPECT_EQ(a.retained_mass, b.retained_mass);
}

TEST(Laboratory, CompanyChangesNothing) {
  const auto laboratory = Open();
  const Trial trial = MakeTrial(*laboratory, 150, 30, 8);
  const std::vector<Arm> arms = AllArms();
  const std::vector<Outcome> together = laboratory->Run(trial, arms);
  ASSERT_EQ(together.size(), arms.size() + 1);
  EXPECT_EQ(together[0].divergence, 0.0);
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
  EXPECT_EQ(outcomes[1].agreement, 1.0);
}

// With `append` the compacted cache grows by every token.
TEST(Laboratory, AppendingKeepsNewEntries) {
  const Trial trial = MakeTrial(*Open(), 100, 60, 0);
  const Outcome evicts = Open()->Run(trial, {Named("h2o", 30)})[1];
  const Outcome appends = Open(true)->Run(trial, {Named("h2o", 30)})[1];
  EXPECT_EQ(evicts.kept, appends.kept) << "of the context";
  EXPECT_NE(evicts.nll, appends.nll);
}

TEST(Laboratory, TheOracleKeepsAsManyInEveryHead) {
  const auto laboratory = Open(true);
  const std::vector<Outcome> outcomes =
      laboratory->Run(MakeTrial(*laboratory, 150, 40, 0),
                      {Named("oracle", 30, true), Named("random", 30), Named("reconstruct", 30)});
  for (const Outcome& outcome : outcomes) ASSERT_TRUE(outcome.refused.ok()) << outcome.refused;
  EXPECT_EQ(outcomes[1].kept, std::vector<int32_t>(outcomes[1].kept.size(), 30));
  EXPECT_LT(outcomes[1].divergence, outcomes[2].divergence) << "than chance";
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

std::string Text() {
  std::string text;
  for (int line = 0; line < 4000; ++line)
    text += "line " + std::to_string(line * 7919 % 1000) + " of a text\n";
  return text;
}

std::string TextOf(const Laboratory& laboratory, std::span<const TokenId> tokens) {
  std::string text;
  for (const TokenId token : tokens) text += laboratory.tokenizer().TokenBytes(token, true, false);
  return text;
}

TEST(Tasks, EveryTaskHidesItsAnswer) {
  const auto laboratory = Open();
  TaskOptions options;
  options.cases = 3;
  options.length = 300;
  for (const TaskInfo& info : ListTasks()) {
    SCOPED_TRACE(info.name);
    const auto cases = MakeCases(info.name, options, {Text()}, *laboratory);
    ASSERT_TRUE(cases.ok()) << cases.status();
    ASSERT_EQ(cases->size(), 3u);
    std::set<std::vector<TokenId>> different;
    for (const Case& made : *cases) {
      different.insert(made.trial.tokens);
      const std::span<const TokenId> tokens = made.trial.tokens;
      const std::string context = TextOf(*laboratory, tokens.first(made.trial.context));
      if (made.answers.empty()) {
        EXPECT_EQ(made.trial.context, 300);
        EXPECT_EQ(made.trial.tokens.size(), 400u);
        continue;
      }
      const bool seen = info.name.find("unseen") == std::string::npos;
      EXPECT_EQ(seen, made.trial.context == static_cast<int>(made.trial.tokens.size()));
      EXPECT_GE(made.trial.context, 240) << "of 300: lines are whole";
      for (const std::string& answer : made.answers) EXPECT_THAT(context, HasSubstr(answer));
      const std::string foretold =
          TextOf(*laboratory, tokens) + TextOf(*laboratory, made.trial.expected);
      EXPECT_TRUE(foretold.ends_with("is <" + made.answers.back()) ||
                  foretold.ends_with(" " + made.answers.back()))
          << foretold;
      std::string all = "It is";
      for (const std::string& answer : made.answers) all += " " + answer;
      EXPECT_EQ(Found(made, all), 1.0);
      EXPECT_EQ(Found(made, made.answers[0]), 1.0 / static_cast<double>(made.answers.size()));
      EXPECT_EQ(Found(made, "I do not know."), 0.0);
      EXPECT_GT(made.trial.generate, static_cast<int>(made.trial.expected.size()));
    }
    EXPECT_EQ(different.size(), 3u);
    const auto again = MakeCases(info.name, options, {Text()}, *laboratory);
    for (int i = 0; i < 3; ++i) EXPECT_EQ((*cases)[i].trial.tokens, (*again)[i].trial.tokens);
  }
}

// All fields that another program needs.
TEST(Tasks, CasesAreWrittenWhole) {
  const auto laboratory = Open();
  TaskOptions options;
  options.cases = 2;
  options.length = 300;
  std::vector<Case> cases;
  for (const char* task : {"perplexity", "multivalue-unseen"}) {
    const auto made = MakeCases(task, options, {Text()}, *laboratory);
    ASSERT_TRUE(made.ok()) << made.status();
    cases.insert(cases.end(), made->begin(), made->end());
  }
  std::istringstream lines(CasesAsJson(cases));
  std::string line;
  for (const Case& made : cases) {
    ASSERT_TRUE(std::getline(lines, line));
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json.at("task"), made.task);
    EXPECT_EQ(json.at("case"), made.number);
    EXPECT_EQ(json.at("tokens").get<std::vector<TokenId>>(), made.trial.tokens);
    EXPECT_EQ(json.at("context"), made.trial.context);
    EXPECT_EQ(json.at("generate"), made.trial.generate);
    EXPECT_EQ(json.at("expected").get<std::vector<TokenId>>(), made.trial.expected);
    EXPECT_EQ(json.at("answers").get<std::vector<std::string>>(), made.answers);
    EXPECT_EQ(json.at("answers").size(), made.task == "perplexity" ? 0u : 3u);
  }
  EXPECT_FALSE(std::getline(lines, line)) << line;
}

TEST(Tasks, ErrorsNameTheOption) {
  const auto laboratory = Open();
  EXPECT_THAT(std::string(MakeCases("perplexity", {}, {"short\n"}, *laboratory).status().message()),
              HasSubstr("--text: too short"));
  EXPECT_THAT(std::string(MakeCases("poetry", {}, {Text()}, *laboratory).status().message()),
              HasSubstr("one of perplexity, needle"));
}

}  // namespace
}  // namespace hydrant::eval
