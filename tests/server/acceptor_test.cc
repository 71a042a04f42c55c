// The sockets that listen, and the thread that accepts from them when descriptors run out.
#include "server/acceptor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <string>
#include <vector>

#include "tests/server/http_get.h"
#include "tests/server/log_watch.h"

namespace hydrant {
namespace {

using testing::HasSubstr;

ListeningSockets Open(const std::string& listen) {
  absl::StatusOr<ListeningSockets> sockets = ListeningSockets::Open(listen);
  EXPECT_TRUE(sockets.ok()) << sockets.status();
  return *std::move(sockets);
}

std::string AddressOf(const ListeningSockets& sockets) {
  return "127.0.0.1:" + std::to_string(sockets.port());
}

class Counted {
 public:
  std::function<void(int)> Take() {
    return [this](int fd) {
      close(fd);
      ++taken_;
    };
  }
  int taken() const { return taken_; }

 private:
  std::atomic<int> taken_{0};
};

// The process may open nothing while this lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = 3;
    setrlimit(RLIMIT_NOFILE, &few);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

TEST(Acceptor, GoesOnWhenThereAreDescriptorsAgain) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP()
      << "the sanitizer reads a vptr through a pipe, and calls it broken without descriptors";
#endif
  LogWatch log;
  Counted counted;
  ListeningSockets sockets = Open("127.0.0.1:0");
  const std::string address = AddressOf(sockets);
  Acceptor acceptor(std::move(sockets), INT_MAX, counted.Take());
  const int first = ConnectTo(address), second = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_TRUE(WaitFor([&] { return counted.taken() == 1; }));
  {
    const NoDescriptors none;
    EXPECT_TRUE(Connect(second, address));
    EXPECT_TRUE(log.WaitForLine("cannot accept connections", "Too many open files"));
    EXPECT_EQ(counted.taken(), 1);
  }
  EXPECT_TRUE(WaitFor([&] { return counted.taken() == 2; }));
  close(first);
  close(second);
}

TEST(Acceptor, RefusesWhatWouldUseTheLastDescriptors) {
  LogWatch log;
  Counted counted;
  ListeningSockets sockets = Open("127.0.0.1:0");
  const std::string address = AddressOf(sockets);
  Acceptor acceptor(std::move(sockets), /*max_descriptors=*/3, counted.Take());
  const int client = ConnectTo(address);
  char byte;
  EXPECT_LE(recv(client, &byte, 1, 0), 0) << "the connection is open";
  EXPECT_TRUE(log.WaitForLine("a connection was refused", "3 descriptors are open"));
  EXPECT_EQ(counted.taken(), 0);
  close(client);
}

TEST(ListeningSockets, SaysWhatIsWrongWithAnAddress) {
  for (const char* bad : {"", "localhost", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536",
                          "127.0.0.1:99999", ":-1", "127.0.0.1:4294967297"}) {
    const absl::Status status = ListeningSockets::Open(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("a port from 0 to 65535")) << bad;
  }
  const ListeningSockets taken = Open("127.0.0.1:0");
  EXPECT_EQ(
      ListeningSockets::Open(AddressOf(taken)).status(),
      absl::UnavailableError("cannot listen on " + AddressOf(taken) + ": Address already in use"));
}

TEST(ListeningSockets, EveryAddressIsReachedAndTakenOnce) {
  for (const char* every : {"0.0.0.0:0", "[::]:0", ":0"}) {
    const ListeningSockets sockets = Open(every);
    const int client = ConnectTo(AddressOf(sockets));
    EXPECT_GE(client, 0) << every;
    close(client);
    EXPECT_FALSE(ListeningSockets::Open(AddressOf(sockets)).ok()) << every;
  }
}

TEST(ListeningSockets, AUnixSocketsFileGoesWithIt) {
  const std::string path = testing::TempDir() + "/hydrant_acceptor_" + std::to_string(getpid());
  {
    const ListeningSockets sockets = Open("unix:" + path);
    EXPECT_EQ(access(path.c_str(), F_OK), 0);
    EXPECT_EQ(ListeningSockets::Open("unix:" + path).status().code(),
              absl::StatusCode::kUnavailable);
    EXPECT_EQ(access(path.c_str(), F_OK), 0) << "the second one has taken it away";
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0);
  EXPECT_FALSE(ListeningSockets::Open("unix:" + std::string(200, 'x')).ok());
}

}  // namespace
}  // namespace hydrant
