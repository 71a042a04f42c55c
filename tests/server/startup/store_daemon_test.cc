// Daemons over stores that are slow, silent, absent or hostile. Requests that do not need the store
// are served as without one, the others are refused soon, and SIGTERM ends the process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/fake_redis.h"
#include "tests/sanitized.h"
#include "tests/server/daemon_process.h"
#include "tests/server/http_get.h"
#include "tests/server/scrape.h"
#include "tests/server/test_server.h"
#include "tests/store_folder.h"

namespace hydrant {
namespace {

using testing::HasSubstr;
using Manner = FakeRedis::Manner;

// Far shorter than an unbounded wait for such a store, and far longer than all other work.
// With a sanitizer a prompt takes ten seconds.
constexpr std::chrono::seconds kSoon{kSanitized ? 180 : 30};

std::string LongText(int seed) {
  std::string text;
  for (int i = 0; i < 40; ++i)
    text += "The whale number " + std::to_string(1000 * seed + i) + " is white. ";
  return text;
}

// Reads the answer to its end, with a deadline of kSoon.
grpc::Status Generate(Daemon& daemon, const std::string& text, const std::string& context = "") {
  grpc::ClientContext call;
  call.set_deadline(std::chrono::system_clock::now() + kSoon);
  v1::GenerateRequest request = TextRequest(text, 2);
  if (!context.empty()) request.set_context(context);
  const auto stream = daemon.stub().Generate(&call, request);
  v1::GenerateResponse event;
  while (stream->Read(&event)) continue;
  return stream->Finish();
}

grpc::Status Load(Daemon& daemon, const std::string& handle) {
  grpc::ClientContext call;
  call.set_deadline(std::chrono::system_clock::now() + kSoon);
  v1::LoadContextRequest request;
  request.set_handle(handle);
  v1::Context ignored;
  return daemon.stub().LoadContext(&call, request, &ignored);
}

grpc::Status Compress(Daemon& daemon, const std::string& handle) {
  grpc::ClientContext call;
  v1::CompressContextRequest request;
  request.set_text(LongText(0));
  request.set_handle(handle);
  v1::CompressContextResponse ignored;
  return daemon.stub().CompressContext(&call, request, &ignored);
}

grpc::Status Save(Daemon& daemon, const std::string& handle) {
  grpc::ClientContext call;
  v1::SaveContextRequest request;
  request.set_handle(handle);
  v1::Context ignored;
  return daemon.stub().SaveContext(&call, request, &ignored);
}

Scrape ScrapeOf(Daemon& daemon) {
  return ParseScrape(HttpGet(daemon.MetricsAddress(), "/metrics").body);
}

TEST(PrefixStoreDaemon, ADrippingStoreDelaysNoRequest) {
  FakeRedis redis;
  redis.set_manner(Manner::kDrips);
  Daemon daemon({"--prefix-cache-store", redis.uri(), "--metrics-listen", "127.0.0.1:0"}, kGguf);
  std::vector<std::thread> clients;
  clients.reserve(12);
  for (int i = 0; i < 12; ++i) {
    clients.emplace_back([&, i] {
      const grpc::Status status = Generate(daemon, i % 2 == 0 ? LongText(i) : "Hi");
      EXPECT_TRUE(status.ok()) << status.error_message();
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_THAT(daemon.process().WaitForErrorLine("it is left alone"),
              HasSubstr("prefix cache store: the Redis at"));
  EXPECT_GE(ScrapeOf(daemon)["hydrant_circuit_openings_total{to=\"prefix_cache_store\"}"], 1);
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().WaitFor(kSoon), 0);
}

TEST(ContextStoreDaemon, ASilentStoreIsSkippedAndRetried) {
  FakeRedis redis;
  redis.set_manner(Manner::kSilent);
  Daemon daemon({"--context-store", redis.uri(), "--context-store-timeout", "0.3",
                 "--metrics-listen", "127.0.0.1:0"},
                kGguf);
  std::vector<std::thread> clients;
  clients.reserve(30);
  for (int i = 0; i < 30; ++i) {
    clients.emplace_back([&, i] {
      const std::string handle = "a" + std::to_string(i);
      const grpc::Status status =
          i % 2 == 0 ? Load(daemon, handle) : Generate(daemon, "Hi", handle);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
      EXPECT_EQ(DetailsOf(status).reason, "STORE_UNAVAILABLE");
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(Generate(daemon, "Hi").ok());
  EXPECT_THAT(daemon.process().WaitForErrorLine("it is left alone"),
              HasSubstr("context store: the Redis at"));
  EXPECT_EQ(ScrapeOf(daemon)["hydrant_circuit_open{to=\"context_store\"}"], 1);
  redis.set_manner(Manner::kPrompt);
  EXPECT_TRUE(
      WaitFor([&] { return Load(daemon, "a").error_code() == grpc::StatusCode::NOT_FOUND; }));
  daemon.process().WaitForErrorLine("it answers again");
  EXPECT_EQ(ScrapeOf(daemon)["hydrant_circuit_open{to=\"context_store\"}"], 0);
}

// A call about one context asks the store for that key only.
TEST(ContextStoreDaemon, OneContextIsFoundWithoutAScan) {
  FakeRedis redis;
  Daemon daemon({"--context-store", redis.uri()}, kGguf);
  ASSERT_TRUE(Compress(daemon, "whales").ok());
  ASSERT_TRUE(Save(daemon, "whales").ok());
  ASSERT_TRUE(Load(daemon, "whales").ok());
  grpc::ClientContext deleting;
  v1::DeleteContextRequest request;
  request.set_handle("whales");
  v1::DeleteContextResponse ignored;
  ASSERT_TRUE(daemon.stub().DeleteContext(&deleting, request, &ignored).ok());
  EXPECT_EQ(Load(daemon, "whales").error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(redis.CountOf("SCAN"), 0);
  EXPECT_TRUE(redis.OnlyKey().empty());
}

// A bad file in the place of a context gives an error that describes it, and the daemon goes on.
TEST(ContextStoreDaemon, HostileFilesAreNamed) {
  const StoreFolder folder;
  Daemon first({"--context-store", folder.uri()}, kGguf);
  ASSERT_TRUE(Compress(first, "whales").ok());
  ASSERT_TRUE(Save(first, "whales").ok());
  first.process().Signal(SIGTERM);
  ASSERT_EQ(first.process().WaitFor(kSoon), 0);
  const std::string file = folder.Files().at(0).string();

  Daemon daemon({"--context-store", folder.uri()}, kGguf);
  {
    const int64_t terabyte = int64_t{1} << 40;
    std::fstream header(file, std::ios::in | std::ios::out | std::ios::binary);
    header.seekp(16);
    header.write(reinterpret_cast<const char*>(&terabyte), sizeof(terabyte));
    header.close();
    std::filesystem::resize_file(file, terabyte + 24);
  }
  grpc::Status status = Load(daemon, "whales");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("has 1099511627776 bytes"));
  std::filesystem::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  status = Load(daemon, "whales");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("a pipe, a device or a folder; delete it"));
  EXPECT_TRUE(Generate(daemon, "Hi").ok());
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().WaitFor(kSoon), 0);
}

// SIGTERM while requests, loads and saves wait for the store.
class StalledStore : public testing::TestWithParam<std::tuple<const char*, Manner>> {};

INSTANTIATE_TEST_SUITE_P(Stores, StalledStore,
                         testing::Values(std::tuple("--context-store", Manner::kSilent),
                                         std::tuple("--context-store", Manner::kNeverEnds),
                                         std::tuple("--prefix-cache-store", Manner::kDrips)));

TEST_P(StalledStore, SigtermEndsTheProcess) {
  FakeRedis redis;
  redis.set_manner(std::get<Manner>(GetParam()));
  std::vector<std::string> flags = {std::get<const char*>(GetParam()), redis.uri(),
                                    "--shutdown-timeout", "0.2"};
  if (flags[0] == "--context-store") flags.insert(flags.end(), {"--context-store-timeout", "3600"});
  Daemon daemon(flags, kGguf);
  std::vector<std::thread> clients;
  clients.reserve(6);
  for (int i = 0; i < 6; ++i) {
    clients.emplace_back([&, i] {
      if (i == 0) Compress(daemon, "b");
      if (flags[0] == "--context-store") Load(daemon, "a" + std::to_string(i));
      Generate(daemon, LongText(i), flags[0] == "--context-store" ? "a" : "");
    });
  }
  EXPECT_TRUE(WaitFor([&] { return redis.num_commands() > 0; }));
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().WaitFor(kSoon), 0) << daemon.process().err();
  daemon.process().Signal(SIGKILL);
  for (std::thread& client : clients) client.join();
}

}  // namespace
}  // namespace hydrant
