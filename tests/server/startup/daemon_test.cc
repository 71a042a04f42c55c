// The two programs: hydrantd serves a tiny model of the repository, hydrant is its client.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

#include "hydrant/v1/control.grpc.pb.h"
#include "server/startup/machine_limits.h"
#include "tests/sanitized.h"
#include "tests/server/daemon_process.h"
#include "tests/server/http_get.h"
#include "tests/server/relay.h"
#include "tests/server/scrape.h"
#include "tests/server/test_certificates.h"
#include "tests/server/test_server.h"
#include "tests/subprocess.h"

namespace hydrant {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

v1::GenerateRequest LongRequest(uint32_t tokens = 480) {
  v1::GenerateRequest request;
  for (const uint32_t id : {5u, 6u, 7u}) request.mutable_token_ids()->add_ids(id);
  request.mutable_stopping()->set_max_tokens(tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0);
  return request;
}

// Same model and queue; a request with a policy gets it at every address.
TEST(Daemon, ListensAtMoreAddressesEachWithItsOwnDefaultPolicy) {
  Daemon daemon({"--default-cache-policy", "local:max_cache_tokens=24", "--listen-as",
                 "127.0.0.1:0=h2o:max_cache_tokens=16"});
  const std::string line = daemon.process().WaitForErrorLine("and on 127.0.0.1:");
  const size_t at = line.find("127.0.0.1:");
  const auto channel = grpc::CreateChannel(line.substr(at, line.find(',', at) - at),
                                           grpc::InsecureChannelCredentials());
  const auto other = v1::Hydrant::NewStub(channel);
  EXPECT_EQ(HealthOf(channel, ""), grpc::health::v1::HealthCheckResponse::SERVING);
  const auto kept = [](v1::Hydrant::Stub& stub, const char* policy) {
    v1::GenerateRequest request = TextRequest(std::string(100, 'a'), 4);
    request.mutable_stopping()->set_ignore_eos(true);
    if (policy != nullptr) request.mutable_cache()->set_cache_policy(policy);
    const StreamResult result = RunToEnd(stub, request);
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    return result.usage.value_or(v1::Usage()).kv_tokens_kept();
  };
  EXPECT_EQ(kept(daemon.stub(), nullptr), 24u);
  EXPECT_EQ(kept(*other, nullptr), 16u);
  EXPECT_GT(kept(*other, "full"), 24u);
  const auto policy_of = [](v1::Hydrant::Stub& stub) {
    grpc::ClientContext context;
    v1::GetServerInfoResponse info;
    EXPECT_TRUE(stub.GetServerInfo(&context, {}, &info).ok());
    return info.options().at("default-cache-policy");
  };
  EXPECT_EQ(policy_of(daemon.stub()), "local:max_cache_tokens=24");
  EXPECT_EQ(policy_of(*other), "h2o:max_cache_tokens=16");
}

TEST(Daemon, IsStartedByAFileThatWasChecked) {
  const TemporaryFolder folder;
  const std::string file = folder.Write(
      "hydrantd.yaml", std::string("model: ") + kModel + "\nserved-model-name: by-file\n");
  Subprocess check({HYDRANTD_PATH, "--config", file, "--check-config"});
  EXPECT_EQ(check.Wait(), 0) << check.err();
  EXPECT_THAT(check.out(), HasSubstr("served-model-name: by-file\n"));
  EXPECT_EQ(check.err(), "");
  Daemon daemon({"--config", file});
  EXPECT_THAT(daemon.process().WaitForErrorLine("ready after"), HasSubstr("\"by-file\""));
  folder.Write("hydrantd.yaml", "models: m\nthreads: 0\n");
  for (const bool checked : {true, false}) {
    std::vector<std::string> arguments = {HYDRANTD_PATH, "--config", file};
    if (checked) arguments.emplace_back("--check-config");
    Subprocess bad(arguments);
    EXPECT_EQ(bad.Wait(), 1);
    EXPECT_EQ(bad.out(), "");
    EXPECT_THAT(bad.err(), testing::AllOf(HasSubstr(file + ":1: models: is not known"),
                                          HasSubstr(file + ":2: threads: ")));
  }
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

// A stream that has received its first token.
class RunningStream {
 public:
  explicit RunningStream(Daemon* daemon, uint32_t tokens)
      : reader_(daemon->stub().Generate(&context_, LongRequest(tokens))) {
    v1::GenerateResponse response;
    while (!response.has_delta()) {
      if (!reader_->Read(&response)) {
        ADD_FAILURE() << "the stream ended before its first delta";
        return;
      }
    }
    result_.token_ids.assign(response.delta().token_ids().begin(),
                             response.delta().token_ids().end());
  }
  const StreamResult& ReadToEnd() {
    ReadRest(&context_, reader_.get(), &result_);
    return result_;
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
  StreamResult result_;
};

std::unique_ptr<v1::Control::Stub> ControlOf(Daemon* daemon) {
  const std::string line = daemon->process().WaitForErrorLine("control on 127.0.0.1:");
  return v1::Control::NewStub(grpc::CreateChannel(line.substr(line.find("127.0.0.1:")),
                                                  grpc::InsecureChannelCredentials()));
}

// Reads to the end. Returns the last.
v1::DrainProgress LastOf(grpc::ClientReader<v1::DrainProgress>* reader) {
  v1::DrainProgress progress;
  while (reader->Read(&progress)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return progress;
}

// A second call watches the same drain, and cancelling one does not end it.
TEST(Daemon, DrainReportsRemainingRequests) {
  Daemon daemon({"--control-listen", "0"}, kGguf);
  const auto control = ControlOf(&daemon);
  RunningStream running(&daemon, 400);
  grpc::ClientContext first, second, gone;
  const auto reader = control->Drain(&first, {});
  v1::DrainProgress progress;
  ASSERT_TRUE(reader->Read(&progress));
  EXPECT_EQ(progress.running_requests(), 1u);
  EXPECT_TRUE(progress.has_waiting_requests());
  EXPECT_EQ(progress.waiting_requests(), 0u);
  const auto again = control->Drain(&second, {});
  const auto leaves = control->Drain(&gone, {});
  ASSERT_TRUE(leaves->Read(&progress));
  gone.TryCancel();
  EXPECT_EQ(leaves->Finish().error_code(), grpc::StatusCode::CANCELLED);
  const StreamResult& stream = running.ReadToEnd();
  EXPECT_TRUE(stream.status.ok()) << stream.status.error_message();
  EXPECT_EQ(stream.token_ids.size(), 400u);
  for (auto* call : {reader.get(), again.get()}) {
    const v1::DrainProgress last = LastOf(call);
    EXPECT_EQ(last.running_requests(), 0u);
    EXPECT_EQ(last.waiting_requests(), 0u);
  }
  EXPECT_EQ(daemon.process().Wait(), 0) << daemon.process().err();
  EXPECT_THAT(daemon.process().err(), HasSubstr("draining"));
}

TEST(Daemon, DrainReportsRequestsEndedByTheTimeout) {
  Daemon daemon({"--control-listen", "0", "--shutdown-timeout", "0"}, kGguf);
  const auto control = ControlOf(&daemon);
  RunningStream running(&daemon, 400);
  grpc::ClientContext context;
  EXPECT_EQ(LastOf(control->Drain(&context, {}).get()).running_requests(), 1u);
  EXPECT_EQ(running.ReadToEnd().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(daemon.process().Wait(), 0) << daemon.process().err();
}

// The plain loops take seconds for these streams, so all checks are made while they run.
TEST(Daemon, UnderLoadSigtermRefusesNewStreamsAndFinishesTheRunningOnes) {
  using grpc::health::v1::HealthCheckResponse;
  Daemon daemon({}, kGguf);
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  EXPECT_EQ(HealthOf(daemon.channel(), "hydrant.v1.Hydrant"), HealthCheckResponse::SERVING);
  RunningStream first(&daemon, 200), second(&daemon, 200);
  daemon.process().Signal(SIGTERM);
  ASSERT_TRUE(WaitFor([&] {
    return HealthOf(daemon.channel(), "hydrant.v1.Hydrant") != HealthCheckResponse::SERVING;
  }));
  EXPECT_EQ(HealthOf(daemon.channel(), ""), HealthCheckResponse::NOT_SERVING);
  const StreamResult refused = RunToEnd(daemon.stub(), LongRequest());
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailsOf(refused.status).reason, "DRAINING") << refused.status.error_message();
  for (RunningStream* stream : {&first, &second}) {
    const StreamResult& result = stream->ReadToEnd();
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.token_ids.size(), 200u);
    ASSERT_TRUE(result.usage.has_value());
    EXPECT_EQ(result.usage->completion_tokens(), 200u);
  }
  EXPECT_EQ(daemon.process().Wait(), 0) << daemon.process().err();
}

TEST(Daemon, UnderLoadATimeoutTooShortEndsTheStreamsAndTheProcess) {
  Daemon daemon({"--shutdown-timeout", "0.1"}, kGguf);
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  RunningStream first(&daemon, 2000), second(&daemon, 2000);
  daemon.process().Signal(SIGTERM);
  for (RunningStream* stream : {&first, &second}) {
    const StreamResult& result = stream->ReadToEnd();
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::UNAVAILABLE)
        << result.status.error_message();
    EXPECT_THAT(result.status.error_message(), HasSubstr("stopping"));
    EXPECT_EQ(DetailsOf(result.status).reason, "DRAINING");
    ASSERT_TRUE(result.trailer_usage.has_value());
    EXPECT_GE(result.trailer_usage->completion_tokens(), 1u);
    EXPECT_LT(result.trailer_usage->completion_tokens(), 2000u);
  }
  EXPECT_EQ(daemon.process().Wait(), 0) << daemon.process().err();
}

// Otherwise any client could fill the log.
TEST(Daemon, InvalidRequestsLeaveNoLineInTheLog) {
  Daemon daemon;
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  const size_t before = daemon.process().err().size();
  v1::GenerateRequest request = LongRequest(1);
  request.set_text("\xFF");
  const StreamResult result = RunToEnd(daemon.stub(), request);
  EXPECT_EQ(DetailsOf(result.status).field, "text") << result.status.error_message();
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().Wait(), 0);
  const std::string lines = daemon.process().err().substr(before);
  EXPECT_THAT(lines, Not(HasSubstr("UTF-8"))) << lines;
}

TEST(Daemon, LogsItsCapacity) {
  Daemon daemon({"--served-model-name", "tiny", "--num-gpu-blocks-override", "640"});
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  // 2 layers x 4 heads x 64 pages = 512 pages for 1,024 tokens; 8 x 13 = 104 for a fifth.
  EXPECT_THAT(daemon.process().err(), HasSubstr("2 full or 11 20 % sequences of 512 tokens"));
  Subprocess info({HYDRANT_PATH, "--address", daemon.address(), "info"});
  EXPECT_EQ(info.Wait(), 0) << info.err();
  EXPECT_THAT(info.out(), HasSubstr("tiny (llama)"));
  EXPECT_THAT(info.out(), HasSubstr("640 of 640 pages free"));
  EXPECT_THAT(info.out(), HasSubstr("h2o"));
}

// Runs hydrantd with these flags: it must exit with code 1 and one line that contains `mentions`.
void ExpectNoStart(const std::vector<std::string>& flags,
                   const std::vector<std::string>& mentions) {
  std::vector<std::string> arguments = {HYDRANTD_PATH, "--log-level", "error"};
  if (std::find(flags.begin(), flags.end(), "--listen") == flags.end())
    arguments.insert(arguments.end(), {"--listen", "127.0.0.1:0"});
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  SCOPED_TRACE(testing::PrintToString(flags));
  Subprocess process(arguments);
  EXPECT_EQ(process.Wait(), 1);
  EXPECT_EQ(process.out(), "");
  EXPECT_THAT(process.err(), StartsWith("hydrantd: "));
  for (const std::string& mention : mentions) EXPECT_THAT(process.err(), HasSubstr(mention));
  EXPECT_EQ(process.err().find('\n'), process.err().size() - 1) << process.err();
}

// Files made from valid ones, removed at the end.
class SpoiledFiles : public testing::Test {
 protected:
  SpoiledFiles() : folder_(testing::TempDir() + "/hydrant_spoiled_" + std::to_string(getpid())) {
    std::filesystem::create_directories(folder_);
    std::ifstream file(kGguf, std::ios::binary);
    good_.assign(std::istreambuf_iterator<char>(file), {});
    EXPECT_GT(good_.size(), 1'000'000u) << kGguf;
  }
  ~SpoiledFiles() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << bytes;
    return folder_ + "/" + name;
  }
  // The valid file with `bytes` at offset `at`.
  std::string Overwritten(size_t at, const std::string& bytes) const {
    return std::string(good_).replace(at, bytes.size(), bytes);
  }

