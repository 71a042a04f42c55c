// Floods of frames against a whole server: the connection ends without effect on others.
// Connections of heavy but well-behaved clients stay open.
#include "server/net/connection_guard.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/http2_frames.h"
#include "tests/server/http_get.h"
#include "tests/server/log_watch.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using http2::Call, http2::CallHeaders, http2::Frame, http2::Header;
using http2::kContinuation, http2::kHeaders, http2::kPing, http2::kReset;
using testing::HasSubstr;

// Sends, and discards answers.
class Flooder {
 public:
  explicit Flooder(const std::string& address) : fd_(ConnectTo(address)) {
    fcntl(fd_, F_SETFL, O_NONBLOCK);
    Send(http2::Hello());
  }
  ~Flooder() { close(fd_); }
  Flooder(const Flooder&) = delete;
  Flooder& operator=(const Flooder&) = delete;

  // False: the connection has ended.
  bool Send(const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      pollfd polled{fd_, POLLIN | POLLOUT, 0};
      poll(&polled, 1, -1);
      if ((polled.revents & POLLIN) != 0 && !Read()) return false;
      const ssize_t count = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count < 0 && errno != EAGAIN) return false;
      sent += count > 0 ? static_cast<size_t>(count) : 0;
    }
    return true;
  }

  bool WaitForEnd() {
    return WaitFor([this] { return !Read(); });
  }

 private:
  // False: the end of the stream.
  bool Read() const {
    std::array<char, 65536> ignored;
    const ssize_t count = recv(fd_, ignored.data(), ignored.size(), 0);
    return count > 0 || (count < 0 && errno == EAGAIN);
  }
  const int fd_;
};

struct Flood {
  const char* name;
  const char* rule;
  // The n-th bytes to send; "" ends the flood.
  std::string (*frames)(uint32_t n);
};

void PrintTo(const Flood& flood, std::ostream* to) { *to << flood.name; }

constexpr uint32_t kBatch = 1000;

const Flood kFloods[] = {
    {"CallsTakenBack", "_calls",
     [](uint32_t n) {
       std::string frames;
       for (uint32_t i = 0; i < kBatch; ++i) {
         const uint32_t stream = 2 * (n * kBatch + i) + 1;
         frames += Call(stream) + Frame(kReset, 0, stream, std::string("\0\0\0\x8", 4));
       }
       return frames;
     }},
    {"CallsWithoutMessages", "open_calls",
     [](uint32_t n) {
       std::string frames;
       for (uint32_t i = 0; n < 2 && i < kBatch; ++i) frames += Call(2 * (n * kBatch + i) + 1);
       return frames;
     }},
    {"HeadersWithoutEnd", "unexplained_bytes",
     [](uint32_t n) {
       return n == 0 ? Frame(kHeaders, 0, 1, CallHeaders())
                     : Frame(kContinuation, 0, 1, Header("x-more", std::string(100, 'x')));
     }},
    {"PingsWithoutEnd", "unexplained_bytes",
     [](uint32_t /*n*/) {
       std::string frames;
       for (uint32_t i = 0; i < kBatch; ++i) frames += Frame(kPing, 0, 0, "12345678");
       return frames;
     }},
};

class Floods : public testing::TestWithParam<Flood> {};

