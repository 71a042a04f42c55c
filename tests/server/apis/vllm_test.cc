// vllm.grpc.engine.VllmEngine from the view of a gateway with OpenAI's API.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "engine/cache/sha256.h"
#include "server/apis/vllm_conversion.h"
#include "tests/server/test_server.h"
#include "tests/subprocess.h"
#include "vllm/grpc/engine/engine.grpc.pb.h"

namespace hydrant {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Stub = vllm::VllmEngine::Stub;

std::unique_ptr<Stub> StubOf(const TestServer& server) {
  return vllm::VllmEngine::NewStub(server.NewChannel());
}

// The prompt has positions 0 to 2; the fake's token at position p is the letter p mod 26.
vllm::GenerateRequest TokensRequest(uint32_t max_tokens, bool stream) {
  vllm::GenerateRequest request;
  for (const uint32_t id : {65, 66, 67}) request.mutable_tokenized()->add_input_ids(id);
  request.mutable_sampling_params()->set_max_tokens(max_tokens);
  request.set_stream(stream);
  return request;
}

struct Answer {
  std::vector<vllm::GenerateResponse> messages;
  grpc::Status status;

  // The text of a sample's chunks.
  std::string Streamed(uint32_t index) const {
    std::string text;
    for (const vllm::GenerateResponse& message : messages) {
      if (!message.has_chunk() || message.chunk().index() != index) continue;
      for (const uint32_t id : message.chunk().token_ids()) text += static_cast<char>(id);
    }
    return text;
  }
  std::vector<vllm::GenerateComplete> Completes() const {
    std::vector<vllm::GenerateComplete> completes;
    for (const vllm::GenerateResponse& message : messages) {
      if (message.has_complete()) completes.push_back(message.complete());
    }
    return completes;
  }
};

Answer Ask(Stub& stub, const vllm::GenerateRequest& request) {
  grpc::ClientContext context;
  // Sooner than a keepalive, which would flush buffered messages.
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(8));
  Answer answer;
  const auto reader = stub.Generate(&context, request);
  for (vllm::GenerateResponse message; reader->Read(&message);) answer.messages.push_back(message);
  answer.status = reader->Finish();
  return answer;
}

std::string Text(const google::protobuf::RepeatedField<uint32_t>& ids) {
  return {ids.begin(), ids.end()};
}

TEST(Vllm, StreamsChunksAndThenTheEnd) {
  TestServer server;
  const auto stub = StubOf(server);
  const Answer answer = Ask(*stub, TokensRequest(20, true));
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.Streamed(0), "defghijklmnopqrstuvw");
  uint32_t tokens = 0;
  for (size_t i = 0; i + 1 < answer.messages.size(); ++i) {
    const vllm::GenerateStreamChunk& chunk = answer.messages[i].chunk();
    EXPECT_EQ(chunk.prompt_tokens(), 3u);
    EXPECT_EQ(chunk.completion_tokens(), tokens += static_cast<uint32_t>(chunk.token_ids_size()));
  }
  ASSERT_TRUE(answer.messages.back().has_complete());
  const vllm::GenerateComplete& complete = answer.messages.back().complete();
  EXPECT_EQ(complete.finish_reason(), "length");
  EXPECT_EQ(complete.prompt_tokens(), 3u);
  EXPECT_EQ(complete.completion_tokens(), 20u);
  EXPECT_EQ(complete.output_ids_size(), 0) << "the chunks had them";
  EXPECT_TRUE(server.WaitUntilEmpty());
}

TEST(Vllm, AnswersAtOnceWhereNothingIsStreamed) {
  TestServer server;
  const auto stub = StubOf(server);
  const Answer answer = Ask(*stub, TokensRequest(20, false));
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.messages.size(), 1u);
  EXPECT_EQ(Text(answer.Completes()[0].output_ids()), "defghijklmnopqrstuvw");
  EXPECT_EQ(answer.Completes()[0].completion_tokens(), 20u);
}

