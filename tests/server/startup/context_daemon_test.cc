// Contexts with the programs: hydrant's commands, and daemons that are killed and restarted, or run
// in parallel, over one store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/redis_server.h"
#include "tests/server/daemon_process.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

struct Ran {
  int code = 0;
  std::string out, err;
};

Ran Hydrant(const Daemon& daemon, const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {HYDRANT_PATH, "--address", daemon.address()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Subprocess process(command);
  const int code = process.Wait();
  return {code, process.out(), process.err()};
}

std::string Text() {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "The whale number " + std::to_string(i) + " is white. ";
  return text;
}

std::string Ask(const Daemon& daemon, const std::string& context) {
  const Ran ran = Hydrant(daemon, {"generate", "--context", context, "--prompt", " And the last?",
                                   "--max-tokens", "16", "--temperature", "0", "--ignore-eos"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("cached"));
  return ran.out;
}

std::vector<std::string> Compression(const std::string& name) {
  return {"context",       "compress", "--prompt",           Text(),
          "--name",        name,       "--policy",           "h2o",
          "--cache-ratio", "0.2",      "--min-cache-tokens", "16"};
}

class ContextDaemon : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() == std::string("dir")) {
      std::string path = std::filesystem::temp_directory_path() / "hydrant_contexts_XXXXXX";
      ASSERT_NE(mkdtemp(path.data()), nullptr);
      folder_ = path;
      uri_ = "dir:" + folder_;
      return;
    }
    HYDRANT_SKIP_WITHOUT_REDIS();
    redis_ = std::make_unique<RedisServer>();
    uri_ = redis_->uri();
  }
  void TearDown() override {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }
  std::vector<std::string> Flags() const { return {"--context-store", uri_}; }

  std::string folder_;
  std::unique_ptr<RedisServer> redis_;
  std::string uri_;
};

INSTANTIATE_TEST_SUITE_P(Stores, ContextDaemon, testing::Values("dir", "redis"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(ContextDaemon, SavedContextsOutliveAKillAndServeReplicas) {
  auto first = std::make_unique<Daemon>(Flags(), kGguf);
  const auto beside = std::make_unique<Daemon>(Flags(), kGguf);
  ASSERT_EQ(Hydrant(*first, Compression("whales")).code, 0);
  ASSERT_EQ(Hydrant(*first, {"context", "save", "whales"}).code, 0);
  const std::string expected = Ask(*first, "whales");
  EXPECT_THAT(expected, Not(IsEmpty()));
  EXPECT_EQ(Ask(*beside, "whales"), expected) << "by another replica";
  first->process().Signal(SIGKILL);
  first.reset();
  const Daemon again(Flags(), kGguf);
  EXPECT_EQ(Ask(again, "whales"), expected) << "after the restart";
  EXPECT_EQ(Hydrant(again, {"context", "delete", "whales"}).code, 0);
  const Daemon last(Flags(), kGguf);
  const Ran gone = Hydrant(last, {"generate", "--context", "whales", "--prompt", "x"});
  EXPECT_NE(gone.code, 0);
  EXPECT_THAT(gone.err, HasSubstr("whales is unknown here"));
}

// A context kept just before SIGTERM is saved before the process ends.
TEST_P(ContextDaemon, SigtermWaitsForSaves) {
  std::string expected;
  {
    Daemon daemon(Flags(), kGguf);
    ASSERT_EQ(Hydrant(daemon, Compression("whales")).code, 0);
    expected = Ask(daemon, "whales");
    ASSERT_EQ(Hydrant(daemon, Compression("more")).code, 0);
    daemon.process().Signal(SIGTERM);
    EXPECT_EQ(daemon.process().Wait(), 0) << daemon.process().err();
  }
  const Daemon again(Flags(), kGguf);
  EXPECT_EQ(Ask(again, "whales"), expected);
  EXPECT_EQ(Ask(again, "more"), expected);
}

// A prefilled prompt is reused by a replica, and after a kill.
TEST_P(ContextDaemon, ReplicasFindPrefixBlocks) {
  const std::vector<std::string> flags = {"--prefix-cache-store", uri_, "--batch-invariant"};
  const auto ask = [](const Daemon& daemon, const std::string& policy) {
    std::vector<std::string> arguments = {"generate", "--prompt",     Text(), "--policy",
                                          policy,     "--max-tokens", "16",   "--temperature",
                                          "0",        "--ignore-eos"};
    if (policy != "full") arguments.insert(arguments.end(), {"--max-cache-tokens", "60"});
    return Hydrant(daemon, arguments);
  };
  std::map<std::string, std::string> expected;
  {
    Daemon first(flags, kGguf);
    for (const char* policy : {"full", "h2o", "echo"}) {
      const Ran ran = ask(first, policy);
      ASSERT_EQ(ran.code, 0) << ran.err;
      expected[policy] = ran.out;
    }
    first.process().Signal(SIGTERM);
    EXPECT_EQ(first.process().Wait(), 0) << first.process().err();
  }
  const auto second = std::make_unique<Daemon>(flags, kGguf);
  const auto expect_found = [&](const Daemon& daemon, const std::string& policy) {
    const Ran ran = ask(daemon, policy);
    EXPECT_EQ(ran.out, expected[policy]) << policy;
    EXPECT_THAT(ran.err, HasSubstr("cached")) << policy;
  };
  expect_found(*second, "h2o");
  second->process().Signal(SIGKILL);
  const Daemon third(flags, kGguf);
  for (const char* policy : {"echo", "h2o", "full"}) expect_found(third, policy);
  std::vector<std::string> bf16 = flags;
  bf16.insert(bf16.end(), {"--kv-cache-dtype", "bfloat16"});
  const Daemon other(bf16, kGguf);
  EXPECT_THAT(ask(other, "full").err, Not(HasSubstr("cached"))) << "in other numbers";
}

TEST_P(ContextDaemon, AnotherModelSaysSo) {
  const Daemon one(Flags(), kGguf), other(Flags(), kModel);
  ASSERT_EQ(Hydrant(one, Compression("whales")).code, 0);
  ASSERT_EQ(Hydrant(one, {"context", "save", "whales"}).code, 0);
  const Ran ran = Hydrant(other, {"context", "load", "whales"});
  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("whales"), HasSubstr("another model")));
  const Daemon bf16({"--context-store", uri_, "--kv-cache-dtype", "bfloat16"}, kGguf);
  EXPECT_THAT(Hydrant(bf16, {"context", "load", "whales"}).err, HasSubstr("--kv-cache-dtype"));
}