  const std::string folder_;
  std::string good_;
};

// GGUF: magic, version (4 bytes), tensor count (8 bytes), metadata count (8 bytes), metadata.
TEST_F(SpoiledFiles, DoNotStart) {
  const std::string huge = std::string(7, '\xFF') + '\x3F';  // little endian, 4.6e18
  const size_t architecture = good_.find("llama", good_.find("general.architecture"));
  ASSERT_NE(architecture, std::string::npos);
  struct Case {
    std::string name, bytes, mention;
  };
  for (const Case& c : std::vector<Case>{
           {"empty.gguf", "", "is empty"},
           {"text.gguf", "GGUF this is no model", "version"},
           {"cut_header.gguf", good_.substr(0, 10), "the file ends inside the tensor count"},
           {"cut_metadata.gguf", good_.substr(0, 1000), "does not fit the 976 bytes left"},
           {"cut_data.gguf", good_.substr(0, good_.size() / 2), "is the file cut short?"},
           {"magic.gguf", Overwritten(0, "X"), "does not begin with the bytes GGUF"},
           {"version.gguf", Overwritten(4, "\x09"), "GGUF version is 9"},
           {"tensors.gguf", Overwritten(8, huge), "tensor count 4611686018427387903 does not fit"},
           {"pairs.gguf", Overwritten(16, huge), "metadata count 4611686018427387903 does not fit"},
           {"mamba.gguf", Overwritten(architecture, "mamba"),
            "general.architecture is 'mamba'; supported are llama, qwen2"}}) {
    ExpectNoStart({"--model", Write(c.name, c.bytes)}, {"--model", c.name, c.mention});
  }
}