TEST(Vllm, SamplesHaveAnEndEach) {
  TestServer server;
  const auto stub = StubOf(server);
  for (const bool stream : {false, true}) {
    vllm::GenerateRequest request = TokensRequest(10, stream);
    request.mutable_sampling_params()->set_n(3);
    const Answer answer = Ask(*stub, request);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    std::vector<uint32_t> ended;
    for (const vllm::GenerateComplete& complete : answer.Completes()) {
      ended.push_back(complete.index());
      EXPECT_EQ(complete.completion_tokens(), 10u);
      EXPECT_EQ(stream ? answer.Streamed(complete.index()) : Text(complete.output_ids()),
                "defghijklm");
    }
    EXPECT_THAT(ended, testing::UnorderedElementsAre(0u, 1u, 2u));
  }
}

TEST(Vllm, ReportsTheFinishReason) {
  TestServerOptions options;
  options.next_token = [](int32_t position) {
    return position == 9 ? ByteTokenizer::kEos : static_cast<TokenId>('a' + position);
  };
  TestServer server(options);
  const auto stub = StubOf(server);
  const auto complete_of = [&](const std::function<void(vllm::SamplingParams*)>& set) {
    vllm::GenerateRequest request = TokensRequest(20, false);
    set(request.mutable_sampling_params());
    const Answer answer = Ask(*stub, request);
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    return answer.Completes().at(0);
  };
  const auto own = complete_of([](vllm::SamplingParams*) {});
  EXPECT_EQ(own.finish_reason(), "stop");
  EXPECT_EQ(own.matched_stop_case(), vllm::GenerateComplete::MATCHED_STOP_NOT_SET);
  EXPECT_EQ(Text(own.output_ids()), "defghi");
  EXPECT_EQ(own.completion_tokens(), 7u) << "with the one that ended it";
  const auto id = complete_of([](auto* params) { params->add_stop_token_ids('f'); });
  EXPECT_EQ(id.matched_token_id(), static_cast<uint32_t>('f'));
  EXPECT_EQ(Text(id.output_ids()), "de");
  const auto text = complete_of([](auto* params) { params->add_stop("gh"); });
  EXPECT_EQ(text.matched_stop_str(), "gh");
  EXPECT_EQ(Text(text.output_ids()), "defgh") << "the gateway cuts the text";
  const auto ignored = complete_of([](auto* params) { params->set_ignore_eos(true); });
  EXPECT_EQ(ignored.finish_reason(), "length");
}

