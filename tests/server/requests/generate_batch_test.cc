// GenerateBatch: each request is answered as by Generate, and ends independently.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/auth/tenants.h"
#include "server/requests/generate_contract.h"
#include "tests/server/log_watch.h"
#include "tests/server/never_reads.h"
#include "tests/server/test_certificates.h"
#include "tests/server/test_server.h"
#include "tests/server/token_entry.h"

namespace hydrant {
namespace {

using testing::HasSubstr;

// The token encodes its row's seed and position.
TokenId Letter(uint64_t seed, int32_t position) {
  return static_cast<TokenId>('a' + (seed * 7 + static_cast<uint64_t>(position)) % 26);
}

struct Item {
  std::vector<v1::GenerateResponse> events;
  std::vector<v1::RequestFailure> failures;

  std::map<uint32_t, std::string> Texts() const {
    std::map<uint32_t, std::string> texts;  // by sample
    for (const v1::GenerateResponse& event : events) {
      if (event.has_delta()) texts[event.delta().index()] += event.delta().text();
    }
    return texts;
  }
};
struct BatchResult {
  std::map<uint32_t, Item> items;  // by index
  grpc::Status status;
};

void Read(grpc::ClientReader<v1::GenerateBatchResponse>* reader, BatchResult* result) {
  for (v1::GenerateBatchResponse message; reader->Read(&message);) {
    Item& item = result->items[message.index()];
    EXPECT_TRUE(item.failures.empty()) << "nothing follows a failure";
    if (message.has_failure()) item.failures.push_back(message.failure());
    if (message.has_response()) item.events.push_back(message.response());
  }
  result->status = reader->Finish();
}

BatchResult RunBatch(TestServer& server, const v1::GenerateBatchRequest& batch,
                     grpc::ClientContext* context = nullptr) {
  grpc::ClientContext own;
  if (context == nullptr) context = &own;
  BatchResult result;
  const auto reader = server.stub().GenerateBatch(context, batch);
  Read(reader.get(), &result);
  return result;
}

v1::GenerateBatchRequest BatchOf(const std::vector<v1::GenerateRequest>& requests) {
  v1::GenerateBatchRequest batch;
  for (const v1::GenerateRequest& request : requests) *batch.add_requests() = request;
  return batch;
}

void ExpectSameAsAlone(const Item& item, const StreamResult& alone, const std::string& where) {
  SCOPED_TRACE(where);
  EXPECT_TRUE(item.failures.empty());
  ASSERT_FALSE(item.events.empty());
  ASSERT_TRUE(item.events.front().has_accepted());
  EXPECT_EQ(item.events.front().accepted().seed(), alone.events.front().accepted().seed());
  EXPECT_EQ(item.events.front().accepted().prompt_tokens(),
            alone.events.front().accepted().prompt_tokens());
  ASSERT_TRUE(item.events.back().has_usage());
  EXPECT_EQ(item.events.back().usage().completion_tokens(), alone.usage->completion_tokens());
  Item single;
  single.events = alone.events;
  EXPECT_EQ(item.Texts(), single.Texts());
  const auto reasons = [](const Item& one) {
    std::map<uint32_t, v1::FinishReason> by_sample;
    for (const v1::GenerateResponse& event : one.events) {
      if (event.has_finished()) by_sample[event.finished().index()] = event.finished().reason();
    }
    return by_sample;
  };
  EXPECT_EQ(reasons(item), reasons(single));
}

TEST(GenerateBatch, EachIsAnsweredAsAlone) {
  constexpr unsigned kSeed = 20261126;
  RecordProperty("seed", kSeed);
  std::mt19937 random(kSeed);
  TestServerOptions options;
  options.next_token_of = Letter;
  TestServer server(options);
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < 60; ++i) {
    v1::GenerateRequest request =
        TextRequest(std::string(1 + random() % 80, 'p'), 1 + random() % 50);
    request.mutable_sampling()->set_seed(random());
    if (random() % 4 == 0) request.mutable_sampling()->set_n(1 + random() % 5);
    if (random() % 4 == 0) request.mutable_stopping()->add_stop("jkl");
    if (random() % 4 == 0) request.mutable_output()->set_stream_interval(1 + random() % 9);
    if (random() % 4 == 0) request.set_request_id(absl::StrCat("mine-", i));
    requests.push_back(request);
  }
  const BatchResult batch = RunBatch(server, BatchOf(requests));
  ASSERT_TRUE(batch.status.ok()) << batch.status.error_message();
  ASSERT_EQ(batch.items.size(), requests.size());
  uint64_t samples = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Item& item = batch.items.at(static_cast<uint32_t>(i));
    ExpectSameAsAlone(item, RunToEnd(server.stub(), requests[i]),
                      absl::StrCat("seed ", kSeed, ", request ", i));
    if (requests[i].has_request_id()) {
      EXPECT_EQ(item.events.front().accepted().request_id(), requests[i].request_id());
    }
    samples += requests[i].sampling().has_n() ? requests[i].sampling().n() : 1;
  }
  EXPECT_GT(samples, requests.size());
  // Each request once in the batch and once alone.
  const RequestMetrics& metrics = server.service->request_metrics();
  EXPECT_EQ(metrics.ended.Count("length") + metrics.ended.Count("stop"), 2 * requests.size());
  EXPECT_TRUE(server.WaitUntilEmpty());
}