TEST_F(SpoiledFiles, FoldersWithoutTheirPartsDoNotStart) {
  ExpectNoStart({"--model", folder_}, {"config.json"});
  for (const char* file : {"config.json", "model.safetensors"})
    std::filesystem::copy_file(std::string(kModel) + "/" + file, folder_ + "/" + file);
  ExpectNoStart({"--model", folder_}, {"tokenizer", folder_});
  std::filesystem::resize_file(folder_ + "/model.safetensors", 5000);
  ExpectNoStart({"--model", folder_}, {"model.safetensors"});
  Write("config.json", "{\"architectures\": [\"MambaForCausalLM\"]}");
  ExpectNoStart({"--model", folder_}, {"MambaForCausalLM"});
  Write("config.json", "{");
  ExpectNoStart({"--model", folder_}, {"config.json"});
}

TEST(Daemon, RefusesToStartWithOneClearLine) {
  struct Case {
    std::vector<std::string> flags;
    std::vector<std::string> mentions;
  };
  for (const Case& c : std::vector<Case>{
           {{"--model", "/no/such/model.gguf"}, {"/no/such/model.gguf", "does not exist"}},
           {{"--model", kModel, "--tokenizer", "/no/tokenizer"}, {"/no/tokenizer"}},
           {{"--model", kModel, "--tokenizer", "/dev/zero"}, {"/dev/zero", "regular file"}},
           {{"--model", kModel, "--num-gpu-blocks-override", "1073741824", "--block-size", "256"},
            {"num_gpu_blocks_override: 1073741824", "the limit is"}},
           {{"--model", kModel, "--listen", "256.1.1.1:1"}, {"256.1.1.1:1"}},
           {{"--model", kModel, "--listen", "127.0.0.1:99999"},
            {"--listen: '127.0.0.1:99999' is not host:port with a port from 0 to 65535"}},
           {{"--model", kModel, "--listen", "127.0.0.1:x"}, {"--listen: '127.0.0.1:x'"}},
           {{"--model", kModel, "--metrics-listen", "127.0.0.1:99999"},
            {"--metrics-listen: '127.0.0.1:99999'", "65535"}},
           {{"--model", kModel, "--port", "70000"}, {"--port", "70000", "65535"}},
           {{"--model", kModel, "--frobnicate"}, {"--frobnicate"}},
           {{"--model", kModel, "stray"}, {"stray"}},
           {{}, {"no model is given"}},
           {{"--model"}, {"--model"}},
           {{"--model", kModel, "--device", "abacus"}, {"--device", "abacus", "cpu"}},
           {{"--model", kModel, "--dtype", "int3"}, {"--dtype", "int3", "float32"}},
           {{"--model", kModel, "--kv-cache-dtype", "int3"}, {"--kv-cache-dtype", "int3", "fp8"}},
           {{"--model", kModel, "--threads", "0"}, {"--threads", "is outside [1, "}},
           {{"--model", kModel, "--block-size", "0"}, {"--block-size", "0"}},
           {{"--model", kModel, "--watermark", "0.9"}, {"--watermark", "0.5"}},
           {{"--model", kModel, "--listen-as", "127.0.0.1:0"}, {"--listen-as", "ADDRESS=POLICY"}},
           {{"--model", kModel, "--listen-as", "127.0.0.1:many=full"}, {"--listen-as", "many"}},
           {{"--model", kModel, "--listen-as", "127.0.0.1:0=h3o"},
            {"--listen-as", "'h3o' is unknown"}},
           {{"--model", kModel, "--policy-under-pressure", "h3o:cache_ratio=0.2"},
            {"--policy-under-pressure: cache.cache_policy: 'h3o' is unknown"}},
           {{"--model", kModel, "--policy-under-pressure", "h2o:cache_ratio=0.2:alpha=2"},
            {"--policy-under-pressure: cache.params: 'alpha'"}},
           {{"--model", kModel, "--tenant-weights", "gold=3,iron=2000"},
            {"tenant-weights", "2000", "'iron'", "(0, 1000]"}},
           {{"--model", kModel, "--target-ttft", "0"}, {"--target-ttft", "86400"}},
           {{"--model", kModel, "--target-tpot", "nan"}, {"--target-tpot", "86400"}},
           {{"--model", kModel, "--max-num-seqs", "many"}, {"--max-num-seqs", "many"}},
           {{"--model", kModel, "--shutdown-timeout", "-1"}, {"--shutdown-timeout"}},
           {{"--model", kModel, "--drain-delay", "-1"}, {"--drain-delay", "86400"}},
           {{"--model", kModel, "--stall-timeout", "0"}, {"--stall-timeout", "0.001"}},
           {{"--model", kModel, "--max-connection-age", "x"}, {"--max-connection-age", "x"}},
           {{"--model", kModel, "--log-format", "xml"}, {"--log-format", "xml", "json"}},
           {{"--model", kModel, "--metrics-listen", "9464"},
            {"--metrics-listen: '9464' is not host:port"}},
           {{"--model", kModel, "--metrics-listen", "no.such.host.invalid:1"},
            {"--metrics-listen: cannot listen on no.such.host.invalid:1"}},
           {{"--model", kModel, "--kv-cache-memory-bytes", "lots"},
            {"--kv-cache-memory-bytes", "lots", "512M"}},
           {{"--model", kModel, "--kv-cache-memory-bytes", "0"}, {"--kv-cache-memory-bytes"}},
           {{"--model", kModel, "--prefix-cache-memory-bytes", "0"},
            {"--prefix-cache-memory-bytes", "--no-enable-prefix-caching"}},
           {{"--model", kModel, "--prefix-cache-memory-bytes", "99999T"},
            {"prefix_cache_memory_bytes", "host's"}},
           {{"--model", kModel, "--prefix-cache-store", "/tmp", "--no-enable-prefix-caching"},
            {"--prefix-cache-store", "--no-enable-prefix-caching"}},
           {{"--model", kModel, "--context-memory-bytes", "some"},
            {"--context-memory-bytes", "some"}},
           {{"--model", kModel, "--kv-cache-memory-bytes", "99999999T"},
            {"--kv-cache-memory-bytes", "99999999T"}},
           {{"--model", kModel, "--kv-cache-memory-bytes", "10"},
            {"--kv-cache-memory-bytes: 10 is 10 bytes; did you mean 10G?"}},
           {{"--model", kModel, "--num-gpu-blocks-override", "7"}, {"7 pages", "at least 8"}},
           {{"--model", kModel, "--num-gpu-blocks-override", "8"},
            {"--kv-cache-memory-bytes: a KV pool of 8 pages", "holds no sequence"}},
           {{"--model", kGguf, "--max-model-len", "2049"},
            {"max_model_len", "2049 is outside [2, 2048]"}},
           {{"--model", kGguf, "--max-model-len", "1"}, {"--max-model-len", "1"}}}) {
    ExpectNoStart(c.flags, c.mentions);
  }
}

