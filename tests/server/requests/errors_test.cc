// Every way a request can be wrong: the status, the reason, the field it names.
#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <ostream>

#include "scheduler/request_check.h"
#include "server/wire/status_details.h"
#include "server/wire/wire_message.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

struct BadField {
  std::string name;
  std::function<void(v1::GenerateRequest*)> spoil;
  std::string field;    // of the BadRequest
  std::string mention;  // a piece of the description: the limit, usually
};
void PrintTo(const BadField& bad, std::ostream* out) { *out << bad.name; }

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A budget that the prompt of 2 tokens does not reach.
v1::Cache* Budget(v1::GenerateRequest* request, const std::string& policy) {
  request->mutable_cache()->set_cache_policy(policy);
  request->mutable_cache()->set_max_cache_tokens(100);
  return request->mutable_cache();
}

std::function<void(v1::GenerateRequest*)> WithParam(const std::string& policy,
                                                    const std::string& name,
                                                    const std::string& value) {
  return [=](v1::GenerateRequest* r) { (*Budget(r, policy)->mutable_params())[name] = value; };
}

// Its last message a question that the rest is compressed without.
v1::Cache* QuestionOf(v1::GenerateRequest* request, const std::vector<std::string>& roles) {
  for (const std::string& role : roles) {
    v1::ChatMessage* message = request->mutable_chat()->add_messages();
    message->set_role(role);
    message->set_content("hello");
  }
  request->mutable_cache()->set_question_agnostic(true);
  return request->mutable_cache();
}

std::string AllPolicies() {
  return "full, local, streaming, h2o, scissorhands, tova, snapkv, pyramidkv, ada-snapkv, "
         "ada-pyramid, ada-h2o, co2, reconstruct, echo, auto, subgen, subgen-kcenter, "
         "random";
}