TEST(GenerateBatch, AnErrorIsReportedForItsRequestOnly) {
  TestServer server;
  std::vector<v1::GenerateRequest> requests(7, TextRequest("x", 5));
  requests[1].mutable_sampling()->set_top_p(2);
  requests[2].set_model("another");
  requests[3].set_request_id("same");
  requests[4].set_request_id("same");
  requests[5].clear_prompt();
  const BatchResult batch = RunBatch(server, BatchOf(requests));
  ASSERT_TRUE(batch.status.ok()) << batch.status.error_message();
  for (const uint32_t good : {0u, 3u, 6u}) {
    const Item& item = batch.items.at(good);
    EXPECT_TRUE(item.failures.empty()) << good;
    EXPECT_EQ(item.Texts().at(0), "cdefg") << good;
    EXPECT_TRUE(item.events.back().has_usage()) << good;
  }
  const auto failure_of = [&](uint32_t index) {
    const Item& item = batch.items.at(index);
    EXPECT_TRUE(item.events.empty()) << index;
    EXPECT_EQ(item.failures.size(), 1u) << index;
    return item.failures.empty() ? v1::RequestFailure() : item.failures.front();
  };
  const v1::RequestFailure top_p = failure_of(1);
  EXPECT_EQ(top_p.code(), static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT));
  EXPECT_EQ(top_p.reason(), "INVALID");
  EXPECT_EQ(top_p.field(), "requests[1].sampling.top_p");
  EXPECT_THAT(top_p.message(), HasSubstr("requests[1].sampling.top_p: "));
  EXPECT_FALSE(top_p.has_retry_after_us());
  EXPECT_FALSE(top_p.has_usage());
  EXPECT_EQ(failure_of(2).code(), static_cast<int>(grpc::StatusCode::NOT_FOUND));
  EXPECT_EQ(failure_of(2).reason(), "UNKNOWN_MODEL");
  EXPECT_EQ(failure_of(4).field(), "requests[4].request_id");
  EXPECT_THAT(failure_of(4).message(), HasSubstr("is that of requests[3]"));
  EXPECT_THAT(failure_of(5).field(), HasSubstr("requests[5].prompt"));
  const RequestMetrics& metrics = server.service->request_metrics();
  EXPECT_EQ(metrics.refused.Count("INVALID"), 3u);
  EXPECT_EQ(metrics.refused.Count("UNKNOWN_MODEL"), 1u);
  EXPECT_EQ(metrics.ended.Count("length"), 3u);
  EXPECT_TRUE(server.WaitUntilEmpty());
}

TEST(GenerateBatch, EmptyAndOversizedBatchesAreRefused) {
  TestServer server;
  const BatchResult none = RunBatch(server, {});
  EXPECT_EQ(none.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(none.status).field, "requests");
  const std::vector<v1::GenerateRequest> most(kMaxBatchRequests, TextRequest("x", 1));
  std::vector<v1::GenerateRequest> too_many = most;
  too_many.push_back(TextRequest("x", 1));
  const BatchResult refused = RunBatch(server, BatchOf(too_many));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("requests: are 1025; at most 1024"));
  EXPECT_TRUE(refused.items.empty());
  const BatchResult whole = RunBatch(server, BatchOf(most));
  EXPECT_TRUE(whole.status.ok()) << whole.status.error_message();
  EXPECT_EQ(whole.items.size(), most.size());
}