TEST(ContextCommand, CompressesListsShowsAndDeletes) {
  const Daemon daemon({}, kGguf);
  Ran ran = Hydrant(daemon, Compression("whales"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out, "whales\n");
  EXPECT_THAT(ran.err, AllOf(HasSubstr("tokens read"), HasSubstr("% of the attention"),
                             HasSubstr("hydrant generate --context whales")));
  ran = Hydrant(daemon,
                {"--quiet", "context", "compress", "--prompt", Text(), "--ttl", "500", "--pinned"});
  EXPECT_THAT(ran.out, StartsWith("ctx-"));
  EXPECT_EQ(ran.err, "");
  const std::string drawn = ran.out.substr(0, ran.out.find('\n'));

  ran = Hydrant(daemon, {"context", "list"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.out, AllOf(HasSubstr("HANDLE"), HasSubstr("whales "), HasSubstr(drawn),
                             HasSubstr("pinned, "), HasSubstr("h2o"), HasSubstr("auto")));
  ran = Hydrant(daemon, {"--json", "context", "show", "whales"});
  const auto shown = nlohmann::json::parse(ran.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(shown.is_object()) << ran.out;
  EXPECT_EQ(shown.value("handle", ""), "whales");
  EXPECT_EQ(Hydrant(daemon, {"context", "delete", "whales"}).code, 0);
  EXPECT_THAT(Hydrant(daemon, {"context", "list"}).out, Not(HasSubstr("whales")));

  ran = Hydrant(daemon, {"context", "show", "whales"});
  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.err, HasSubstr("whales is unknown here"));
  ran = Hydrant(daemon, {"context", "save", drawn});
  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.err, HasSubstr("--context-store"));
  ran = Hydrant(daemon, {"context", "show", "a/b"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("handle"));
}

TEST(ContextStoreFlag, AnUnusableStoreIsReportedAtTheStart) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"dir:/proc/self/nope", "/proc/self/nope"},
      {"s3://bucket", "one of dir:PATH"},
      {"redis://host:x", "port 'x'"},
  };
  for (const auto& [store, words] : cases) {
    Subprocess process({HYDRANTD_PATH, "--model", kModel, "--listen", "127.0.0.1:0", "--device",
                        "reference", "--context-store", store});
    EXPECT_EQ(process.Wait(), 1) << store;
    EXPECT_THAT(process.err(), AllOf(HasSubstr("--context-store: "), HasSubstr(words))) << store;
  }
}

// A Redis may become available later.
TEST(ContextStoreFlag, AMissingRedisIsALineInTheLog) {
  Daemon daemon({"--context-store", "redis://:geheim@127.0.0.1:1"}, kGguf);
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  EXPECT_EQ(Hydrant(daemon, Compression("whales")).code, 0);
  Ask(daemon, "whales");
  EXPECT_THAT(daemon.process().WaitForErrorLine("not saved"),
              HasSubstr("context whales: the Redis at 127.0.0.1:1 cannot be reached"));
  v1::GetServerInfoResponse info;
  grpc::ClientContext context;
  ASSERT_TRUE(daemon.stub().GetServerInfo(&context, {}, &info).ok());
  EXPECT_THAT(info.DebugString(), Not(HasSubstr("geheim")));
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().Wait(), 0);
  EXPECT_THAT(daemon.process().err(), Not(HasSubstr("geheim")));
}

}  // namespace
}  // namespace hydrant