std::vector<BadField> BadFields() {
  using R = v1::GenerateRequest;
  return {
      {"NoPrompt", [](R* r) { r->clear_prompt(); }, "prompt", "text, token_ids and chat"},
      {"EmptyText", [](R* r) { r->set_text(""); }, "text", "empty"},
      {"EmptyIds", [](R* r) { r->mutable_token_ids(); }, "token_ids", "empty"},
      {"EmptyChat", [](R* r) { r->mutable_chat(); }, "chat.messages", "empty"},
      {"ChatWithoutRole", [](R* r) { r->mutable_chat()->add_messages()->set_content("x"); },
       "chat.messages[0].role", "not set"},
      {"ChatRoleOfNoTemplate", [](R* r) { r->mutable_chat()->add_messages()->set_role("wizard"); },
       "chat.messages", "wizard"},
      {"TextBeyondContext", [](R* r) { r->set_text(std::string(2048, 'x')); }, "text",
       "at most 2047"},
      {"IdsBeyondContext",
       [](R* r) {
         for (int i = 0; i < 2048; ++i) r->mutable_token_ids()->add_ids(1);
       },
       "token_ids", "at most 2047"},
      {"ChatBeyondContext",
       [](R* r) {
         v1::ChatMessage* message = r->mutable_chat()->add_messages();
         message->set_role("user");
         message->set_content(std::string(2048, 'x'));
       },
       "chat", "at most 2047"},
      {"IdOutOfVocabulary", [](R* r) { r->mutable_token_ids()->add_ids(259); }, "token_ids.ids[0]",
       "0 to 258"},
      {"ResumeIdOutOfVocabulary", [](R* r) { r->add_resume_token_ids(4000000000u); },
       "resume_token_ids[0]", "259"},
      {"StopIdOutOfVocabulary", [](R* r) { r->mutable_stopping()->add_stop_token_ids(259); },
       "stopping.stop_token_ids[0]", "259"},
      {"NanTemperature", [](R* r) { r->mutable_sampling()->set_temperature(kNan); },
       "sampling.temperature", "[0, 100]"},
      {"NegativeTemperature", [](R* r) { r->mutable_sampling()->set_temperature(-1); },
       "sampling.temperature", "-1"},
      {"InfiniteTemperature", [](R* r) { r->mutable_sampling()->set_temperature(INFINITY); },
       "sampling.temperature", "inf"},
      {"ZeroTopP", [](R* r) { r->mutable_sampling()->set_top_p(0); }, "sampling.top_p", "(0, 1]"},
      {"NanTopP", [](R* r) { r->mutable_sampling()->set_top_p(kNan); }, "sampling.top_p", "(0, 1]"},
      {"NegativeTopP", [](R* r) { r->mutable_sampling()->set_top_p(-0.5); }, "sampling.top_p",
       "-0.5 is outside (0, 1]"},
      {"TopPAboveOne", [](R* r) { r->mutable_sampling()->set_top_p(1.01); }, "sampling.top_p",
       "1.01 is outside (0, 1]"},
      {"LogprobsAboveTheMost", [](R* r) { r->mutable_sampling()->set_logprobs(21); },
       "sampling.logprobs", "[0, 20]"},
      {"PromptLogprobsAboveTheMost", [](R* r) { r->mutable_sampling()->set_prompt_logprobs(21); },
       "sampling.prompt_logprobs", "[0, 20]"},
      {"PromptLogprobsOfAQuestion",
       [](R* r) {
         r->mutable_sampling()->set_prompt_logprobs(0);
         Budget(r, "h2o")->set_question_tokens(1);
       },
       "sampling.prompt_logprobs", "question"},
      {"PromptLogprobsResumed",
       [](R* r) {
         r->mutable_sampling()->set_prompt_logprobs(0);
         r->add_resume_token_ids(65);
       },
       "sampling.prompt_logprobs", "resume_token_ids"},
      {"NanBias", [](R* r) { (*r->mutable_sampling()->mutable_logit_bias())[1] = kNan; },
       "sampling.logit_bias[1]", "[-100, 100]"},
      {"LargeBias", [](R* r) { (*r->mutable_sampling()->mutable_logit_bias())[1] = 100.5; },
       "sampling.logit_bias[1]", "[-100, 100]"},
      {"BiasOfNoToken", [](R* r) { (*r->mutable_sampling()->mutable_logit_bias())[~0u] = 1; },
       "sampling.logit_bias", "token 4294967295"},
      {"AllowedNoToken", [](R* r) { r->mutable_sampling()->add_allowed_token_ids(~0u); },
       "sampling.allowed_token_ids[0]", "4294967295"},
      {"EmptyBadWord", [](R* r) { r->mutable_sampling()->add_bad_words("  "); },
       "sampling.bad_words[0]", "0 bytes"},
      {"LongBadWord", [](R* r) { r->mutable_sampling()->add_bad_words(std::string(100, 'a')); },
       "sampling.bad_words", "64"},
      {"ManyBadWords",
       [](R* r) {
         for (int i = 0; i < 129; ++i) r->mutable_sampling()->add_bad_words("a");
       },
       "sampling.bad_words", "128"},
      {"TruncatedToNothing", [](R* r) { r->set_truncate_prompt_tokens(0); },
       "truncate_prompt_tokens", "0 is outside"},
      {"NoStreamInterval", [](R* r) { r->mutable_output()->set_stream_interval(0); },
       "output.stream_interval", "[1, 4096]"},
      {"NoForm", [](R* r) { r->mutable_structured_output(); }, "structured_output", "json_schema"},
      {"NoJsonObject", [](R* r) { r->mutable_structured_output()->set_json_object(false); },
       "structured_output.json_object", "false"},
      {"NanMinP", [](R* r) { r->mutable_sampling()->set_min_p(kNan); }, "sampling.min_p",
       "nan is outside [0, 1]"},
      {"NegativeMinP", [](R* r) { r->mutable_sampling()->set_min_p(-1e-9); }, "sampling.min_p",
       "[0, 1]"},
      {"MinPAboveOne", [](R* r) { r->mutable_sampling()->set_min_p(1.5); }, "sampling.min_p",
       "[0, 1]"},
      {"PriorityTooHigh", [](R* r) { r->mutable_scheduling()->set_priority(1001); },
       "scheduling.priority", "1001 is outside [-1000, 1000]"},
      {"PriorityTooLow", [](R* r) { r->mutable_scheduling()->set_priority(-2147483647 - 1); },
       "scheduling.priority", "-2147483648 is outside [-1000, 1000]"},
      {"EvictionOfWhatIsNotRanked",
       [](R* r) { r->mutable_scheduling()->set_on_pressure(v1::ON_PRESSURE_EVICT); },
       "scheduling.on_pressure", "\"full\" as asked for has none"},
      {"EvictionOfWhatIsKept",
       [](R* r) {
         r->mutable_scheduling()->set_on_pressure(v1::ON_PRESSURE_EVICT);
         r->mutable_cache()->set_cache_policy("h2o");
         r->mutable_cache()->set_max_cache_tokens(100);
         r->set_keep(true);
       },
       "scheduling.on_pressure", "nor with keep"},
      {"EvictionOfSamples",
       [](R* r) {
         r->mutable_scheduling()->set_on_pressure(v1::ON_PRESSURE_EVICT);
         r->mutable_sampling()->set_n(2);
       },
       "sampling.n", "with ON_PRESSURE_EVICT at most 1"},
      {"PromiseWithoutABound",
       [](R* r) {
         r->mutable_scheduling()->set_on_pressure(v1::ON_PRESSURE_NEVER);
         r->mutable_stopping()->clear_max_tokens();
       },
       "stopping.max_tokens", "set max_tokens, or a cache that has a cap"},
      {"UnknownPressure",
       [](R* r) { r->mutable_scheduling()->set_on_pressure(static_cast<v1::OnPressure>(7)); },
       "scheduling.on_pressure",
       "7 is unknown; one of ON_PRESSURE_PREEMPT, ON_PRESSURE_EVICT, ON_PRESSURE_NEVER"},
      {"TenantTooLong", [](R* r) { r->mutable_scheduling()->set_tenant(std::string(129, 'x')); },
       "scheduling.tenant", "has 129 bytes; at most 128"},
      {"NoTimeToTheFirstToken",
       [](R* r) { r->mutable_scheduling()->mutable_slo()->set_ttft_us(0); },
       "scheduling.slo.ttft_us", "0 is outside [1, 86400000000]"},
      {"MoreThanADayAToken",
       [](R* r) { r->mutable_scheduling()->mutable_slo()->set_tpot_us(~uint64_t{0}); },
       "scheduling.slo.tpot_us", "18446744073709551615 is outside [1, 86400000000]"},
      {"NoSample", [](R* r) { r->mutable_sampling()->set_n(0); }, "sampling.n",
       "0 is outside [1, 64]"},
      {"TooManySamples", [](R* r) { r->mutable_sampling()->set_n(65); }, "sampling.n",
       "65 is outside [1, 64]"},
      {"MostSamplesThatCanBeSent", [](R* r) { r->mutable_sampling()->set_n(4294967295u); },
       "sampling.n", "4294967295 is outside [1, 64]"},
      {"MoreSamplesThanRunAtOnce", [](R* r) { r->mutable_sampling()->set_n(17); }, "sampling.n",
       "17 samples exceed max_num_seqs 16"},
      {"ResumedSamples",
       [](R* r) {
         r->mutable_sampling()->set_n(2);
         r->add_resume_token_ids(1);
       },
       "sampling.n", "with resume_token_ids at most 1"},
      {"KeptSamples",
       [](R* r) {
         r->mutable_sampling()->set_n(2);
         r->set_keep(true);
       },
       "sampling.n", "with keep at most 1"},
      {"ZeroRepetitionPenalty", [](R* r) { r->mutable_sampling()->set_repetition_penalty(0); },
       "sampling.repetition_penalty", "0 is outside [0.001, 10]"},
      {"NanPresencePenalty", [](R* r) { r->mutable_sampling()->set_presence_penalty(kNan); },
       "sampling.presence_penalty", "nan is outside [-2, 2]"},
      {"FrequencyPenaltyAboveTwo", [](R* r) { r->mutable_sampling()->set_frequency_penalty(2.5); },
       "sampling.frequency_penalty", "2.5 is outside [-2, 2]"},
      {"NegativeTopK", [](R* r) { r->mutable_sampling()->set_top_k(-2); }, "sampling.top_k",
       "-2 is outside [-1, "},
      {"ZeroMaxTokens", [](R* r) { r->mutable_stopping()->set_max_tokens(0); },
       "stopping.max_tokens", "0 is outside [1, "},
      {"MinAboveMax", [](R* r) { r->mutable_stopping()->set_min_tokens(11); },
       "stopping.min_tokens", "10"},
      {"EmptyStop", [](R* r) { r->mutable_stopping()->add_stop(std::string()); },
       "stopping.stop[0]", "[1, 1024]"},
      {"LongStop", [](R* r) { r->mutable_stopping()->add_stop(std::string(1025, 's')); },
       "stopping.stop[0]", "1024"},
      {"ManyStops",
       [](R* r) {
         for (int i = 0; i < 65; ++i) r->mutable_stopping()->add_stop(std::string("s"));
       },
       "stopping.stop", "the limit of 64"},
      {"ManyStopIds",
       [](R* r) {
         for (size_t i = 0; i <= kMaxStopTokenIds; ++i)
           r->mutable_stopping()->add_stop_token_ids(1);
       },
       "stopping.stop_token_ids", "the limit of " + std::to_string(kMaxStopTokenIds)},
      {"ResumedToTheEnd",
       [](R* r) {
         for (int i = 0; i < 10; ++i) r->add_resume_token_ids(1);
       },
       "resume_token_ids", "10"},
      {"UnknownPolicy", [](R* r) { r->mutable_cache()->set_cache_policy("magic"); },
       "cache.cache_policy", "'magic' is unknown; one of " + AllPolicies()},
      {"EmptyPolicy", [](R* r) { r->mutable_cache()->set_cache_policy(""); }, "cache.cache_policy",
       "'' is unknown; one of full, "},
      {"BudgetBelowSinksAndWindow",
       [](R* r) {
         r->mutable_cache()->set_cache_policy("streaming");
         r->mutable_cache()->set_max_cache_tokens(8);
         r->mutable_cache()->set_sink_tokens(9);
       },
       "cache.sink_tokens", "budget of 8 entries a head; at most 7"},
      {"ShareBelowSinksAndWindow",
       [](R* r) {
         r->mutable_cache()->set_cache_policy("h2o");
         r->mutable_cache()->set_cache_ratio(0.5);
         r->mutable_cache()->set_min_cache_tokens(0);
         r->mutable_cache()->set_protected_window_size(10);
       },
       "cache.cache_ratio", "below sink_tokens + protected_window_size = 0 + 10"},
      {"BudgetForFull", [](R* r) { r->mutable_cache()->set_max_cache_tokens(100); },
       "cache.max_cache_tokens", "full keeps every entry"},
      {"FloorOfNoShare", [](R* r) { r->mutable_cache()->set_min_cache_tokens(64); },
       "cache.min_cache_tokens", "64 given, but policy full keeps every entry"},
      {"ParamOfAnotherPolicy",
       [](R* r) {
         r->mutable_cache()->set_cache_policy("local");
         r->mutable_cache()->set_cache_ratio(0.5);
         r->mutable_cache()->set_sink_tokens(4);
       },
       "cache.sink_tokens", "local does not take it"},
      {"ZeroRatio",
       [](R* r) {
         r->mutable_cache()->set_cache_policy("h2o");
         r->mutable_cache()->set_cache_ratio(0);
       },
       "cache.cache_ratio", "(0, 1]"},
      {"NanRatio",
       [](R* r) {
         r->mutable_cache()->set_cache_policy("h2o");
         r->mutable_cache()->set_cache_ratio(kNan);
       },
       "cache.cache_ratio", "(0, 1]"},
      {"ZeroMaxCacheTokens",
       [](R* r) {
         r->mutable_cache()->set_cache_policy("h2o");
         r->mutable_cache()->set_max_cache_tokens(0);
       },
       "cache.max_cache_tokens", "0 is below 1"},
      {"UnknownPolicyParam",
       [](R* r) {
         r->mutable_cache()->set_cache_policy("h2o");
         r->mutable_cache()->set_cache_ratio(0.5);
         (*r->mutable_cache()->mutable_params())["warp"] = "9";
       },
       "cache.params", "'warp' is no parameter of policy h2o; one of rolling, budget_scope"},
      {"FieldAsPolicyParam", WithParam("h2o", "sink_tokens", "4"), "cache.params",
       "'sink_tokens' is a field of its own; set cache.sink_tokens"},
      // No name that a path could end in.
      {"UnknownParamOfAnyLetters", WithParam("local", "Warp Factor: ", "9"), "cache.params",
       "'Warp Factor: ' is no parameter of policy local; it has none"},
      {"IntegerParamAboveRange", WithParam("snapkv", "kernel_size", "65"),
       "cache.params.kernel_size", "'65' is not a whole number in [1, 63]"},
      {"IntegerParamNoNumber", WithParam("snapkv", "kernel_size", "seven"),
       "cache.params.kernel_size", "'seven' is not a whole number in [1, 63]"},
      {"EvenKernel", WithParam("snapkv", "kernel_size", "8"), "cache.params.kernel_size",
       "8 is not odd; an odd number in [1, 63]"},
      {"DecodeCapBelowBudget", WithParam("snapkv", "decode_cap", "99"), "cache.params.decode_cap",
       "'99' is not a whole number in [100, "},
      {"RealParamAboveRange", WithParam("h2o", "head_floor", "1.5"), "cache.params.head_floor",
       "'1.5' is not a number in [0, 1]"},
      {"RealParamNan", WithParam("co2", "alpha", "nan"), "cache.params.alpha",
       "'nan' is not a number in [0, 1]"},
      {"ChoiceParamOfNone", WithParam("h2o", "budget_scope", "galaxy"), "cache.params.budget_scope",
       "'galaxy' is none of head, layer, model"},
      {"RollingIsNoBoolean", WithParam("streaming", "rolling", "1"), "cache.params.rolling",
       "'1' is none of false, true"},
      {"RatioAboveOne", [](R* r) { Budget(r, "h2o")->set_cache_ratio(1.5); }, "cache.cache_ratio",
       "1.5 is outside (0, 1]"},
      {"RatioForFull", [](R* r) { r->mutable_cache()->set_cache_ratio(0.5); }, "cache.cache_ratio",
       "0.5 given, but policy full keeps every entry"},
      {"ZeroRetainedMass", [](R* r) { Budget(r, "h2o")->set_min_retained_mass(0); },
       "cache.min_retained_mass", "0 is outside (0, 1]"},
      {"RetainedMassAboveOne", [](R* r) { Budget(r, "h2o")->set_min_retained_mass(1.5); },
       "cache.min_retained_mass", "1.5 is outside (0, 1]"},
      {"NanRetainedMass", [](R* r) { Budget(r, "h2o")->set_min_retained_mass(kNan); },
       "cache.min_retained_mass", "nan is outside (0, 1]"},
      {"RetainedMassAboveOneOfFull", [](R* r) { r->mutable_cache()->set_min_retained_mass(1.5); },
       "cache.min_retained_mass", "1.5 is outside (0, 1]"},
      {"RetainedMassOfTova", [](R* r) { Budget(r, "tova")->set_min_retained_mass(0.5); },
       "cache.min_retained_mass", "0.5 given, but policy tova keeps the same entries in all heads"},
      {"RetainedMassOfSubgen", [](R* r) { Budget(r, "subgen")->set_min_retained_mass(0.5); },
       "cache.min_retained_mass", "0.5 given, but policy subgen keeps samples"},
      {"QuestionIsThePrompt", [](R* r) { r->mutable_cache()->set_question_tokens(2); },
       "cache.question_tokens", "2 is outside [0, 1]"},
      {"QuestionBeyondThePrompt", [](R* r) { Budget(r, "h2o")->set_question_tokens(3); },
       "cache.question_tokens", "3 is outside [0, 1]"},
      {"QuestionOfMinusOne", [](R* r) { r->mutable_cache()->set_question_tokens(-1); },
       "cache.question_tokens", "is outside [0, 1]"},
      {"UnknownReuse", [](R* r) { r->mutable_cache()->set_reuse(static_cast<v1::Reuse>(9)); },
       "cache.reuse", "9 is unknown; one of REUSE_OFF, REUSE_EXACT"},
      {"LongSalt", [](R* r) { r->mutable_cache()->set_cache_salt(std::string(257, 's')); },
       "cache.cache_salt", "257 bytes exceed the limit of 256"},
      {"QuestionAgnosticText", [](R* r) { Budget(r, "h2o")->set_question_agnostic(true); },
       "cache.question_agnostic", "is for chats; of other prompts question_tokens"},
      {"QuestionAgnosticIds",
       [](R* r) {
         for (int i = 0; i < 9; ++i) r->mutable_token_ids()->add_ids(1);
         Budget(r, "h2o")->set_question_agnostic(true);
       },
       "cache.question_agnostic", "is for chats; of other prompts question_tokens"},
      {"QuestionAgnosticMessageAlone", [](R* r) { QuestionOf(r, {"user"}); },
       "cache.question_agnostic", "has 1 message; at least 2"},
      {"QuestionAgnosticAndTokens",
       [](R* r) {
         QuestionOf(r, {"user", "user"})->set_question_tokens(5);
       },
       "cache.question_tokens", "5 given, but question_agnostic"},
      {"QuestionAgnosticOfNoContext",
       [](R* r) {
         QuestionOf(r, {"assistant", "user"});
       },
       "cache.question_agnostic", "without its last message, chat.messages: a user message is"},
      {"AutoHasNoWeights", [](R* r) { (*Budget(r, "auto")->mutable_params())["max_weight"] = "3"; },
       "cache.params", "'max_weight' is no parameter of policy auto; one of decode_cap"},
      {"AutosQuality",
       [](R* r) {
         r->mutable_cache()->set_cache_policy("auto");
         r->mutable_cache()->set_min_retained_mass(1.5f);
       },
       "cache.min_retained_mass", "1.5 is outside (0, 1]"},
      // 2 * 1010 tokens and an instruction of 30 are 2 more than the context has.
      {"PromptTooLongToBeReadTwice",
       [](R* r) {
         r->set_text(std::string(1009, 'x'));
         Budget(r, "reconstruct");
       },
       "cache.cache_policy",
       "1010 prompt tokens, an instruction of 30 and their repetition exceed "
       "the context of 2048; prompts of up to 1009 tokens"},
      {"EmptyRequestId", [](R* r) { r->set_request_id(""); }, "request_id", "empty"},
      {"LongRequestId", [](R* r) { r->set_request_id(std::string(129, 'i')); }, "request_id",
       "at most 128"},
      {"ControlInRequestId", [](R* r) { r->set_request_id("a\nb"); }, "request_id", "printable"},
      // protoc's C++ clients send what other languages would refuse to.
      {"TextNotUtf8", [](R* r) { r->set_text("ok\xFF"); }, "text", "2"},
      {"ChatNotUtf8", [](R* r) { r->mutable_chat()->add_messages()->set_content("\xC3"); },
       "chat.messages[0].content", "0"},
      {"StopNotUtf8", [](R* r) { r->mutable_stopping()->add_stop("\xED\xA0\x80"); },
       "stopping.stop[0]", "0"},
      {"ParamNotUtf8", [](R* r) { (*r->mutable_cache()->mutable_params())["a"] = "\x80"; },
       "cache.params.value", "0"},
  };
}

