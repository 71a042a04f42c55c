// Tokenize, Detokenize, GetModelInfo, GetServerInfo, health, and the port.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/create_channel_posix.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>
#include <future>

#include "engine/cache/cache_plan.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using grpc::health::v1::HealthCheckResponse;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Tokenize, TextAndChat) {
  TestServer server;
  v1::TokenizeRequest request;
  v1::TokenizeResponse response;
  request.set_text("a<s>");
  {
    grpc::ClientContext context;
    ASSERT_TRUE(server.stub().Tokenize(&context, request, &response).ok());
    EXPECT_THAT(response.token_ids(), ElementsAre(256, 'a', 256));
  }
  request.set_add_special_tokens(false);
  request.set_parse_special_tokens(false);
  {
    grpc::ClientContext context;
    ASSERT_TRUE(server.stub().Tokenize(&context, request, &response).ok());
    EXPECT_THAT(response.token_ids(), ElementsAre('a', '<', 's', '>'));
  }
  v1::ChatMessage* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("x");
  {
    grpc::ClientContext context;
    ASSERT_TRUE(server.stub().Tokenize(&context, request, &response).ok());
    EXPECT_EQ(response.rendered_chat(), "<s>user:x\nassistant:");
    EXPECT_EQ(response.token_ids(0), 256u);
    EXPECT_NE(response.token_ids(1), 256u);
  }
}

TEST(Tokenize, NeedsAnInputAndValidText) {
  TestServer server;
  v1::TokenizeRequest request;
  v1::TokenizeResponse response;
  grpc::ClientContext first, second;
  EXPECT_EQ(DetailsOf(server.stub().Tokenize(&first, request, &response)).field, "input");
  request.set_text("\xFF");
  EXPECT_EQ(DetailsOf(server.stub().Tokenize(&second, request, &response)).field, "text");
}

TEST(Detokenize, RoundTripsAndChecksIds) {
  TestServer server;
  v1::DetokenizeRequest request;
  v1::DetokenizeResponse response;
  for (const uint32_t id : {256u, 104u, 105u, 0xC3u}) request.add_token_ids(id);
  {
    grpc::ClientContext context;
    ASSERT_TRUE(server.stub().Detokenize(&context, request, &response).ok());
    EXPECT_EQ(response.text(), "hi\xEF\xBF\xBD");  // half a character becomes U+FFFD
  }
  request.set_skip_special_tokens(false);
  {
    grpc::ClientContext context;
    ASSERT_TRUE(server.stub().Detokenize(&context, request, &response).ok());
    EXPECT_EQ(response.text(), "<s>hi\xEF\xBF\xBD");
  }
  request.add_token_ids(1000);
  grpc::ClientContext context;
  EXPECT_EQ(DetailsOf(server.stub().Detokenize(&context, request, &response)).field,
            "token_ids[4]");
}

TEST(Info, DescribesModelPoolLoadAndPolicies) {
  TestServer server;
  ASSERT_TRUE(RunToEnd(server.stub(), TextRequest("hello", 7)).status.ok());
  ASSERT_TRUE(server.WaitUntilEmpty());
  v1::GetModelInfoResponse model;
  grpc::ClientContext model_context;
  ASSERT_TRUE(server.stub().GetModelInfo(&model_context, {}, &model).ok());
  EXPECT_EQ(model.name(), "test-model");
  EXPECT_EQ(model.max_model_len(), 2048u);
  EXPECT_EQ(model.bos_token_id(), 256u);
  EXPECT_THAT(model.eog_token_ids(), ElementsAre(257));
  EXPECT_EQ(model.chat_template(), "lines");

  v1::GetServerInfoResponse info;
  grpc::ClientContext info_context;
  ASSERT_TRUE(server.stub().GetServerInfo(&info_context, {}, &info).ok());
  EXPECT_EQ(info.state(), v1::SERVER_STATE_READY);
  EXPECT_EQ(info.pool().pages_total(), 8192u);
  EXPECT_EQ(info.pool().pages_free(), 8192u);
  EXPECT_EQ(info.load().prompt_tokens(), 6u);
  EXPECT_EQ(info.load().generation_tokens(), 7u);
  ASSERT_EQ(static_cast<size_t>(info.policies_size()), ListPolicies().size());
  for (const v1::PolicyInfo& policy : info.policies())
    EXPECT_FALSE(policy.description().empty()) << policy.name();
}

TEST(Info, AnswersWhileLoading) {
  TestServerOptions options;
  options.ready = false;
  TestServer server(options);
  server.service->SetLoadFraction(0.5);
  v1::GetServerInfoResponse info;
  grpc::ClientContext context;
  ASSERT_TRUE(server.stub().GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.state(), v1::SERVER_STATE_LOADING);
  EXPECT_EQ(info.load_fraction(), 0.5);
  EXPECT_FALSE(info.has_pool());
  v1::GetModelInfoResponse model;
  grpc::ClientContext model_context;
  EXPECT_EQ(server.stub().GetModelInfo(&model_context, {}, &model).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

HealthCheckResponse::ServingStatus Health(const TestServer& server, const std::string& service) {
  return HealthOf(server.NewChannel(), service);
}

TEST(Health, FollowsTheServer) {
  TestServerOptions options;
  options.ready = false;
  TestServer server(options);
  for (const char* name : {"", "hydrant.v1.Hydrant"}) {
    EXPECT_EQ(Health(server, name), HealthCheckResponse::NOT_SERVING);
  }
  server.server->SetServing(true);
  for (const char* name : {"", "hydrant.v1.Hydrant"})
    EXPECT_EQ(Health(server, name), HealthCheckResponse::SERVING);
  server.server->SetServing(false);
  for (const char* name : {"", "hydrant.v1.Hydrant"}) {
    EXPECT_EQ(Health(server, name), HealthCheckResponse::NOT_SERVING);
  }
  EXPECT_EQ(Health(server, "other"), HealthCheckResponse::SERVICE_UNKNOWN);
}

// A connection that waits on the socket, with a health check sent, before the server accepts any.
HealthCheckResponse::ServingStatus FirstHealth(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  while (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
  }
  fcntl(fd, F_SETFL, O_NONBLOCK);
  return HealthOf(grpc::CreateInsecureChannelFromFd("server", fd), "");
}

TEST(Health, IsNotServingFromTheFirstConnectionOn) {
  const std::string path = testing::TempDir() + "hydrant_health.sock";
  for (int round = 0; round < 100; ++round) {
    std::filesystem::remove(path);
    EventRouter router;
    Service service({}, &router);
    auto health = std::async(std::launch::async, FirstHealth, path);
    const auto server = GrpcServer::Start({.listen = "unix:" + path}, &service);
    ASSERT_TRUE(server.ok()) << server.status();
    ASSERT_EQ(health.get(), HealthCheckResponse::NOT_SERVING) << "round " << round;
  }
}

TEST(GrpcServer, ASecondOneOnThePortFails) {
  TestServer server;
  Service other({}, &server.router);
  GrpcServerOptions options;
  options.listen = server.address();
  const auto second = GrpcServer::Start(options, &other);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(server.address()));
}

}  // namespace
}  // namespace hydrant
