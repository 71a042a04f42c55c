// Generate from a client's view: the order of the events, their contents, and the ends of streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "tests/server/log_watch.h"
#include "tests/server/never_reads.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using testing::HasSubstr;

TEST(Generate, StreamsAcceptedDeltasFinishedAndUsageInThisOrder) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("hello", 40);
  request.set_request_id("mine");
  request.mutable_sampling()->set_seed(7);
  const StreamResult result = RunToEnd(server.stub(), request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  ASSERT_GE(result.events.size(), 4u);
  const v1::Accepted& accepted = result.events.front().accepted();
  EXPECT_EQ(accepted.request_id(), "mine");
  EXPECT_EQ(accepted.prompt_tokens(), 6u);  // "<s>" and five bytes
  EXPECT_EQ(accepted.seed(), 7u);
  EXPECT_FALSE(accepted.has_cache_tokens());
  const v1::GenerateResponse& finished = result.events[result.events.size() - 2];
  ASSERT_TRUE(finished.has_finished());
  EXPECT_EQ(finished.finished().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(finished.finished().matched_case(), v1::Finished::MATCHED_NOT_SET);
  ASSERT_TRUE(result.events.back().has_usage());
  EXPECT_EQ(result.usage->prompt_tokens(), 6u);
  EXPECT_EQ(result.usage->completion_tokens(), 40u);
  // The fake's token at position p is the letter p mod 26; the prompt has positions 0 to 5.
  std::string expected;
  for (int p = 6; p < 46; ++p) expected += static_cast<char>('a' + p % 26);
  EXPECT_EQ(result.text, expected);
  EXPECT_EQ(std::string(result.token_ids.begin(), result.token_ids.end()), expected);
  for (size_t i = 1; i + 2 < result.events.size(); ++i) {
    EXPECT_TRUE(result.events[i].has_delta() || result.events[i].has_progress());
  }
  EXPECT_TRUE(server.WaitUntilEmpty());
}

TEST(Generate, DrawsIdAndSeedWhereUnset) {
  TestServer server;
  const StreamResult a = RunToEnd(server.stub(), TextRequest("x", 1));
  const StreamResult b = RunToEnd(server.stub(), TextRequest("x", 1));
  EXPECT_NE(a.events[0].accepted().request_id(), b.events[0].accepted().request_id());
  EXPECT_TRUE(a.events[0].accepted().has_seed());
  EXPECT_NE(a.events[0].accepted().seed(), b.events[0].accepted().seed());
}

TEST(Generate, SaysWhichStopMatched) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("x", 100);
  request.mutable_stopping()->add_stop("klm");
  StreamResult result = RunToEnd(server.stub(), request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  const v1::Finished& finished = result.events[result.events.size() - 2].finished();
  EXPECT_EQ(finished.reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(finished.matched_stop(), "klm");
  EXPECT_EQ(result.text, "cdefghij");

  request.mutable_stopping()->clear_stop();
  request.mutable_stopping()->add_stop_token_ids('e');
  result = RunToEnd(server.stub(), request);
  EXPECT_EQ(result.events[result.events.size() - 2].finished().matched_token_id(),
            static_cast<uint32_t>('e'));
}

TEST(Generate, TakesTokenIdsAndChat) {
  TestServer server;
  v1::GenerateRequest request;
  request.mutable_stopping()->set_max_tokens(1);
  for (const uint32_t id : {256u, 72u, 105u}) request.mutable_token_ids()->add_ids(id);
  EXPECT_EQ(RunToEnd(server.stub(), request).events[0].accepted().prompt_tokens(), 3u);

  v1::ChatMessage* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("Hi");
  const StreamResult chat = RunToEnd(server.stub(), request);
  ASSERT_TRUE(chat.status.ok()) << chat.status.error_message();
  // "<s>" of the template is the only BOS.
  EXPECT_EQ(chat.events[0].accepted().prompt_tokens(),
            1 + std::string("user:Hi\nassistant:").size());
}

TEST(Generate, ReportsTheCapOfACompressedCache) {
  TestServer server;
  v1::GenerateRequest request = TextRequest(std::string(1000, 'p'), 4);
  request.mutable_cache()->set_cache_policy("h2o");
  request.mutable_cache()->set_cache_ratio(0.2);
  const StreamResult result = RunToEnd(server.stub(), request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.events[0].accepted().cache_tokens(), 201u);  // ceil(0.2 * 1001)
  EXPECT_EQ(result.usage->kv_tokens_kept(), 201u);
}

// Pages are reserved for the request, and for each of its samples.
TEST(Generate, AReservedRequestIsNotPreempted) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("hello", 40);
  request.mutable_scheduling()->set_on_pressure(v1::ON_PRESSURE_NEVER);
  request.mutable_sampling()->set_n(2);
  const StreamResult result = RunToEnd(server.stub(), request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.usage->completion_tokens(), 80u);
  EXPECT_EQ(result.usage->preemptions() + result.usage->swaps() + result.usage->shrinks(), 0u);
  request.mutable_stopping()->clear_max_tokens();
  const StreamResult endless = RunToEnd(server.stub(), request);
  EXPECT_EQ(endless.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(endless.status.error_message(), HasSubstr("stopping.max_tokens: unset, but"));
}

TEST(Generate, AWaitingRequestHearsProgress) {
  TestServerOptions options;
  options.limits.max_num_seqs = 1;
  options.limits.max_model_len = 1 << 20;  // the first request lasts until it is cancelled
  options.limits.prefill_arena_tokens = 1 << 20;
  options.limits.num_blocks = 1 << 19;
  options.limits.table_entries = 1 << 20;
  options.scheduler.progress_interval_us = 1;
  TestServer server(options);
  server.engine.Pause();
  grpc::ClientContext first_context, second_context;
  auto first = server.stub().Generate(&first_context, TextRequest("x", 1'000'000));
  ASSERT_TRUE(WaitFor([&] { return !server.loop->Idle(); }));
  auto second = server.stub().Generate(&second_context, TextRequest("x", 5));
  v1::GenerateResponse response;
  ASSERT_TRUE(second->Read(&response));
  EXPECT_TRUE(response.has_accepted());  // immediately, before a step has ended
  server.engine.Resume();
  ASSERT_TRUE(second->Read(&response));
  EXPECT_TRUE(response.has_progress()) << response.ShortDebugString();
  EXPECT_EQ(response.progress().queue_position(), 1u);
  EXPECT_EQ(response.progress().prompt_tokens(), 2u);
  first_context.TryCancel();
  StreamResult waited, cancelled;
  ReadRest(&second_context, second.get(), &waited);
  EXPECT_TRUE(waited.status.ok()) << waited.status.error_message();
  ReadRest(&first_context, first.get(), &cancelled);
}

// The pool has room for one and a half: 150 entries a head, in 4 heads.
TEST(Generate, FallbackCompressionIsReported) {
  TestServerOptions options;
  options.limits.num_blocks = 4 * 10;
  options.scheduler.watermark = 0.0;
  options.scheduler.policy_under_pressure = *ParsePolicyUnderPressure("h2o:max_cache_tokens=32");
  TestServer server(options);
  server.engine.Pause();
  const v1::GenerateRequest request = TextRequest(std::string(99, 'x'), 20);
  grpc::ClientContext first_context, second_context;
  const auto first = server.stub().Generate(&first_context, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(first->Read(&response));
  EXPECT_EQ(response.accepted().policy_under_pressure(), "h2o");  // may be compressed
  const auto second = server.stub().Generate(&second_context, request);
  ASSERT_TRUE(second->Read(&response));
  EXPECT_EQ(response.accepted().policy_under_pressure(), "h2o");
  EXPECT_FALSE(response.accepted().has_cache_tokens());
  server.engine.Resume();
  StreamResult whole, compressed;
  ReadRest(&first_context, first.get(), &whole);
  ReadRest(&second_context, second.get(), &compressed);
  ASSERT_TRUE(whole.usage.has_value() && compressed.usage.has_value());
  EXPECT_FALSE(whole.usage->has_compressed_by());
  EXPECT_EQ(whole.usage->kv_tokens_evicted(), 0u);
  EXPECT_EQ(compressed.usage->compressed_by(), "h2o");
  EXPECT_EQ(compressed.usage->kv_tokens_kept(), 32u);
  EXPECT_EQ(compressed.token_ids.size(), 20u);
  EXPECT_NE(server.MetricsText().find("\nhydrant_compressed_requests_total 1\n"),
            std::string::npos);
  // A request that insists on the full cache does not report it.
  v1::GenerateRequest insists = request;
  insists.mutable_cache()->set_min_retained_mass(1.0);
  const StreamResult kept = RunToEnd(server.stub(), insists);
  EXPECT_FALSE(kept.events.at(0).accepted().has_policy_under_pressure());
}

TEST(Generate, ADuplicateOfALiveIdIsRefused) {
  TestServer server;
  server.engine.Pause();
  v1::GenerateRequest request = TextRequest("x", 3);
  request.set_request_id("same");
  grpc::ClientContext context;
  const auto first = server.stub().Generate(&context, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(first->Read(&response));
  const StreamResult second = RunToEnd(server.stub(), request);
  EXPECT_EQ(second.status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(DetailsOf(second.status).reason, "DUPLICATE_REQUEST_ID");
  EXPECT_EQ(second.status.error_message(), "request_id: same names a request that is live");
  server.engine.Resume();
  StreamResult rest;
  ReadRest(&context, first.get(), &rest);
  EXPECT_TRUE(rest.status.ok());
  EXPECT_TRUE(RunToEnd(server.stub(), request).status.ok());  // the id is free again
}

TEST(Generate, AFullQueueSaysWhenToRetry) {
  TestServerOptions options;
  options.limits.max_num_seqs = 1;
  options.scheduler.max_num_queued_reqs = 2;
  TestServer server(options);
  server.engine.Pause();
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> readers;
  StreamResult refused;
  for (int i = 0; i < 8 && refused.status.ok(); ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(server.stub().Generate(contexts.back().get(), TextRequest("x", 3)));
    v1::GenerateResponse response;
    if (!readers.back()->Read(&response))
      ReadRest(contexts.back().get(), readers.back().get(), &refused);
  }
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(refused.status).reason, "QUEUE_FULL");
  EXPECT_EQ(DetailsOf(refused.status).domain, "hydrant");
  EXPECT_GT(DetailsOf(refused.status).retry_s, 0);
  for (auto& context : contexts) context->TryCancel();
  server.engine.Resume();
  EXPECT_TRUE(server.WaitUntilEmpty());
}

// While a step takes longer than a request may wait.
TEST(Generate, LateRequestsAreRefused) {
  TestServerOptions options;
  options.limits.max_num_seqs = 1;
  options.scheduler.target_ttft_us = 50'000;
  TestServer server(options);
  server.engine.Pause();
  grpc::ClientContext first_context;
  const auto first = server.stub().Generate(&first_context, TextRequest("x", 3));
  v1::GenerateResponse response;
  ASSERT_TRUE(first->Read(&response));
  server.engine.WaitUntilHeld();
  grpc::ClientContext second_context;
  const auto second = server.stub().Generate(&second_context, TextRequest("y", 3));
  ASSERT_TRUE(second->Read(&response));
  EXPECT_TRUE(response.has_accepted());
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  server.engine.Resume();
  StreamResult late, in_time;
  ReadRest(&second_context, second.get(), &late);
  ReadRest(&first_context, first.get(), &in_time);
  EXPECT_TRUE(in_time.status.ok()) << "it had begun";
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(late.status).reason, "OVERLOADED");
  EXPECT_GT(DetailsOf(late.status).retry_s, 0);
  EXPECT_THAT(late.status.error_message(), HasSubstr("target_ttft"));
  EXPECT_TRUE(late.token_ids.empty());
  EXPECT_TRUE(late.trailer_usage.has_value());
  EXPECT_TRUE(server.WaitUntilEmpty());
  EXPECT_THAT(server.MetricsText(), HasSubstr("hydrant_requests_total{outcome=\"overloaded\"} 1"));
}

TEST(Generate, ARequestThatCanNeverFitIsRefused) {
  TestServerOptions options;
  options.limits.num_blocks = 16;  // four blocks a head: 64 tokens
  TestServer server(options);
  const StreamResult result = RunToEnd(server.stub(), TextRequest("x", 1000));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(result.status).reason, "NEVER_FITS");
  EXPECT_EQ(DetailsOf(result.status).retry_s, 0);
  // The requested size, the available size, and the remedy.
  for (const char* piece : {"max_tokens 1000", "need a cache of 1001 tokens", "holds 64", "lower"})
    EXPECT_THAT(result.status.error_message(), HasSubstr(piece));
  EXPECT_TRUE(RunToEnd(server.stub(), TextRequest("x", 60)).status.ok());
}

TEST(Generate, MoreTokensThanTheContextHoldsMeanToItsEnd) {
  TestServer server;
  const StreamResult result = RunToEnd(server.stub(), TextRequest("x", 4'000'000'000u));
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.usage->prompt_tokens() + result.usage->completion_tokens(), 2048u);
  EXPECT_EQ(result.events[result.events.size() - 2].finished().reason(), v1::FINISH_REASON_LENGTH);
}

// A neighbour that keeps decoding, so that there are steps to count and pages that must stay
// allocated. Its prompt and first 14 tokens fill one page of each of 2 layers x 2 heads.
constexpr int64_t kNeighbourPages = 4;

class StepsToFree : public testing::Test {
 protected:
  StepsToFree()
      : server_([] {
          TestServerOptions options;
          options.log_level = spdlog::level::debug;
          return options;
        }()) {
    server_.engine.Pause();
    neighbour_ = server_.stub().Generate(&neighbour_context_, TextRequest("n", 2000));
    v1::GenerateResponse response;
    EXPECT_TRUE(neighbour_->Read(&response));
  }
  ~StepsToFree() override {
    neighbour_context_.TryCancel();
    server_.engine.Resume();
    StreamResult rest;
    ReadRest(&neighbour_context_, neighbour_.get(), &rest);
    EXPECT_TRUE(server_.WaitUntilEmpty());
  }
  int64_t PagesInUse() const {
    const ServingStats snapshot = server_.loop->Stats();
    return snapshot.pages_total - snapshot.pages_free;
  }
  // Reads to the first delta, while steps are allowed one by one; leaves a step held.
  void ReadDelta(grpc::ClientReader<v1::GenerateResponse>* reader) {
    v1::GenerateResponse response;
    ASSERT_TRUE(reader->Read(&response));
    for (int i = 0; i < 2; ++i) {  // the first may have begun without it
      server_.engine.AllowSteps(1);
      server_.engine.WaitUntilHeld();
    }
    while (!response.has_delta()) ASSERT_TRUE(reader->Read(&response));
    EXPECT_EQ(PagesInUse(), 2 * kNeighbourPages);
  }
  // Two more steps, including the held one, and no further one.
  void ExpectFreeAfterTwoSteps() {
    const uint64_t before = server_.loop->Stats().steps;
    server_.engine.AllowSteps(2);
    server_.engine.WaitUntilHeld();
    EXPECT_LE(server_.loop->Stats().steps, before + 2);
    EXPECT_EQ(PagesInUse(), kNeighbourPages);
  }

  LogWatch log_;
  TestServer server_;
  grpc::ClientContext neighbour_context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> neighbour_;
};

TEST_F(StepsToFree, ADeadline) {
  const auto begin = std::chrono::system_clock::now();
  grpc::ClientContext context;
  context.set_deadline(begin + std::chrono::milliseconds(500));
  const auto reader = server_.stub().Generate(&context, TextRequest("x", 2000));
  ReadDelta(reader.get());
  // The server counts the remaining time from when it has read the call, which was earlier.
  // Timeouts are sent in milliseconds, rounded up.
  const auto heard = std::chrono::system_clock::now();
  StreamResult result;
  ReadRest(&context, reader.get(), &result);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ASSERT_TRUE(WaitFor(
      [&] { return std::chrono::system_clock::now() > heard + std::chrono::milliseconds(510); }));
  ExpectFreeAfterTwoSteps();
}

TEST_F(StepsToFree, ADisconnect) {
  v1::GenerateRequest request = TextRequest("x", 2000);
  request.set_request_id("goes");
  grpc::ClientContext context;
  const auto reader = server_.stub().Generate(&context, request);
  ReadDelta(reader.get());
  context.TryCancel();
  ASSERT_TRUE(log_.WaitForLine("request goes is to end", "the client has gone"));
  ExpectFreeAfterTwoSteps();
  StreamResult rest;
  ReadRest(&context, reader.get(), &rest);
  EXPECT_EQ(rest.status.error_code(), grpc::StatusCode::CANCELLED);
}

// Also before the first step: a prompt that waits or is in prefill.
TEST(Generate, ADeadlineEndsARequestThatHasNotBegun) {
  TestServer server;
  server.engine.Pause();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  const StreamResult result = RunToEnd(server.stub(), TextRequest("x", 1000), &context);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  server.engine.Resume();
  EXPECT_TRUE(server.WaitUntilEmpty());
}

TEST(Generate, ALostEngineFailsStreamsWithTheirUsage) {
  TestServer server;
  server.engine.Pause();
  grpc::ClientContext context;
  const auto reader = server.stub().Generate(&context, TextRequest("hello", 1000));
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  server.engine.Lose(absl::InternalError("the device is gone"));
  server.engine.Resume();
  StreamResult result;
  ReadRest(&context, reader.get(), &result);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(result.status.error_message(), HasSubstr("the device is gone"));
  EXPECT_EQ(DetailsOf(result.status).reason, "ENGINE_FAULT");
  ASSERT_TRUE(result.trailer_usage.has_value());
  EXPECT_EQ(result.trailer_usage->prompt_tokens(), 6u);
  EXPECT_FALSE(result.usage.has_value());
}

TEST(Generate, ResumedTokensAreNotSentAgain) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("x", 6);
  const StreamResult whole = RunToEnd(server.stub(), request);
  request.add_resume_token_ids(whole.token_ids[0]);
  request.add_resume_token_ids(whole.token_ids[1]);
  const StreamResult rest = RunToEnd(server.stub(), request);
  ASSERT_TRUE(rest.status.ok()) << rest.status.error_message();
  EXPECT_EQ(rest.text, whole.text.substr(2));
  EXPECT_EQ(rest.usage->completion_tokens(), 6u);
}

class StalledClient : public testing::TestWithParam<std::chrono::microseconds> {};

// A client that stops reading is cut off when its buffer is full, without effect on its neighbours.
// A neighbour's whole answer fits its buffer, because the fake engine is faster than any
// connection. The loop waits only once for the writes of a stalled client: waiting at each of the
// 256 steps that fill the buffer would exceed the test's time limit.
TEST_P(StalledClient, DelaysNoOther) {
  constexpr int kNeighbours = 8;
  TestServerOptions options;
  options.limits.max_model_len = 1 << 16;
  options.limits.num_blocks = 1 << 15;
  options.limits.table_entries = 1 << 17;
  options.limits.prefill_arena_tokens = 1 << 16;
  options.max_buffered_bytes = 1 << 20;
  options.next_token = [](int32_t) { return ByteTokenizer::kLong; };  // 4 KiB a token
  options.max_write_wait = GetParam();
  TestServer server(options);
  const auto slow_stub = server.NewStub();
  grpc::ClientContext slow_context;
  const auto slow = slow_stub->Generate(&slow_context, TextRequest("x", 30000));  // 120 MB
  v1::GenerateResponse response;
  slow->Read(&response);  // false if the engine filled the buffer before this thread ran

  std::vector<std::thread> threads;
  threads.reserve(kNeighbours);
  std::vector<StreamResult> results(kNeighbours);
  for (int i = 0; i < kNeighbours; ++i) {
    threads.emplace_back([&, i] {
      // Half of them on the stalled call's own connection.
      results[i] = RunToEnd(i % 2 == 0 ? *slow_stub : server.stub(), TextRequest("x", 200));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const StreamResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.text.size(), 200u * 4096);
    EXPECT_EQ(result.usage->completion_tokens(), 200u);
  }
  // The slow client was cut off long before its 30,000 tokens, and holds no pages.
  EXPECT_TRUE(server.WaitUntilEmpty());
  EXPECT_LT(server.loop->Stats().generation_tokens, 30000u);
  StreamResult rest;
  ReadRest(&slow_context, slow.get(), &rest);
  EXPECT_EQ(rest.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
      << rest.status.error_message();
  EXPECT_THAT(rest.status.error_message(), HasSubstr("does not read"));
}

INSTANTIATE_TEST_SUITE_P(Generate, StalledClient,
                         testing::Values(std::chrono::microseconds(0), std::chrono::seconds(3)));

// Through a real socket, with HTTP/2's flow control out of the way: bytes buffered by the kernel
// and gRPC for a client that never reads count too.
TEST(Generate, AClientThatNeverReadsIsCutOffAtTheBytesThatTheDocumentsSay) {
  TestServerOptions options;
  options.limits.max_model_len = 1 << 16;
  options.limits.num_blocks = 1 << 15;
  options.limits.table_entries = 1 << 17;
  options.limits.prefill_arena_tokens = 1 << 16;
  options.max_buffered_bytes = 1 << 20;
  options.next_token = [](int32_t) { return ByteTokenizer::kLong; };  // 4 KiB a token
  TestServer server(options);
  const NeverReads client(server.address(), "/hydrant.v1.Hydrant/Generate",
                          TextRequest("x", 30000).SerializeAsString(), 64 << 10);
  const RequestMetrics& metrics = server.service->request_metrics();
  EXPECT_TRUE(WaitFor([&] { return metrics.ended.Count("slow_reader") == 1; }));
  EXPECT_TRUE(server.WaitUntilEmpty());
  // All of its output except the last 1 MiB went to gRPC and the kernel, including the
  // client's buffers.
  EXPECT_LT(metrics.sent_bytes, 1u << 20);
}

TEST(Generate, OneHundredAndFiftyStreamsAtOnce) {
  constexpr int kStreams = 150;
  TestServerOptions options;
  options.limits.max_num_seqs = 64;
  TestServer server(options);
  std::vector<std::thread> threads;
  threads.reserve(kStreams);
  std::vector<StreamResult> results(kStreams);
  for (int i = 0; i < kStreams; ++i) {
    threads.emplace_back([&, i] {
      const auto stub = i % 10 == 0 ? server.NewStub() : nullptr;
      results[i] =
          RunToEnd(stub ? *stub : server.stub(), TextRequest(std::string(1 + i, 'q'), 30 + i % 7));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kStreams; ++i) {
    ASSERT_TRUE(results[i].status.ok()) << i << ": " << results[i].status.error_message();
    std::string expected;
    for (int p = 0; p < 30 + i % 7; ++p) expected += static_cast<char>('a' + (p + i + 2) % 26);
    EXPECT_EQ(results[i].text, expected) << i;
  }
  EXPECT_TRUE(server.WaitUntilEmpty());
}

TEST(Generate, AThousandCancelsLeaveNothingBehind) {
  constexpr unsigned kSeed = 20240611;
  RecordProperty("seed", kSeed);
  std::mt19937 random(kSeed);
  TestServer server;
  for (int i = 0; i < 1000; ++i) {
    grpc::ClientContext context;
    const auto reader = server.stub().Generate(&context, TextRequest("cancel me", 2000));
    v1::GenerateResponse response;
    const int reads = static_cast<int>(random() % 4);
    for (int k = 0; k < reads; ++k) ASSERT_TRUE(reader->Read(&response));
    context.TryCancel();
    while (reader->Read(&response)) {
    }
    EXPECT_FALSE(reader->Finish().ok());
  }
  EXPECT_TRUE(server.WaitUntilEmpty());
  EXPECT_TRUE(RunToEnd(server.stub(), TextRequest("still here", 3)).status.ok());
}

}  // namespace
}  // namespace hydrant