TEST(Vllm, ReadsTheEndOfAPromptThatIsTruncated) {
  TestServer server;
  const auto stub = StubOf(server);
  vllm::GenerateRequest request = TokensRequest(2, false);
  request.mutable_sampling_params()->set_truncate_prompt_tokens(2);
  EXPECT_EQ(Ask(*stub, request).Completes().at(0).prompt_tokens(), 2u);
  const int fits = server.model.limits.max_model_len - 1;
  request.mutable_tokenized()->mutable_input_ids()->Resize(2 * fits, 65);
  EXPECT_EQ(Ask(*stub, request).Completes().at(0).prompt_tokens(), 2u);
  request.mutable_sampling_params()->set_truncate_prompt_tokens(-1);
  EXPECT_EQ(Ask(*stub, request).Completes().at(0).prompt_tokens(), static_cast<uint32_t>(fits));
  request.mutable_sampling_params()->clear_truncate_prompt_tokens();
  EXPECT_EQ(Ask(*stub, request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

// The fake's logprobs encode positions.
TEST(Vllm, TellsLogprobs) {
  TestServer server;
  const auto stub = StubOf(server);
  for (const bool stream : {false, true}) {
    SCOPED_TRACE(stream);
    vllm::GenerateRequest request = TokensRequest(10, stream);
    request.mutable_sampling_params()->set_logprobs(2);
    request.mutable_sampling_params()->set_prompt_logprobs(1);
    const Answer answer = Ask(*stub, request);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    const vllm::GenerateResponse& first = answer.messages.front();
    const vllm::InputLogProbs& input =
        stream ? first.chunk().input_logprobs() : first.complete().input_logprobs();
    EXPECT_THAT(input.token_ids(), ElementsAre(65, 66, 67));
    ASSERT_EQ(input.token_logprobs_size(), 3);
    EXPECT_FALSE(input.token_logprobs(0).has_value());
    EXPECT_EQ(input.token_logprobs(2).value(), -2.0f);
    ASSERT_EQ(input.top_logprobs_size(), 3);
    EXPECT_THAT(input.top_logprobs(2).token_ids(), ElementsAre(0));
    vllm::OutputLogProbs output;
    for (const vllm::GenerateResponse& message : answer.messages) {
      EXPECT_EQ(message.chunk().token_ids_size(),
                message.chunk().output_logprobs().token_ids_size());
      output.MergeFrom(message.chunk().output_logprobs());
      output.MergeFrom(message.complete().output_logprobs());
      EXPECT_TRUE(&message == &first || !message.chunk().has_input_logprobs());
    }
    EXPECT_EQ(Text(output.token_ids()), "defghijklm");
    ASSERT_EQ(output.token_logprobs_size(), 10);
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(output.token_logprobs(i), -3.0f - static_cast<float>(i));
      EXPECT_THAT(output.top_logprobs(i).token_ids(), ElementsAre(0, 1));
      EXPECT_THAT(output.top_logprobs(i).values(), ElementsAre(0.0f, -9999.0f))
          << "JSON has no more";
    }
  }
}

TEST(Vllm, SaysWhyThereIsNoStructuredOutput) {
  TestServer server;
  server.model.no_grammar_reason = "the build has none";
  const auto stub = StubOf(server);
  vllm::GenerateRequest request = TokensRequest(2, true);
  request.mutable_sampling_params()->set_regex("a+");
  const Answer answer = Ask(*stub, request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("the build has none"));
}

TEST(Vllm, RefusesUnsupportedFieldsByName) {
  TestServer server;
  const auto stub = StubOf(server);
  using Set = std::function<void(vllm::GenerateRequest*)>;
  const std::vector<std::pair<std::string, Set>> fields = {
      {"sampling_params.structural_tag",
       [](auto* r) { r->mutable_sampling_params()->set_structural_tag("a"); }},
      {"sampling_params.logprobs", [](auto* r) { r->mutable_sampling_params()->set_logprobs(-1); }},
      {"sampling_params.prompt_logprobs",
       [](auto* r) { r->mutable_sampling_params()->set_prompt_logprobs(21); }},
      {"sampling_params.prompt_logprobs",
       [](auto* r) {
         r->set_text("abc");
         r->mutable_sampling_params()->set_prompt_logprobs(1);
       }},
      {"sampling_params.logit_bias",
       [](auto* r) { (*r->mutable_sampling_params()->mutable_logit_bias())[-1] = 1; }},
      {"sampling.logit_bias",
       [](auto* r) { (*r->mutable_sampling_params()->mutable_logit_bias())[1 << 30] = 1; }},
      {"sampling_params.truncate_prompt_tokens",
       [](auto* r) { r->mutable_sampling_params()->set_truncate_prompt_tokens(0); }},
      {"mm_inputs", [](auto* r) { r->mutable_mm_inputs(); }},
      {"extra_mm_inputs", [](auto* r) { r->add_extra_mm_inputs(); }},
      {"media_refs", [](auto* r) { r->mutable_media_refs(); }},
      {"kv_transfer_params", [](auto* r) { r->mutable_kv_transfer_params(); }},
      {"kv_transfer_params", [](auto* r) { r->set_kv_transfer_params_json("{}"); }},
      {"data_parallel_rank", [](auto* r) { r->set_data_parallel_rank(1); }},
      {"input", [](auto* r) { r->clear_input(); }},
      {"sampling.top_p", [](auto* r) { r->mutable_sampling_params()->set_top_p(2); }},
      {"sampling.n", [](auto* r) { r->mutable_sampling_params()->set_n(65); }}};
  for (const auto& [field, set] : fields) {
    vllm::GenerateRequest request = TokensRequest(2, true);
    set(&request);
    const Answer answer = Ask(*stub, request);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_EQ(DetailsOf(answer.status).field, field) << answer.status.error_message();
    EXPECT_TRUE(answer.messages.empty());
  }
}

TEST(Vllm, AbortEndsARequest) {
  TestServer server;
  const auto stub = StubOf(server);
  vllm::GenerateRequest request = TokensRequest(100, true);
  request.set_request_id("mine");
  server.engine.Pause();
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  ASSERT_TRUE(WaitFor([&] { return !server.loop->Idle(); }));
  vllm::AbortRequest abort;
  abort.add_request_ids("nobody's");
  abort.add_request_ids("mine");
  grpc::ClientContext abort_context;
  vllm::AbortResponse aborted;
  EXPECT_TRUE(stub->Abort(&abort_context, abort, &aborted).ok());
  server.engine.Resume();
  for (vllm::GenerateResponse message; reader->Read(&message);) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(server.WaitUntilEmpty());
}

TEST(Vllm, DescribesItself) {
  TestServerOptions options;
  options.ready = false;
  TestServer server(options);
  const auto stub = StubOf(server);
  const auto health = [&] {
    grpc::ClientContext context;
    vllm::HealthCheckResponse response;
    EXPECT_TRUE(stub->HealthCheck(&context, {}, &response).ok());
    return response;
  };
  {
    grpc::ClientContext context;
    vllm::HealthCheckResponse response;
    EXPECT_EQ(stub->HealthCheck(&context, {}, &response).error_code(),
              grpc::StatusCode::UNAVAILABLE);
  }
  {
    grpc::ClientContext context;
    vllm::GetModelInfoResponse info;
    EXPECT_EQ(stub->GetModelInfo(&context, {}, &info).error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  server.model.path = "/models/fake.gguf";
  server.service->SetReady(&server.model, server.loop.get(), server.contexts.get());
  EXPECT_TRUE(health().healthy());
  {
    grpc::ClientContext context;
    vllm::GetModelInfoResponse info;
    ASSERT_TRUE(stub->GetModelInfo(&context, {}, &info).ok());
    EXPECT_EQ(info.served_model_name(), "test-model");
    EXPECT_EQ(info.model_path(), "/models/fake.gguf");
    EXPECT_TRUE(info.is_generation());
    EXPECT_EQ(info.max_context_length(), static_cast<uint32_t>(server.model.limits.max_model_len));
    EXPECT_THAT(info.eos_token_ids(), ElementsAre(static_cast<int32_t>(ByteTokenizer::kEos)));
    EXPECT_EQ(info.bos_token_id(), static_cast<int32_t>(ByteTokenizer::kBos));
  }
  {
    grpc::ClientContext context;
    vllm::GetServerInfoResponse info;
    ASSERT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
    EXPECT_EQ(info.server_type(), "vllm-grpc");
    EXPECT_EQ(info.max_num_seqs(), server.model.limits.max_num_seqs);
    EXPECT_EQ(info.active_requests(), 0u);
  }
  grpc::ClientContext context;
  vllm::GetLoadsResponse loads;
  ASSERT_TRUE(stub->GetLoads(&context, {}, &loads).ok());
  ASSERT_EQ(loads.loads_size(), 1);
  EXPECT_EQ(loads.loads(0).num_total_reqs(), 0);
  EXPECT_EQ(loads.loads(0).token_usage(), 0.0);
  EXPECT_GT(loads.loads(0).max_total_num_tokens(), 0);
}

TEST(Vllm, FlushesThePrefixCache) {
  TestServerOptions options;
  options.limits.num_prefix_blocks = 16;
  TestServer server(options);
  const auto stub = StubOf(server);
  ASSERT_TRUE(RunToEnd(server.stub(), TextRequest(std::string(99, 'x'), 2)).status.ok());
  for (const char* dropped : {"3 blocks of prompts dropped", "0 blocks of prompts dropped"}) {
    grpc::ClientContext context;
    smg::grpc::common::FlushCacheResponse flushed;
    ASSERT_TRUE(stub->FlushCache(&context, {}, &flushed).ok());
    EXPECT_TRUE(flushed.success());
    EXPECT_EQ(flushed.message(), dropped);
  }
}

// Python's zipfile reads the archive without errors.
TEST(Vllm, SendsTheTokenizersFiles) {
  TestServer server;
  const auto stub = StubOf(server);
  const auto fetch = [&](std::string* archive, std::string* digest) {
    grpc::ClientContext context;
    const auto reader = stub->GetTokenizer(&context, {});
    for (smg::grpc::common::GetTokenizerChunk chunk; reader->Read(&chunk);) {
      EXPECT_TRUE(digest->empty()) << "comes last";
      *archive += chunk.data();
      *digest = chunk.sha256();
    }
    return reader->Finish();
  };
  std::string archive, digest;
  server.model.path = "/nowhere/model.gguf";
  const grpc::Status none = fetch(&archive, &digest);
  EXPECT_EQ(none.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(none.error_message(), HasSubstr("--tokenizer FOLDER"));

  const auto folder = std::filesystem::path(testing::TempDir()) / "hydrant_vllm_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.json") << std::string(3 << 20, ' ') << "{}";
  std::ofstream(folder / "config.json") << "{\"a\": 1}";
  std::ofstream(folder / "model.safetensors") << "no tokenizer's";
  server.model.tokenizer_folder = folder;
  ASSERT_TRUE(fetch(&archive, &digest).ok());
  Sha256 hash;
  hash.Add(archive);
  EXPECT_EQ(digest, HexOf(hash.Finish()));
  const std::string file = folder / "tokenizer.zip";
  std::ofstream(file, std::ios::binary) << archive;
  constexpr char kList[] = R"(
import sys, zipfile
z = zipfile.ZipFile(sys.argv[1])
print(z.testzip(), sorted(z.namelist()), len(z.read("tokenizer.json")), z.read("config.json"))
)";
  Subprocess python({"/usr/bin/env", "python3", "-c", kList, file});
  EXPECT_EQ(python.Wait(), 0) << python.err();
  EXPECT_EQ(python.out(), "None ['config.json', 'tokenizer.json'] 3145730 b'{\"a\": 1}'\n");
  std::filesystem::remove_all(folder);
}

// In every contract a request without a policy gets the server's default; its other fields override
// the default's.
TEST(DefaultCachePolicy, AppliesToRequestsWithoutAPolicy) {
  TestServerOptions options;
  options.default_cache.policy = "h2o";
  options.default_cache.max_cache_tokens = 32;
  TestServer server(options);
  const auto kept = [&](const std::function<void(v1::Cache*)>& set) {
    v1::GenerateRequest request = TextRequest(std::string(100, 'x'), 4);
    set(request.mutable_cache());
    return RunToEnd(server.stub(), request).usage->kv_tokens_kept();
  };
  EXPECT_EQ(kept([](v1::Cache*) {}), 32u);
  EXPECT_EQ(kept([](v1::Cache* cache) { cache->set_max_cache_tokens(40); }), 40u);
  EXPECT_EQ(kept([](v1::Cache* cache) { cache->set_cache_policy("full"); }), 104u);
}

}  // namespace
}  // namespace hydrant