// Parsers accept "nan" as a number, and it is neither below nor above any limit.
TEST(Daemon, RefusesNumbersThatAreNone) {
  for (const char* flag :
       {"--stall-timeout", "--drain-delay", "--shutdown-timeout", "--max-connection-age",
        "--max-connection-age-grace", "--watermark", "--gpu-memory-utilization"}) {
    for (const char* value : {"nan", "-nan", "inf", "-inf", "-1", "1e300", "x"})
      ExpectNoStart({"--model", kModel, std::string(flag) + "=" + value}, {flag, value, "from"});
  }
}

TEST(Daemon, IgnoresSignalsThatDoNotAskItToStop) {
  Daemon daemon;
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  for (const auto& [signal, line] :
       {std::pair(SIGHUP, "SIGHUP is ignored"), std::pair(SIGUSR1, "SIGUSR1 is ignored"),
        std::pair(SIGUSR2, "SIGUSR2 is ignored")}) {
    daemon.process().Signal(signal);
    EXPECT_NE(daemon.process().WaitForErrorLine(line), "");
  }
  EXPECT_TRUE(RunToEnd(daemon.stub(), LongRequest(3)).status.ok());
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().Wait(), 0) << daemon.process().err();
}

TEST(Daemon, SaysThatThreadsAreMoreThanCpus) {
  const MachineLimits machine = ReadMachineLimits("", AffinityCpus());
  const std::string threads = std::to_string(2 * static_cast<int>(std::ceil(machine.cpus)));
  Daemon few;
  EXPECT_THAT(few.process().err(), Not(HasSubstr("--threads")));
  Subprocess many({HYDRANTD_PATH, "--model", kModel, "--listen", "127.0.0.1:0", "--device",
                   "reference", "--threads", threads});
  EXPECT_NE(many.WaitForErrorLine("--threads " + threads + " is more than the "), "");
}

TEST(Daemon, ASwapFolderWithoutRoomIsAWarning) {
  Subprocess daemon({HYDRANTD_PATH, "--model", kModel, "--listen", "127.0.0.1:0", "--device",
                     "reference", "--swap-space", "1M", "--swap-directory", "/no/such/folder"});
  EXPECT_NE(daemon.WaitForErrorLine("/no/such/folder: No such file"), "");
  EXPECT_NE(daemon.WaitForErrorLine("swap space 0"), "") << "and it serves";
}

// Too little address space for gRPC's threads, for the daemon's, for the weights, for the pool. The
// limits depend on the machine: a daemon that serves after all is stopped.
TEST(Daemon, WithoutMemoryItEndsWithALine) {
  if (kSanitized) GTEST_SKIP() << "sanitizers map more than any limit leaves";
  constexpr int kServed = 124;  // exit code of timeout(1)
  int ended = 0;
  for (const char* kibibytes : {"100000", "150000", "200000", "250000", "350000"}) {
    const std::string command =
        std::string("ulimit -v ") + kibibytes + " && exec timeout 10 \"$@\"";
    Subprocess process({"/bin/sh", "-c", command, "sh", HYDRANTD_PATH, "--model", kModel,
                        "--listen", "127.0.0.1:0", "--device", "cpu", "--threads", "1"});
    const int code = process.Wait();
    if (code == kServed) continue;
    ++ended;
    EXPECT_EQ(code, 1) << kibibytes << ": " << process.err();
    EXPECT_THAT(process.err(), HasSubstr("hydrantd: ")) << kibibytes;
  }
  EXPECT_GT(ended, 1);
}

// A missing device is reported before a missing model.
TEST(Daemon, AMissingDeviceIsFirst) {
  setenv("HYDRANT_CUDA_MODULE", "/no/such/module.so", 1);
  ExpectNoStart({"--model", "/no/such/model.gguf", "--device", "cuda"},
                {"device cuda", "/no/such/module.so"});
  Daemon automatic({}, kModel, "auto");
  EXPECT_FALSE(automatic.address().empty()) << automatic.process().err();
  EXPECT_THAT(automatic.process().err(), HasSubstr("device auto: cpu, because device cuda"));
  unsetenv("HYDRANT_CUDA_MODULE");
}

#ifdef EMULATED_CUDA
// Pinned memory is cleared at the start, which takes seconds by default.
std::vector<std::string> WithLittleHostMemory(std::vector<std::string> flags) {
  for (const char* flag :
       {"--prefix-cache-memory-bytes=8M", "--context-memory-bytes=8M", "--swap-space=8M"})
    flags.emplace_back(flag);
  return flags;
}

// Device "cuda" is the emulated one, configured by this setting.
class EmulatedDevice {
 public:
  EmulatedDevice(const std::string& name, const std::string& value)
      : name_("HYDRANT_EMULATION_" + name) {
    setenv(name_.c_str(), value.c_str(), 1);
    setenv("HYDRANT_CUDA_MODULE", EMULATED_CUDA, 1);
  }
  ~EmulatedDevice() {
    unsetenv(name_.c_str());
    unsetenv("HYDRANT_CUDA_MODULE");
  }

 private:
  std::string name_;
};

TEST(Device, AnUnusableDeviceIsNamedWithReasonAndRemedy) {
  const std::vector<std::string> flags = {"--model", kModel, "--device", "cuda"};
  const std::tuple<const char*, const char*, std::vector<std::string>> cases[] = {
      {"CAPABILITY", "7", {"emulated device", "7.0", "8.0 is the least", "--device cpu"}},
      {"CODE_ERROR", "209", {"9.0: cudaErrorNoKernelImage", "HYDRANT_CUDA_ARCHITECTURES"}},
      {"CODE_ERROR", "222", {"9.0: cudaErrorUnsupportedPtxVersion", "580 or later"}},
      {"DEVICE_ERROR", "35", {"cudaErrorInsufficientDriver", "580 or later"}},
      {"DEVICE_ERROR", "100", {"cudaErrorNoDevice", "nvidia-smi", "--gpus all"}},
      {"DEVICE_ERROR", "802", {"cudaErrorSystemNotReady", "nvidia-fabricmanager"}},
      {"START_ERROR", "46", {"does not start", "cudaErrorDevicesUnavailable", "compute mode"}},
      {"START_ERROR", "2", {"does not start", "cudaErrorMemoryAllocation", "nvidia-smi"}}};
  for (const auto& [name, value, parts] : cases) {
    const EmulatedDevice device(name, value);
    ExpectNoStart(flags, parts);
  }
}

