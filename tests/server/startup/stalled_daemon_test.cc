// hydrantd with a log pipe that is not read, and with clients that send incomplete requests or read
// no answers. It serves other clients, and SIGTERM ends it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/observe/http_server.h"
#include "tests/server/daemon_process.h"
#include "tests/server/http2_frames.h"
#include "tests/server/http_get.h"
#include "tests/server/never_reads.h"
#include "tests/server/test_certificates.h"
#include "tests/server/test_server.h"
#include "tests/server/token_entry.h"
#include "tests/subprocess.h"

namespace hydrant {
namespace {

using testing::Optional;

constexpr std::chrono::seconds kPatience{60};  // it takes about 2 s

// A full pipe, for a child process to inherit.
class FullPipe {
 public:
  FullPipe() {
    EXPECT_EQ(pipe(ends_.data()), 0);
    fcntl(ends_[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends_[1], F_SETFL, O_NONBLOCK);
    const std::string bytes(4096, '.');
    while (write(ends_[1], bytes.data(), bytes.size()) > 0) {
    }
    fcntl(ends_[1], F_SETFL, 0);
  }
  ~FullPipe() {
    for (const int end : ends_) close(end);
  }
  FullPipe(const FullPipe&) = delete;
  FullPipe& operator=(const FullPipe&) = delete;

  // A command prefix that runs a program with the pipe as its stderr.
  std::vector<std::string> AsStderr() const {
    return {"/bin/sh", "-c", "exec \"$@\" 2>&" + std::to_string(ends_[1]), "sh"};
  }

 private:
  std::array<int, 2> ends_{};
};

std::vector<std::string> Joined(std::vector<std::string> one, const std::vector<std::string>& two) {
  one.insert(one.end(), two.begin(), two.end());
  return one;
}

// A free address for the daemon.
std::string FreeAddress() { return (*HttpServer::Start("127.0.0.1:0", {}))->address(); }

// hydrantd with a full pipe for its log.
class UnreadDaemon {
 public:
  explicit UnreadDaemon(const std::vector<std::string>& flags = {})
      : process_(Joined(
            pipe_.AsStderr(),
            Joined({HYDRANTD_PATH, "--model", kModel, "--device", "reference", "--threads", "1",
                    "--listen", address, "--metrics-listen", metrics, "--shutdown-timeout", "1"},
                   flags))),
        stub_(v1::Hydrant::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {}

  bool WaitUntilReady() const {
    return WaitFor([this] { return HttpGet(metrics, "/readyz").status == 200; });
  }
  v1::Hydrant::Stub& stub() { return *stub_; }
  Subprocess& process() { return process_; }
  std::optional<int> Terminate() {
    process_.Signal(SIGTERM);
    return process_.WaitUnread(kPatience);
  }

  const std::string address = FreeAddress(), metrics = FreeAddress();

 private:
  const FullPipe pipe_;
  Subprocess process_;
  const std::unique_ptr<v1::Hydrant::Stub> stub_;
};

v1::GenerateRequest SmallRequest(uint32_t tokens) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(5);
  request.mutable_stopping()->set_max_tokens(tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

TEST(FullLogPipe, HoldsNeitherRequestsNorAReloadNorTheEnd) {
  const TemporaryFolder folder;
  UnreadDaemon daemon(
      {"--auth-tokens", folder.Write("tokens.yaml", "tokens:\n" + EntryOf("acme", "secret"))});
  ASSERT_TRUE(daemon.WaitUntilReady());
  for (int i = 0; i < 3; ++i) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer secret");
    StreamResult result;
    const auto reader = daemon.stub().Generate(&context, SmallRequest(2));
    ReadRest(&context, reader.get(), &result);
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    daemon.process().Signal(SIGHUP);  // the reload logs lines as well
  }
  EXPECT_THAT(daemon.Terminate(), Optional(0));
}

TEST(FullLogPipe, DoesNotHoldAStartThatFails) {
  const FullPipe pipe;
  Subprocess process(Joined(pipe.AsStderr(), {HYDRANTD_PATH, "--model", "/no/such/model.gguf",
                                              "--listen", "127.0.0.1:0"}));
  EXPECT_THAT(process.WaitUnread(kPatience), Optional(1));
}

TEST(StalledClients, DoNotHoldTheEnd) {
  UnreadDaemon daemon;
  ASSERT_TRUE(daemon.WaitUntilReady());
  std::vector<int> clients;
  const auto connect = [&](const std::string& address, const std::string& bytes) {
    clients.push_back(ConnectTo(address));
    EXPECT_EQ(send(clients.back(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
  };
  connect(daemon.address, "");
  connect(daemon.address, http2::Hello().substr(0, 10));
  connect(daemon.address, http2::Hello());
  connect(daemon.address, http2::Hello() + http2::Call(1));
  connect(daemon.address, http2::Hello() + http2::Call(1) +
                              http2::Frame(http2::kData, 0, 1, std::string("\0\0\0\1\0half", 9)));
  connect(daemon.metrics, "");
  connect(daemon.metrics, "GET /metrics HT");
  const NeverReads unread(daemon.address, "/hydrant.v1.Hydrant/Generate",
                          SmallRequest(480).SerializeAsString(), 1024);
  EXPECT_TRUE(WaitFor([&] {
    const std::string metrics = HttpGet(daemon.metrics, "/metrics").body;
    return !metrics.empty() && metrics.find("hydrant_generation_tokens_total 0\n") == metrics.npos;
  })) << "a request whose answer is not read does not run";
  EXPECT_THAT(daemon.Terminate(), Optional(0));
  for (const int fd : clients) close(fd);
}

}  // namespace
}  // namespace hydrant
