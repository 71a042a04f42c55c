// Scrapes compared with known events; and the HTTP port.
#include "server/apis/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <thread>

#include "server/observe/http_server.h"
#include "tests/server/http_get.h"
#include "tests/server/scrape.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using testing::HasSubstr;

std::string Bucket(const std::string& family, const std::string& bound) {
  return family + "_bucket{le=\"" + bound + "\"}";
}

class MetricsTest : public testing::Test {
 protected:
  MetricsTest() = default;
  explicit MetricsTest(const TestServerOptions& options) : server_(options) {}
  Scrape TakeScrape() { return ParseScrape(server_.MetricsText()); }
  // A request is counted when its end reaches its stream: after it has left the loop, and, if the
  // client cancelled it, possibly after the client has moved on.
  Scrape ScrapeWhenEnded(double requests) {
    Scrape scrape;
    EXPECT_TRUE(WaitFor([&] {
      scrape = TakeScrape();
      return scrape.Sum("hydrant_requests_total") == requests;
    }));
    return scrape;
  }

  // Gives the server time to notice disconnected clients; otherwise it may finish their
  // answers first.
  static void LetTheServerHearOfIt() {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }

  TestServer server_;
};

// docs/guide/observability.md has a row for every family, with its type and the names of its
// labels.
TEST_F(MetricsTest, TheDocumentationListsTheScrape) {
  std::ifstream file("docs/guide/observability.md");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  static const std::regex kRow(R"(\n\| `([a-z_:0-9]+)` \| (gauge|counter|histogram) \| ([^|]*)\|)");
  static const std::regex kLabel(R"(`([a-z_]+)`)");
  std::map<std::string, std::string> types;
  std::map<std::string, std::set<std::string>> labels;
  for (std::sregex_iterator row(text.begin(), text.end(), kRow), end; row != end; ++row) {
    types[(*row)[1]] = (*row)[2];
    std::set<std::string>& of_row = labels[(*row)[1]];
    const std::string cell = (*row)[3];
    for (std::sregex_iterator label(cell.begin(), cell.end(), kLabel); label != end; ++label)
      of_row.insert((*label)[1]);
    if ((*row)[1].str().starts_with("vllm:")) of_row.insert("model_name");
  }
  EXPECT_GT(types.size(), 40u);
  const Scrape scrape = TakeScrape();
  EXPECT_EQ(scrape.types, types);

  static const std::regex kSeriesLabel(R"re([{,]([a-z_]+)=")re");
  for (const auto& [series, value] : scrape.series) {
    std::set<std::string> has;
    for (std::sregex_iterator label(series.begin(), series.end(), kSeriesLabel), end; label != end;
         ++label) {
      if ((*label)[1] != "le") has.insert((*label)[1]);
    }
    std::string family = series.substr(0, series.find('{'));
    for (const char* suffix : {"_bucket", "_sum", "_count"}) {
      const size_t length = std::string(suffix).size();
      if (family.ends_with(suffix) && !types.contains(family))
        family.resize(family.size() - length);
    }
    EXPECT_EQ(has, labels[family]) << series;
  }
}

// OpenMetrics drops "_total" from a counter's name, and two families must not have the same name.
TEST_F(MetricsTest, NoTwoFamiliesShareANameOfOpenMetrics) {
  std::map<std::string, std::string> names;
  for (const auto& [family, type] : TakeScrape().types) {
    std::string name = family;
    if (type == "counter") {
      ASSERT_TRUE(name.ends_with("_total")) << name;
      name.resize(name.size() - std::string("_total").size());
    }
    const auto [other, is_new] = names.emplace(name, family);
    EXPECT_TRUE(is_new) << family << " and " << other->second;
  }
}