// A server with few calls per client, and a stream on another connection.
TEST_P(Floods, EndTheirConnectionAndNoOther) {
  LogWatch log;
  TestServerOptions options;
  options.grpc.max_concurrent_streams = 10;
  options.grpc.max_message_bytes = 1 << 20;
  TestServer server(options);
  server.engine.Pause();
  grpc::ClientContext context;
  const auto reader = server.stub().Generate(&context, TextRequest("x", 20));
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  server.engine.WaitUntilHeld();

  Flooder flooder(server.address());
  std::string frames;
  for (uint32_t n = 0; !(frames = GetParam().frames(n)).empty() && flooder.Send(frames); ++n) {
  }
  EXPECT_TRUE(flooder.WaitForEnd());
  EXPECT_TRUE(log.WaitForLine("a connection of 127.0.0.1 was ended", GetParam().rule));
  EXPECT_THAT(server.MetricsText(), HasSubstr(std::string(GetParam().rule) + "\"} 1\n"));

  server.engine.Resume();
  StreamResult rest;
  ReadRest(&context, reader.get(), &rest);
  EXPECT_TRUE(rest.status.ok()) << rest.status.error_message();
  EXPECT_EQ(rest.token_ids.size(), 20u);
  // Its address is delayed, not refused.
  EXPECT_TRUE(RunToEnd(*server.NewStub(), TextRequest("x", 2)).status.ok());
  EXPECT_TRUE(server.WaitUntilEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, Floods, testing::ValuesIn(kFloods),
                         [](const auto& info) { return std::string(info.param.name); });

// Each of two connections is within the rules, but both together hold too much.
TEST(Memory, TheLargestConnectionIsEnded) {
  LogWatch log;
  TestServerOptions options;
  options.grpc.max_held_bytes = 10 << 20;
  TestServer server(options);
  const auto calls = [](uint32_t count) {
    std::string frames;
    for (uint32_t i = 0; i < count; ++i) frames += Call(2 * i + 1);
    return frames;
  };
  Flooder few(server.address()), many(server.address());
  EXPECT_TRUE(few.Send(calls(100)));  // 32 KiB each
  (void)many.Send(calls(300));
  EXPECT_TRUE(many.WaitForEnd());
  EXPECT_TRUE(log.WaitForLine("a connection of 127.0.0.1 was ended", "the rule memory"));
  EXPECT_TRUE(few.Send(Frame(kPing, 0, 0, "12345678")));
  EXPECT_THAT(server.MetricsText(), HasSubstr("rule=\"memory\"} 1\n"));
}

// No connection alone sends enough bytes for the guard to query gRPC, and each is within the rules.
TEST(Memory, ManyConnectionsOfFewCallsAreBoundedTogether) {
  LogWatch log;
  TestServerOptions options;
  options.grpc.max_held_bytes = 10 << 20;
  TestServer server(options);
  std::string calls;
  for (uint32_t i = 0; i < 60; ++i) calls += Call(2 * i + 1);
  ASSERT_LT(calls.size(), 16u << 10);
  std::vector<std::unique_ptr<Flooder>> flooders;
  for (int i = 0; i < 40; ++i) {
    flooders.push_back(std::make_unique<Flooder>(server.address()));
    (void)flooders.back()->Send(calls);
  }
  EXPECT_TRUE(log.WaitForLine("a connection of 127.0.0.1 was ended", "the rule memory"));
  // A good client is served even from the same address.
  EXPECT_TRUE(RunToEnd(*server.NewStub(), TextRequest("x", 2)).status.ok());
}

// Connections wait for a place; connections with calls but no messages are ended and free theirs.
TEST(Memory, NewConnectionsAreReadAFewAtATime) {
  LogWatch log;
  TestServer server;
  std::string calls;
  for (uint32_t i = 0; i < 60; ++i) calls += Call(2 * i + 1);
  std::vector<std::unique_ptr<Flooder>> flooders;
  for (int i = 0; i < 40; ++i) {
    flooders.push_back(std::make_unique<Flooder>(server.address()));
    (void)flooders.back()->Send(calls);
  }
  EXPECT_TRUE(log.WaitForLine("a connection of 127.0.0.1 was ended", "the rule slow_start"));
  EXPECT_TRUE(RunToEnd(*server.NewStub(), TextRequest("x", 2)).status.ok());
}

// For all rules.
void ExpectNoneEnded(const TestServer& server) {
  for (int rule = 0; rule < kNumConnectionRules; ++rule)
    EXPECT_EQ(server.connection_metrics.ended[static_cast<size_t>(rule)], 0)
        << ConnectionRuleName(static_cast<ConnectionRule>(rule));
}

TEST(GoodClients, ManyStreamsOverOneConnectionGoOn) {
  constexpr int kStreams = 512, kTokens = 20;
  TestServer server;
  const auto stub = server.NewStub();
  server.engine.Pause();
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> readers;
  for (int i = 0; i < kStreams; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(stub->Generate(contexts.back().get(), TextRequest("x", kTokens)));
  }
  server.engine.Resume();
  for (int i = 0; i < kStreams; ++i) {
    StreamResult result;
    ReadRest(contexts[i].get(), readers[i].get(), &result);
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.token_ids.size(), kTokens);
  }
  ExpectNoneEnded(server);
}

TEST(GoodClients, ManySmallCallsOneAfterAnotherGoOn) {
  constexpr int kThreads = 8, kCalls = 1500;  // per thread
  TestServer server;
  const auto stub = server.NewStub();
  std::atomic<int> failed = 0;
  {
    std::vector<std::jthread> threads;
    threads.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < kCalls; ++i) {
          grpc::ClientContext context;
          v1::TokenizeRequest request;
          v1::TokenizeResponse response;
          request.set_text("call me");
          failed += !stub->Tokenize(&context, request, &response).ok();
        }
      });
    }
  }
  EXPECT_EQ(failed, 0);
  ExpectNoneEnded(server);
}

// All clients connect at once from one address, as after a restart behind a load balancer.
TEST(GoodClients, ManyConnectionsAtATimeAreServed) {
  constexpr int kConnections = 200;
  TestServer server;
  std::atomic<int> served = 0;
  {
    std::vector<std::jthread> threads;
    threads.reserve(kConnections);
    for (int i = 0; i < kConnections; ++i) {
      threads.emplace_back(
          [&] { served += RunToEnd(*server.NewStub(), TextRequest("x", 2)).status.ok(); });
    }
  }
  EXPECT_EQ(served, kConnections);
  ExpectNoneEnded(server);
}

// Messages of 16 MiB, back to back and in parallel; the service reads and refuses them.
TEST(GoodClients, TheLargestMessagesBackToBackGoOn) {
  constexpr int kThreads = 4, kCalls = 8;  // per thread
  TestServer server;
  const auto stub = server.NewStub();
  const v1::GenerateRequest request = TextRequest(std::string((16 << 20) - 100, 'x'), 1);
  ASSERT_LE(request.ByteSizeLong(), size_t{16} << 20);
  std::atomic<int> answered = 0;
  {
    std::vector<std::jthread> threads;
    threads.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < kCalls; ++i) {
          const grpc::StatusCode code = RunToEnd(*stub, request).status.error_code();
          answered += code == grpc::StatusCode::INVALID_ARGUMENT ||
                      code == grpc::StatusCode::RESOURCE_EXHAUSTED;
        }
      });
    }
  }
  EXPECT_EQ(answered, kThreads * kCalls);
  ExpectNoneEnded(server);
}

}  // namespace
}  // namespace hydrant