// For bytes that are not a message, or a server that refuses all requests.
TEST(GenerateBatch, OtherErrorsAreTheCalls) {
  TestServerOptions options;
  options.ready = false;
  TestServer server(options);
  const v1::GenerateBatchRequest batch = BatchOf({TextRequest("x", 1), TextRequest("ok\xFF", 1)});
  const auto refused = [&] {
    const BatchResult result = RunBatch(server, batch);
    EXPECT_TRUE(result.items.empty());
    return DetailsOf(result.status);
  };
  EXPECT_EQ(refused().reason, "LOADING");
  server.service->SetReady(&server.model, server.loop.get(), server.contexts.get());
  EXPECT_EQ(refused().field, "requests[1].text");
  server.service->SetDraining();
  EXPECT_EQ(refused().reason, "DRAINING");
}

TEST(GenerateBatch, AFullQueueNamesTheRetryTime) {
  TestServerOptions options;
  options.limits.max_num_seqs = 1;
  options.scheduler.max_num_queued_reqs = 3;
  TestServer server(options);
  server.engine.Pause();
  grpc::ClientContext context;
  const auto reader =
      server.stub().GenerateBatch(&context, BatchOf(std::vector(5, TextRequest("x", 4))));
  ASSERT_TRUE(
      WaitFor([&] { return server.service->request_metrics().refused.Count("QUEUE_FULL") == 2; }));
  server.engine.Resume();
  BatchResult batch;
  Read(reader.get(), &batch);
  ASSERT_TRUE(batch.status.ok()) << batch.status.error_message();
  for (const uint32_t index : {0u, 1u, 2u})
    EXPECT_EQ(batch.items[index].Texts()[0], "cdef") << index;
  for (const uint32_t index : {3u, 4u}) {
    ASSERT_EQ(batch.items[index].failures.size(), 1u);
    EXPECT_EQ(batch.items[index].failures[0].reason(), "QUEUE_FULL");
    EXPECT_GT(batch.items[index].failures[0].retry_after_us(), 0u);
  }
}

TEST(GenerateBatch, ALostEngineFailsEachWithItsUsage) {
  TestServerOptions options;
  options.limits.max_num_seqs = 2;  // the third waits
  TestServer server(options);
  server.engine.Pause();
  grpc::ClientContext context;
  const auto reader =
      server.stub().GenerateBatch(&context, BatchOf(std::vector(3, TextRequest("x", 1000))));
  server.engine.AllowSteps(6);
  server.engine.WaitUntilHeld();
  server.engine.Lose(absl::InternalError("the device is gone"));
  server.engine.Resume();
  BatchResult batch;
  Read(reader.get(), &batch);
  ASSERT_TRUE(batch.status.ok()) << batch.status.error_message();
  for (const uint32_t index : {0u, 1u, 2u}) {
    ASSERT_EQ(batch.items[index].failures.size(), 1u) << index;
    const v1::RequestFailure& failure = batch.items[index].failures[0];
    EXPECT_EQ(failure.code(), static_cast<int>(grpc::StatusCode::INTERNAL));
    EXPECT_EQ(failure.reason(), "ENGINE_FAULT");
    EXPECT_EQ(failure.usage().completion_tokens(), batch.items[index].Texts()[0].size());
  }
  EXPECT_EQ(batch.items[2].Texts()[0], "");
  EXPECT_GT(batch.items[0].Texts()[0].size(), 0u);
}

TestServerOptions ForEndlessRequests() {
  TestServerOptions options;
  options.limits.max_model_len = options.limits.prefill_arena_tokens = 1 << 20;
  options.limits.table_entries = 1 << 21;
  options.limits.num_blocks = 1 << 20;
  options.max_buffered_bytes = 1 << 30;  // the fake engine is faster than any client
  return options;
}

TEST(GenerateBatch, ACancelEndsAll) {
  TestServerOptions options = ForEndlessRequests();
  options.limits.max_num_seqs = 4;  // others wait
  TestServer server(options);
  grpc::ClientContext context;
  const auto reader =
      server.stub().GenerateBatch(&context, BatchOf(std::vector(10, TextRequest("x", 1'000'000))));
  v1::GenerateBatchResponse response;
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(reader->Read(&response));
  context.TryCancel();
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(server.WaitUntilEmpty());
  const RequestMetrics& metrics = server.service->request_metrics();
  EXPECT_TRUE(WaitFor([&] { return metrics.ended.Count("cancelled") == 10; }));
}