// vLLM's own names and types, which endpoint pickers read by default.
TEST_F(MetricsTest, HasTheMetricsOfVllmPickers) {
  const Scrape scrape = TakeScrape();
  const std::pair<const char*, const char*> expected[] = {
      {"num_requests_running", "gauge"},
      {"num_requests_waiting", "gauge"},
      {"kv_cache_usage_perc", "gauge"},
      {"cache_config_info", "gauge"},
      {"num_preemptions_total", "counter"},
      {"prefix_cache_queries_total", "counter"},
      {"prefix_cache_hits_total", "counter"},
      {"prompt_tokens_total", "counter"},
      {"generation_tokens_total", "counter"},
      {"request_success_total", "counter"},
      {"time_to_first_token_seconds", "histogram"},
      {"inter_token_latency_seconds", "histogram"},
      {"e2e_request_latency_seconds", "histogram"},
      {"request_queue_time_seconds", "histogram"},
      {"request_prefill_time_seconds", "histogram"},
      {"request_decode_time_seconds", "histogram"},
      {"iteration_tokens_total", "histogram"}};
  for (const auto& [name, type] : expected) {
    const auto found = scrape.types.find("vllm:" + std::string(name));
    ASSERT_NE(found, scrape.types.end()) << name;
    EXPECT_EQ(found->second, type) << name;
  }
  for (const auto& [series, value] : scrape.series) {
    if (!series.starts_with("vllm:")) continue;
    EXPECT_THAT(series, HasSubstr("{model_name=\"test-model\"")) << series;
  }
}

TEST_F(MetricsTest, AServerThatDidNothingSaysSo) {
  const Scrape scrape = TakeScrape();
  EXPECT_EQ(scrape["hydrant_build_info{version=\"test\"}"], 1);
  EXPECT_EQ(scrape["hydrant_ready"], 1);
  EXPECT_EQ(scrape["hydrant_state{state=\"ready\"}"], 1);
  EXPECT_EQ(scrape.Sum("hydrant_state"), 1);
  EXPECT_EQ(scrape["hydrant_pages_total"], 8192);
  EXPECT_EQ(scrape["hydrant_pages{state=\"free\"}"], 8192);
  EXPECT_EQ(scrape.Sum("hydrant_state_pages"), 0) << "this engine has none beside its pool";
  EXPECT_EQ(scrape["hydrant_page_bytes"], 1024);
  EXPECT_EQ(scrape["hydrant_engine_memory_bytes{part=\"weights\"}"], 4096);
  EXPECT_EQ(scrape["hydrant_engine_memory_bytes{part=\"kv_pool\"}"], 8388608);
  EXPECT_EQ(scrape["hydrant_engine_memory_bytes{part=\"workspace\"}"], 512);
  EXPECT_EQ(scrape["hydrant_engine_memory_bytes{part=\"prefix_cache\"}"], 256);
  EXPECT_EQ(scrape["hydrant_engine_memory_bytes{part=\"contexts\"}"], 128);
  EXPECT_EQ(scrape.Sum("hydrant_live_requests"), 0);
  EXPECT_EQ(scrape.Sum("hydrant_requests_total"), 0);
  EXPECT_EQ(scrape["hydrant_steps_total"], 0);
  // 8,192 pages over 2 layers times 2 KV heads.
  EXPECT_EQ(scrape["vllm:cache_config_info{model_name=\"test-model\",block_size=\"16\",num_gpu_"
                   "blocks=\"2048\"}"],
            1);
  EXPECT_GT(scrape["process_start_time_seconds"], 1.7e9);
  EXPECT_GT(scrape["process_cpu_seconds_total"], 0);
  EXPECT_GT(scrape["process_resident_memory_bytes"], 1e6);
}

TEST_F(MetricsTest, WithoutAModelHasTheProcessMetrics) {
  TestServerOptions options;
  options.ready = false;
  TestServer loading(options);
  const Scrape scrape = ParseScrape(loading.MetricsText());
  EXPECT_EQ(scrape["hydrant_state{state=\"loading\"}"], 1);
  EXPECT_EQ(scrape["hydrant_ready"], 0);
  EXPECT_FALSE(scrape.types.contains("hydrant_pages"));
  const StreamResult refused = RunToEnd(loading.stub(), TextRequest("x", 1));
  EXPECT_EQ(DetailsOf(refused.status).reason, "LOADING");
  EXPECT_EQ(
      ParseScrape(loading.MetricsText())["hydrant_requests_refused_total{reason=\"LOADING\"}"], 1);
}

