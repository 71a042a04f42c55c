// Several samples of one request (Sampling.n): the messages and tokens of each index, usage and
// metrics, and their common end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/requests/sample_outputs.h"
#include "tests/server/log_watch.h"
#include "tests/server/random_model_server.h"
#include "tests/server/scrape.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using testing::HasSubstr;

// A client's view of a stream's events.
struct Sample {
  std::vector<uint32_t> token_ids;
  std::string text;
  std::vector<v1::Finished> finished;
  bool spoke_after_its_end = false;
};

std::map<uint32_t, Sample> SamplesOf(const StreamResult& result) {
  std::map<uint32_t, Sample> samples;
  for (const v1::GenerateResponse& event : result.events) {
    if (event.has_delta()) {
      EXPECT_TRUE(event.delta().has_index());
      Sample& sample = samples[event.delta().index()];
      sample.token_ids.insert(sample.token_ids.end(), event.delta().token_ids().begin(),
                              event.delta().token_ids().end());
      sample.text += event.delta().text();
      if (!sample.finished.empty()) sample.spoke_after_its_end = true;
    } else if (event.has_finished()) {
      EXPECT_TRUE(event.finished().has_index());
      samples[event.finished().index()].finished.push_back(event.finished());
    }
  }
  return samples;
}

v1::GenerateRequest SampledRequest(uint32_t max_tokens, uint32_t n, uint64_t seed) {
  v1::GenerateRequest request = TextRequest("x", max_tokens);
  request.mutable_sampling()->set_n(n);
  request.mutable_sampling()->set_seed(seed);
  return request;
}

// The letter of seed and position; the prompt "x" has positions 0 and 1.
TokenId Letter(uint64_t seed, int32_t position) {
  return static_cast<TokenId>('a' + (seed + static_cast<uint64_t>(position)) % 26);
}

std::string Letters(uint64_t seed, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += static_cast<char>(Letter(seed, 2 + i));
  return text;
}

// A sample with a multiple of 10 as its seed ends at its fifth token.
TokenId LetterOrEnd(uint64_t seed, int32_t position) {
  return seed % 10 == 0 && position == 6 ? ByteTokenizer::kEos : Letter(seed, position);
}

// For requests that last until they are cancelled.
constexpr uint32_t kEndless = 1'000'000;

TestServerOptions ForEndlessRequests() {
  TestServerOptions options;
  options.limits.max_model_len = options.limits.prefill_arena_tokens = 1 << 20;
  options.limits.table_entries = 1 << 21;
  options.limits.num_blocks = 1 << 20;
  options.max_buffered_bytes = 1 << 30;  // the fake engine is faster than any client
  options.next_token_of = LetterOrEnd;
  return options;
}

