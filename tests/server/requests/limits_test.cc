// Limits of a port for its clients: connections, streams, headers. Checked on the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "tests/server/http_get.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using grpc::StatusCode;

// A client's preface and an empty SETTINGS frame (RFC 9113, section 3.4).
constexpr std::string_view kHello("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
constexpr uint16_t kMaxConcurrentStreams = 3, kMaxHeaderListSize = 6;  // section 6.5.2

class Raw {
 public:
  explicit Raw(const std::string& address) : fd_(ConnectTo(address)) {
    (void)!send(fd_, kHello.data(), kHello.size(), MSG_NOSIGNAL);
  }
  ~Raw() { close(fd_); }
  Raw(const Raw&) = delete;
  Raw& operator=(const Raw&) = delete;

  // The server's first frame; empty if it closes the connection instead.
  std::map<uint16_t, uint32_t> Settings() const {
    std::array<uint8_t, 9> header;
    if (!Read(header.data(), header.size())) return {};
    EXPECT_EQ(header[3], 4) << "SETTINGS";
    std::string payload(header[0] << 16 | header[1] << 8 | header[2], '\0');
    EXPECT_TRUE(Read(payload.data(), payload.size()));
    std::map<uint16_t, uint32_t> settings;
    for (size_t i = 0; i + 6 <= payload.size(); i += 6) {
      const auto at = [&](size_t k) { return static_cast<uint8_t>(payload[i + k]); };
      settings[static_cast<uint16_t>(at(0) << 8 | at(1))] =
          static_cast<uint32_t>(at(2)) << 24 | at(3) << 16 | at(4) << 8 | at(5);
    }
    return settings;
  }

 private:
  bool Read(void* to, size_t size) const {
    return recv(fd_, to, size, MSG_WAITALL) == static_cast<ssize_t>(size);
  }
  const int fd_;
};

TEST(Limits, AreReported) {
  TestServerOptions options;
  options.grpc.max_concurrent_streams = 7;
  options.grpc.max_metadata_bytes = 5000;
  TestServer server(options);
  const auto settings = Raw(server.address()).Settings();
  EXPECT_EQ(settings.at(kMaxConcurrentStreams), 7u);
  EXPECT_EQ(settings.at(kMaxHeaderListSize), 5000u);
}

TEST(Limits, LongHeadersEndTheCall) {
  TestServerOptions options;
  options.grpc.max_metadata_bytes = 5000;
  TestServer server(options);
  const auto ask = [&](size_t bytes) {
    grpc::ClientContext context;
    context.AddMetadata("x-long", std::string(bytes, 'x'));
    return RunToEnd(server.stub(), TextRequest("x", 2), &context).status.error_code();
  };
  EXPECT_EQ(ask(3000), StatusCode::OK);
  EXPECT_EQ(ask(6000), StatusCode::RESOURCE_EXHAUSTED);
  // gRPC may close the connection as well; the next call may find it closing.
  EXPECT_TRUE(WaitFor([&] { return ask(3000) == StatusCode::OK; }));
}

// A closed connection makes room for another.
TEST(Limits, SoManyConnectionsAndNoMore) {
  TestServerOptions options;
  options.grpc.max_connections = 2;
  options.log_level = spdlog::level::off;
  TestServer server(options);
  for (int round = 0; round < 3; ++round) {
    const auto taken = [&](std::unique_ptr<Raw>* connection) {
      *connection = std::make_unique<Raw>(server.address());
      return !(*connection)->Settings().empty();
    };
    std::unique_ptr<Raw> one, two;
    ASSERT_TRUE(WaitFor([&] { return taken(&one); })) << "those of the round before go first";
    ASSERT_TRUE(WaitFor([&] { return taken(&two); }));
    EXPECT_TRUE(Raw(server.address()).Settings().empty()) << "a third";
    two.reset();
    // After the server has noticed the close.
    EXPECT_TRUE(WaitFor([&] { return !Raw(server.address()).Settings().empty(); }));
    EXPECT_TRUE(WaitFor([&] { return !Raw(server.address()).Settings().empty(); }))
        << "nor does that one stay";
  }
}

}  // namespace
}  // namespace hydrant
