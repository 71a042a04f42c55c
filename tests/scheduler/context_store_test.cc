// Stores of contexts: a folder and a real Redis give the same guarantees, and their failures are
// reported by name and promptly.
#include "scheduler/store/context_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "tests/fake_redis.h"
#include "tests/redis_server.h"
#include "tests/sanitized.h"
#include "tests/store_folder.h"

namespace hydrant {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::chrono::milliseconds kImpatient{300};
constexpr std::chrono::milliseconds kPatient{60'000};

// As in the daemon: a connection closed by the peer is a write error, not the end of the process.
[[maybe_unused]] const auto kIgnored = signal(SIGPIPE, SIG_IGN);

// A store with the same time limit for all calls.
class Patiently {
 public:
  Patiently(std::unique_ptr<ContextStore> store, std::chrono::milliseconds patience)
      : store_(std::move(store)), patience_(patience) {}
  absl::Status Put(std::string_view key, std::string_view value, std::optional<int64_t> ttl) {
    return store_->Put(key, value, ttl, Deadline());
  }
  absl::StatusOr<std::string> Get(std::string_view key, size_t max_bytes = size_t{1} << 30) {
    return store_->Get(key, max_bytes, Deadline());
  }
  absl::StatusOr<int64_t> SizeOf(std::string_view key) { return store_->SizeOf(key, Deadline()); }
  absl::StatusOr<bool> Delete(std::string_view key) { return store_->Delete(key, Deadline()); }
  absl::StatusOr<std::vector<StoredKey>> List(std::string_view prefix) {
    return store_->List(prefix, Deadline());
  }
  std::string Description() const { return store_->Description(); }

 private:
  StoreDeadline Deadline() const { return StoreWait::For(patience_).deadline; }

  const std::unique_ptr<ContextStore> store_;
  const std::chrono::milliseconds patience_;
};

std::unique_ptr<Patiently> Open(const std::string& uri,
                                std::chrono::milliseconds patience = kPatient,
                                const ContextStoreOptions& options = {}) {
  auto store = OpenContextStore(uri, options);
  EXPECT_TRUE(store.ok()) << uri << ": " << store.status();
  return std::make_unique<Patiently>(*std::move(store), patience);
}

StatusCode CodeOf(const absl::Status& status) { return status.code(); }
template <typename T>
StatusCode CodeOf(const absl::StatusOr<T>& value) {
  return value.status().code();
}
template <typename T>
std::string MessageOf(const T& status) {
  if constexpr (std::is_same_v<T, absl::Status>) {
    return std::string(status.message());
  } else {
    return std::string(status.status().message());
  }
}

std::string RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::string KeysOf(const absl::StatusOr<std::vector<StoredKey>>& list) {
  std::string keys = list.ok() ? "" : list.status().ToString();
  for (const StoredKey& stored : list.value_or(std::vector<StoredKey>()))
    keys += stored.key + ":" + std::to_string(stored.bytes) + " ";
  return keys;
}

// ---- Every store.

class EveryStore : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() == std::string("dir")) return;
    HYDRANT_SKIP_WITHOUT_REDIS();
    redis_ = std::make_unique<RedisServer>();
  }
  // Opens the same store again, as another replica would.
  std::unique_ptr<Patiently> OpenIt() const {
    return Open(redis_ == nullptr ? folder_.uri() : redis_->uri() + "?prefix=a*%5B:");
  }

  StoreFolder folder_;
  std::unique_ptr<RedisServer> redis_;
};