// The client's clock ends the call; if the server's was first, each request reports it.
TEST(GenerateBatch, ADeadlineEndsAll) {
  TestServer server(ForEndlessRequests());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  const BatchResult batch =
      RunBatch(server, BatchOf(std::vector(10, TextRequest("x", 1'000'000))), &context);
  if (batch.status.ok()) {
    EXPECT_EQ(batch.items.size(), 10u);
    for (const auto& [index, item] : batch.items) {
      ASSERT_EQ(item.failures.size(), 1u) << index;
      EXPECT_EQ(item.failures[0].reason(), "DEADLINE") << index;
    }
  } else {
    EXPECT_EQ(batch.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  EXPECT_TRUE(server.WaitUntilEmpty());
  const RequestMetrics& metrics = server.service->request_metrics();
  EXPECT_TRUE(WaitFor([&] { return metrics.ended.Count("deadline") == 10; }));
}

// Each alone would fit the buffer; together they do not.
TEST(GenerateBatch, BufferedOutputIsCountedTogether) {
  constexpr int kRequests = 16, kTokens = 100;
  LogWatch log;
  TestServerOptions options;
  options.limits.max_num_seqs = kRequests;
  options.max_buffered_bytes = 1 << 20;
  options.next_token = [](int32_t) { return ByteTokenizer::kLong; };  // 4 KiB a token
  options.log_level = spdlog::level::debug;
  TestServer server(options);
  const RequestMetrics& metrics = server.service->request_metrics();
  const auto never_reads = [&](const v1::GenerateBatchRequest& batch) {
    return std::make_unique<NeverReads>(server.address(), "/hydrant.v1.Hydrant/GenerateBatch",
                                        batch.SerializeAsString(), 64 << 10);
  };
  const auto one = never_reads(BatchOf({TextRequest("x", kTokens)}));
  EXPECT_TRUE(WaitFor([&] { return metrics.ended.Count("length") == 1; }));
  // This many tokens of each request, which would generate far more.
  server.engine.Pause();
  std::vector<v1::GenerateRequest> requests(kRequests, TextRequest("x", 2000));
  requests.back().set_request_id("last");
  const auto all = never_reads(BatchOf(requests));
  ASSERT_TRUE(WaitFor([&] { return server.loop->Stats().waiting == kRequests; }));
  // A second round: on a busy machine much of the first round's output is sent in few messages.
  server.engine.AllowSteps(2 * kTokens);
  ASSERT_TRUE(log.WaitForLine("request last is to end", "does not read its stream"));
  server.engine.Resume();
  EXPECT_TRUE(WaitFor([&] { return metrics.ended.Count("slow_reader") == kRequests; }));
  EXPECT_TRUE(server.WaitUntilEmpty());
}

TEST(GenerateBatch, EachIsAdmittedToTheTenantsAccount) {
  const TemporaryFolder folder;
  folder.Write("tokens.yaml",
               "tokens:\n" + EntryOf("acme", "secret", ", quotas: {concurrent_requests: 2}"));
  auto tenants = Tenants::Load(folder.Path("tokens.yaml"));
  ASSERT_TRUE(tenants.ok()) << tenants.status();
  TestServerOptions options;
  options.tenants = tenants->get();
  TestServer server(options);
  const auto use = [&] { return (*tenants)->Read().at(0).use; };
  server.engine.Pause();
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer secret");
  const auto reader =
      server.stub().GenerateBatch(&context, BatchOf(std::vector(4, TextRequest("x", 3))));
  ASSERT_TRUE(WaitFor([&] { return use().refused == 2; }));
  EXPECT_EQ(use().running, 2);
  server.engine.Resume();
  BatchResult batch;
  Read(reader.get(), &batch);
  ASSERT_TRUE(batch.status.ok()) << batch.status.error_message();
  for (const uint32_t good : {0u, 1u}) EXPECT_EQ(batch.items[good].Texts()[0], "cde") << good;
  for (const uint32_t refused : {2u, 3u}) {
    ASSERT_EQ(batch.items[refused].failures.size(), 1u);
    EXPECT_EQ(batch.items[refused].failures[0].reason(), "QUOTA");
    EXPECT_GT(batch.items[refused].failures[0].retry_after_us(), 0u);
  }
  EXPECT_EQ(use().running, 0);
  EXPECT_EQ(use().generation_tokens, 6);
  EXPECT_EQ(use().prompt_tokens, 4);

  grpc::ClientContext anonymous;
  EXPECT_EQ(RunBatch(server, BatchOf({TextRequest("x", 1)}), &anonymous).status.error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

}  // namespace
}  // namespace hydrant
