// The watch's verdict on ports that do not answer, refuse, and answer again; and the
// resulting health.
#include "server/net/port_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <optional>
#include <string_view>
#include <vector>

#include "server/net/acceptor.h"
#include "server/observe/health.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using testing::StartsWith;
constexpr std::string_view kEmptySettings("\0\0\0\4\0\0\0\0\0", 9);

// A port that handles connections as the test says.
class Port {
 public:
  Port() : sockets_(*ListeningSockets::Open("127.0.0.1:0")), address_(sockets_->LocalAddress()) {}
  ~Port() {
    acceptor_.reset();
    for (const int fd : taken_) close(fd);
  }
  // Before it connections wait in the kernel, as for a listener that has stopped accepting.
  void Accept() {
    acceptor_.emplace(*std::move(sockets_), INT_MAX, [this](int fd) {
      if (!answers) {
        close(fd);
        return;
      }
      (void)!send(fd, kEmptySettings.data(), kEmptySettings.size(), MSG_NOSIGNAL);
      taken_.push_back(fd);
    });
  }
  const ListeningSockets::Address& address() const { return address_; }
  std::atomic<bool> answers{false};  // otherwise it closes them

 private:
  std::optional<ListeningSockets> sockets_;
  const ListeningSockets::Address address_;
  std::vector<int> taken_;
  std::optional<Acceptor> acceptor_;
};

constexpr PortProbe::Options kQuick{.interval = std::chrono::milliseconds(1),
                                    .timeout = std::chrono::milliseconds(50),
                                    .silent_after = 2};

TEST(PortProbe, TellsSilenceFromRefusalFromAnAnswer) {
  spdlog::set_level(spdlog::level::off);
  Port port;
  const PortProbe watch(port.address(), kQuick);
  EXPECT_EQ(watch.state(), PortState::kAnswers);
  EXPECT_TRUE(WaitFor([&] { return watch.state() == PortState::kSilent; }));
  port.Accept();
  EXPECT_TRUE(WaitFor([&] { return watch.state() == PortState::kRefuses; }));
  port.answers = true;
  EXPECT_TRUE(WaitFor([&] { return watch.state() == PortState::kAnswers; }));
}

// gRPC sends the first frame, not this test.
TEST(PortProbe, AServersPortAnswers) {
  const TestServer server;
  const auto silent = ListeningSockets::Open("127.0.0.1:0");
  const PortProbe other(silent->LocalAddress(), kQuick);
  const PortProbe watch(server.server->LocalAddress(), {.interval = std::chrono::milliseconds(1)});
  EXPECT_TRUE(WaitFor([&] { return other.state() == PortState::kSilent; }));
  EXPECT_EQ(watch.state(), PortState::kAnswers);
}

TEST(Health, KnowsThePort) {
  const TestServer server;
  const auto judge = [&](PortState port) {
    return JudgeHealth(server.service->Current(), 0, 1'000'000, port);
  };
  const Health good = judge(PortState::kAnswers), full = judge(PortState::kRefuses),
               deaf = judge(PortState::kSilent);
  EXPECT_TRUE(good.live && good.ready && good.serves);
  EXPECT_TRUE(full.live && !full.ready && full.serves);
  EXPECT_THAT(full.why, StartsWith("full: "));
  EXPECT_TRUE(!deaf.live && !deaf.ready && !deaf.serves);
  EXPECT_THAT(deaf.why, StartsWith("deaf: "));
}

}  // namespace
}  // namespace hydrant
