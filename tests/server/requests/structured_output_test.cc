// Structured output over a real engine: a random model's output always has the requested form.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "engine/text/grammar/grammar_compiler.h"
#include "tests/server/random_model_server.h"

namespace hydrant {
namespace {

using Json = nlohmann::json;

class StructuredOutputTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<GrammarCompiler>> compiler = GrammarCompiler::Create(
        VocabularyOf(server_.tokenizer, ByteTokenizer::kVocab), GrammarLimits());
    if (!compiler.ok()) GTEST_SKIP() << compiler.status();
    compiler_ = *std::move(compiler);
    server_.model.grammars = compiler_.get();
  }
  static v1::GenerateRequest Request(uint64_t seed) {
    v1::GenerateRequest request;
    request.set_text("Answer in JSON.");
    request.mutable_sampling()->set_seed(seed);
    request.mutable_stopping()->set_max_tokens(400);
    return request;
  }
  // The texts of finished samples, and the status of the call.
  struct Answer {
    std::vector<std::string> texts;
    grpc::Status status;
  };
  Answer Ask(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    const auto reader = server_.stub->Generate(&context, request);
    Answer answer;
    std::vector<std::string> texts(std::max(1u, request.sampling().n()));
    for (v1::GenerateResponse message; reader->Read(&message);) {
      if (message.has_delta()) texts[message.delta().index()] += message.delta().text();
      if (message.finished().reason() == v1::FINISH_REASON_STOP)
        answer.texts.push_back(texts[message.finished().index()]);
    }
    answer.status = reader->Finish();
    return answer;
  }

  RandomModelServer server_{16, MakeRandomModel(RandomModelServer::Config(0), 3), nullptr, true};
  std::unique_ptr<GrammarCompiler> compiler_;
};

TEST_F(StructuredOutputTest, EveryAnswerIsOfTheSchema) {
  const Json schema = {{"type", "object"},
                       {"properties",
                        {{"name", {{"type", "string"}, {"maxLength", 8}}},
                         {"age", {{"type", "integer"}, {"minimum", 0}, {"maximum", 120}}},
                         {"kind", {{"enum", {"cat", "dog"}}}}}},
                       {"required", {"name", "age", "kind"}},
                       {"additionalProperties", false}};
  int complete = 0;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    v1::GenerateRequest request = Request(seed);
    request.mutable_structured_output()->set_json_schema(schema.dump());
    request.mutable_sampling()->set_n(4);
    request.mutable_cache()->set_cache_policy("h2o");
    request.mutable_cache()->set_max_cache_tokens(48);
    const Answer answer = Ask(request);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    for (const std::string& text : answer.texts) {
      const Json json = Json::parse(text, nullptr, false);
      ASSERT_TRUE(json.is_object()) << text;
      EXPECT_EQ(json.size(), 3u) << text;
      EXPECT_TRUE(json["name"].is_string()) << text;
      EXPECT_GE(json["age"].get<int>(), 0);
      EXPECT_LE(json["age"].get<int>(), 120);
      EXPECT_TRUE(json["kind"] == "cat" || json["kind"] == "dog") << text;
      ++complete;
    }
  }
  EXPECT_GT(complete, 10);
}

TEST_F(StructuredOutputTest, RegexChoiceAndGrammar) {
  std::set<std::string> choices;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    v1::GenerateRequest request = Request(seed);
    request.mutable_structured_output()->set_regex("[a-c]{3,5}-[0-9]{2}");
    Answer answer = Ask(request);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    ASSERT_EQ(answer.texts.size(), 1u);
    EXPECT_TRUE(std::regex_match(answer.texts[0], std::regex("[a-c]{3,5}-[0-9]{2}")))
        << answer.texts[0];
    v1::Choices* of = request.mutable_structured_output()->mutable_choice();
    for (const char* text : {"yes", "no", "maybe"}) of->add_texts(text);
    answer = Ask(request);
    ASSERT_EQ(answer.texts.size(), 1u) << answer.status.error_message();
    choices.insert(answer.texts[0]);
    request.mutable_structured_output()->set_grammar("root ::= \"(\" root \")\" | \"x\"");
    answer = Ask(request);
    for (const std::string& text : answer.texts) {
      const size_t depth = text.size() / 2;
      EXPECT_EQ(text, std::string(depth, '(') + "x" + std::string(depth, ')'));
    }
  }
  EXPECT_GT(choices.size(), 1u);
  for (const std::string& choice : choices)
    EXPECT_TRUE(choice == "yes" || choice == "no" || choice == "maybe") << choice;
}