// One server for all of them: a refusal leaves nothing behind.
class BadFieldTest : public testing::TestWithParam<BadField> {
 protected:
  static void SetUpTestSuite() { server_ = new TestServer(); }
  static void TearDownTestSuite() {
    EXPECT_TRUE(server_->WaitUntilEmpty());
    EXPECT_TRUE(RunToEnd(server_->stub(), TextRequest("x", 2)).status.ok());
    delete server_;
  }
  static TestServer* server_;
};
TestServer* BadFieldTest::server_ = nullptr;

TEST_P(BadFieldTest, IsNamed) {
  v1::GenerateRequest request = TextRequest("x", 10);
  GetParam().spoil(&request);
  const StreamResult result = RunToEnd(server_->stub(), request);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
      << result.status.error_message();
  const ErrorDetails details = DetailsOf(result.status);
  EXPECT_EQ(details.reason, "INVALID");
  EXPECT_EQ(details.field, GetParam().field) << result.status.error_message();
  EXPECT_THAT(details.description, HasSubstr(GetParam().mention));
  EXPECT_EQ(result.status.error_message(), details.field + ": " + details.description);
  EXPECT_TRUE(result.events.empty());
}
INSTANTIATE_TEST_SUITE_P(Errors, BadFieldTest, testing::ValuesIn(BadFields()),
                         [](const auto& info) { return info.param.name; });

