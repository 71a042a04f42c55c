// hydrant-load as a subprocess: its files, exit codes, Ctrl-C.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/auth/tenants.h"
#include "server/auth/token_file.h"
#include "server/net/certificates.h"
#include "tests/server/test_certificates.h"
#include "tests/server/test_server.h"
#include "tests/subprocess.h"

namespace hydrant {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using Json = nlohmann::json;

std::string EmptyFolder(const std::string& name) {
  const std::string folder = testing::TempDir() + "/load_command_test_" + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Ended {
  int code = 0;
  std::string out, err;
};

std::vector<std::string> Command(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), HYDRANT_LOAD_PATH);
  return arguments;
}

Ended Load(std::vector<std::string> arguments) {
  Subprocess program(Command(std::move(arguments)));
  const int code = program.Wait();
  return {code, program.out(), program.err()};
}

// A small closed loop.
std::vector<std::string> ALoop(const TestServer& server, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"--address",
                                        server.address(),
                                        "--num-prompts",
                                        "30",
                                        "--input-len",
                                        "20",
                                        "--output-len",
                                        "6",
                                        "--max-concurrency",
                                        "4",
                                        "--quiet",
                                        "--text",
                                        "LICENSE"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// The token must not be in a report, which contains the options.
TEST(LoadCommandTest, SpeaksTlsAndShowsItsToken) {
  const TemporaryFolder folder;
  const TestAuthority authority("CA");
  const KeyAndCertificate own = authority.Sign("server");
  const auto made = DescribeNewToken("acme");
  ASSERT_TRUE(made.ok());
  const size_t begin = made->find('\n') + 1;
  const std::string token = made->substr(begin, made->find('\n', begin) - begin);
  const auto tenants = Tenants::Load(
      folder.Write("tokens.yaml", "tokens:\n" + made->substr(made->find("  - tenant"))));
  const auto certificates =
      Certificates::Load({.certificate = folder.Write("server.crt", own.certificate),
                          .key = folder.Write("server.key", own.key),
                          .client_ca = ""});
  ASSERT_TRUE(tenants.ok() && certificates.ok());
  TestServerOptions options;
  options.tenants = tenants->get();
  options.grpc.certificates = *certificates;
  TestServer server(options);
  const std::vector<std::string> tls = {"--tls-ca", folder.Write("ca.crt", authority.certificate()),
                                        "--wait", "5"};
  std::vector<std::string> good = tls;
  good.insert(good.end(), {"--token-file", folder.Write("token", token), "--disconnect-rate", "0.2",
                           "--report", folder.Path("report")});
  const Ended run = Load(ALoop(server, good));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_GE((*tenants)->Read().front().use.requests, 30);
  EXPECT_THAT(Read(folder.Path("report") + "/report.json"), Not(HasSubstr(token)));
  const Ended without = Load(ALoop(server, tls));
  EXPECT_NE(without.code, 0);
  EXPECT_THAT(without.err, HasSubstr("Bearer TOKEN"));
}

TEST(LoadCommandTest, ARunLeavesAllItsFaces) {
  TestServer server;
  const std::string folder = EmptyFolder("faces");
  const Ended run = Load(ALoop(server, {"--mix", "full,h2o:max_cache_tokens=8", "--check-quality",
                                        "3", "--report", folder, "--label", "the </script> one"}));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("30 completed"), HasSubstr("full, again")));
  const Json report = Json::parse(Read(folder + "/report.json"));
  EXPECT_EQ(report["completed"], 30);
  EXPECT_EQ(report["label"], "the </script> one");
  ASSERT_EQ(report["quality"].size(), 2u);
  EXPECT_EQ(report["quality"][0]["name"], "full, again");
  EXPECT_EQ(report["quality"][0]["prompts"], 3);
  EXPECT_EQ(report["quality"][0]["identical"], 1.0);
  EXPECT_EQ(report["quality"][1]["name"], "h2o:max_cache_tokens=8");
  EXPECT_EQ(report["quality"][1]["tokens"], 18);
  EXPECT_THAT(Read(folder + "/report.html"), Not(HasSubstr("the </script> one")));
  const std::string csv = Read(folder + "/requests.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 31);
  EXPECT_TRUE(server.WaitUntilEmpty());
}

TEST(LoadCommandTest, AFullDiskIsOneLineAndTheOtherFilesAreWritten) {
  TestServer server;
  const std::string folder = EmptyFolder("disk");
  const Ended run = Load(ALoop(server, {"--json", "/dev/full", "--csv", folder + "/requests.csv"}));
  EXPECT_EQ(run.code, 1);
  EXPECT_EQ(run.err, "hydrant-load: /dev/full: cannot be written: No space left on device\n");
  EXPECT_THAT(run.out, HasSubstr("30 completed"));
  EXPECT_TRUE(std::filesystem::exists(folder + "/requests.csv"));
  const Ended refused = Load(ALoop(server, {"--html", "/nowhere/report.html"}));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("/nowhere/report.html: cannot be written: No such file"));
  EXPECT_THAT(refused.out, IsEmpty()) << "nothing was sent";
}

