// Embeddings over gRPC, against the hidden states that transformers computes
// (tests/goldens/embeddings.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "server/apis/vllm_conversion.h"
#include "tests/server/random_model_server.h"
#include "vllm/grpc/engine/engine.grpc.pb.h"

namespace hydrant {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

Json Goldens() {
  std::ifstream file("tests/data/engine/embeddings.json");
  return Json::parse(file);
}

v1::EmbedRequest RequestOf(const std::vector<uint32_t>& ids, v1::Pooling pooling) {
  v1::EmbedRequest request;
  request.mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
  request.set_pooling(pooling);
  return request;
}

std::vector<double> Normalised(std::vector<double> x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  for (double& value : x) value /= std::sqrt(squares);
  return x;
}

class EmbedTest : public ::testing::Test {
 protected:
  void Serve(const std::string& folder) {
    auto source = OpenModel("tests/data/engine/" + folder, LoadFormat::kAuto);
    ASSERT_TRUE(source.ok()) << source.status();
    server_ = std::make_unique<RandomModelServer>(
        4, std::shared_ptr<const ModelSource>(*std::move(source)));
  }
  grpc::Status Embed(const v1::EmbedRequest& request, v1::EmbedResponse* response) {
    grpc::ClientContext context;
    return server_->stub->Embed(&context, request, response);
  }
  void ExpectEmbedding(const v1::EmbedRequest& request, const std::vector<double>& expected) {
    v1::EmbedResponse response;
    const grpc::Status status = Embed(request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(response.embedding_size(), static_cast<int>(expected.size()));
    for (int i = 0; i < response.embedding_size(); ++i)
      ASSERT_NEAR(response.embedding(i), expected[i], 1e-4) << "element " << i;
  }
  std::unique_ptr<RandomModelServer> server_;
};

TEST_F(EmbedTest, EqualsTransformers) {
  const Json goldens = Goldens();
  const std::vector<uint32_t> ids = goldens["ids"];
  for (const auto& [folder, golden] : goldens["models"].items()) {
    SCOPED_TRACE(folder);
    Serve(folder);
    for (const bool mean : {false, true}) {
      const std::vector<double> hidden = golden[mean ? "mean" : "last"];
      v1::EmbedRequest request = RequestOf(ids, mean ? v1::POOLING_MEAN : v1::POOLING_LAST);
      ExpectEmbedding(request, Normalised(hidden));
      request.set_normalize(false);
      ExpectEmbedding(request, hidden);
      request.set_normalize(true);
      request.set_dimensions(8);
      ExpectEmbedding(request, Normalised({hidden.begin(), hidden.begin() + 8}));
    }
  }
}

// In parallel, and beside streams; each gets its own, and all resources are freed.
TEST_F(EmbedTest, ManyAtOnceBesideStreams) {
  const Json goldens = Goldens();
  const std::vector<uint32_t> ids = goldens["ids"];
  Serve("tiny_qwen3");
  const uint64_t free = server_->Info().pool().pages_free();
  std::vector<std::thread> clients;
  clients.reserve(12);
  for (int i = 0; i < 12; ++i) {
    clients.emplace_back([&, i] {
      if (i % 3 == 0) {
        v1::GenerateRequest request;
        request.mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
        request.mutable_stopping()->set_max_tokens(40);
        request.mutable_stopping()->set_ignore_eos(true);
        EXPECT_TRUE(RunToEnd(*server_->stub, request).status.ok());
        return;
      }
      const std::vector<double> hidden = goldens["models"]["tiny_qwen3"][i % 2 ? "mean" : "last"];
      ExpectEmbedding(RequestOf(ids, i % 2 ? v1::POOLING_MEAN : v1::POOLING_LAST),
                      Normalised(hidden));
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(server_->Info().pool().pages_free(), free);
}

TEST_F(EmbedTest, TextAndUsage) {
  Serve("tiny_qwen3");
  v1::EmbedRequest text, ids = RequestOf({ByteTokenizer::kBos, 'a', 'b'}, v1::POOLING_LAST);
  text.set_text("ab");
  text.set_request_id("mine");
  v1::EmbedResponse of_text, of_ids;
  ASSERT_TRUE(Embed(text, &of_text).ok());
  ASSERT_TRUE(Embed(ids, &of_ids).ok());
  EXPECT_EQ(of_text.request_id(), "mine");
  EXPECT_EQ(of_text.usage().prompt_tokens(), 3u);
  EXPECT_EQ(of_text.usage().completion_tokens(), 0u);
  EXPECT_EQ(Json(std::vector<float>(of_text.embedding().begin(), of_text.embedding().end())),
            Json(std::vector<float>(of_ids.embedding().begin(), of_ids.embedding().end())));
}

TEST_F(EmbedTest, OfVllmsContractIsTheSame) {
  Serve("tiny_qwen3");
  v1::EmbedResponse expected;
  ASSERT_TRUE(Embed(RequestOf({ByteTokenizer::kBos, 'a', 'b'}, v1::POOLING_LAST), &expected).ok());
  const auto stub = vllm::VllmEngine::NewStub(grpc::CreateChannel(
      "127.0.0.1:" + std::to_string(server_->server->port()), grpc::InsecureChannelCredentials()));
  vllm::EmbedRequest request;
  vllm::EmbedResponse response;
  const auto embed = [&] {
    grpc::ClientContext context;
    return stub->Embed(&context, request, &response);
  };
  EXPECT_EQ(embed().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  for (const uint32_t id : {ByteTokenizer::kBos, TokenId{'a'}, TokenId{'b'}})
    request.mutable_tokenized()->add_input_ids(id);
  ASSERT_TRUE(embed().ok());
  EXPECT_EQ(response.prompt_tokens(), 3u);
  EXPECT_EQ(response.embedding_dim(), static_cast<uint32_t>(expected.embedding_size()));
  EXPECT_THAT(response.embedding(), ::testing::ElementsAreArray(expected.embedding()));
}

// On an engine that can be paused.
TEST(EmbedCall, EndsAtItsDeadlineAndWithItsClient) {
  TestServer server;
  server.engine.Pause();
  const v1::EmbedRequest request = RequestOf({'a', 'b'}, v1::POOLING_LAST);
  v1::EmbedResponse response;
  {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
    EXPECT_EQ(server.stub().Embed(&context, request, &response).error_code(),
              grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  grpc::ClientContext context;
  grpc::Status status;
  std::thread client([&] { status = server.stub().Embed(&context, request, &response); });
  EXPECT_TRUE(WaitFor([&] { return server.loop->Stats().waiting > 0; }));
  context.TryCancel();
  client.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  server.engine.Resume();
  EXPECT_TRUE(server.WaitUntilEmpty());
  grpc::ClientContext after;
  EXPECT_TRUE(server.stub().Embed(&after, request, &response).ok());
}

TEST(EmbedCall, IsRefusedWhileTheServerDrains) {
  TestServer server;
  server.service->SetDraining();
  grpc::ClientContext context;
  v1::EmbedResponse response;
  const grpc::Status status =
      server.stub().Embed(&context, RequestOf({'a'}, v1::POOLING_LAST), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailsOf(status).reason, "DRAINING");
}

TEST_F(EmbedTest, BadRequestsAreRefusedByField) {
  Serve("tiny_qwen3");
  const auto message_of = [&](const v1::EmbedRequest& request) {
    v1::EmbedResponse response;
    const grpc::Status status = Embed(request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_THAT(message_of({}), HasSubstr("input: is not set"));
  v1::EmbedRequest request = RequestOf({1, 2}, v1::POOLING_LAST);
  request.set_dimensions(33);
  EXPECT_THAT(message_of(request), HasSubstr("dimensions: 33 is outside [1, 32]"));
  request.set_dimensions(0);
  EXPECT_THAT(message_of(request), HasSubstr("dimensions: 0 is outside [1, 32]"));
  EXPECT_THAT(message_of(RequestOf({}, v1::POOLING_LAST)), HasSubstr("token_ids: is empty"));
  EXPECT_THAT(message_of(RequestOf({5000}, v1::POOLING_LAST)),
              HasSubstr("token_ids.ids[0]: is 5000"));
  EXPECT_THAT(message_of(RequestOf(std::vector<uint32_t>(512, 1), v1::POOLING_LAST)),
              HasSubstr("has 512 tokens; at most 511 are allowed"));
  request = RequestOf({1, 2}, static_cast<v1::Pooling>(7));
  EXPECT_THAT(message_of(request), HasSubstr("pooling: 7 is unknown"));
}

}  // namespace
}  // namespace hydrant