struct CountField {
  const char* name;
  std::function<void(v1::GenerateRequest*, uint32_t)> set;
};

// The largest number that a count can be is above what the scheduler counts with. Whoever reads the
// refusal looks for the number that was sent.
TEST(Errors, TheLargestCountIsNamedAsItWasSent) {
  using R = v1::GenerateRequest;
  constexpr uint32_t kMost = std::numeric_limits<uint32_t>::max();
  const CountField fields[] = {
      {"stopping.max_tokens", [](R* r, uint32_t n) { r->mutable_stopping()->set_max_tokens(n); }},
      {"stopping.min_tokens", [](R* r, uint32_t n) { r->mutable_stopping()->set_min_tokens(n); }},
      {"cache.question_tokens",
       [](R* r, uint32_t n) { r->mutable_cache()->set_question_tokens(n); }},
      {"cache.max_cache_tokens",
       [](R* r, uint32_t n) { r->mutable_cache()->set_max_cache_tokens(n); }},
      {"cache.min_cache_tokens",
       [](R* r, uint32_t n) {
         r->mutable_cache()->clear_max_cache_tokens();
         if (r->cache().has_cache_policy()) r->mutable_cache()->set_cache_ratio(0.5);
         r->mutable_cache()->set_min_cache_tokens(n);
       }},
      {"cache.sink_tokens", [](R* r, uint32_t n) { r->mutable_cache()->set_sink_tokens(n); }},
      {"cache.protected_window_size",
       [](R* r, uint32_t n) { r->mutable_cache()->set_protected_window_size(n); }}};
  TestServerOptions options;
  options.limits.num_blocks = 16;  // 64 tokens of a whole cache
  TestServer server(options);
  int refused = 0;
  for (const PolicyInfo& policy : ListPolicies()) {
    for (const CountField& field : fields) {
      SCOPED_TRACE(policy.name + ", " + field.name);
      R request = TextRequest("x", 10);
      if (policy.name != "full") Budget(&request, policy.name);
      field.set(&request, kMost);
      if (policy.name == "streaming")
        (*request.mutable_cache()->mutable_params())["rolling"] = "true";
      const grpc::Status status = RunToEnd(server.stub(), request).status;
      if (status.ok()) continue;
      ++refused;
      EXPECT_THAT(status.error_message(), Not(HasSubstr("2147483647")));
      // A field that the policy does not have is refused by its name.
      EXPECT_THAT(status.error_message(),
                  AnyOf(HasSubstr("does not take it"), HasSubstr(std::to_string(kMost))));
    }
  }
  EXPECT_GT(refused, 40);
}

