// Every invalid request: its status, reason, and named field.
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "scheduler/request_check.h"
#include "server/wire/status_details.h"
#include "server/wire/wire_message.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

// A line of bad_fields.txt, which describes its format.
struct BadField {
  std::string name;
  std::string field;    // of the BadRequest
  std::string mention;  // a part of the description, usually the limit
  std::string request;  // fields in protobuf's text format
};
void PrintTo(const BadField& bad, std::ostream* out) { *out << bad.name; }

std::vector<BadField> BadFields() {
  std::ifstream file("tests/server/requests/bad_fields.txt");
  std::vector<BadField> bad;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    const std::vector<std::string> cells = absl::StrSplit(line, absl::MaxSplits(" | ", 3));
    bad.push_back({cells.at(0), cells.at(1), cells.at(2), cells.at(3)});
  }
  return bad;
}

// @3{x} becomes xxx.
std::string Repeated(std::string text) {
  for (size_t at; (at = text.find('@')) != std::string::npos;) {
    const size_t open = text.find('{', at), close = text.find('}', at);
    const std::string piece = text.substr(open + 1, close - open - 1);
    std::string pieces;
    for (int i = std::stoi(text.substr(at + 1)); i > 0; --i) pieces += piece;
    text.replace(at, close + 1 - at, pieces);
  }
  return text;
}

v1::GenerateRequest RequestOf(const BadField& bad) {
  constexpr absl::string_view kAlone = "alone: ";
  absl::string_view text = bad.request;
  v1::GenerateRequest request;
  if (!absl::ConsumePrefix(&text, kAlone)) request = TextRequest("x", 10);
  v1::GenerateRequest fields;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(Repeated(std::string(text)), &fields))
      << bad.request;
  request.MergeFrom(fields);
  return request;
}

// A budget above the prompt's 2 tokens.
v1::Cache* Budget(v1::GenerateRequest* request, const std::string& policy) {
  request->mutable_cache()->set_cache_policy(policy);
  request->mutable_cache()->set_max_cache_tokens(100);
  return request->mutable_cache();
}

// One server for all of them: a refusal has no lasting effect.
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
  const StreamResult result = RunToEnd(server_->stub(), RequestOf(GetParam()));
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

TEST(Errors, TheTableOfBadFieldsIsThere) { EXPECT_GE(BadFields().size(), 113u); }

struct CountField {
  const char* name;
  std::function<void(v1::GenerateRequest*, uint32_t)> set;
};

// The largest wire value exceeds the scheduler's range. The error must contain the number that
// was sent.
TEST(Errors, TheLargestCountIsNamedAsItWasSent) {
  using R = v1::GenerateRequest;
  constexpr uint32_t kLimit = std::numeric_limits<uint32_t>::max();
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
  options.limits.num_blocks = 16;  // 64 tokens of a full cache
  options.limits.score_predictor = 1;
  TestServer server(options);
  int refused = 0;
  for (const PolicyInfo& policy : ListPolicies()) {
    for (const CountField& field : fields) {
      SCOPED_TRACE(policy.name + ", " + field.name);
      R request = TextRequest("x", 10);
      if (policy.name != "full") Budget(&request, policy.name);
      field.set(&request, kLimit);
      if (policy.name == "streaming")
        (*request.mutable_cache()->mutable_params())["rolling"] = "true";
      const grpc::Status status = RunToEnd(server.stub(), request).status;
      if (status.ok()) continue;
      ++refused;
      EXPECT_THAT(status.error_message(), Not(HasSubstr("2147483647")));
      // A field that the policy does not accept is refused by its name.
      EXPECT_THAT(status.error_message(),
                  AnyOf(HasSubstr("does not take it"), HasSubstr(std::to_string(kLimit))));
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

TEST(Errors, ChatWithoutATemplateNamesTheRemedy) {
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

  v1::GetModelInfoResponse model;  // available without an engine
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

// Bytes that are not a message, as no generated client sends.
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
