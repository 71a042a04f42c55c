// The listening sockets, and the accepting thread without free descriptors.
#include "server/net/acceptor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/sanitized.h"
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

// Keeps the process from opening descriptors during its lifetime.
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

TEST(Acceptor, ContinuesWhenDescriptorsAreFreeAgain) {
  if (kAddressSanitizer) {
    GTEST_SKIP()
        << "the sanitizer reads a vptr through a pipe, and calls it broken without descriptors";
  }
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

TEST(Acceptor, RefusesConnectionsThatWouldUseTheReserve) {
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

TEST(ListeningSockets, ErrorsNameTheAddress) {
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

// Opens a unix socket at a path where a file, a link or another socket may be.
class SocketPath : public testing::Test {
 protected:
  SocketPath() : path_(testing::TempDir() + "/hydrant_socket_" + std::to_string(getpid())) {}
  ~SocketPath() override {
    std::filesystem::remove_all(path_);
    std::filesystem::remove_all(path_ + ".moved");
  }

  std::string Refusal() const {
    const absl::StatusOr<ListeningSockets> sockets = ListeningSockets::Open("unix:" + path_);
    EXPECT_EQ(sockets.status().code(), absl::StatusCode::kUnavailable) << sockets.status();
    return std::string(sockets.status().message());
  }
  sockaddr_un Address() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    return address;
  }
  // A socket of another process: bound, and perhaps listening for one connection.
  int Bind(int type, bool listens) const {
    const sockaddr_un address = Address();
    const int fd = socket(AF_UNIX, type, 0);
    EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_TRUE(!listens || listen(fd, 0) == 0);
    return fd;
  }
  int Connect() const {
    const sockaddr_un address = Address();
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }

  const std::string path_;
};

TEST_F(SocketPath, OfAnythingElseIsLeftAsItIs) {
  namespace fs = std::filesystem;
  std::ofstream(path_) << "a thesis";
  EXPECT_EQ(Refusal(), "cannot listen on unix:" + path_ +
                           ": the path is of a regular file, which is left as it is: move it away, "
                           "or name another path");
  EXPECT_EQ(fs::file_size(path_), 8u);
  fs::rename(path_, path_ + ".moved");

  fs::create_symlink(path_ + ".moved", path_);
  EXPECT_THAT(Refusal(), HasSubstr("is of a link"));
  EXPECT_EQ(fs::read_symlink(path_), path_ + ".moved");
  fs::remove(path_);

  fs::create_directory(path_);
  EXPECT_THAT(Refusal(), HasSubstr("is of a folder"));
  fs::remove(path_);

  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(Refusal(), HasSubstr("is of a pipe"));
  EXPECT_TRUE(fs::is_fifo(path_));
}

TEST_F(SocketPath, OfASocketThatAProcessUsesIsLeftAsItIs) {
  const int datagrams = Bind(SOCK_DGRAM, false);
  EXPECT_THAT(Refusal(), HasSubstr("a socket is there that another process may use"));
  close(datagrams);
  unlink(path_.c_str());

  // The backlog of this socket is full: the check must not block.
  const int busy = Bind(SOCK_STREAM, true);
  const int first = Connect();
  EXPECT_THAT(Refusal(), HasSubstr("another process listens there"));
  EXPECT_THAT(Refusal(), HasSubstr("another process listens there"));
  close(first);
  close(busy);
  EXPECT_TRUE(std::filesystem::is_socket(path_));
}

TEST_F(SocketPath, OfAKilledServersSocketIsTaken) {
  close(Bind(SOCK_STREAM, true));
  const ListeningSockets sockets = Open("unix:" + path_);
  close(Connect());
}

// A file that another process has created at the path meanwhile is kept.
TEST_F(SocketPath, IsNotRemovedInTheEndWhereItIsAnothers) {
  {
    const ListeningSockets first = Open("unix:" + path_);
    std::filesystem::remove(path_);
    std::ofstream(path_) << "another's";
  }
  EXPECT_TRUE(std::filesystem::is_regular_file(path_));
}

// All servers start at the same moment over the socket file of a killed server.
TEST_F(SocketPath, IsTakenByOneOfManyServers) {
  constexpr int kServers = 8;
  for (int round = 0; round < 20; ++round) {
    close(Bind(SOCK_STREAM, true));
    std::vector<std::optional<ListeningSockets>> servers(kServers);
    {
      std::vector<std::jthread> threads;
      threads.reserve(kServers);
      for (auto& server : servers) {
        threads.emplace_back([this, &server] {
          absl::StatusOr<ListeningSockets> sockets = ListeningSockets::Open("unix:" + path_);
          if (sockets.ok()) server.emplace(*std::move(sockets));
        });
      }
    }
    EXPECT_EQ(std::ranges::count_if(servers, [](const auto& server) { return server.has_value(); }),
              1);
    EXPECT_TRUE(std::filesystem::is_socket(path_));
  }
}

}  // namespace
}  // namespace hydrant