TEST(Errors, AnotherModelIsNotFound) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("x", 1);
  request.set_model("other");
  const StreamResult result = RunToEnd(server.stub(), request);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(result.status.error_message(), HasSubstr("test-model"));
  request.set_model("test-model");
  EXPECT_TRUE(RunToEnd(server.stub(), request).status.ok());
}

TEST(Errors, ChatWithoutATemplateSaysWhatToDo) {
  TestServerOptions options;
  options.chat = false;
  TestServer server(options);
  v1::GenerateRequest request;
  request.mutable_chat()->add_messages()->set_role("user");
  const StreamResult result = RunToEnd(server.stub(), request);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(DetailsOf(result.status).reason, "NO_CHAT_TEMPLATE");
  EXPECT_THAT(result.status.error_message(), HasSubstr("send the prompt as text"));
}

TEST(Errors, LoadingDrainingAndLostSayNo) {
  TestServerOptions options;
  options.ready = false;
  TestServer server(options);
  server.service->SetLoadFraction(0.42);
  grpc::Status status = RunToEnd(server.stub(), TextRequest("x", 1)).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("42 %"));
  EXPECT_EQ(DetailsOf(status).reason, "LOADING");
  EXPECT_GT(DetailsOf(status).retry_s, 0);

  server.service->SetReady(&server.model, server.loop.get(), server.contexts.get());
  EXPECT_TRUE(RunToEnd(server.stub(), TextRequest("x", 1)).status.ok());

  server.service->SetDraining();
  status = RunToEnd(server.stub(), TextRequest("x", 1)).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailsOf(status).reason, "DRAINING");

  v1::GetModelInfoResponse model;  // what needs no engine is still told
  grpc::ClientContext context;
  EXPECT_TRUE(server.stub().GetModelInfo(&context, {}, &model).ok());

  server.service->SetEngineLost(absl::InternalError("gone"));
  status = RunToEnd(server.stub(), TextRequest("x", 1)).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(DetailsOf(status).reason, "ENGINE_FAULT");
}