// max_whitespace bounds the white space of a model that prefers white space to all other tokens.
TEST_F(StructuredOutputTest, WhiteSpaceEnds) {
  for (const int most : {-1, 3, 0}) {
    SCOPED_TRACE(most);
    v1::GenerateRequest request = Request(2);
    request.mutable_structured_output()->set_json_schema(
        R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"null"},"minItems":2,"maxItems":2}},"required":["a"]})");
    if (most >= 0) request.mutable_structured_output()->set_max_whitespace(most);
    for (const unsigned char token : {' ', '\n', '\t', '\r'})
      (*request.mutable_sampling()->mutable_logit_bias())[token] = 100;
    const Answer answer = Ask(request);
    ASSERT_EQ(answer.texts.size(), 1u) << answer.status.error_message();
    int length = 0, longest_length = 0;
    for (const char c : answer.texts[0]) {
      length = c == ' ' || c == '\n' || c == '\t' || c == '\r' ? length + 1 : 0;
      longest_length = std::max(longest_length, length);
    }
    EXPECT_EQ(longest_length, most < 0 ? kDefaultMaxWhitespace : most) << answer.texts[0];
    EXPECT_TRUE(Json::parse(answer.texts[0], nullptr, false).is_object()) << answer.texts[0];
  }
}

// The client has the first half, and requests the rest.
TEST_F(StructuredOutputTest, GoesOnWhereAStreamBroke) {
  v1::GenerateRequest request = Request(3);
  request.mutable_structured_output()->set_regex("[a-z]{30}");
  const Answer whole = Ask(request);
  ASSERT_EQ(whole.texts.size(), 1u);
  for (int i = 0; i < 15; ++i) request.add_resume_token_ids(whole.texts[0][i]);
  const Answer rest = Ask(request);
  ASSERT_EQ(rest.texts.size(), 1u) << rest.status.error_message();
  EXPECT_EQ(rest.texts[0], whole.texts[0].substr(15));
  request.add_resume_token_ids('7');
  EXPECT_EQ(Ask(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(StructuredOutputTest, BadFormsAreRefusedByName) {
  const auto refuses = [this](const std::function<void(v1::StructuredOutput*)>& set,
                              const std::string& field) {
    v1::GenerateRequest request = Request(1);
    set(request.mutable_structured_output());
    const Answer answer = Ask(request);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_EQ(DetailsOf(answer.status).field, field) << answer.status.error_message();
  };
  refuses([](auto* form) { form->set_json_schema("{"); }, "structured_output.json_schema");
  refuses([](auto* form) { form->set_json_schema(R"({"$ref": "#"})"); },
          "structured_output.json_schema");
  refuses([](auto* form) { form->set_regex("("); }, "structured_output.regex");
  refuses([](auto* form) { form->set_grammar("root ::= other"); }, "structured_output.grammar");
  refuses([](auto* form) { form->mutable_choice(); }, "structured_output.choice");
  refuses([](auto* form) { form->set_json_schema(std::string(100'000, ' ')); },
          "structured_output.json_schema");
  const auto sets_whitespace = [](uint32_t most) {
    return [most](auto* form) {
      form->set_json_object(true);
      form->set_max_whitespace(most);
    };
  };
  refuses(sets_whitespace(1001), "structured_output.max_whitespace");
  refuses(
      [](auto* form) {
        form->set_regex("a");
        form->set_max_whitespace(1);
      },
      "structured_output.max_whitespace");
  v1::GenerateRequest request = Request(1);
  request.mutable_structured_output()->set_json_object(true);
  request.mutable_stopping()->set_ignore_eos(true);
  EXPECT_EQ(DetailsOf(Ask(request).status).field, "stopping.ignore_eos");
}

}  // namespace
}  // namespace hydrant