TEST(LoadCommandTest, ComparesAndFailsWhereOneIsWorse) {
  const std::string folder = EmptyFolder("compare");
  const Json fast = {{"completed", 10}, {"duration", 1.0}, {"output_throughput", 100.0}};
  Json slow = fast;
  slow["output_throughput"] = 50.0;
  std::ofstream(folder + "/fast.json") << fast;
  std::ofstream(folder + "/slow.json") << slow;
  const std::vector<std::string> compare = {"compare", folder + "/fast.json",
                                            folder + "/slow.json"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), compare.begin(), compare.end());
    return Load(more);
  };
  Ended ended = with({"--html", folder + "/all.html", "--json", folder + "/all.json"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("x0.500 worse"));
  EXPECT_EQ(Json::parse(Read(folder + "/all.json"))["sections"][0]["rows"][0]["ratios"][1], 0.5);
  EXPECT_THAT(Read(folder + "/all.html"), HasSubstr("\"verdicts\":[\"\",\"worse\"]"));
  ended = with({"--fail-if-worse", "60%"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  ended = with({"--fail-if-worse", "output_throughput:40%"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, HasSubstr("worse by 50.0 %, and 40 % are allowed"));
  EXPECT_EQ(with({"--json", "/dev/full"}).code, 1);
  EXPECT_EQ(with({"--fail-if-worse", "much"}).code, 2);
  ended = Load({"compare", folder + "/fast.json", folder + "/none.json"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, HasSubstr("none.json: cannot be read"));
}

TEST(LoadCommandTest, ASweepThatIsBrokenOffGoesOn) {
  TestServer server;
  const std::string folder = EmptyFolder("sweep"), json = folder + "/sweep.json";
  const std::vector<std::string> sweep = {"sweep",
                                          "--address",
                                          server.address(),
                                          "--input-len",
                                          "20",
                                          "--output-len",
                                          "3",
                                          "--text",
                                          "LICENSE",
                                          "--goodput",
                                          "e2el:60000",
                                          "--rates",
                                          "20,30,40,50",
                                          "--warm-up",
                                          "0",
                                          "--probe-seconds",
                                          "0.5",
                                          "--min-requests",
                                          "5",
                                          "--report",
                                          folder};
  {
    Subprocess program(Command(sweep));
    EXPECT_THAT(program.WaitForErrorLine("kept the objectives"), HasSubstr("100.0 %"));
    program.Signal(SIGINT);
    EXPECT_EQ(program.Wait(), 130) << program.err();
    EXPECT_THAT(program.out(), HasSubstr("PARTIAL"));
  }
  const Json partial = Json::parse(Read(json));
  EXPECT_EQ(partial["complete"], false);
  ASSERT_GE(partial["arms"][0]["points"].size(), 1u);
  std::vector<std::string> resumed = sweep;
  resumed.push_back("--resume");
  const Ended ended = Load(resumed);
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.err, Not(HasSubstr("full: 20 requests/s"))) << "that one is known";
  const Json whole = Json::parse(Read(json));
  EXPECT_EQ(whole["complete"], true);
  ASSERT_EQ(whole["arms"][0]["points"].size(), 4u);
  EXPECT_EQ(whole["arms"][0]["points"][0], partial["arms"][0]["points"][0]);
  EXPECT_EQ(whole["arms"][0]["highest_rate"], 50);
  EXPECT_THAT(Read(folder + "/sweep.html"), HasSubstr("\"highest_rate\":50.0"));
  resumed.insert(resumed.end(), {"--share", "0.5"});
  const Ended refused = Load(resumed);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("cannot go on: it was made with share 0.99, not 0.5"));
}

TEST(LoadCommandTest, ErrorsOfASweepAreNamed) {
  const auto error = [](std::vector<std::string> more) {
    more.insert(more.begin(), "sweep");
    const Ended ended = Load(more);
    EXPECT_EQ(ended.code, 2) << more[1];
    return ended.err;
  };
  EXPECT_THAT(error({"--first-rate", "1"}), HasSubstr("--goodput is required"));
  EXPECT_THAT(error({"--goodput", " "}), HasSubstr("goodput: a sweep needs an objective"));
  EXPECT_THAT(error({"--goodput", "x:1"}), HasSubstr("goodput: 'x:1' is no objective"));
  EXPECT_THAT(error({"--goodput", "ttft:1", "--resolution", "0"}), HasSubstr("resolution: 0"));
  EXPECT_THAT(error({"--goodput", "ttft:1", "--resume"}), HasSubstr("resume: "));
  EXPECT_THAT(error({"--goodput", "ttft:1", "--mix", "full"}), HasSubstr("--mix"));
}

TEST(LoadCommandTest, HelpHasThreeExamples) {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"--help"}, {"compare", "--help"}, {"sweep", "--help"}}) {
    const Ended help = Load(command);
    EXPECT_EQ(help.code, 0);
    size_t examples = 0;
    const size_t begin = help.out.find("Examples:");
    ASSERT_NE(begin, std::string::npos) << command[0];
    for (size_t at = begin; (at = help.out.find("\n  hydrant-load ", at)) != std::string::npos;
         ++at)
      ++examples;
    EXPECT_EQ(examples, 3u) << command[0];
    EXPECT_THAT(help.out, HasSubstr("Exit status: 0"));
    if (command[0] != "compare") {
      EXPECT_LT(help.out.find("What is asked:"), help.out.find("--honour-eos"));
    }
  }
}

}  // namespace
}  // namespace hydrant