INSTANTIATE_TEST_SUITE_P(Stores, EveryStore, testing::Values("dir", "redis"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(EveryStore, ReturnsStoredValues) {
  const auto store = OpenIt();
  EXPECT_EQ(CodeOf(store->Get("a")), StatusCode::kNotFound);
  uint64_t seed = 1;
  for (const size_t size : {0u, 1u, 100u, 4096u, 5'000'000u}) {
    const std::string value = RandomBytes(size, seed++);
    ASSERT_TRUE(store->Put("a", value, std::nullopt).ok());
    const auto got = store->Get("a");
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(*got == value) << size;
  }
  EXPECT_EQ(KeysOf(store->List("")), "a:5000000 ");
  EXPECT_EQ(store->SizeOf("a").value(), 5'000'000);
  EXPECT_EQ(CodeOf(store->Get("a", 4'999'999)), StatusCode::kResourceExhausted);
  EXPECT_EQ(store->Get("a", 5'000'000)->size(), 5'000'000u);
  EXPECT_TRUE(store->Delete("a").value());
  EXPECT_FALSE(store->Delete("a").value()) << "again";
  EXPECT_EQ(CodeOf(store->Get("a")), StatusCode::kNotFound);
  EXPECT_EQ(CodeOf(store->SizeOf("a")), StatusCode::kNotFound);
  ASSERT_TRUE(store->Put("empty", "", std::nullopt).ok());
  EXPECT_EQ(store->SizeOf("empty").value(), 0);
  EXPECT_TRUE(store->Delete("empty").value());
  EXPECT_EQ(KeysOf(store->List("")), "");
}

TEST_P(EveryStore, ListsByPrefix) {
  const auto store = OpenIt();
  for (const std::string key : {"b.2", "a.1", "b.10", "b", "c-d_e"})
    ASSERT_TRUE(store->Put(key, key, std::nullopt).ok());
  EXPECT_EQ(KeysOf(store->List("")), "a.1:3 b:1 b.10:4 b.2:3 c-d_e:5 ");
  EXPECT_EQ(KeysOf(store->List("b.")), "b.10:4 b.2:3 ");
  EXPECT_EQ(KeysOf(store->List("x")), "");
  for (int i = 0; i < 2500; ++i)
    ASSERT_TRUE(store->Put("many." + std::to_string(i), "x", std::nullopt).ok());
  EXPECT_EQ(store->List("many.").value().size(), 2500u);
}

TEST_P(EveryStore, IsSharedByReplicas) {
  const auto one = OpenIt(), other = OpenIt();
  ASSERT_TRUE(one->Put("a", "from one", std::nullopt).ok());
  EXPECT_EQ(other->Get("a").value(), "from one");
  ASSERT_TRUE(other->Put("a", "from the other", std::nullopt).ok());
  EXPECT_EQ(one->Get("a").value(), "from the other");
  ASSERT_TRUE(other->Delete("a").ok());
  EXPECT_EQ(CodeOf(one->Get("a")), StatusCode::kNotFound);
}

TEST_P(EveryStore, ForgetsAtItsTime) {
  const auto store = OpenIt();
  // A folder's time to live counts whole seconds; this sleep is longer than one.
  ASSERT_TRUE(store->Put("short", "x", 2).ok());
  ASSERT_TRUE(store->Put("long", "y", 1000).ok());
  ASSERT_TRUE(store->Put("renewed", "z", 2).ok());
  ASSERT_TRUE(store->Put("renewed", "z", std::nullopt).ok());
  EXPECT_EQ(store->Get("short").value(), "x");
  std::this_thread::sleep_for(std::chrono::milliseconds(3100));
  EXPECT_EQ(CodeOf(store->Get("short")), StatusCode::kNotFound);
  EXPECT_EQ(KeysOf(store->List("")), "long:1 renewed:1 ");
}

TEST_P(EveryStore, ReadersSeeWholeValues) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (const char letter : {'a', 'b'}) {
    writers.emplace_back([this, letter, &stop] {
      const auto store = OpenIt();
      for (size_t size = 1000; !stop; size = size * 7 % 200'003)
        EXPECT_TRUE(store->Put("key", std::string(size, letter), std::nullopt).ok());
    });
  }
  const auto store = OpenIt();
  int seen = 0;
  for (int i = 0; i < 300; ++i) {
    const auto value = store->Get("key");
    if (!value.ok()) {
      EXPECT_EQ(CodeOf(value), StatusCode::kNotFound) << value.status();
      continue;
    }
    ++seen;
    EXPECT_EQ(value->find_first_not_of(value->empty() ? '-' : value->front()), std::string::npos);
  }
  while (seen == 0) seen += store->Get("key").ok();
  stop = true;
  for (std::thread& writer : writers) writer.join();
}

TEST_P(EveryStore, RefusesKeysThatAreNone) {
  const auto store = OpenIt();
  for (const std::string& key : {std::string(), std::string(".a"), std::string("a/b"),
                                 std::string("../a"), std::string("a b"), std::string(201, 'a'),
                                 std::string("a\0b", 3), std::string("\xC3\xA4")}) {
    EXPECT_EQ(CodeOf(store->Put(key, "x", std::nullopt)), StatusCode::kInvalidArgument) << key;
    EXPECT_EQ(CodeOf(store->Get(key)), StatusCode::kInvalidArgument) << key;
    EXPECT_EQ(CodeOf(store->Delete(key)), StatusCode::kInvalidArgument) << key;
    EXPECT_EQ(CodeOf(store->SizeOf(key)), StatusCode::kInvalidArgument) << key;
  }
  EXPECT_TRUE(store->Put(std::string(200, 'a'), "x", std::nullopt).ok());
}

// ---- A folder.

TEST(DirectoryStore, IsMadeAndLeavesOthersFilesAlone) {
  const StoreFolder folder;
  std::ofstream(folder.path() + "/notes.txt") << "mine";
  std::ofstream(folder.path() + "/.hidden.context") << "mine";
  const auto store = Open(folder.uri());
  ASSERT_TRUE(store->Put("a", "x", std::nullopt).ok());
  EXPECT_EQ(KeysOf(store->List("")), "a:1 ");
  EXPECT_THAT(folder.Names(), testing::ElementsAre(".hidden.context", "a.context", "notes.txt"));
  const auto inner = Open(folder.uri() + "/made");
  struct stat status = {};
  ASSERT_EQ(stat((folder.path() + "/made").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u) << "contexts are read by their owner alone";
}

TEST(DirectoryStore, RemovesOldLeftoversOfACrash) {
  const StoreFolder folder;
  for (const char* name : {".saving-1-0", ".saving-2-0"})
    std::ofstream(folder.path() + "/" + name) << "a part";
  std::filesystem::last_write_time(
      folder.path() + "/.saving-1-0",
      std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
  const auto store = Open(folder.uri());
  EXPECT_THAT(folder.Names(), testing::ElementsAre(".saving-2-0")) << "it may be somebody's";
}

TEST(DirectoryStore, NamesDamagedFilesAndGoesOn) {
  const StoreFolder folder;
  const auto store = Open(folder.uri());
  const std::string value = RandomBytes(1000, 1);
  for (const std::string key : {"whole", "cut", "longer", "no-header", "foreign"})
    ASSERT_TRUE(store->Put(key, value, std::nullopt).ok());
  std::filesystem::resize_file(folder.path() + "/cut.context", 500);
  std::filesystem::resize_file(folder.path() + "/longer.context", 5000);
  std::filesystem::resize_file(folder.path() + "/no-header.context", 5);
  std::ofstream(folder.path() + "/foreign.context") << std::string(2000, 'x');
  for (const std::string key : {"cut", "longer", "no-header", "foreign"}) {
    const auto got = store->Get(key);
    EXPECT_EQ(CodeOf(got), StatusCode::kDataLoss) << key;
    EXPECT_THAT(MessageOf(got), AllOf(HasSubstr(key + ".context"), HasSubstr("delete it")));
  }
  EXPECT_EQ(KeysOf(store->List("")), "whole:1000 ");
  EXPECT_TRUE(*store->Get("whole") == value);
  EXPECT_TRUE(store->Put("cut", value, std::nullopt).ok()) << "it is replaced";
  EXPECT_TRUE(*store->Get("cut") == value);
}

// Files of other programs at the path of a value.
TEST(DirectoryStore, HostileFilesHoldNothingAndTakeNoMemory) {
  const StoreFolder folder;
  const auto store = Open(folder.uri());
  const std::string value = RandomBytes(1000, 1);
  const auto path = [&](const std::string& key) { return folder.path() + "/" + key + ".context"; };
  // A sparse file of 1 TiB with a matching header; it takes one block of the disk.
  ASSERT_TRUE(store->Put("sparse", value, std::nullopt).ok());
  const int64_t terabyte = int64_t{1} << 40;
  {
    std::fstream file(path("sparse"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(16);
    file.write(reinterpret_cast<const char*>(&terabyte), sizeof(terabyte));
  }
  std::filesystem::resize_file(path("sparse"), terabyte + 24);
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/zero", path("device"));
  std::filesystem::create_directory(path("folder"));
  std::filesystem::create_symlink(path("loop"), path("loop"));
  ASSERT_TRUE(store->Put("whole", value, std::nullopt).ok());

  const auto large = store->Get("sparse", 1 << 20);
  EXPECT_EQ(CodeOf(large), StatusCode::kResourceExhausted);
  EXPECT_THAT(MessageOf(large), HasSubstr("has 1099511627776 bytes"));
  for (const std::string key : {"pipe", "device", "folder", "loop"}) {
    EXPECT_EQ(CodeOf(store->Get(key)), StatusCode::kDataLoss) << key << store->Get(key).status();
    EXPECT_EQ(CodeOf(store->SizeOf(key)), StatusCode::kDataLoss) << key;
  }
  EXPECT_EQ(KeysOf(store->List("")), "sparse:1099511627776 whole:1000 ");
  for (const std::string key : {"sparse", "pipe", "device", "loop"})
    EXPECT_TRUE(store->Delete(key).value()) << key;
  EXPECT_TRUE(*store->Get("whole") == value);
}

TEST(DirectoryStore, NothingIsWrittenAfterTheDeadline) {
  const StoreFolder folder;
  auto store = OpenContextStore(folder.uri(), {});
  ASSERT_TRUE(store.ok());
  const absl::Status status =
      (*store)->Put("a", "x", std::nullopt, StoreWait::For(std::chrono::milliseconds(-1)).deadline);
  EXPECT_EQ(CodeOf(status), StatusCode::kUnavailable) << status;
  EXPECT_THAT(folder.Names(), testing::IsEmpty());
}

TEST(DirectoryStore, TheLeastRecentlyUsedLeaveAtItsBound) {
  const StoreFolder folder;
  const auto store = Open(folder.uri(), kPatient, {.max_bytes = 3500});
  const auto age = [&](const char* key, int hours) {
    std::filesystem::last_write_time(
        folder.path() + "/" + key + ".context",
        std::filesystem::file_time_type::clock::now() - std::chrono::hours(hours));
  };
  int hours = 10;
  for (const char* key : {"a", "b", "c"}) {
    ASSERT_TRUE(store->Put(key, std::string(1000, 'x'), std::nullopt).ok());
    age(key, hours--);
  }
  ASSERT_TRUE(store->Get("a").ok());
  ASSERT_TRUE(store->Put("d", std::string(1000, 'x'), std::nullopt).ok());
  EXPECT_EQ(KeysOf(store->List("")), "a:1000 c:1000 d:1000 ");
  const absl::Status status = store->Put("e", std::string(4000, 'x'), std::nullopt);
  EXPECT_EQ(CodeOf(status), StatusCode::kResourceExhausted);
  EXPECT_THAT(MessageOf(status), HasSubstr("may hold 3500 bytes"));
  EXPECT_EQ(KeysOf(store->List("")), "a:1000 c:1000 d:1000 ");
}

TEST(DirectoryStore, PlacesThatCannotBeUsedAreSaidAtOnce) {
  const StoreFolder folder;
  std::ofstream(folder.path() + "/file") << "x";
  for (const std::string& path :
       {folder.path() + "/file", folder.path() + "/no/such", std::string("/proc/self")}) {
    const auto store = OpenContextStore("dir:" + path, {});
    EXPECT_FALSE(store.ok()) << path;
    EXPECT_THAT(MessageOf(store), HasSubstr(path));
  }
}

// On a full disk the old value stays, and no part of the new value is left.
TEST(DirectoryStore, AFullDiskCostsTheSavingAlone) {
  const StoreFolder folder;
  const auto store = Open(folder.uri());
  ASSERT_TRUE(store->Put("a", "old", std::nullopt).ok());
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {.rlim_cur = 10'000, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = store->Put("a", std::string(100'000, 'x'), std::nullopt);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(CodeOf(status), StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(store->Get("a").value(), "old");
  EXPECT_THAT(folder.Names(), testing::ElementsAre("a.context"));
  EXPECT_TRUE(store->Put("a", std::string(100'000, 'x'), std::nullopt).ok());
}

TEST(DirectoryStore, AFolderThatVanishesIsAnError) {
  auto folder = std::make_unique<StoreFolder>();
  const auto store = Open(folder->uri());
  folder.reset();
  EXPECT_FALSE(store->Put("a", "x", std::nullopt).ok());
  EXPECT_EQ(CodeOf(store->Get("a")), StatusCode::kNotFound);
  EXPECT_FALSE(store->Delete("a").value());
  EXPECT_EQ(KeysOf(store->List("")), "");
}

// ---- A Redis.

TEST(RedisStore, IsFoundAgainAfterItWasGone) {
  HYDRANT_SKIP_WITHOUT_REDIS();
  RedisServer redis;
  const auto store = Open(redis.uri(), kImpatient);
  ASSERT_TRUE(store->Put("a", "x", std::nullopt).ok());
  redis.Stop();
  EXPECT_EQ(CodeOf(store->Put("a", "y", std::nullopt)), StatusCode::kUnavailable);
  EXPECT_EQ(CodeOf(store->Get("a")), StatusCode::kUnavailable) << "while no connection is tried";
  EXPECT_THAT(MessageOf(store->List("")), HasSubstr("the Redis at " + redis.socket()));
  redis.Start();
  EXPECT_EQ(CodeOf(store->Get("a")), StatusCode::kNotFound);
  ASSERT_TRUE(store->Put("a", "z", std::nullopt).ok());
  redis.Stop();
  redis.Start();
  EXPECT_TRUE(store->Put("a", "z", std::nullopt).ok()) << "an idle connection that was closed";
}

TEST(RedisStore, AHangingServerTimesOut) {
  HYDRANT_SKIP_WITHOUT_REDIS();
  RedisServer redis;
  const auto store = Open(redis.uri(), kImpatient);
  ASSERT_TRUE(store->Put("a", "x", std::nullopt).ok());
  redis.Signal(SIGSTOP);
  EXPECT_EQ(CodeOf(store->Get("a")), StatusCode::kUnavailable);
  EXPECT_EQ(CodeOf(store->Put("a", std::string(3 << 20, 'x'), std::nullopt)),
            StatusCode::kUnavailable)
      << "more than fits into a socket";
  redis.Signal(SIGCONT);
  EXPECT_EQ(store->Get("a").value(), "x") << "not the answer to another question";
}

TEST(RedisStore, FullOne) {
  HYDRANT_SKIP_WITHOUT_REDIS();
  const RedisServer redis({"--maxmemory", "3mb", "--maxmemory-policy", "noeviction"});
  const auto store = Open(redis.uri());
  absl::Status status;
  for (int i = 0; i < 10 && status.ok(); ++i)
    status = store->Put("a" + std::to_string(i), std::string(1 << 20, 'x'), std::nullopt);
  EXPECT_EQ(CodeOf(status), StatusCode::kResourceExhausted) << status;
}

TEST(RedisStore, PasswordsAndDatabases) {
  HYDRANT_SKIP_WITHOUT_REDIS();
  const RedisServer redis({"--requirepass", "s3cret@1", "--port", "0"});
  const absl::Status status = Open(redis.uri())->Put("a", "x", std::nullopt);
  EXPECT_EQ(CodeOf(status), StatusCode::kPermissionDenied);
  EXPECT_THAT(MessageOf(status), HasSubstr("NOAUTH"));
}

// A port that was free a moment ago.
std::string FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in any = {};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(any);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&any), size), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&any), &size);
  close(fd);
  return std::to_string(ntohs(any.sin_port));
}

// Redis repeats the arguments of a command that it does not know.
TEST(RedisStore, APasswordIsInNoErrorWhereAuthIsRenamed) {
  HYDRANT_SKIP_WITHOUT_REDIS();
  const std::string port = FreePort();
  const RedisServer redis({"--port", port, "--bind", "127.0.0.1", "--rename-command", "AUTH", "x"});
  const auto got = Open("redis://:s3cret@127.0.0.1:" + port)->Get("a");
  EXPECT_FALSE(got.ok());
  EXPECT_THAT(MessageOf(got), AllOf(HasSubstr("unknown command"), Not(HasSubstr("s3cret"))));
}

TEST(RedisStore, OverTcpWithAPasswordAndADatabase) {
  HYDRANT_SKIP_WITHOUT_REDIS();
  const std::string port = FreePort();
  const RedisServer redis({"--port", port, "--bind", "127.0.0.1", "--requirepass", "s3cret@1"});
  const std::string host = "@127.0.0.1:" + port;
  const auto third = Open("redis://:s3cret%401" + host + "/3");
  ASSERT_TRUE(third->Put("a", "x", std::nullopt).ok());
  EXPECT_EQ(Open("redis://default:s3cret%401" + host + "/3?prefix=hydrant:")->Get("a").value(),
            "x");
  EXPECT_EQ(CodeOf(Open("redis://:s3cret%401" + host)->Get("a")), StatusCode::kNotFound);
  const auto wrong = Open("redis://:wrong" + host)->Get("a");
  EXPECT_EQ(CodeOf(wrong), StatusCode::kPermissionDenied);
  EXPECT_THAT(MessageOf(wrong), AllOf(HasSubstr("127.0.0.1:" + port), Not(HasSubstr("wrong"))));
  EXPECT_EQ(CodeOf(Open("redis://:s3cret%401" + host + "/99")->Get("a")),
            StatusCode::kPermissionDenied)
      << "it has 16";
}

// A server that is not Redis at the address of the store.
class OddServer {
 public:
  // answer: sent to every request; "": none. closes: closes the connection afterwards.
  OddServer(std::string answer, bool closes) {
    path_ = std::filesystem::temp_directory_path() /
            ("hydrant_odd_" + std::to_string(getpid()) + "_" + std::to_string(++count_));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    unlink(path_.c_str());
    fd_ = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) std::abort();
    listen(fd_, 16);
    thread_ = std::thread([this, answer = std::move(answer), closes] { Serve(answer, closes); });
  }
  ~OddServer() {
    stopping_ = true;
    thread_.join();
    for (const int peer : peers_) close(peer);
    close(fd_);
    unlink(path_.c_str());
  }
  std::string uri() const { return "unix:" + path_; }

 private:
  void Serve(const std::string& answer, bool closes) {
    while (!stopping_) {
      std::vector<pollfd> fds = {{fd_, POLLIN, 0}};
      for (const int peer : peers_) fds.push_back({peer, POLLIN, 0});
      poll(fds.data(), fds.size(), 10);
      if ((fds[0].revents & POLLIN) != 0) peers_.push_back(accept(fd_, nullptr, nullptr));
      for (size_t i = 1; i < fds.size(); ++i) {
        std::array<char, 4096> buffer;
        if ((fds[i].revents & POLLIN) == 0) continue;
        if (recv(fds[i].fd, buffer.data(), buffer.size(), 0) <= 0) continue;
        (void)!write(fds[i].fd, answer.data(), answer.size());
        if (closes) shutdown(fds[i].fd, SHUT_RDWR);
      }
    }
  }

  static inline int count_ = 0;
  std::string path_;
  int fd_ = -1;
  std::vector<int> peers_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

TEST(RedisStore, NonsenseIsNamedAndHarmsNothing) {
  struct Case {
    const char* answer;
    bool closes;
    StatusCode put, get, list;
  };
  constexpr auto kLoss = StatusCode::kDataLoss;
  constexpr auto kGone = StatusCode::kUnavailable;
  const std::vector<Case> cases = {
      {"HTTP/1.1 400 Bad Request\r\n\r\n", true, kLoss, kLoss, kLoss},
      {"", true, kGone, kGone, kGone},
      {"", false, kGone, kGone, kGone},
      {"$100\r\nhalf of i", true, kGone, kGone, kGone},
      {"$100\r\nhalf of i", false, kGone, kGone, kGone},
      {":12\r\n", false, kLoss, kLoss, kLoss},
      {"*2\r\n$1\r\n0\r\n$1\r\nx\r\n", false, kLoss, kLoss, kLoss},
      {"*2\r\n$1\r\n0\r\n*1\r\n$5\r\nother\r\n", false, kLoss, kLoss, kLoss},
      {"*2\r\n*0\r\n*0\r\n", false, kLoss, kLoss, kLoss},
      {"*-7\r\n", false, kLoss, kLoss, kLoss},
      {"*99999999999\r\n", false, kLoss, kLoss, kLoss},
      {"$99999999999999999999\r\n", false, kLoss, kLoss, kLoss},
      {"-OOM command not allowed\r\n", false, StatusCode::kResourceExhausted,
       StatusCode::kResourceExhausted, StatusCode::kResourceExhausted},
      {"-LOADING wait\r\n", false, kGone, kGone, kGone},
      {"-ERR what?\r\n", false, StatusCode::kPermissionDenied, StatusCode::kPermissionDenied,
       StatusCode::kPermissionDenied},
      {"$-1\r\n", false, kLoss, StatusCode::kNotFound, kLoss},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(testing::Message() << "'" << test.answer << "', closes: " << test.closes);
    const OddServer server(test.answer, test.closes);
    EXPECT_EQ(CodeOf(Open(server.uri(), kImpatient)->Put("a", "x", std::nullopt)), test.put);
    EXPECT_EQ(CodeOf(Open(server.uri(), kImpatient)->Get("a")), test.get);
    EXPECT_EQ(CodeOf(Open(server.uri(), kImpatient)->List("a")), test.list);
  }
}

TEST(RedisStore, ASlowAnswerEndsAtTheDeadline) {
  FakeRedis redis;
  redis.Set("hydrant:a", std::string(1000, 'x'));
  const auto store = Open(redis.uri(), std::chrono::milliseconds(100));
  EXPECT_EQ(store->Get("a")->size(), 1000u);
  for (const auto manner : {FakeRedis::Manner::kSilent, FakeRedis::Manner::kDrips}) {
    redis.set_manner(manner);
    EXPECT_EQ(CodeOf(store->Get("a")), StatusCode::kUnavailable);
    EXPECT_EQ(CodeOf(store->Put("b", "x", std::nullopt)), StatusCode::kUnavailable);
    EXPECT_EQ(CodeOf(store->Delete("a")), StatusCode::kUnavailable);
    EXPECT_EQ(CodeOf(store->List("a")), StatusCode::kUnavailable);
  }
  redis.set_manner(FakeRedis::Manner::kPrompt);
  redis.Set("hydrant:a", "again");  // the deletion was applied, only its reply was late
  EXPECT_EQ(store->Get("a").value(), "again");
}

// Peak resident memory of the process, in bytes.
int64_t PeakBytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

TEST(RedisStore, AnAnswerWithoutEndIsLeft) {
  FakeRedis redis;
  redis.set_manner(FakeRedis::Manner::kNeverEnds);
  const int64_t before = PeakBytes();
  const auto store = Open(redis.uri(), std::chrono::milliseconds(2000));
  EXPECT_FALSE(store->Get("a", 1000).ok());
  EXPECT_FALSE(store->Put("a", "x", std::nullopt).ok());
  EXPECT_FALSE(store->SizeOf("a").ok());
  // ThreadSanitizer maps several bytes for each.
  EXPECT_LT(PeakBytes() - before, int64_t{kThreadSanitizer ? 2048 : 256} << 20);
}

TEST(RedisStore, AScanWithoutEndIsLeftAtTheDeadline) {
  FakeRedis redis;
  redis.set_manner(FakeRedis::Manner::kNeverEnds);
  const auto store = Open(redis.uri(), std::chrono::milliseconds(200));
  EXPECT_EQ(CodeOf(store->List("a")), StatusCode::kUnavailable);
}

TEST(RedisStore, ALargeStringIsLeftAtItsBound) {
  FakeRedis redis;
  redis.Set("hydrant:a", std::string(20 << 20, 'x'));
  const auto store = Open(redis.uri());
  EXPECT_EQ(CodeOf(store->Get("a", 1 << 20)), StatusCode::kResourceExhausted);
  EXPECT_EQ(store->Get("a", 20 << 20)->size(), size_t{20} << 20);
}

// Calls are concurrent: a slow call has its own connection.
TEST(RedisStore, OneCallDoesNotHoldAnother) {
  FakeRedis redis;
  redis.Set("hydrant:a", "x");
  const auto store = Open(redis.uri());
  redis.set_manner(FakeRedis::Manner::kSilent);
  std::thread slow([&] { EXPECT_FALSE(store->Get("a").ok()); });
  for (int i = 0; i < 30'000 && redis.CountOf("GET") == 0; ++i)  // half a minute
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  redis.set_manner(FakeRedis::Manner::kPrompt);
  EXPECT_EQ(store->Get("a").value(), "x");
  redis.CloseAll();
  slow.join();
}

// ---- URIs.

TEST(ContextStoreUri, ErrorsNameThePart) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "one of dir:PATH"},
      {"/tmp", "one of dir:PATH"},
      {"dir:", "one of dir:PATH"},
      {"s3://bucket", "one of dir:PATH"},
      {"rediss://host", "TLS"},
      {"redis://", "host is missing"},
      {"redis://:6379", "host is missing"},
      {"redis://host:x", "port 'x'"},
      {"redis://host:70000", "port '70000' is no number in [0, 65535]"},
      {"redis://host:-1", "port '-1'"},
      {"redis://host/a", "database 'a'"},
      {"redis://secret@host", "a password follows a ':'"},
      {"redis://:a%4@host", "two hexadecimal digits"},
      {"redis://:a%zz@host", "two hexadecimal digits"},
      {"redis://[::1", "not closed"},
      {"redis://[::1]6379", "a port follows"},
      {"redis://host?x=1", "'x=1' is none of"},
      {"unix:", "path is missing"},
      {"unix:?db=1", "path is missing"},
      {"unix:/x?db=y", "database 'y'"},
  };
  for (const auto& [uri, message] : cases) {
    const auto store = OpenContextStore(uri, {});
    EXPECT_EQ(CodeOf(store), StatusCode::kInvalidArgument) << uri;
    EXPECT_THAT(MessageOf(store), AllOf(HasSubstr(message), Not(HasSubstr("secret")))) << uri;
  }
}

TEST(ContextStoreUri, PasswordsAreNotDescribed) {
  const auto store = Open("redis://user:geheim@[::1]:7000/2?prefix=x%2F");
  EXPECT_EQ(store->Description(), "the Redis at ::1:7000");
  EXPECT_EQ(Open("redis://host")->Description(), "the Redis at host:6379");
}

}  // namespace
}  // namespace hydrant