TEST(Samples, EachIndexHasItsTextAndOneFinishedAndUsageComesOnceAtTheEnd) {
  LogWatch log;
  TestServerOptions options;
  options.next_token_of = LetterOrEnd;
  options.log_level = spdlog::level::info;
  TestServer server(options);
  v1::GenerateRequest request = SampledRequest(30, 4, 39);  // the seeds 39, 40, 41, 42
  request.set_request_id("four");
  const StreamResult result = RunToEnd(server.stub(), request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  ASSERT_TRUE(result.events.front().has_accepted());
  EXPECT_EQ(result.events.front().accepted().seed(), 39u);
  EXPECT_EQ(result.events.front().accepted().prompt_tokens(), 2u);
  ASSERT_TRUE(result.events.back().has_usage());
  int usages = 0;
  for (const v1::GenerateResponse& event : result.events) usages += event.has_usage();
  EXPECT_EQ(usages, 1);

  const std::map<uint32_t, Sample> samples = SamplesOf(result);
  ASSERT_EQ(samples.size(), 4u);
  for (const auto& [index, sample] : samples) {
    const bool stops = index == 1;
    EXPECT_EQ(sample.text, Letters(39 + index, stops ? 4 : 30)) << index;
    EXPECT_EQ(std::string(sample.token_ids.begin(), sample.token_ids.end()), sample.text);
    ASSERT_EQ(sample.finished.size(), 1u) << index;
    EXPECT_EQ(sample.finished[0].reason(),
              stops ? v1::FINISH_REASON_STOP : v1::FINISH_REASON_LENGTH);
    EXPECT_EQ(sample.finished[0].has_matched_token_id(), stops);
    EXPECT_FALSE(sample.spoke_after_its_end) << index;
  }

  EXPECT_EQ(result.usage->prompt_tokens(), 2u);
  EXPECT_EQ(result.usage->completion_tokens(), 30u + 5u + 30u + 30u);
  EXPECT_EQ(result.usage->kv_tokens_kept(), 2u + 30u - 1u) << "sample 0's";
  EXPECT_GT(result.usage->decode_us(), 0u);
  EXPECT_TRUE(server.WaitUntilEmpty());

  // One request in the log and in the metrics.
  EXPECT_TRUE(log.WaitForLine("request four length",
                              "2 prompt (0 cached) + 95 new tokens in 4 "
                              "samples"));
  const Scrape scrape = ParseScrape(server.MetricsText());
  EXPECT_EQ(scrape.Sum("hydrant_requests_total"), 1);
  EXPECT_EQ(scrape["hydrant_requests_total{outcome=\"length\"}"], 1);
  EXPECT_EQ(scrape["hydrant_request_prompt_tokens_total{outcome=\"length\"}"], 2);
  EXPECT_EQ(scrape["hydrant_request_generation_tokens_total{outcome=\"length\"}"], 95);
  EXPECT_EQ(scrape["hydrant_time_to_first_token_seconds_count"], 1);
  EXPECT_EQ(scrape["hydrant_inter_token_latency_seconds_count"], 29 + 3 + 29 + 29);
  EXPECT_EQ(scrape["hydrant_e2e_request_latency_seconds_count"], 1);
}

TEST(Samples, OneIsAsNone) {
  TestServerOptions options;
  options.next_token_of = Letter;
  TestServer server(options);
  v1::GenerateRequest request = SampledRequest(9, 1, 4);
  request.set_keep(true);
  const StreamResult one = RunToEnd(server.stub(), request);
  request.mutable_sampling()->clear_n();
  const StreamResult unset = RunToEnd(server.stub(), request);
  ASSERT_TRUE(one.status.ok() && unset.status.ok());
  EXPECT_EQ(one.text, Letters(4, 9));
  EXPECT_EQ(one.text, unset.text);
  EXPECT_EQ(one.usage->completion_tokens(), unset.usage->completion_tokens());
}

// The neighbour continues.
TEST(Samples, ADisconnectEndsAllOfThem) {
  LogWatch log;
  TestServerOptions options = ForEndlessRequests();
  options.log_level = spdlog::level::debug;
  TestServer server(options);
  grpc::ClientContext context, neighbour_context;
  v1::GenerateRequest request = SampledRequest(kEndless, 4, 10);  // the first sample ends early
  request.set_request_id("goes");
  const auto reader = server.stub().Generate(&context, request);
  v1::GenerateResponse response;
  std::set<uint32_t> heard;
  bool first_ended = false;
  while (heard.size() < 4 || !first_ended) {
    ASSERT_TRUE(reader->Read(&response));
    if (response.has_delta()) heard.insert(response.delta().index());
    first_ended |= response.has_finished() && response.finished().index() == 0;
  }
  const auto neighbour = server.stub().Generate(&neighbour_context, SampledRequest(400, 1, 1));
  context.TryCancel();
  ASSERT_TRUE(log.WaitForLine("request goes is to end", "the client has gone"));
  StreamResult rest, neighbours;
  ReadRest(&context, reader.get(), &rest);
  EXPECT_EQ(rest.status.error_code(), grpc::StatusCode::CANCELLED);
  ReadRest(&neighbour_context, neighbour.get(), &neighbours);
  EXPECT_TRUE(neighbours.status.ok()) << neighbours.status.error_message();
  EXPECT_EQ(neighbours.token_ids.size(), 400u);
  EXPECT_TRUE(server.WaitUntilEmpty());
  EXPECT_TRUE(log.WaitForLine("request goes CANCELLED", "in 4 samples"));
  const RequestMetrics& metrics = server.service->request_metrics();
  EXPECT_TRUE(WaitFor([&] { return metrics.ended.Count("cancelled") == 1; }));
  EXPECT_EQ(metrics.ended.Count("length"), 1u);
  EXPECT_LT(server.loop->Stats().generation_tokens, kEndless);
}

// With more samples than may run at once, some have not begun.
TEST(Samples, ADeadlineEndsAllOfThem) {
  TestServer server;
  server.engine.Pause();
  grpc::ClientContext other_context, context;
  const auto other = server.stub().Generate(&other_context, TextRequest("n", 50));
  v1::GenerateResponse response;
  ASSERT_TRUE(other->Read(&response));
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  const StreamResult result = RunToEnd(server.stub(), SampledRequest(2000, 16, 1), &context);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  server.engine.Resume();
  StreamResult rest;
  ReadRest(&other_context, other.get(), &rest);
  EXPECT_TRUE(rest.status.ok());
  EXPECT_TRUE(server.WaitUntilEmpty());
}

// The sample with seed 12 has no finite logit at position 20.
TEST(Samples, AFailedSampleFailsTheRequestWithTheUsageOfAll) {
  TestServerOptions options = ForEndlessRequests();
  options.next_token_of = [](uint64_t seed, int32_t position) {
    return seed == 12 && position == 20 ? kNoToken : LetterOrEnd(seed, position);
  };
  TestServer server(options);
  const StreamResult result = RunToEnd(server.stub(), SampledRequest(kEndless, 4, 10));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(DetailsOf(result.status).reason, "ENGINE_FAULT");
  EXPECT_THAT(result.status.error_message(), HasSubstr("no finite logit at position 20"));
  EXPECT_FALSE(result.usage.has_value());
  ASSERT_TRUE(result.trailer_usage.has_value());
  EXPECT_EQ(result.trailer_usage->prompt_tokens(), 2u);
  const std::map<uint32_t, Sample> samples = SamplesOf(result);
  size_t tokens = 1;  // the id that ended sample 0 was not delivered
  for (const auto& [index, sample] : samples) {
    tokens += sample.token_ids.size();
    EXPECT_EQ(sample.finished.size(), index == 0 ? 1u : 0u) << index;
  }
  EXPECT_EQ(samples.at(2).text, Letters(12, 18));
  EXPECT_EQ(result.trailer_usage->completion_tokens(), tokens);
  EXPECT_LT(tokens, kEndless) << "the others were cancelled";
  EXPECT_TRUE(server.WaitUntilEmpty());
  EXPECT_EQ(server.service->request_metrics().ended.Count("error"), 1u);
  EXPECT_EQ(ParseScrape(server.MetricsText()).Sum("hydrant_requests_total"), 1);
}

class StalledClientOfSamples : public testing::TestWithParam<std::chrono::microseconds> {};

// The output of all samples counts against the one buffer of their stream. The loop waits only once
// for the writes of a stalled client.
TEST_P(StalledClientOfSamples, IsDisconnectedAndDelaysNoOther) {
  TestServerOptions options;
  options.limits.max_model_len = 1 << 16;
  options.limits.num_blocks = 1 << 16;
  options.limits.table_entries = 1 << 18;
  options.limits.prefill_arena_tokens = 1 << 16;
  options.max_buffered_bytes = 1 << 20;
  options.next_token = [](int32_t) { return ByteTokenizer::kLong; };  // 4 KiB a token
  options.max_write_wait = GetParam();
  TestServer server(options);
  const auto slow_stub = server.NewStub();
  server.engine.Pause();
  grpc::ClientContext context;
  const auto slow = slow_stub->Generate(&context, SampledRequest(15000, 8, 1));
  v1::GenerateResponse response;
  ASSERT_TRUE(slow->Read(&response));
  server.engine.Resume();
  std::vector<std::thread> threads;
  std::vector<StreamResult> results(4);
  for (size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&, i] {
      results[i] = RunToEnd(i % 2 == 0 ? *slow_stub : server.stub(), SampledRequest(100, 2, i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const StreamResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.text.size(), 2 * 100u * 4096);
    EXPECT_EQ(result.usage->completion_tokens(), 2 * 100u);
  }
  EXPECT_TRUE(server.WaitUntilEmpty());
  EXPECT_LT(server.loop->Stats().generation_tokens, 8 * 15000u);
  StreamResult rest;
  ReadRest(&context, slow.get(), &rest);
  EXPECT_EQ(rest.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(rest.status.error_message(), HasSubstr("does not read"));
  const RequestMetrics& metrics = server.service->request_metrics();
  EXPECT_TRUE(WaitFor([&] { return metrics.ended.Count("slow_reader") == 1; }));
}

INSTANTIATE_TEST_SUITE_P(Samples, StalledClientOfSamples,
                         testing::Values(std::chrono::microseconds(0), std::chrono::seconds(3)));

TEST(Samples, TheIdIsTakenUntilTheLastHasEnded) {
  TestServer server(ForEndlessRequests());
  v1::GenerateRequest request = SampledRequest(kEndless, 2, 10);
  request.set_request_id("mine");
  grpc::ClientContext context;
  const auto reader = server.stub().Generate(&context, request);
  v1::GenerateResponse response;
  do {
    ASSERT_TRUE(reader->Read(&response));
  } while (!response.has_finished());
  EXPECT_EQ(response.finished().index(), 0u);
  v1::GenerateRequest same = SampledRequest(5, 3, 1);
  same.set_request_id("mine");
  EXPECT_EQ(DetailsOf(RunToEnd(server.stub(), same).status).reason, "DUPLICATE_REQUEST_ID");
  context.TryCancel();
  EXPECT_TRUE(server.WaitUntilEmpty());
  EXPECT_TRUE(RunToEnd(server.stub(), same).status.ok());
  StreamResult rest;
  ReadRest(&context, reader.get(), &rest);
}

TEST(Samples, TheQueueTakesAllOrNone) {
  TestServerOptions options;
  options.scheduler.max_num_queued_reqs = 4;
  TestServer server(options);
  const StreamResult never = RunToEnd(server.stub(), SampledRequest(3, 5, 1));
  EXPECT_EQ(never.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(never.status).field, "sampling.n");
  EXPECT_THAT(never.status.error_message(), HasSubstr("the queue's limit of 4 requests"));
  EXPECT_EQ(DetailsOf(never.status).retry_s, 0);
  server.engine.Pause();
  grpc::ClientContext context;
  const auto first = server.stub().Generate(&context, SampledRequest(3, 3, 1));
  v1::GenerateResponse response;
  ASSERT_TRUE(first->Read(&response));
  const StreamResult full = RunToEnd(server.stub(), SampledRequest(3, 2, 1));
  EXPECT_EQ(full.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(full.status).reason, "QUEUE_FULL");
  EXPECT_GT(DetailsOf(full.status).retry_s, 0);
  server.engine.Resume();
  StreamResult rest;
  ReadRest(&context, first.get(), &rest);
  EXPECT_TRUE(rest.status.ok());
  EXPECT_TRUE(RunToEnd(server.stub(), SampledRequest(3, 4, 1)).status.ok());
  EXPECT_TRUE(server.WaitUntilEmpty());
}

// Streams with one and with several samples, each with its seed's text.
TEST(Samples, ManyRequestsSideBySide) {
  constexpr int kStreams = 60;
  TestServerOptions options;
  options.next_token_of = LetterOrEnd;
  options.limits.max_num_seqs = 64;
  options.scheduler.max_num_queued_reqs = 4096;
  TestServer server(options);
  std::vector<std::thread> threads;
  threads.reserve(kStreams);
  std::vector<StreamResult> results(kStreams);
  const auto samples_of = [](int i) { return static_cast<uint32_t>(1 + i % 7 * (i % 3)); };
  for (int i = 0; i < kStreams; ++i) {
    threads.emplace_back([&, i] {
      results[i] = RunToEnd(server.stub(), SampledRequest(20 + i % 5, samples_of(i), 100 + i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kStreams; ++i) {
    ASSERT_TRUE(results[i].status.ok()) << i << ": " << results[i].status.error_message();
    const std::map<uint32_t, Sample> samples = SamplesOf(results[i]);
    ASSERT_EQ(samples.size(), samples_of(i));
    for (const auto& [index, sample] : samples) {
      const uint64_t seed = 100 + i + index;
      EXPECT_EQ(sample.text, Letters(seed, seed % 10 == 0 ? 4 : 20 + i % 5)) << i << " " << index;
      EXPECT_EQ(sample.finished.size(), 1u);
      EXPECT_FALSE(sample.spoke_after_its_end);
    }
  }
  EXPECT_TRUE(server.WaitUntilEmpty());
}

// Over a real engine: each sample's tokens equal those of a request with its seed, whatever
// else runs.
class SamplesOfAModel : public testing::Test {
 protected:
  static v1::GenerateRequest Request(uint64_t seed, const std::string& policy) {
    v1::GenerateRequest request;
    for (int i = 0; i < 150; ++i) request.mutable_token_ids()->add_ids((i * 31 + i * i) % 256);
    request.mutable_stopping()->set_max_tokens(60);
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_sampling()->set_seed(seed);
    if (policy != "full") {
      request.mutable_cache()->set_cache_policy(policy);
      request.mutable_cache()->set_max_cache_tokens(48);
    }
    return request;
  }
  std::vector<uint32_t> Alone(uint64_t seed, const std::string& policy) {
    const StreamResult result = RunToEnd(*server_.stub, Request(seed, policy));
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    return result.token_ids;
  }

  RandomModelServer server_{16, MakeRandomModel(RandomModelServer::Config(0), 3), nullptr, true};
};

TEST_F(SamplesOfAModel, HaveTheTokensOfSingleRequestsWithTheirSeeds) {
  for (const char* policy : {"full", "h2o"}) {
    for (const uint64_t seed : {uint64_t{4711}, std::numeric_limits<uint64_t>::max() - 1}) {
      SCOPED_TRACE(testing::Message() << policy << ", seed " << seed);
      v1::GenerateRequest request = Request(seed, policy);
      request.mutable_sampling()->set_n(4);
      const StreamResult result = RunToEnd(*server_.stub, request);
      ASSERT_TRUE(result.status.ok()) << result.status.error_message();
      const std::map<uint32_t, Sample> samples = SamplesOf(result);
      ASSERT_EQ(samples.size(), 4u);
      EXPECT_NE(samples.at(0).token_ids, samples.at(1).token_ids);
      for (const auto& [index, sample] : samples)
        EXPECT_EQ(sample.token_ids, Alone(seed + index, policy)) << "sample " << index;
      EXPECT_EQ(result.usage->prompt_tokens(), 150u);
      EXPECT_EQ(result.usage->completion_tokens(), 4 * 60u);
      EXPECT_EQ(result.usage->kv_tokens_kept(), policy == std::string("h2o") ? 48u : 209u);
    }
  }
}

TEST_F(SamplesOfAModel, AreTheSameBesideOthers) {
  constexpr int kOthers = 5;
  std::vector<std::vector<uint32_t>> alone;
  for (uint64_t seed = 90; seed < 94 + kOthers; ++seed) alone.push_back(Alone(seed, "full"));
  std::vector<std::thread> threads;
  threads.reserve(kOthers);
  std::vector<StreamResult> others(kOthers);
  for (int i = 0; i < kOthers; ++i) {
    threads.emplace_back([&, i] { others[i] = RunToEnd(*server_.stub, Request(94 + i, "full")); });
  }
  v1::GenerateRequest request = Request(90, "full");
  request.mutable_sampling()->set_n(4);
  const StreamResult result = RunToEnd(*server_.stub, request);
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  for (const auto& [index, sample] : SamplesOf(result)) EXPECT_EQ(sample.token_ids, alone[index]);
  for (int i = 0; i < kOthers; ++i) EXPECT_EQ(others[i].token_ids, alone[4 + i]);
}

TEST_F(SamplesOfAModel, GreedySamplesAreEqual) {
  v1::GenerateRequest request = Request(1, "full");
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_n(3);
  const StreamResult result = RunToEnd(*server_.stub, request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  const std::map<uint32_t, Sample> samples = SamplesOf(result);
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_EQ(samples.at(0).token_ids.size(), 60u);
  for (const auto& [index, sample] : samples)
    EXPECT_EQ(sample.token_ids, samples.at(0).token_ids) << index;
}

// ---- The stream's state without gRPC.

std::string Take(SampleOutputs* outputs) {
  v1::GenerateResponse message;
  if (!outputs->TakeNext(&message)) return "";
  return message.has_delta()
             ? std::to_string(message.delta().index()) + ":" + message.delta().text()
             : std::to_string(message.finished().index()) + ".";
}

TEST(SampleOutputs, SendsTheSamplesInTurnAndEachEndAfterItsText) {
  SampleOutputs outputs({.num_samples = 3});
  EXPECT_FALSE(outputs.HasNext());
  outputs.Append(0, {.token_id = 1, .text = "a"});
  EXPECT_EQ(Take(&outputs), "0:a");
  outputs.Append(0, {.text = "b"});
  outputs.Append(2, {.text = "x"});
  outputs.End(2, Finished{});
  outputs.Append(0, {.token_id = 7, .text = "c"});
  EXPECT_EQ(outputs.num_bytes(), 3u + sizeof(TokenId));
  EXPECT_EQ(Take(&outputs), "2:x") << "sample 0 had its turn";
  outputs.Append(0, {.token_id = 8, .text = "d"});
  EXPECT_EQ(outputs.num_bytes(), 3u + 2 * sizeof(TokenId));
  EXPECT_EQ(Take(&outputs), "0:bcd");
  EXPECT_EQ(outputs.num_bytes(), 0u);
  EXPECT_EQ(Take(&outputs), "2.");
  EXPECT_FALSE(outputs.HasNext());
  EXPECT_EQ(Take(&outputs), "");
  outputs.Append(1, {.text = "y"});
  outputs.End(1, Finished{});
  outputs.Drop();
  EXPECT_FALSE(outputs.HasNext());
  EXPECT_EQ(outputs.num_bytes(), 0u);
}

TEST(SampleOutputs, DeltasWaitForTheirInterval) {
  SampleOutputs outputs({.num_samples = 1, .stream_interval = 3});
  const auto append = [&](const char* text) { outputs.Append(0, {.token_id = 1, .text = text}); };
  append("a");
  EXPECT_EQ(Take(&outputs), "0:a") << "the first does not wait";
  append("b");
  append("c");
  EXPECT_FALSE(outputs.HasNext());
  EXPECT_EQ(Take(&outputs), "");
  append("d");
  EXPECT_EQ(Take(&outputs), "0:bcd");
  append("e");
  outputs.End(0, Finished());
  EXPECT_EQ(Take(&outputs), "0:e") << "nor does the last";
  EXPECT_EQ(Take(&outputs), "0.");
}

TEST(SampleOutputs, TheLogprobsOfALongPromptAreSeveralMessages) {
  SampleOutputs outputs({.num_samples = 1, .top_prompt_logprobs = 20});
  constexpr uint32_t kTokens = 5000;
  PromptLogprobs logprobs;
  for (uint32_t i = 0; i < kTokens; ++i) logprobs.tokens.push_back({.token = i, .rank = 1});
  outputs.Append(logprobs);
  outputs.Append(0, {.token_id = 1, .text = "a"});
  uint32_t next = 0;
  int messages = 0;
  v1::GenerateResponse message;
  while (outputs.TakeNext(&message) && message.has_prompt_logprobs()) {
    EXPECT_EQ(message.prompt_logprobs().first_position(), next + 1);
    for (const v1::TokenLogprobs& token : message.prompt_logprobs().tokens()) {
      EXPECT_EQ(token.token_id(), next++);
      EXPECT_EQ(token.top_token_ids_size(), 20);
    }
    EXPECT_LT(message.ByteSizeLong(), size_t{256} << 10);
    ++messages;
    message.Clear();
  }
  EXPECT_EQ(next, kTokens);
  EXPECT_GT(messages, 1);
  EXPECT_EQ(message.delta().text(), "a");
}

TEST(SampleOutputs, TheEntriesOfALongPromptAreSeveralMessages) {
  constexpr int kTokens = 20001, kLayers = 9, kHeads = 4;
  PromptEntries entries = {.kept = KeptEntries(kLayers, kHeads, kTokens), .token_texts = {}};
  for (int token = 0; token < kTokens; ++token) {
    entries.token_texts.push_back(std::to_string(token));
    for (int layer = 0; layer < kLayers; ++layer)
      entries.kept.Add(layer, token % kHeads, std::span(&token, 1));
  }
  SampleOutputs outputs({.num_samples = 1});
  outputs.Append(entries);
  outputs.Append(0, {.token_id = 1, .text = "a"});
  int texts = 0, heads = 0, messages = 0;
  v1::GenerateResponse message;
  for (; outputs.TakeNext(&message) && message.has_kept_entries(); ++messages) {
    const v1::KeptEntries& some = message.kept_entries();
    EXPECT_LT(message.ByteSizeLong(), size_t{128} << 10);
    if (some.token_texts_size() > 0) {
      EXPECT_EQ(some.first_token(), texts);
    }
    for (const std::string& text : some.token_texts()) EXPECT_EQ(text, std::to_string(texts++));
    for (const v1::KeptByHead& head : some.heads()) {
      EXPECT_EQ(texts, kTokens) << "the texts come first";
      EXPECT_EQ(head.layer() * kHeads + head.head(), heads++);
      ASSERT_EQ(head.tokens().size(), (kTokens + 7) / 8);
      for (int token = 0; token < kTokens; ++token) {
        const bool is_set = (head.tokens()[token / 8] >> token % 8 & 1) != 0;
        ASSERT_EQ(is_set, token % kHeads == static_cast<int>(head.head()));
      }
    }
    message.Clear();
  }
  EXPECT_EQ(heads, kLayers * kHeads);
  EXPECT_GT(messages, 2);
  EXPECT_EQ(message.delta().text(), "a");
}

TEST(SampleOutputs, ProgressIsOfTheFirstThatHasNotEnded) {
  SampleOutputs outputs({.num_samples = 3});
  EXPECT_TRUE(outputs.IsFirstLive(0));
  EXPECT_FALSE(outputs.IsFirstLive(1));
  outputs.End(1, Finished{});
  EXPECT_FALSE(outputs.IsFirstLive(2));
  outputs.End(0, Finished{});
  EXPECT_TRUE(outputs.IsFirstLive(2));
}

TEST(SampleOutputs, EndsAsTheFirstThatFailedOrAsLengthWhereOneHas) {
  const Usage usage = {.prompt_tokens = 9,
                       .completion_tokens = 5,
                       .preemptions = 1,
                       .kv_tokens_kept = 7,
                       .cached_tokens = 3,
                       .kv_pages_peak = 4,
                       .kv_pages_mean = 2.5,
                       .queue_us = 10,
                       .prefill_us = 20,
                       .decode_us = 30,
                       .swapped_us = 3,
                       .preempted_us = 4};
  Usage longer = usage;
  longer.completion_tokens = 50;
  longer.kv_tokens_kept = 70;
  longer.cached_tokens = 8;
  longer.queue_us = longer.prefill_us = longer.decode_us = 300;
  SampleOutputs stops({.num_samples = 2});
  stops.End(1, Finished{.usage = longer});
  EXPECT_TRUE(std::holds_alternative<std::monostate>(stops.RequestEnd()));
  stops.End(0, Finished{.usage = usage});
  const SampleOutputs::Ending ending = stops.RequestEnd();
  const Finished& stopped = std::get<Finished>(ending);
  EXPECT_EQ(stopped.reason, FinishReason::kStop);
  EXPECT_EQ(stopped.usage->completion_tokens, 55);
  EXPECT_EQ(stopped.usage->kv_pages_peak, 8);
  EXPECT_EQ(stopped.usage->kv_pages_mean, 5);
  EXPECT_EQ(stopped.usage->preemptions, 2);
  EXPECT_EQ(stopped.usage->swapped_us, 3);
  EXPECT_EQ(stopped.usage->preempted_us, 4);
  EXPECT_EQ(stopped.usage->decode_us, 300);
  EXPECT_EQ(stopped.usage->prompt_tokens, 9);
  EXPECT_EQ(stopped.usage->kv_tokens_kept, 7);
  EXPECT_EQ(stopped.usage->cached_tokens, 3);
  EXPECT_EQ(stopped.usage->queue_us, 10);
  EXPECT_EQ(stopped.usage->prefill_us, 20);

  SampleOutputs cut({.num_samples = 2});
  cut.End(0, Finished{.reason = FinishReason::kLength});
  cut.End(1, Finished{});
  EXPECT_EQ(std::get<Finished>(cut.RequestEnd()).reason, FinishReason::kLength);

  SampleOutputs fails({.num_samples = 3});
  fails.End(2, Finished{.usage = usage});
  EXPECT_FALSE(fails.HasFailed());
  fails.End(1, Failed{.status = absl::InternalError("no logit"), .reason = "ENGINE_FAULT"});
  EXPECT_TRUE(fails.HasFailed());
  fails.End(
      0, Failed{.status = absl::CancelledError("with it"), .reason = "CANCELLED", .usage = usage});
  const SampleOutputs::Ending fault = fails.RequestEnd();
  EXPECT_EQ(std::get<Failed>(fault).reason, "ENGINE_FAULT");
  EXPECT_EQ(std::get<Failed>(fault).status, absl::InternalError("no logit"));
  EXPECT_EQ(std::get<Failed>(fault).usage->completion_tokens, 10);
}

}  // namespace
}  // namespace hydrant
