// The two programs as an operator meets them: hydrantd serves a tiny model of the project's own,
// hydrant talks to it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/server/subprocess.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr char kModel[] = "tests/data/engine/tiny_mha";

class Daemon {
 public:
  explicit Daemon(std::vector<std::string> flags = {})
      : process_([&flags] {
          std::vector<std::string> arguments = {HYDRANTD_PATH, "--model",     kModel,
                                                "--listen",    "127.0.0.1:0", "--device",
                                                "reference",   "--threads",   "1"};
          arguments.insert(arguments.end(), flags.begin(), flags.end());
          return arguments;
        }()) {
    const std::string line = process_.WaitForErrorLine("ready after");
    const size_t at = line.find("127.0.0.1:");
    if (at != std::string::npos) address_ = line.substr(at);
    stub_ = v1::Hydrant::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  }

  const std::string& address() const { return address_; }
  v1::Hydrant::Stub& stub() { return *stub_; }
  Subprocess& process() { return process_; }

 private:
  Subprocess process_;
  std::string address_;
  std::unique_ptr<v1::Hydrant::Stub> stub_;
};

v1::GenerateRequest LongRequest() {
  v1::GenerateRequest request;
  for (const uint32_t id : {5u, 6u, 7u}) request.mutable_token_ids()->add_ids(id);
  request.mutable_stopping()->set_max_tokens(480);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0);
  return request;
}

TEST(Daemon, FinishesRunningStreamsAfterSigterm) {
  Daemon daemon;
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  grpc::ClientContext context;
  const auto reader = daemon.stub().Generate(&context, LongRequest());
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_TRUE(response.has_accepted());
  daemon.process().Signal(SIGTERM);
  StreamResult rest;
  ReadRest(&context, reader.get(), &rest);
  EXPECT_TRUE(rest.status.ok()) << rest.status.error_message();
  EXPECT_EQ(rest.token_ids.size(), 480u);
  EXPECT_EQ(daemon.process().Wait(), 0) << daemon.process().err();
  EXPECT_THAT(daemon.process().err(), HasSubstr("draining"));
}

TEST(Daemon, WithoutATimeoutRunningStreamsEndAsUnavailable) {
  Daemon daemon({"--shutdown-timeout", "0"});
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  grpc::ClientContext context;
  const auto reader = daemon.stub().Generate(&context, LongRequest());
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  daemon.process().Signal(SIGINT);
  StreamResult rest;
  ReadRest(&context, reader.get(), &rest);
  // A fast machine may have finished the text before the signal was read.
  if (!rest.status.ok()) {
    EXPECT_EQ(rest.status.error_code(), grpc::StatusCode::UNAVAILABLE)
        << rest.status.error_message();
    EXPECT_EQ(DetailsOf(rest.status).reason, "DRAINING");
    EXPECT_TRUE(rest.trailer_usage.has_value());
  }
  EXPECT_EQ(daemon.process().Wait(), 0) << daemon.process().err();
}

TEST(Daemon, SaysWhatItServes) {
  Daemon daemon({"--served-model-name", "tiny", "--num-gpu-blocks-override", "640"});
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  // 2 layers x 4 heads x 64 pages = 512 pages for 1,024 tokens; 8 x 13 = 104 for a fifth.
  EXPECT_THAT(daemon.process().err(), HasSubstr("1 full or 6 20 % sequences of 1,024 tokens"));
  Subprocess info({HYDRANT_PATH, "--address", daemon.address(), "info"});
  EXPECT_EQ(info.Wait(), 0) << info.err();
  EXPECT_THAT(info.out(), HasSubstr("tiny (llama)"));
  EXPECT_THAT(info.out(), HasSubstr("640 of 640 pages free"));
  EXPECT_THAT(info.out(), HasSubstr("h2o"));
}