TEST(Device, AnUnknownNameOfKernelsOnTrialIsRefused) {
  const EmulatedDevice device("CAPABILITY", "9");
  setenv("HYDRANT_CUDA_TRIAL", "decode,fuse", 1);
  ExpectNoStart({"--model", kModel, "--device", "cuda"},
                {"HYDRANT_CUDA_TRIAL", "'fuse'", "decode, fused, overlap, sums"});
  unsetenv("HYDRANT_CUDA_TRIAL");
}

TEST(Device, AutomaticallyItIsTheCpuWhereTheGpuCannotBeUsed) {
  const EmulatedDevice device("DEVICE_ERROR", "35");
  Daemon daemon({}, kModel, "auto");
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  EXPECT_THAT(daemon.process().err(),
              HasSubstr("device auto: cpu, because device cuda: no CUDA device can be used"));
  EXPECT_TRUE(RunToEnd(daemon.stub(), LongRequest(3)).status.ok());
}

TEST(Device, TooLittleMemoryIsSaidInItsUnits) {
  const std::vector<std::string> flags = {"--model", kModel, "--device", "cuda"};
  {
    const EmulatedDevice device("MEMORY", "600000");
    ExpectNoStart(
        flags, {"the device cannot give", "of 585.9 KiB are free", "nvidia-smi", "--max-num-seqs"});
  }
  {
    const EmulatedDevice device("MEMORY", "5300000");
    ExpectNoStart(flags, {"gpu_memory_utilization: 0.9 of the device's 5.1 MiB"});
  }
  {
    const EmulatedDevice device("TAKEN", std::to_string(uint64_t{7} << 30));
    Daemon daemon(WithLittleHostMemory({}), kModel, "cuda");
    EXPECT_FALSE(daemon.address().empty()) << "a GiB is enough: " << daemon.process().err();
    EXPECT_THAT(daemon.process().err(), HasSubstr("MiB of the host's, pinned (prefix cache"));
  }
  {
    const EmulatedDevice device("TAKEN", std::to_string((uint64_t{8} << 30) * 95 / 100));
    ExpectNoStart(flags, {"0.9 of the device's 8.0 GiB leaves nothing", "7.6 GiB are in use",
                          "other processes, which nvidia-smi lists"});
  }
}

// First the request fails, then health reports it, then the process ends.
TEST(Device, ALostDeviceEndsTheRequestThenTheProcess) {
  const EmulatedDevice device("LAST_LAUNCH", "3000");
  Daemon daemon(WithLittleHostMemory({"--kv-cache-memory-bytes", "4M"}), kModel, "cuda");
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  const StreamResult result = RunToEnd(daemon.stub(), LongRequest());
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(DetailsOf(result.status).reason, "ENGINE_FAULT");
  EXPECT_THAT(result.status.error_message(), HasSubstr("CUDA failed"));
  EXPECT_GT(result.token_ids.size(), 0u);
  EXPECT_TRUE(WaitFor([&] {
    return HealthOf(daemon.channel(), "") == grpc::health::v1::HealthCheckResponse::NOT_SERVING;
  }));
  EXPECT_EQ(daemon.process().Wait(), 1);
  EXPECT_THAT(daemon.process().err(), HasSubstr("hydrantd: the engine is lost: CUDA failed"));
}

// Prompts in prefill, decoding streams of several policies, and waiting requests: each ends once by
// the daemon's counters, with its last token or with the fault, and its client receives that end.
void ExpectOneEndForEach(const std::string& setting, const std::string& value,
                         const std::string& max_num_seqs, const std::string& fault) {
  SCOPED_TRACE(setting + "=" + value);
  const EmulatedDevice device(setting, value);
  Daemon daemon(WithLittleHostMemory({"--metrics-listen", "127.0.0.1:0", "--max-num-seqs",
                                      max_num_seqs, "--kv-cache-memory-bytes", "4M"}),
                kModel, "cuda");
  if (daemon.address().empty()) {  // failed at startup
    EXPECT_EQ(daemon.process().Wait(), 1);
    EXPECT_THAT(daemon.process().err(), HasSubstr(fault));
    return;
  }
  const std::string metrics = daemon.MetricsAddress();
  constexpr int kStreams = 8;
  std::vector<StreamResult> results(kStreams);
  std::vector<std::thread> clients;
  clients.reserve(kStreams);
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back([&, i] {
      v1::GenerateRequest request = LongRequest(i == 0 ? 4 : 400);
      for (int id = 0; id < 20 * i; ++id) request.mutable_token_ids()->add_ids(7 + id % 9);
      if (i % 3 == 1) {
        request.mutable_cache()->set_cache_policy("h2o");
        request.mutable_cache()->set_max_cache_tokens(32);
      }
      if (i % 3 == 2) request.mutable_sampling()->set_temperature(1);
      results[i] = RunToEnd(daemon.stub(), request);
    });
  }
  for (std::thread& client : clients) client.join();
  Scrape scrape;
  EXPECT_TRUE(WaitFor([&] {
    scrape = ParseScrape(HttpGet(metrics, "/metrics").body);
    return scrape.Sum("hydrant_requests_total") + scrape.Sum("hydrant_requests_refused_total") >=
           kStreams;
  }));
  int failed = 0;
  for (const StreamResult& result : results) {
    if (result.status.ok()) continue;
    ++failed;
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INTERNAL);
    EXPECT_EQ(DetailsOf(result.status).reason, "ENGINE_FAULT");
    EXPECT_THAT(result.status.error_message(), HasSubstr(fault));
  }
  ASSERT_GT(failed, 0);  // else the daemon serves on, and does not end
  EXPECT_EQ(scrape.Sum("hydrant_requests_total") + scrape.Sum("hydrant_requests_refused_total"),
            kStreams);
  EXPECT_EQ(scrape["hydrant_requests_total{outcome=\"error\"}"] +
                scrape["hydrant_requests_refused_total{reason=\"ENGINE_FAULT\"}"],
            failed);
  EXPECT_EQ(daemon.process().Wait(), 1);
  EXPECT_THAT(daemon.process().err(), HasSubstr("hydrantd: the engine is lost: CUDA failed"));
  EXPECT_THAT(daemon.process().err(), HasSubstr(fault));
}

