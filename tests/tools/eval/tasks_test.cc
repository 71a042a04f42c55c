// Tasks on a tiny model's tokenizer: each case holds the answers to its questions, fits its length,
// and follows from its number.
#include "tools/eval/tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <sstream>

#include "engine/text/chat/chat_template.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant::eval {
namespace {

using ::testing::HasSubstr;

const Tokenizer& TheTokenizer() {
  static const auto tokenizer = *TokenizerFromPath("tests/data/engine/tiny_mha");
  return *tokenizer;
}

std::string Text() {
  std::string text;
  for (int line = 0; line < 40000; ++line)
    text += "line " + std::to_string(line * 7919 % 1000) + " of a text\n";
  return text;
}

PromptForm Chat() {
  const auto chat = MakeChatTemplate(
      {.templates = {{"default",
                      "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
                      "{% if add_generation_prompt %}<|assistant|>{% endif %}"}},
       .special_tokens = {}});
  EXPECT_TRUE(chat.ok()) << chat.status();
  return *PromptForm::Chat(**chat);
}

std::string TextOf(std::span<const TokenId> tokens) {
  std::string text;
  for (const TokenId token : tokens) text += TheTokenizer().TokenBytes(token, true, false);
  return text;
}

std::vector<Case> Make(const std::string& task, const TaskOptions& options,
                       const PromptForm& form = PromptForm::Plain()) {
  auto cases = MakeCases(task, options, {Text()}, form, TheTokenizer());
  EXPECT_TRUE(cases.ok()) << cases.status();
  return cases.ok() ? *std::move(cases) : std::vector<Case>();
}

// All that a question's cache has read when it answers.
std::string ReadBefore(const Case& made, const Question& question) {
  std::string text = TextOf(made.trial.context);
  const Dialogue& dialogue = made.trial.dialogues[question.dialogue];
  for (int i = 0; i <= question.exchange; ++i) text += TextOf(dialogue[i].read);
  return text;
}

// Names of all tasks, without groups.
std::vector<std::string> AllTasks() {
  std::vector<std::string> names;
  for (const TaskInfo& info : ListTasks()) {
    const auto tasks = *TasksNamed(info.name);
    if (tasks.size() == 1 && tasks[0] == info.name) names.push_back(info.name);
  }
  return names;
}

class TaskTest : public testing::TestWithParam<std::string> {};

TEST_P(TaskTest, ReadsItsAnswersBeforeItsQuestions) {
  TaskOptions options;
  options.cases = 3;
  options.length = 1500;
  for (const PromptForm& form : {PromptForm::Plain(), Chat()}) {
    std::set<std::vector<TokenId>> different;
    for (const Case& made : Make(GetParam(), options, form)) {
      const auto context = static_cast<int>(made.trial.context.size());
      different.insert(made.trial.context);
      if (GetParam() != "chat") {
        EXPECT_GE(context, options.length * 7 / 10);
        EXPECT_LE(context, options.length + (made.trial.question_later ? 0 : 100));
      }
      ASSERT_FALSE(made.questions.empty());
      for (const Question& question : made.questions) {
        ASSERT_LT(question.dialogue, static_cast<int>(made.trial.dialogues.size()));
        const Dialogue& dialogue = made.trial.dialogues[question.dialogue];
        ASSERT_LT(question.exchange, static_cast<int>(dialogue.size()));
        if (question.judge != Judge::kFound) continue;
        const std::string read = ReadBefore(made, question);
        ASSERT_FALSE(question.answers.empty());
        // A function is mended with an expression that its file lacks.
        if (GetParam() != "code-mend") {
          for (const std::string& answer : question.answers) EXPECT_THAT(read, HasSubstr(answer));
        }
        for (const std::string& wrong : question.wrong) EXPECT_THAT(read, HasSubstr(wrong));
        const Exchange& exchange = dialogue[question.exchange];
        EXPECT_EQ(Found(question, TextOf(exchange.expected)), 1.0)
            << TextOf(exchange.expected) << " is not " << question.answers[0];
        EXPECT_GT(exchange.generate, static_cast<int>(exchange.expected.size()));
      }
    }
    EXPECT_EQ(different.size(), 3u);
  }
}

// Recall inserts passages between the template's opening and the text.
TEST_P(TaskTest, TheTemplateStandsAroundTheTextsOfTurns) {
  TaskOptions options;
  options.cases = 2;
  options.length = 1200;
  for (const Case& made : Make(GetParam(), options, Chat())) {
    for (const Dialogue& dialogue : made.trial.dialogues) {
      for (const Exchange& exchange : dialogue) {
        const std::span<const TokenId> read = exchange.read;
        ASSERT_LE(exchange.opening + exchange.closing, std::ssize(read));
        const std::string opening = TextOf(read.first(exchange.opening));
        const std::string text = TextOf(
            read.subspan(exchange.opening, read.size() - exchange.opening - exchange.closing));
        EXPECT_THAT(opening, testing::AnyOf("", "<|end|><|user|>"));
        EXPECT_THAT(text, testing::Not(testing::HasSubstr("<|")));
        EXPECT_EQ(opening + text + TextOf(read.last(exchange.closing)), TextOf(read));
      }
    }
  }
}

TEST_P(TaskTest, CasesFollowFromTheirNumbers) {
  TaskOptions options;
  options.cases = 4;
  options.length = 1200;
  const std::vector<Case> cases = Make(GetParam(), options);
  EXPECT_EQ(CasesAsJson(cases), CasesAsJson(Make(GetParam(), options)));
  options.half = TaskOptions::Half::kHeldOut;
  const std::vector<Case> held_out = Make(GetParam(), options);
  ASSERT_EQ(held_out.size(), 2u);
  EXPECT_EQ(CasesAsJson(held_out), CasesAsJson({cases[1], cases[3]}));
  options.half = TaskOptions::Half::kTuned;
  EXPECT_EQ(CasesAsJson(Make(GetParam(), options)), CasesAsJson({cases[0], cases[2]}));
}

INSTANTIATE_TEST_SUITE_P(All, TaskTest, testing::ValuesIn(AllTasks()), [](const auto& info) {
  std::string name;
  for (const char c : info.param) name += c == '-' ? '_' : c;
  return name;
});

// The retrieval model's names are 64; longer contexts have others, each once.
TEST(Tasks, LinesFillLongContextsWithDifferentNames) {
  TaskOptions options;
  options.cases = 1;
  options.length = 8000;
  const std::string text = TextOf(Make("lines", options)[0].trial.context);
  std::set<std::string> names;
  int lines = 0;
  std::istringstream stream(text.substr(0, text.find("\nQuestion")));
  for (std::string line; std::getline(stream, line);) {
    const size_t end = line.find(": REGISTER_CONTENT is <");
    if (!line.starts_with("line ") || end == std::string::npos) continue;
    names.insert(line.substr(5, end - 5));
    ++lines;
  }
  EXPECT_GT(lines, 100);
  EXPECT_EQ(names.size(), static_cast<size_t>(lines));
}

TEST(Tasks, GroupsStandForTheirTasks) {
  EXPECT_EQ(TasksNamed("ruler")->size(), 13u);
  EXPECT_EQ(*TasksNamed("needle"), std::vector<std::string>{"needle"});
}

TEST(Tasks, AnswersAreJudged) {
  const Question question = {.task = "t", .answers = {"red", "blue"}, .wrong = {"green"}};
  EXPECT_EQ(Found(question, "It is red and blue."), 1.0);
  EXPECT_EQ(Found(question, "It is red."), 0.5);
  EXPECT_EQ(Found(question, "It is red and blue, or green."), 0.0);
  EXPECT_EQ(Found(question, "I do not know."), 0.0);
  const Question choice = {.task = "t", .judge = Judge::kChoice, .choices = 2};
  Outcome outcome;
  outcome.answers = {{{.nll = 1.5}}, {{.nll = 1.6}}};
  EXPECT_EQ(Score(choice, outcome), 1.0);
  outcome.answers[1][0].nll = 1.5;
  EXPECT_EQ(Score(choice, outcome), 0.0) << "not told apart";
}

// All fields that another program needs.
TEST(Tasks, CasesAreWrittenWhole) {
  TaskOptions options;
  options.cases = 1;
  options.length = 1200;
  const Case made = Make("facts-corrected", options)[0];
  const auto json = nlohmann::json::parse(CasesAsJson({made}));
  EXPECT_EQ(json.at("case"), 0);
  EXPECT_EQ(json.at("context").get<std::vector<TokenId>>(), made.trial.context);
  EXPECT_EQ(json.at("question_later"), true);
  ASSERT_EQ(json.at("dialogues").size(), 3u);
  const auto& exchange = json.at("dialogues")[2][0];
  const Exchange& third = made.trial.dialogues[2][0];
  EXPECT_EQ(exchange.at("read").get<std::vector<TokenId>>(), third.read);
  EXPECT_EQ(exchange.at("expected").get<std::vector<TokenId>>(), third.expected);
  EXPECT_EQ(exchange.at("generate"), third.generate);
  EXPECT_EQ(exchange.at("stop"), "\n");
  const auto& question = json.at("questions")[2];
  EXPECT_EQ(question.at("task"), "facts-corrected");
  EXPECT_EQ(question.at("judge"), "found");
  EXPECT_EQ(question.at("dialogue"), 2);
  EXPECT_EQ(question.at("answers").get<std::vector<std::string>>(), made.questions[2].answers);
  EXPECT_EQ(question.at("wrong").get<std::vector<std::string>>(), made.questions[2].wrong);
}

TEST(Tasks, ErrorsNameTheOption) {
  const auto make = [](const std::string& task) {
    return std::string(
        MakeCases(task, {}, {"short\n"}, PromptForm::Plain(), TheTokenizer()).status().message());
  };
  EXPECT_THAT(make("perplexity"), HasSubstr("--text: too short"));
  EXPECT_THAT(make("facts"), HasSubstr("--text: too short"));
  EXPECT_THAT(make("poetry"), HasSubstr("one of perplexity, summary"));
}

TEST(PromptForms, TheChatsTextsStandBetweenItsMarks) {
  const PromptForm form = Chat();
  EXPECT_EQ(form.opening, "<|user|>");
  EXPECT_EQ(form.before_answer, "<|end|><|assistant|>");
  EXPECT_EQ(form.before_next_question, "<|end|><|user|>");
}

TEST(PromptForms, ATemplateThatChangesTextsIsRefused) {
  const auto chat = MakeChatTemplate(
      {.templates = {{"default", "{% for m in messages %}{{ m.content | upper }}{% endfor %}"}},
       .special_tokens = {}});
  ASSERT_TRUE(chat.ok());
  EXPECT_THAT(std::string(PromptForm::Chat(**chat).status().message()),
              HasSubstr("changes the texts"));
}

}  // namespace
}  // namespace hydrant::eval