// A server that is stopped while it loads has no model to ask.
TEST(Errors, DrainingWithoutAModelSaysNo) {
  TestServerOptions options;
  options.ready = false;
  TestServer server(options);
  server.service->SetDraining();
  std::vector<grpc::Status> answers;
  answers.push_back(RunToEnd(server.stub(), TextRequest("x", 1)).status);
  {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    v1::TokenizeResponse response;
    request.set_text("x");
    answers.push_back(server.stub().Tokenize(&context, request, &response));
  }
  {
    grpc::ClientContext context;
    v1::DetokenizeResponse response;
    answers.push_back(server.stub().Detokenize(&context, {}, &response));
  }
  {
    grpc::ClientContext context;
    v1::GetModelInfoResponse response;
    answers.push_back(server.stub().GetModelInfo(&context, {}, &response));
  }
  for (const grpc::Status& status : answers) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
    EXPECT_EQ(DetailsOf(status).reason, "DRAINING");
  }
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(server.stub().GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.state(), v1::SERVER_STATE_DRAINING);
}

// What no generated client sends: bytes that are no message at all.
TEST(Errors, GarbageIsInvalidArgument) {
  TestServer server;
  grpc::GenericStub stub(server.NewChannel());
  for (const std::string& bytes :
       {std::string("\xFF\xFF\xFF"), std::string("\x0A\xFF\xFF\xFF\xFF\x7F"),
        std::string(1000, '\x0A')}) {
    for (const char* method :
         {"/hydrant.v1.Hydrant/Tokenize", "/hydrant.v1.Hydrant/GetServerInfo"}) {
      grpc::Slice slice(bytes);
      grpc::ByteBuffer request(&slice, 1), response;
      grpc::ClientContext context;
      grpc::CompletionQueue queue;
      grpc::Status status;
      const auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
      call->StartCall();
      call->Finish(&response, &status, nullptr);
      void* tag;
      bool ok;
      ASSERT_TRUE(queue.Next(&tag, &ok));
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
      EXPECT_THAT(status.error_message(), HasSubstr("hydrant.v1."));
    }
  }
}

TEST(StatusDetails, FieldsAreRecognised) {
  EXPECT_EQ(FieldOf("sampling.top_p: is 2"), "sampling.top_p");
  EXPECT_EQ(FieldOf("stopping.stop[3]: x"), "stopping.stop[3]");
  EXPECT_EQ(FieldOf("cannot do: x"), "");
  EXPECT_EQ(FieldOf(": x"), "");
  EXPECT_EQ(FieldOf("no colon"), "");
}

TEST(StatusDetails, LongOrInvalidMessagesStillTravel) {
  const grpc::Status status =
      ToGrpcStatus({absl::InvalidArgumentError(std::string(100000, '\xFF')), "INVALID"});
  EXPECT_LT(status.error_message().size() + status.error_details().size(), 16000u);
  EXPECT_EQ(ToValidUtf8("a\xFF z"), "a\xEF\xBF\xBD z");
}

TEST(WireMessage, RoundTrips) {
  v1::GenerateRequest request = TextRequest("h\xC3\xA9llo", 3), back;
  ASSERT_TRUE(ParseWire(ToWire(request), &back).ok());
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(request, back));
}

}  // namespace
}  // namespace hydrant