TEST(Daemon, RefusesToStartWithOneClearLine) {
  const std::string folder = testing::TempDir() + "/hydrant_no_tokenizer";
  std::filesystem::create_directories(folder);
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(std::string(kModel) + "/" + file, folder + "/" + file,
                               std::filesystem::copy_options::overwrite_existing);
  }
  const std::string corrupt = testing::TempDir() + "/hydrant_corrupt.gguf";
  std::ofstream(corrupt) << "GGUF this is no model";
  struct Case {
    std::vector<std::string> flags;
    std::string mention;
  };
  for (const Case& c :
       std::vector<Case>{{{"--model", "/no/such/model.gguf"}, "/no/such/model.gguf"},
                         {{"--model", corrupt}, "hydrant_corrupt.gguf"},
                         {{"--model", folder}, "tokenizer"},
                         {{"--model", kModel, "--tokenizer", "/no/tokenizer"}, "/no/tokenizer"},
                         {{"--model", kModel, "--listen", "256.1.1.1:1"}, "256.1.1.1:1"},
                         {{"--model", kModel, "--frobnicate"}, "frobnicate"},
                         {{}, "--model"}}) {
    std::vector<std::string> arguments = {HYDRANTD_PATH, "--log-level", "error"};
    const bool listens = std::find(c.flags.begin(), c.flags.end(), "--listen") != c.flags.end();
    if (!listens) arguments.insert(arguments.end(), {"--port", "0"});
    arguments.insert(arguments.end(), c.flags.begin(), c.flags.end());
    Subprocess process(arguments);
    EXPECT_EQ(process.Wait(), 1) << c.mention;
    EXPECT_THAT(process.err(), StartsWith("hydrantd: "));
    EXPECT_THAT(process.err(), HasSubstr(c.mention));
    EXPECT_EQ(process.err().find('\n'), process.err().size() - 1) << process.err();
  }
  std::filesystem::remove_all(folder);
  std::filesystem::remove(corrupt);
}

TEST(Daemon, ASecondOneOnThePortRefuses) {
  Daemon first;
  ASSERT_FALSE(first.address().empty()) << first.process().err();
  Subprocess second(
      {HYDRANTD_PATH, "--model", kModel, "--listen", first.address(), "--log-level", "error"});
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_THAT(second.err(), StartsWith("hydrantd: cannot listen on " + first.address()));
}

TEST(Client, GeneratesTokenizesAndReportsUsage) {
  Daemon daemon;
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  const std::vector<std::string> base = {HYDRANT_PATH, "--address", daemon.address()};
  const auto run = [&base](std::vector<std::string> more) {
    std::vector<std::string> all = base;
    all.insert(all.end(), more.begin(), more.end());
    return Subprocess(all).Wait();
  };
  {
    std::vector<std::string> arguments = base;
    arguments.insert(arguments.end(),
                     {"generate", "--prompt", "the", "--max-tokens", "9", "--ignore-eos", "--json",
                      "--policy", "h2o", "--cache-ratio", "0.5"});
    Subprocess generate(arguments);
    EXPECT_EQ(generate.Wait(), 0) << generate.err();
    EXPECT_THAT(generate.out(), StartsWith("{\"accepted\":"));
    EXPECT_THAT(generate.out(), HasSubstr("\"completion_tokens\":9"));
  }
  {
    std::vector<std::string> arguments = base;
    arguments.insert(arguments.end(),
                     {"--wait", "5", "generate", "--prompt", "the", "--max-tokens", "9"});
    Subprocess generate(arguments);
    EXPECT_EQ(generate.Wait(), 0) << generate.err();
    EXPECT_THAT(generate.err(), HasSubstr("pages at most"));
  }
  EXPECT_EQ(run({"tokenize", "the"}), 0);
  EXPECT_EQ(run({"detokenize", "5", "6"}), 0);
  EXPECT_EQ(run({"detokenize", "99999"}), 2);
  EXPECT_EQ(run({"generate", "--prompt", "x", "--top-p", "7"}), 2);
  EXPECT_EQ(run({"chat", "hello"}), 2);  // the model has no chat template
  EXPECT_EQ(run({"frobnicate"}), 2);
}

TEST(Client, WaitsForADaemonThatIsYetToStart) {
  const std::string address = "unix:" + testing::TempDir() + "/hydrant_test.sock";
  Subprocess client({HYDRANT_PATH, "--address", address, "generate", "--wait", "60", "--prompt",
                     "x", "--max-tokens", "3"});
  Subprocess daemon({HYDRANTD_PATH, "--model", kModel, "--listen", address, "--threads", "1"});
  EXPECT_EQ(client.Wait(), 0) << client.err();
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0) << daemon.err();
}

TEST(Client, WithoutAServerItSaysHowToStartOne) {
  Subprocess client({HYDRANT_PATH, "--address", "127.0.0.1:1", "generate", "--prompt", "x"});
  EXPECT_EQ(client.Wait(), 3);
  EXPECT_THAT(client.err(), HasSubstr("no server at 127.0.0.1:1; start one with"));
}

}  // namespace
}  // namespace hydrant