TEST(Device, AKernelThatFailsInMidStepLeavesNoRequestWithoutItsEnd) {
  for (const char* last : {"1", "1500"})
    ExpectOneEndForEach("LAST_LAUNCH", last, "4", "cudaErrorLaunchFailure; the host's kernel log");
}

// The workspace grows with the rows of a step, and the free memory has been taken by others: early,
// before all streams have joined a step.
TEST(Device, MemoryThatOthersTakeInMidStepLeavesNoRequestWithoutItsEnd) {
  ExpectOneEndForEach("TAKEN_AFTER", "60", "8", "cudaErrorMemoryAllocation; nvidia-smi lists");
}
#endif

// From a library that replaces the driver's.
TEST(Device, AnOldDriverIsNamedWithItsVersion) {
  const std::string line =
      "the NVIDIA driver is too old, of CUDA 12.4; CUDA 13 needs version 580 or later";
  setenv("LD_LIBRARY_PATH", OLD_DRIVER, 1);
  ExpectNoStart({"--model", kModel, "--device", "cuda"}, {"hydrantd: device cuda: " + line});
  Daemon daemon({}, kModel, "auto");
  unsetenv("LD_LIBRARY_PATH");
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  EXPECT_THAT(daemon.process().err(), HasSubstr("auto: cpu, because device cuda: " + line));
}

#ifdef REAL_CUDA
// The backend compiled by nvcc, on a machine without a driver.
TEST(Device, WithoutADriverTheRealBackendSaysSo) {
  if (void* driver = dlopen("libcuda.so.1", RTLD_LAZY); driver != nullptr)
    GTEST_SKIP() << "there is a driver";
  const std::vector<std::string> flags = {"--model", kModel, "--device", "cuda"};
  ExpectNoStart(flags, {"device cuda: there is no NVIDIA driver", "580 or later", "--gpus all"});
  setenv("HYDRANT_CUDA_MODULE", REAL_CUDA, 1);
  ExpectNoStart(flags, {"device cuda: no CUDA device can be used", "580 or later"});
  unsetenv("HYDRANT_CUDA_MODULE");
}
#endif

TEST(Daemon, ASecondOneOnThePortRefuses) {
  Daemon first;
  ASSERT_FALSE(first.address().empty()) << first.process().err();
  ExpectNoStart({"--model", kModel, "--listen", first.address()},
                {"cannot listen on " + first.address(), "in use"});
}

TEST(Daemon, AMetricsPortThatIsTakenIsOneClearLine) {
  Daemon first({"--metrics-listen", "127.0.0.1:0"});
  ASSERT_FALSE(first.address().empty()) << first.process().err();
  const std::string address = first.MetricsAddress();
  ExpectNoStart({"--model", kModel, "--metrics-listen", address},
                {"--metrics-listen: cannot listen on " + address + ": Address already in use"});
  EXPECT_EQ(HttpGet(address, "/readyz").body, "ready\n") << "the first one's probes go on";
}

// HTTP/2 connections after their handshake, without requests.
class IdleConnections {
 public:
  IdleConnections(const std::string& address, int count) {
    constexpr std::string_view kHello("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
    for (int i = 0; i < count; ++i) {
      fds_.push_back(ConnectTo(address));
      (void)!send(fds_.back(), kHello.data(), kHello.size(), MSG_NOSIGNAL);
    }
  }
  ~IdleConnections() { Close(); }
  IdleConnections(const IdleConnections&) = delete;
  IdleConnections& operator=(const IdleConnections&) = delete;
  // Waits until the server has closed the last of them.
  bool LastIsClosed() const {
    char byte;
    for (ssize_t count; (count = recv(fds_.back(), &byte, 1, 0)) != 0;) {
      if (count < 0) return errno == ECONNRESET;
    }
    return true;
  }
  void Close() {
    for (const int fd : fds_) close(fd);
    fds_.clear();
  }

 private:
  std::vector<int> fds_;
};

// With a stub on its own connection.
grpc::Status NewConnectionsAnswer(const std::string& address) {
  grpc::ChannelArguments own;
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto stub = v1::Hydrant::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), own));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  v1::GetServerInfoResponse info;
  return stub->GetServerInfo(&context, {}, &info);
}

// More connections than descriptors: established ones continue, others are refused without delay,
// probes continue and give the reason, and the daemon recovers when the connections are gone.
TEST(Descriptors, WhenTheyRunOutTheDaemonIsFullAndNotDeaf) {
  Daemon daemon(Limits{.open_files = 128}, {"--metrics-listen", "127.0.0.1:0"});
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  const std::string metrics = daemon.MetricsAddress();
  EXPECT_TRUE(RunToEnd(daemon.stub(), LongRequest(3)).status.ok());
  IdleConnections idle(daemon.address(), 200);
  EXPECT_TRUE(idle.LastIsClosed());
  EXPECT_NE(daemon.process().WaitForErrorLine("a connection was refused"), "");
  EXPECT_TRUE(RunToEnd(daemon.stub(), LongRequest(3)).status.ok()) << "over the old connection";
  EXPECT_TRUE(WaitFor([&] { return HttpGet(metrics, "/readyz").status == 503; }));
  EXPECT_THAT(HttpGet(metrics, "/readyz").body, StartsWith("full: "));
  EXPECT_EQ(HttpGet(metrics, "/livez").status, 200);
  EXPECT_EQ(HealthOf(daemon.channel(), ""), grpc::health::v1::HealthCheckResponse::SERVING);
  idle.Close();
  EXPECT_TRUE(WaitFor([&] { return NewConnectionsAnswer(daemon.address()).ok(); }));
  EXPECT_TRUE(WaitFor([&] { return HttpGet(metrics, "/readyz").status == 200; }));
}

TEST(Descriptors, TheSoftLimitIsRaised) {
  Daemon daemon(Limits{.open_files = 256, .soft_open_files = 64});
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  EXPECT_THAT(daemon.process().err(), HasSubstr("256 files may be open, 192 of them connections"));
}

// The data of the status page.
nlohmann::json StatusOf(const std::string& address) {
  const HttpReply reply = HttpGet(address, "/status.json");
  EXPECT_EQ(reply.status, 200);
  EXPECT_THAT(reply.headers, HasSubstr("Content-Type: application/json"));
  return nlohmann::json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
}