// TextRequest("...") has a token a byte, and BOS.
TEST_F(MetricsTest, ARequestThatFinishedIsCountedOnce) {
  v1::GenerateRequest request = TextRequest(std::string(39, 'x'), 25);
  request.mutable_cache()->set_cache_policy("h2o");
  request.mutable_cache()->set_max_cache_tokens(16);
  const StreamResult result = RunToEnd(server_.stub(), request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  const Scrape scrape = TakeScrape();
  EXPECT_EQ(scrape["hydrant_requests_total{outcome=\"length\"}"], 1);
  EXPECT_EQ(scrape.Sum("hydrant_requests_total"), 1);
  EXPECT_EQ(scrape["hydrant_request_prompt_tokens_total{outcome=\"length\"}"], 40);
  EXPECT_EQ(scrape["hydrant_request_generation_tokens_total{outcome=\"length\"}"], 25);
  EXPECT_EQ(scrape["hydrant_prompt_tokens_total"], 40);
  EXPECT_EQ(scrape["hydrant_generation_tokens_total"], 25);
  EXPECT_EQ(scrape["hydrant_kept_entries_total{policy=\"h2o\"}"], result.usage->kv_tokens_kept());
  EXPECT_EQ(scrape["hydrant_evicted_entries_total{policy=\"h2o\"}"], 40 + 24 - 16);
  EXPECT_EQ(scrape.Sum("hydrant_kept_entries_total"), 16);
  EXPECT_EQ(scrape["hydrant_steps_total"], 25);
  for (const char* family :
       {"hydrant_time_to_first_token_seconds", "hydrant_e2e_request_latency_seconds",
        "hydrant_request_queue_time_seconds", "hydrant_request_prefill_time_seconds",
        "hydrant_request_decode_time_seconds"}) {
    EXPECT_EQ(scrape[std::string(family) + "_count"], 1) << family;
    EXPECT_EQ(scrape[Bucket(family, "+Inf")], 1) << family;
  }
  EXPECT_EQ(scrape["hydrant_inter_token_latency_seconds_count"], 24);
  EXPECT_EQ(scrape["hydrant_step_seconds_count"], 25);
  EXPECT_EQ(scrape[Bucket("hydrant_batch_sequences", "1")], 25);
  EXPECT_EQ(scrape["hydrant_batch_tokens_sum"], 40 + 24);
  EXPECT_EQ(scrape[Bucket("hydrant_batch_tokens", "1")], 24);
  EXPECT_EQ(scrape[Bucket("hydrant_batch_tokens", "32")], 24);
  EXPECT_EQ(scrape[Bucket("hydrant_batch_tokens", "64")], 25);
  size_t bytes = 0;
  for (const v1::GenerateResponse& event : result.events) bytes += event.ByteSizeLong();
  EXPECT_EQ(scrape["hydrant_sent_bytes_total"], bytes);

  const std::string model = "{model_name=\"test-model\"";
  EXPECT_EQ(scrape["vllm:request_success_total" + model + ",finished_reason=\"length\"}"], 1);
  EXPECT_EQ(scrape["vllm:generation_tokens_total" + model + "}"], 25);
  EXPECT_EQ(scrape["vllm:time_to_first_token_seconds_count" + model + "}"], 1);
}

TEST_F(MetricsTest, RefusalsAndFailuresGoByTheirReasons) {
  v1::GenerateRequest bad = TextRequest("x", 5);
  bad.mutable_sampling()->set_temperature(-1);
  EXPECT_FALSE(RunToEnd(server_.stub(), bad).status.ok());
  v1::GenerateRequest unknown = TextRequest("x", 5);
  unknown.set_model("another");
  EXPECT_FALSE(RunToEnd(server_.stub(), unknown).status.ok());
  EXPECT_FALSE(RunToEnd(server_.stub(), TextRequest(std::string(3000, 'x'), 5)).status.ok());

  server_.engine.Pause();
  grpc::ClientContext cancelled;
  const auto reader = server_.stub().Generate(&cancelled, TextRequest("x", 5));
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  cancelled.TryCancel();
  StreamResult rest;
  ReadRest(&cancelled, reader.get(), &rest);
  grpc::ClientContext late;
  late.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
  EXPECT_EQ(RunToEnd(server_.stub(), TextRequest("x", 5), &late).status.error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  LetTheServerHearOfIt();
  server_.engine.Resume();
  ASSERT_TRUE(server_.WaitUntilEmpty());
  server_.engine.Lose(absl::InternalError("gone"));
  EXPECT_FALSE(RunToEnd(server_.stub(), TextRequest("x", 5)).status.ok());

  const Scrape scrape = ScrapeWhenEnded(3);
  EXPECT_EQ(scrape["hydrant_requests_refused_total{reason=\"UNKNOWN_MODEL\"}"], 1);
  EXPECT_EQ(scrape["hydrant_requests_refused_total{reason=\"INVALID\"}"], 2);
  EXPECT_EQ(scrape.Sum("hydrant_requests_refused_total"), 3);
  EXPECT_EQ(scrape["hydrant_requests_total{outcome=\"cancelled\"}"], 1);
  EXPECT_EQ(scrape["hydrant_requests_total{outcome=\"deadline\"}"], 1);
  EXPECT_EQ(scrape["hydrant_requests_total{outcome=\"error\"}"], 1);
  EXPECT_EQ(scrape.Sum("hydrant_requests_total"), 3);
  const std::string success =
      "vllm:request_success_total{model_name=\"test-model\",finished_reason=";
  EXPECT_EQ(scrape[success + "\"abort\"}"], 2);
  EXPECT_EQ(scrape[success + "\"error\"}"], 1);
  EXPECT_EQ(scrape["hydrant_pages{state=\"used\"}"], 0);
  EXPECT_EQ(scrape["hydrant_ready"], 0) << "the engine is lost";
}

// The client's clock and the server's expire at about the same time: in either case the reason is
// the deadline.
TEST_F(MetricsTest, GivingUpAtTheDeadlineIsNoCancellation) {
  server_.engine.Pause();
  std::vector<std::thread> clients;
  clients.reserve(32);
  for (int i = 0; i < 32; ++i) {
    clients.emplace_back([this, i] {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(1000 + i));
      EXPECT_EQ(RunToEnd(server_.stub(), TextRequest("x", 5), &context).status.error_code(),
                grpc::StatusCode::DEADLINE_EXCEEDED);
    });
  }
  for (std::thread& client : clients) client.join();
  LetTheServerHearOfIt();
  server_.engine.Resume();
  // On a busy machine a call may arrive late, and its deadline may seem later than it is.
  EXPECT_GE(ScrapeWhenEnded(32)["hydrant_requests_total{outcome=\"deadline\"}"], 28);
}

// A prompt of 31 letters is two pages in each of 4 heads, with a state page for the scores of
// each sample.
TEST_F(MetricsTest, PagesThatHoldScoresAreCounted) {
  TestServer server;
  EXPECT_EQ(ParseScrape(server.MetricsText())["hydrant_state_pages"], 0);
  server.engine.Pause();
  server.engine.AllowSteps(3);
  std::thread client([&] {
    v1::GenerateRequest request = TextRequest(std::string(31, 'x'), 10);
    request.mutable_cache()->set_cache_policy("h2o");
    request.mutable_cache()->set_max_cache_tokens(1000);
    request.mutable_sampling()->set_n(3);
    EXPECT_TRUE(RunToEnd(*server.NewStub(), request).status.ok());
  });
  server.engine.WaitUntilHeld();
  EXPECT_EQ(ParseScrape(server.MetricsText())["hydrant_state_pages"], 3);

  server.engine.Resume();
  client.join();
  EXPECT_TRUE(server.WaitUntilEmpty());
  EXPECT_EQ(ParseScrape(server.MetricsText())["hydrant_state_pages"], 0);
}

TEST_F(MetricsTest, RunningAndWaitingAreSeenDuringAStep) {
  TestServerOptions options;
  options.limits.max_num_seqs = 2;
  TestServer server(options);
  server.engine.Pause();
  server.engine.AllowSteps(1);
  std::vector<std::thread> clients;
  for (int i = 0; i < 5; ++i) {
    clients.emplace_back(
        [&] { EXPECT_TRUE(RunToEnd(*server.NewStub(), TextRequest("abc", 40)).status.ok()); });
    // One after the other, so that the first step has only the first one.
    EXPECT_TRUE(WaitFor([&] {
      const ServingStats loop = server.loop->Stats();
      return loop.running + loop.prefilling + loop.waiting == i + 1;
    }));
    if (i == 0) server.engine.WaitUntilHeld();
  }
  Scrape scrape = ParseScrape(server.MetricsText());
  EXPECT_EQ(scrape["hydrant_live_requests{state=\"running\"}"], 1);
  EXPECT_EQ(scrape["hydrant_live_requests{state=\"waiting\"}"], 4);
  EXPECT_EQ(scrape["hydrant_waiting_requests{reason=\"arrived\"}"], 4);
  EXPECT_EQ(scrape["hydrant_queued_tokens"], 4 * 4);
  EXPECT_EQ(scrape["hydrant_pages{state=\"used\"}"], 4) << "a page in each of 4 heads";
  EXPECT_EQ(scrape.Sum("hydrant_pages"), scrape["hydrant_pages_total"]);
  EXPECT_GT(scrape["hydrant_step_due_seconds"], 0);
  EXPECT_EQ(scrape["vllm:kv_cache_usage_perc{model_name=\"test-model\"}"], 4.0 / 8192);
  EXPECT_EQ(scrape["vllm:num_requests_running{model_name=\"test-model\"}"], 1);
  EXPECT_EQ(scrape["vllm:num_requests_waiting{model_name=\"test-model\"}"], 4);

  server.engine.AllowSteps(2);  // the held step, and the second request's prompt
  server.engine.WaitUntilHeld();
  scrape = ParseScrape(server.MetricsText());
  EXPECT_EQ(scrape["hydrant_live_requests{state=\"running\"}"], 2);
  EXPECT_EQ(scrape["hydrant_waiting_requests{reason=\"max_num_seqs\"}"], 3);
  EXPECT_EQ(scrape.Sum("hydrant_waiting_requests"), 3);
  server.engine.Resume();
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(ParseScrape(server.MetricsText())["hydrant_step_due_seconds"], 0);
}

class HttpServerTest : public testing::Test {
 protected:
  // Sends and reads until the server closes the connection.
  static std::string SendAndReceive(int fd, const std::string& request) {
    (void)!send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    std::string text(4096, '\0');
    const ssize_t count = recv(fd, text.data(), text.size(), MSG_WAITALL);
    text.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
    return text;
  }
  std::unique_ptr<HttpServer> Start(std::chrono::milliseconds time = std::chrono::seconds(5)) {
    auto server =
        HttpServer::Start("127.0.0.1:0",
                          {{"/yes", [] { return HttpAnswer{.body = "yes\n"}; }},
                           {"/no", [] { return HttpAnswer{.status = 503, .body = "no\n"}; }}},
                          time);
    EXPECT_TRUE(server.ok()) << server.status();
    return *std::move(server);
  }
};

TEST_F(HttpServerTest, AnswersByPathAndClosesTheConnection) {
  const auto server = Start();
  const HttpReply yes = HttpGet(server->address(), "/yes");
  EXPECT_EQ(yes.status, 200);
  EXPECT_EQ(yes.body, "yes\n");
  EXPECT_THAT(yes.headers, HasSubstr("Connection: close"));
  EXPECT_THAT(yes.headers, HasSubstr("Content-Type: text/plain; charset=utf-8"));
  EXPECT_EQ(HttpGet(server->address(), "/no").status, 503);
  const HttpReply other = HttpGet(server->address(), "/yes/../etc/passwd");
  EXPECT_EQ(other.status, 404);
  EXPECT_EQ(other.body, "there is: /no /yes\n");
}

TEST_F(HttpServerTest, ErrorsNameTheAddress) {
  for (const char* bad :
       {"", "localhost", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536", ":-1"})
    EXPECT_EQ(HttpServer::Start(bad, {}).status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
  const auto server = Start();
  const absl::Status taken = HttpServer::Start(server->address(), {}).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(std::string(taken.message()),
            "cannot listen on " + server->address() + ": Address already in use");
}

// More silent clients, in the middle of a request, than a server with threads could have.
TEST_F(HttpServerTest, EndlessClientsDelayNoOther) {
  const auto server = Start(std::chrono::hours(1));
  std::vector<int> slow;
  for (int i = 0; i < 200; ++i) {
    slow.push_back(ConnectTo(server->address()));
    (void)!send(slow.back(), "GET /yes", 8, MSG_NOSIGNAL);
    if (i % 20 != 0) continue;
    EXPECT_EQ(HttpGet(server->address(), "/yes").status, 200) << i;
  }
  EXPECT_EQ(HttpGet(server->address(), "/yes").status, 200);
  // The youngest connections are still served when they complete their requests.
  EXPECT_EQ(SendAndReceive(slow.back(), " HTTP/1.1\r\n\r\n").substr(0, 15), "HTTP/1.1 200 OK");
  for (const int fd : slow) close(fd);
}

// A connection that sends a byte now and then gets no more time.
TEST_F(HttpServerTest, AConnectionHasItsTime) {
  const auto server = Start(std::chrono::milliseconds(30));
  const int drips = ConnectTo(server->address()), silent = ConnectTo(server->address());
  EXPECT_TRUE(WaitFor([&] { return send(drips, "G", 1, MSG_NOSIGNAL) < 0; }));
  EXPECT_EQ(SendAndReceive(silent, ""), "");
  close(drips);
  close(silent);
}

TEST_F(HttpServerTest, RefusesOtherMethods) {
  const auto server = Start();
  const auto status_of = [&](const std::string& request) {
    const int fd = ConnectTo(server->address());
    const std::string reply = SendAndReceive(fd, request);
    close(fd);
    return reply.substr(0, reply.find("\r\n"));
  };
  for (const char* bad : {"GET\r\n\r\n", "\r\n\r\n", "GET /yes\r\n\r\n", " /yes HTTP/1.1\r\n\r\n"})
    EXPECT_EQ(status_of(bad), "HTTP/1.1 400 Bad Request") << bad;
  EXPECT_EQ(status_of("GET /yes?x=1 HTTP/1.1\r\nA: b\r\n\r\n"), "HTTP/1.1 200 OK");
  EXPECT_EQ(status_of(std::string(100'000, 'x')), "");
}

TEST_F(HttpServerTest, AnswersHeadWithoutABodyAndRefusesOtherMethods) {
  const auto server = Start();
  const auto reply_to = [&](const std::string& method, const std::string& path) {
    const int fd = ConnectTo(server->address());
    const std::string reply = SendAndReceive(fd, method + " " + path + " HTTP/1.1\r\n\r\n");
    close(fd);
    return reply;
  };
  for (const char* path : {"/yes", "/no", "/else"}) {
    const std::string get = reply_to("GET", path);
    EXPECT_EQ(reply_to("HEAD", path), get.substr(0, get.find("\r\n\r\n") + 4)) << path;
    for (const char* other : {"POST", "PUT", "DELETE", "OPTIONS", "head"}) {
      const std::string reply = reply_to(other, path);
      EXPECT_THAT(reply, testing::StartsWith("HTTP/1.1 405 Method Not Allowed\r\n")) << other;
      EXPECT_THAT(reply, HasSubstr("\r\nAllow: GET, HEAD\r\n"));
    }
  }
}

TEST_F(HttpServerTest, AStarIsEveryAddress) {
  const auto server = HttpServer::Start("*:0", {{"/yes", [] { return HttpAnswer{}; }}});
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string port = (*server)->address().substr((*server)->address().find(':'));
  EXPECT_EQ(HttpGet("127.0.0.1" + port, "/yes").status, 200);
}

}  // namespace
}  // namespace hydrant