// The plain loops take seconds for these streams.
TEST(Daemon, ThePageShowsThePoolWhileItIsHeldAndAfterwards) {
  Daemon daemon({"--metrics-listen", "127.0.0.1:0"}, kGguf);
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  const std::string address = daemon.MetricsAddress();
  const HttpReply page = HttpGet(address, "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.headers, HasSubstr("Content-Type: text/html; charset=utf-8"));
  EXPECT_THAT(page.body, StartsWith("<!DOCTYPE html>"));
  EXPECT_THAT(page.body, HasSubstr("status.json"));
  EXPECT_EQ(HttpGet(address, "/status").status, 404);
  EXPECT_EQ(HttpGet(address, "/index.html").status, 404);
  nlohmann::json view;
  {
    RunningStream first(&daemon, 200), second(&daemon, 200);
    ASSERT_TRUE(WaitFor([&] {
      view = StatusOf(address).at("view");
      return view.is_object() && view.at("live").size() == 2;
    }));
    int64_t pages = view.at("pool").at("free");
    for (const nlohmann::json& one : view.at("live")) {
      EXPECT_EQ(one.at("policy"), "full");
      EXPECT_EQ(one.at("prompt_tokens"), 3);
      pages += one.at("pages").get<int64_t>();
    }
    EXPECT_EQ(pages, view.at("pool").at("pages").get<int64_t>() +
                         view.at("pool").at("spared").get<int64_t>());
    EXPECT_TRUE(first.ReadToEnd().status.ok());
    EXPECT_TRUE(second.ReadToEnd().status.ok());
  }
  EXPECT_TRUE(WaitFor([&] {
    view = StatusOf(address).at("view");
    return view.is_object() && view.at("live").empty();
  }));
  EXPECT_EQ(view.at("pool").at("free"), view.at("pool").at("pages"));
}

TEST(Daemon, LogsAsJsonOnRequest) {
  Daemon daemon({"--log-format", "json"});
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  v1::GenerateRequest request = LongRequest(7);
  request.set_request_id("a \"quoted\" id");
  request.mutable_cache()->set_cache_policy("local");
  request.mutable_cache()->set_max_cache_tokens(64);
  request.mutable_scheduling()->set_tenant("gold");
  const StreamResult result = RunToEnd(daemon.stub(), request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  daemon.process().Signal(SIGTERM);
  ASSERT_EQ(daemon.process().Wait(), 0);
  std::istringstream lines(daemon.process().err());
  int requests = 0;
  for (std::string text; std::getline(lines, text);) {
    const nlohmann::json line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(line.is_object()) << text;
    EXPECT_THAT(line.at("time").get<std::string>(),
                testing::MatchesRegex("20[0-9-]+T[0-9]+:[0-9]+:[0-9]+\\.[0-9][0-9][0-9]Z"));
    EXPECT_THAT(line.at("level"), testing::AnyOf("info", "warning")) << text;
    EXPECT_TRUE(line.at("message").is_string()) << text;
    if (!line.contains("request_id")) continue;
    ++requests;
    EXPECT_EQ(line.at("request_id"), "a \"quoted\" id");
    EXPECT_EQ(line.at("outcome"), "length");
    EXPECT_EQ(line.at("cache_policy"), "local");
    EXPECT_EQ(line.at("tenant"), "gold");
    EXPECT_EQ(line.at("prompt_tokens"), 3);
    EXPECT_EQ(line.at("completion_tokens"), 7);
    EXPECT_EQ(line.at("samples"), 1);
    EXPECT_EQ(line.at("kv_tokens_evicted"), 0);
    EXPECT_EQ(line.at("recalled_tokens"), 0);
    EXPECT_EQ(line.at("kv_tokens_kept_mean"), 9.0);
    EXPECT_EQ(line.at("kv_bytes"), line.at("kv_bytes_of_full"));
    EXPECT_GT(line.at("kv_bytes"), 0);
    EXPECT_GT(line.at("decode_ms"), 0.0);
    EXPECT_GT(line.at("kv_pages_mean"), 0.0);
    EXPECT_EQ(line.at("swapped_ms"), 0.0);
    EXPECT_EQ(line.at("preempted_ms"), 0.0);
  }
  EXPECT_EQ(requests, 1);
  EXPECT_THAT(daemon.process().err(), HasSubstr("draining"));
}

TEST(Daemon, AFailureIsJsonToo) {
  Subprocess process({HYDRANTD_PATH, "--model", "/no/such\xFF/model.gguf", "--listen",
                      "127.0.0.1:0", "--log-format", "json", "--log-level", "error"});
  EXPECT_EQ(process.Wait(), 1);
  const nlohmann::json line = nlohmann::json::parse(process.err(), nullptr, false);
  ASSERT_TRUE(line.is_object()) << process.err();
  EXPECT_EQ(line.at("level"), "critical");
  EXPECT_THAT(line.at("message").get<std::string>(), HasSubstr("does not exist"));
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
  EXPECT_EQ(run({"health"}), 0);
  EXPECT_EQ(run({"tokenize", "the"}), 0);
  EXPECT_EQ(run({"detokenize", "5", "6"}), 0);
  EXPECT_EQ(run({"detokenize", "99999"}), 2);
  EXPECT_EQ(run({"generate", "--prompt", "x", "--top-p", "7"}), 2);
  EXPECT_EQ(run({"chat", "hello"}), 2);  // the model has no chat template
  EXPECT_EQ(run({"chat", "--tools", "/no/tools.json", "hello"}), 2);
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

// The connection breaks in the middle of an answer: the whole answer is printed, once.
TEST(Client, AStreamThatIsLostIsTakenUpWhereItEnded) {
  TestServer server;
  Relay relay(server.port());
  const std::vector<std::string> arguments = {HYDRANT_PATH,   "--address", relay.address(),
                                              "generate",     "--prompt",  "x",
                                              "--max-tokens", "30"};
  Subprocess whole(arguments);
  ASSERT_EQ(whole.Wait(), 0) << whole.err();
  server.engine.Pause();
  Subprocess broken(arguments);
  server.engine.AllowSteps(12);
  ASSERT_TRUE(broken.WaitForOutput(5));
  relay.Cut();
  EXPECT_NE(broken.WaitForErrorLine("the stream was lost after"), "");
  server.engine.Resume();
  EXPECT_EQ(broken.Wait(), 0) << broken.err();
  EXPECT_EQ(broken.out(), whole.out());
  EXPECT_TRUE(server.WaitUntilEmpty());

  std::vector<std::string> once = arguments;
  once.insert(once.end(), {"--resume", "0"});
  server.engine.Pause();
  Subprocess given_up(once);
  server.engine.AllowSteps(12);
  ASSERT_TRUE(given_up.WaitForOutput(5));
  relay.Cut();
  server.engine.Resume();
  EXPECT_NE(given_up.Wait(), 0);
}

// A model that does not end its answer would fill its whole context.
TEST(Client, AnAnswerHasALimitUnlessItIsLifted) {
  TestServer server;
  const auto generate = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {HYDRANT_PATH, "--address", server.address(),
                                          "generate",   "--prompt",  "x"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    auto run = std::make_unique<Subprocess>(arguments);
    EXPECT_EQ(run->Wait(), 0) << run->err();
    return run;
  };
  // A letter a token, and the line's end.
  const auto unset = generate({});
  EXPECT_EQ(unset->out().size(), 512u + 1u);
  EXPECT_THAT(unset->err(), HasSubstr("cut at 512 tokens: --max-tokens raises the limit"));
  EXPECT_THAT(unset->err(), HasSubstr("Ctrl-C"));
  EXPECT_EQ(generate({"--max-tokens", "600"})->out().size(), 600u + 1u);
  EXPECT_EQ(generate({"--min-tokens", "700"})->out().size(), 700u + 1u);
  const auto lifted = generate({"--max-tokens", "0"});  // 2 tokens of the 2,048 are the prompt's
  EXPECT_EQ(lifted->out().size(), 2046u + 1u);
  EXPECT_THAT(lifted->err(), Not(HasSubstr("cut at")));
  const auto stopped = generate({"--stop", "klm"});
  EXPECT_THAT(stopped->err(), Not(HasSubstr("cut at")));
}

// Each under a heading when it has finished, in any order.
TEST(Client, PrintsSeveralAnswersUnderHeadings) {
  TestServerOptions options;
  options.next_token_of = [](uint64_t seed, int32_t position) -> TokenId {
    if (seed == 11 && position == 4) return ByteTokenizer::kEos;
    return static_cast<TokenId>('a' + (seed + position) % 26);
  };
  TestServer server(options);
  const std::vector<std::string> arguments = {
      HYDRANT_PATH, "--address", server.address(), "generate", "--prompt", "x", "--seed", "10",
      "--n",        "3",         "--max-tokens",   "5"};
  Subprocess generate(arguments);
  EXPECT_EQ(generate.Wait(), 0) << generate.err();
  // Tokens at positions from 2 on: the letters from seed + 2.
  const std::string answers[] = {"=== 1 of 3\nmnopq\n", "=== 2 of 3\nno\n", "=== 3 of 3\nopqrs\n"};
  for (const std::string& answer : answers) EXPECT_THAT(generate.out(), HasSubstr(answer));
  EXPECT_EQ(generate.out().size(), answers[0].size() + answers[1].size() + answers[2].size());
  EXPECT_THAT(generate.err(), HasSubstr("2 prompt + 13 new tokens"));
  EXPECT_THAT(generate.err(), HasSubstr("cut at 5 tokens"));
  Subprocess refused(
      {HYDRANT_PATH, "--address", server.address(), "generate", "--prompt", "x", "--n", "65"});
  EXPECT_EQ(refused.Wait(), 2);
  EXPECT_THAT(refused.err(), HasSubstr("sampling.n: 65 is outside [1, 64]"));
}

TEST(Client, AsksForABatchOfLines) {
  TestServerOptions options;
  options.next_token_of = [](uint64_t seed, int32_t position) {
    return static_cast<TokenId>('a' + (seed + static_cast<uint64_t>(position)) % 26);
  };
  TestServer server(options);
  const TemporaryFolder folder;
  const auto ask = [&](const std::string& lines) {
    const std::string file = folder.Write("requests.jsonl", lines);
    auto run = std::make_unique<Subprocess>(
        std::vector<std::string>{HYDRANT_PATH, "--address", server.address(), "batch", file,
                                 "--max-tokens", "3", "--seed", "10"});
    std::map<int, nlohmann::json> answers;
    const int code = run->Wait();
    std::istringstream out(run->out());
    for (std::string line; std::getline(out, line);) {
      const auto answer = nlohmann::json::parse(line);
      answers[answer.at("index")] = answer;
    }
    return std::tuple(code, answers, run->err());
  };
  // Tokens at positions from 2 on: the letters from seed + 2.
  const auto [code, answers, said] =
      ask("{\"text\": \"x\"}\n\n"
          "{\"text\": \"x\", \"sampling\": {\"n\": 2, \"seed\": \"0\"}}\n"
          "{\"text\": \"x\", \"sampling\": {\"top_p\": 2}}\n");
  EXPECT_EQ(code, 1) << said;
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers.at(0).at("samples").at(0).at("text"), "mno");
  EXPECT_EQ(answers.at(0).at("samples").at(0).at("finish_reason"), "length");
  EXPECT_EQ(answers.at(0).at("usage").at("completion_tokens"), 3);
  EXPECT_EQ(answers.at(1).at("samples").at(0).at("text"), "cde");
  EXPECT_EQ(answers.at(1).at("samples").at(1).at("text"), "def");
  EXPECT_EQ(answers.at(2).at("failure").at("field"), "requests[2].sampling.top_p");
  EXPECT_EQ(said, "[2 answered with 9 tokens, 1 failed]\n");
  EXPECT_EQ(std::get<0>(ask("{\"text\": \"x\"}\n")), 0);
  const auto [wrong, none, why] = ask("{\"text\": \"x\"}\n{\"txt\": \"x\"}\n");
  EXPECT_EQ(wrong, 2);
  EXPECT_TRUE(none.empty());
  EXPECT_THAT(why, HasSubstr("line 2: "));
  EXPECT_THAT(why, HasSubstr("txt"));
}

TEST(Client, InfoNamesThePoliciesAndDetailsOne) {
  TestServer server;
  const auto info = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {HYDRANT_PATH, "--address", server.address(), "info"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return std::make_unique<Subprocess>(arguments);
  };
  const auto all = info({});
  EXPECT_EQ(all->Wait(), 0) << all->err();
  for (const PolicyInfo& policy : ListPolicies())
    EXPECT_THAT(all->out(), HasSubstr("\n  " + policy.name + " "));
  EXPECT_THAT(all->out(), Not(HasSubstr("protected_window_size")));
  EXPECT_LE(std::count(all->out().begin(), all->out().end(), '\n'), ListPolicies().size() + 8)
      << "a line for each";

  const auto h2o = info({"h2o"});
  EXPECT_EQ(h2o->Wait(), 0) << h2o->err();
  EXPECT_THAT(h2o->out(), StartsWith("h2o: "));
  EXPECT_THAT(h2o->out(), HasSubstr("protected_window_size"));
  EXPECT_THAT(h2o->out(), Not(HasSubstr("snapkv")));

  const auto json = info({"h2o", "--json"});
  EXPECT_EQ(json->Wait(), 0) << json->err();
  EXPECT_EQ(nlohmann::json::parse(json->out(), nullptr, false)["name"], "h2o");

  const auto unknown = info({"h3o"});
  EXPECT_EQ(unknown->Wait(), 2);
  EXPECT_THAT(unknown->err(), HasSubstr("'h3o' is no policy of the server; one of full, local, "));
}

TEST(Client, WithoutAServerItSaysHowToStartOne) {
  Subprocess client({HYDRANT_PATH, "--address", "127.0.0.1:1", "generate", "--prompt", "x"});
  EXPECT_EQ(client.Wait(), 3);
  EXPECT_THAT(client.err(), HasSubstr("no server at 127.0.0.1:1; start one with"));
  Subprocess health({HYDRANT_PATH, "--address", "127.0.0.1:1", "health"});
  EXPECT_EQ(health.Wait(), 3);
}

}  // namespace
}  // namespace hydrant
