// The daemon's life cycle with an engine that the test controls: it is lost, it is stopped under
// load, it never finishes loading. RunDaemon() runs in this process, so steps can be held while
// signals arrive.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/observe/http_server.h"
#include "server/startup/daemon.h"
#include "tests/sanitized.h"
#include "tests/server/http2_watch.h"
#include "tests/server/http_get.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using grpc::health::v1::HealthCheckResponse;
using testing::HasSubstr;
using testing::StartsWith;

// LoadedModel owns its engine; this wrapper borrows the test's.
class Borrowed final : public StepExecutor {
 public:
  explicit Borrowed(StepExecutor* engine) : engine_(engine) {}
  const EngineLimits& limits() const override { return engine_->limits(); }
  void Enqueue(const Batch& batch) override { engine_->Enqueue(batch); }
  absl::Status Collect(StepResult* result) override { return engine_->Collect(result); }

 private:
  StepExecutor* const engine_;
};

struct LifeOptions {
  EngineLimits limits = TestLimits();
  std::chrono::milliseconds shutdown_timeout = std::chrono::hours(1);
  std::chrono::milliseconds engine_lost_linger = std::chrono::hours(1);
  std::chrono::milliseconds drain_delay{0};
  std::chrono::milliseconds stall_timeout = std::chrono::hours(1);
  std::optional<std::chrono::milliseconds> max_connection_age;
  bool hold_load = false;  // until LetLoad()
  absl::Status load_status;
};

// A sequence may have a million tokens: longer than any of these tests.
EngineLimits EndlessLimits() {
  EngineLimits limits = TestLimits();
  limits.max_model_len = limits.prefill_arena_tokens = limits.table_entries = 1 << 20;
  limits.num_blocks = 1 << 19;
  return limits;
}

// A free port, for the daemon.
int FreePort() {
  const auto server = HttpServer::Start("127.0.0.1:0", {});
  return std::stoi((*server)->address().substr(std::string("127.0.0.1:").size()));
}

class RunningDaemon {
 public:
  explicit RunningDaemon(const LifeOptions& life = {}) : engine(life.limits) {
    BlockSignals();
    spdlog::set_level(spdlog::level::off);
    options_.model_path = "fake";
    options_.listen = "unix:" + testing::TempDir() + "/hydrant_life_" + std::to_string(getpid());
    options_.shutdown_timeout = life.shutdown_timeout;
    options_.engine_lost_linger = life.engine_lost_linger;
    options_.drain_delay = life.drain_delay;
    options_.stall_timeout = life.stall_timeout;
    options_.max_connection_age = life.max_connection_age;
    options_.metrics_listen = "127.0.0.1:" + std::to_string(FreePort());
    if (!life.hold_load) LetLoad();
    load_status_ = life.load_status;
  }
  ~RunningDaemon() {
    engine.Resume();
    if (!thread_.joinable()) return;
    Terminate();
    thread_.join();
  }

  // Returns when the port is open and the model is about to load.
  void Start() {
    thread_ = std::thread([this] {
      status_ = RunDaemon(options_, [this](const DaemonOptions&, const auto&) {
        port_open_.set_value();
        may_load_.get_future().wait();
        return Load();
      });
    });
    port_open_.get_future().wait();
    channel = grpc::CreateChannel(options_.listen, grpc::InsecureChannelCredentials());
    stub = v1::Hydrant::NewStub(channel);
  }
  bool StartAndWait() {
    Start();
    return WaitFor([this] { return Health("") == HealthCheckResponse::SERVING; });
  }

  void LetLoad() { may_load_.set_value(); }
  void Terminate() { kill(getpid(), SIGTERM); }
  absl::Status Join() {
    thread_.join();
    return status_;
  }

  HealthCheckResponse::ServingStatus Health(const std::string& service) {
    return HealthOf(channel, service);
  }
  v1::GetServerInfoResponse Info() {
    grpc::ClientContext context;
    v1::GetServerInfoResponse info;
    EXPECT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
    return info;
  }
  bool WaitForState(v1::ServerState state) {
    return WaitFor([&] { return Info().state() == state; });
  }
  const std::string& listen() const { return options_.listen; }
  HttpReply Get(const std::string& path) { return HttpGet(options_.metrics_listen, path); }
  // The status of /livez and of /readyz, and the text of the latter.
  std::string Probes() {
    const HttpReply ready = Get("/readyz");
    return std::to_string(Get("/livez").status) + " " + std::to_string(ready.status) + " " +
           ready.body;
  }

  PausableEngine engine;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Hydrant::Stub> stub;

 private:
  absl::StatusOr<std::unique_ptr<LoadedModel>> Load() {
    if (!load_status_.ok()) return load_status_;
    auto loaded = std::make_unique<LoadedModel>();
    loaded->tokenizer = std::make_unique<ByteTokenizer>();
    loaded->engine = std::make_unique<Borrowed>(&engine);
    loaded->served.name = "fake";
    loaded->served.limits = engine.limits();
    loaded->served.page_bytes = 1024;
    loaded->served.tokenizer = loaded->tokenizer.get();
    return loaded;
  }

  DaemonOptions options_;
  absl::Status load_status_;
  absl::Status status_;  // the thread's until it is joined
  std::promise<void> port_open_;
  std::promise<void> may_load_;
  std::thread thread_;
};

// An accepted call, to be read later.
class OpenStream {
 public:
  OpenStream(v1::Hydrant::Stub& stub, const v1::GenerateRequest& request)
      : reader_(stub.Generate(&context_, request)) {
    v1::GenerateResponse response;
    EXPECT_TRUE(reader_->Read(&response) && response.has_accepted());
  }
  // Reads to the first delta.
  void ReadDelta() {
    v1::GenerateResponse response;
    while (reader_->Read(&response)) {
      if (response.has_delta()) return;
    }
    ADD_FAILURE() << "the stream ended before its first delta";
  }
  StreamResult ReadToEnd() {
    StreamResult result;
    ReadRest(&context_, reader_.get(), &result);
    return result;
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
};

// The only stream of a connection.
class LoneStream {
 public:
  void Open(const std::string& address) {
    grpc::ChannelArguments own;
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = v1::Hydrant::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), own));
    stream_.emplace(*stub_, TextRequest("x", 30));
  }
  StreamResult ReadToEnd() { return stream_->ReadToEnd(); }

 private:
  std::unique_ptr<v1::Hydrant::Stub> stub_;
  std::optional<OpenStream> stream_;
};

void ExpectEngineFault(const StreamResult& result) {
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(result.status.error_message(), HasSubstr("the device is gone"));
  EXPECT_EQ(DetailsOf(result.status).reason, "ENGINE_FAULT");
  EXPECT_EQ(DetailsOf(result.status).domain, "hydrant");
  EXPECT_FALSE(result.usage.has_value());
}

void ExpectDraining(const grpc::Status& status) {
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_EQ(DetailsOf(status).reason, "DRAINING");
}

void ExpectWhole(const StreamResult& result, uint32_t tokens) {
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  ASSERT_TRUE(result.usage.has_value());
  EXPECT_EQ(result.usage->completion_tokens(), tokens);
}

// All clients read at the same time: a late reader would write late, to a closed connection.
void ExpectAllWhole(std::vector<LoneStream>* streams) {
  std::vector<std::thread> readers;
  for (LoneStream& stream : *streams)
    readers.emplace_back([&stream] { ExpectWhole(stream.ReadToEnd(), 30); });
  for (std::thread& reader : readers) reader.join();
}

void ExpectLost(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the engine is lost: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the device is gone"));
}

TEST(EngineLoss, EndsRunningAndQueuedStreamsAndTheDaemonSaysSo) {
  LifeOptions options;
  options.limits.max_num_seqs = 1;
  RunningDaemon daemon(options);
  ASSERT_TRUE(daemon.StartAndWait());
  daemon.engine.Pause();
  OpenStream running(*daemon.stub, TextRequest("hello", 1000));
  daemon.engine.AllowSteps(1);
  running.ReadDelta();
  OpenStream queued(*daemon.stub, TextRequest("later", 1000));
  daemon.engine.Lose(absl::InternalError("the device is gone"));
  daemon.engine.Resume();

  const StreamResult first = running.ReadToEnd(), second = queued.ReadToEnd();
  ExpectEngineFault(first);
  ExpectEngineFault(second);
  ASSERT_TRUE(first.trailer_usage.has_value());
  EXPECT_EQ(first.trailer_usage->prompt_tokens(), 6u);
  EXPECT_EQ(first.trailer_usage->completion_tokens(), 1u);
  ASSERT_TRUE(second.trailer_usage.has_value());
  EXPECT_EQ(second.trailer_usage->completion_tokens(), 0u);

  EXPECT_TRUE(daemon.WaitForState(v1::SERVER_STATE_ENGINE_LOST));
  EXPECT_TRUE(WaitFor([&] { return daemon.Health("") == HealthCheckResponse::NOT_SERVING; }));
  EXPECT_EQ(daemon.Health("hydrant.v1.Hydrant"), HealthCheckResponse::NOT_SERVING);
  const v1::GetServerInfoResponse info = daemon.Info();
  EXPECT_EQ(info.pool().pages_free(), info.pool().pages_total());
  EXPECT_EQ(info.load().running() + info.load().prefilling() + info.load().waiting(), 0u);

  const StreamResult late = RunToEnd(*daemon.stub, TextRequest("x", 1));
  ExpectEngineFault(late);
  EXPECT_TRUE(late.events.empty());
  v1::GetModelInfoResponse model;
  grpc::ClientContext context;
  EXPECT_EQ(DetailsOf(daemon.stub->GetModelInfo(&context, {}, &model)).reason, "ENGINE_FAULT");

  daemon.Terminate();
  ExpectLost(daemon.Join());
}

// Between the loss and the daemon's next check of the engine the scheduler itself refuses.
TEST(EngineLoss, RequestsRightAfterItAreRefusedToo) {
  RunningDaemon daemon;
  ASSERT_TRUE(daemon.StartAndWait());
  daemon.engine.Lose(absl::InternalError("the device is gone"));
  for (int i = 0; i < 20; ++i) ExpectEngineFault(RunToEnd(*daemon.stub, TextRequest("x", 5)));
  daemon.Terminate();
  ExpectLost(daemon.Join());
}

// The daemon ends without a signal.
TEST(EngineLoss, EndsTheDaemonAfterAWhile) {
  LifeOptions options;
  options.engine_lost_linger = std::chrono::milliseconds(1);
  options.drain_delay = std::chrono::hours(1);  // for load balancers of a server that still answers
  RunningDaemon daemon(options);
  ASSERT_TRUE(daemon.StartAndWait());
  daemon.engine.Lose(absl::InternalError("the device is gone"));
  ExpectEngineFault(RunToEnd(*daemon.stub, TextRequest("x", 5)));
  ExpectLost(daemon.Join());
}

TEST(EngineLoss, DuringTheWarmUpTheDaemonDoesNotServe) {
  RunningDaemon daemon;
  daemon.engine.Lose(absl::InternalError("the device is gone"));
  daemon.Start();
  const absl::Status status = daemon.Join();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the warm-up token failed"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the device is gone"));
}

TEST(Loading, AModelThatDoesNotLoadEndsTheDaemonWithTheReason) {
  LifeOptions options;
  options.load_status = absl::NotFoundError("no such model");
  RunningDaemon daemon(options);
  daemon.Start();
  EXPECT_EQ(daemon.Join(), options.load_status);
}

TEST(LoadingDeathTest, ASignalEndsItAtOnce) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  // In a process of its own: the daemon exits while its loader, which never ends, still runs.
  const auto stopped_while_loading = [] {
    BlockSignals();
    spdlog::set_level(spdlog::level::off);
    DaemonOptions options;
    options.listen = "127.0.0.1:0";
    const auto load =
        [](const DaemonOptions&,
           const std::function<void(double)>&) -> absl::StatusOr<std::unique_ptr<LoadedModel>> {
      kill(getpid(), SIGTERM);
      std::promise<void>().get_future().wait();
      return absl::InternalError("cannot be");
    };
    (void)RunDaemon(options, load);
  };
  EXPECT_EXIT(stopped_while_loading(), testing::ExitedWithCode(0), "");
}

TEST(Drain, RunningAndQueuedStreamsEndWholeAndNewOnesAreRefused) {
  LifeOptions options;
  options.limits.max_num_seqs = 2;
  RunningDaemon daemon(options);
  ASSERT_TRUE(daemon.StartAndWait());
  daemon.engine.Pause();
  OpenStream first(*daemon.stub, TextRequest("one", 50));
  OpenStream second(*daemon.stub, TextRequest("two", 60));
  OpenStream queued(*daemon.stub, TextRequest("three", 70));
  daemon.engine.AllowSteps(2);
  first.ReadDelta();
  daemon.engine.WaitUntilHeld();
  daemon.Terminate();
  EXPECT_TRUE(daemon.WaitForState(v1::SERVER_STATE_DRAINING));
  for (const char* service : {"", "hydrant.v1.Hydrant"})
    EXPECT_EQ(daemon.Health(service), HealthCheckResponse::NOT_SERVING);
  const StreamResult refused = RunToEnd(*daemon.stub, TextRequest("four", 1));
  ExpectDraining(refused.status);
  EXPECT_GT(DetailsOf(refused.status).retry_s, 0);
  EXPECT_TRUE(refused.events.empty());

  daemon.engine.Resume();
  ExpectWhole(first.ReadToEnd(), 50);
  ExpectWhole(second.ReadToEnd(), 60);
  ExpectWhole(queued.ReadToEnd(), 70);
  EXPECT_TRUE(daemon.Join().ok());
}

TEST(Drain, RequestsBeyondTheTimeoutEndWithAClearStatus) {
  LifeOptions options;
  options.limits = EndlessLimits();
  options.limits.max_num_seqs = 2;
  options.shutdown_timeout = std::chrono::milliseconds(50);
  RunningDaemon daemon(options);
  ASSERT_TRUE(daemon.StartAndWait());
  OpenStream first(*daemon.stub, TextRequest("x", 1'000'000));
  OpenStream second(*daemon.stub, TextRequest("x", 1'000'000));
  OpenStream queued(*daemon.stub, TextRequest("x", 1'000'000));
  first.ReadDelta();
  daemon.Terminate();
  for (OpenStream* stream : {&first, &second, &queued}) {
    const StreamResult result = stream->ReadToEnd();
    ExpectDraining(result.status);
    EXPECT_THAT(result.status.error_message(), HasSubstr("stopping"));
    EXPECT_TRUE(result.trailer_usage.has_value());
  }
  EXPECT_TRUE(daemon.Join().ok());
}

TEST(Drain, ASecondSignalEndsThePatience) {
  LifeOptions options;
  options.limits = EndlessLimits();
  RunningDaemon daemon(options);
  ASSERT_TRUE(daemon.StartAndWait());
  OpenStream stream(*daemon.stub, TextRequest("x", 1'000'000));
  daemon.Terminate();
  EXPECT_TRUE(daemon.WaitForState(v1::SERVER_STATE_DRAINING));
  daemon.Terminate();
  ExpectDraining(stream.ReadToEnd().status);
  EXPECT_TRUE(daemon.Join().ok());
}

// Neither a client that never reads nor one that watches the health delays the exit.
TEST(Drain, IdleClientsDoNotHoldTheEnd) {
  RunningDaemon daemon;
  daemon.engine.next_token = [](int32_t) { return ByteTokenizer::kLong; };
  ASSERT_TRUE(daemon.StartAndWait());
  OpenStream unread(*daemon.stub, TextRequest("x", 250));  // 1 MB: ends without being read
  const auto health = grpc::health::v1::Health::NewStub(daemon.channel);
  grpc::ClientContext context;
  const auto watch = health->Watch(&context, {});
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  daemon.Terminate();
  EXPECT_TRUE(daemon.Join().ok());
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  EXPECT_FALSE(watch->Read(&response));
  watch->Finish();
  unread.ReadToEnd();
}

// Clients that have not noticed the drain yet are still served.
TEST(Drain, WhileBalancersGetToNoticeNewStreamsAreTaken) {
  LifeOptions options;
  options.drain_delay = std::chrono::hours(1);
  RunningDaemon daemon(options);
  ASSERT_TRUE(daemon.StartAndWait());
  EXPECT_EQ(daemon.Probes(), "200 200 ready\n");
  daemon.Terminate();
  ASSERT_TRUE(daemon.WaitForState(v1::SERVER_STATE_DRAINING));
  EXPECT_EQ(daemon.Health(""), HealthCheckResponse::NOT_SERVING);
  EXPECT_THAT(daemon.Probes(), StartsWith("200 503 draining: "));
  ExpectWhole(RunToEnd(*daemon.stub, TextRequest("late", 20)), 20);
  daemon.Terminate();  // ends the wait
  EXPECT_TRUE(daemon.Join().ok());
}

// gRPC closes each of their connections with its stream.
TEST(Drain, TheLastStreamOfEveryConnectionEndsWhole) {
  RunningDaemon daemon;
  ASSERT_TRUE(daemon.StartAndWait());
  daemon.engine.Pause();
  std::vector<LoneStream> streams(16);
  for (LoneStream& stream : streams) stream.Open(daemon.listen());
  daemon.Terminate();
  ASSERT_TRUE(daemon.WaitForState(v1::SERVER_STATE_DRAINING));
  daemon.engine.Resume();
  ExpectAllWhole(&streams);
  EXPECT_TRUE(daemon.Join().ok());
}

// HTTP/2's GOAWAY: a client opens its next streams elsewhere.
TEST(Drain, ClientsGetGoAway) {
  RunningDaemon daemon;
  ASSERT_TRUE(daemon.StartAndWait());
  Http2Watch connection(daemon.listen());
  daemon.Terminate();
  EXPECT_TRUE(connection.WaitForGoaway());
  EXPECT_TRUE(daemon.Join().ok());
}

TEST(ConnectionAge, AnOldConnectionGetsGoAwayAndItsStreamsContinue) {
  LifeOptions options;
  options.max_connection_age = std::chrono::milliseconds(500);
  RunningDaemon daemon(options);
  ASSERT_TRUE(daemon.StartAndWait());
  Http2Watch connection(daemon.listen());
  daemon.engine.Pause();
  LoneStream stream;
  stream.Open(daemon.listen());
  EXPECT_TRUE(connection.WaitForGoaway());
  Http2Watch another(daemon.listen());  // younger than the stream's connection
  EXPECT_TRUE(another.WaitForGoaway());
  daemon.engine.Resume();
  ExpectWhole(stream.ReadToEnd(), 30);
}

// Each is the only stream of its connection.
TEST(ConnectionAge, TheLastStreamOfAnOldConnectionEndsWhole) {
  LifeOptions options;
  options.max_connection_age = std::chrono::milliseconds(500);
  RunningDaemon daemon(options);
  ASSERT_TRUE(daemon.StartAndWait());
  for (int round = 0; round < 3; ++round) {
    daemon.engine.Pause();
    std::vector<LoneStream> streams(16);
    for (LoneStream& stream : streams) stream.Open(daemon.listen());
    Http2Watch younger(daemon.listen());
    EXPECT_TRUE(younger.WaitForGoaway());
    daemon.engine.Resume();
    ExpectAllWhole(&streams);
  }
}

TEST(Probes, TellLoadingFromReady) {
  LifeOptions options;
  options.hold_load = true;
  RunningDaemon daemon(options);
  daemon.Start();
  EXPECT_EQ(daemon.Probes(), "200 503 loading: 0 % of the model\n");
  EXPECT_THAT(daemon.Get("/metrics").body, HasSubstr("hydrant_state{state=\"loading\"} 1\n"));
  daemon.LetLoad();
  EXPECT_TRUE(WaitFor([&] { return daemon.Probes() == "200 200 ready\n"; }));
  EXPECT_THAT(daemon.Get("/metrics").body, HasSubstr("hydrant_state{state=\"ready\"} 1\n"));
}

// A stuck loop is neither live nor ready, and is both again when it continues; an idle loop is
// not stuck.
TEST(Probes, SayWhenNoStepEnds) {
  LifeOptions options;
  options.stall_timeout = std::chrono::milliseconds(20);
  RunningDaemon daemon(options);
  ASSERT_TRUE(daemon.StartAndWait());
  EXPECT_EQ(daemon.Probes(), "200 200 ready\n");
  daemon.engine.Pause();
  OpenStream stream(*daemon.stub, TextRequest("x", 30));
  EXPECT_TRUE(WaitFor([&] { return daemon.Get("/readyz").status == 503; }));
  EXPECT_THAT(daemon.Probes(), StartsWith("503 503 stalled: no step for 0."));
  EXPECT_THAT(daemon.Probes(), HasSubstr("with 1 requests there"));
  EXPECT_TRUE(WaitFor([&] { return daemon.Health("") == HealthCheckResponse::NOT_SERVING; }));
  daemon.engine.Resume();
  ExpectWhole(stream.ReadToEnd(), 30);
  EXPECT_EQ(daemon.Probes(), "200 200 ready\n");
  EXPECT_TRUE(WaitFor([&] { return daemon.Health("") == HealthCheckResponse::SERVING; }));
}

TEST(Probes, SayThatTheEngineIsLost) {
  RunningDaemon daemon;
  ASSERT_TRUE(daemon.StartAndWait());
  daemon.engine.Lose(absl::InternalError("the device is gone"));
  ExpectEngineFault(RunToEnd(*daemon.stub, TextRequest("x", 5)));
  EXPECT_THAT(daemon.Probes(), StartsWith("503 503 engine lost: "));
  EXPECT_THAT(daemon.Probes(), HasSubstr("the device is gone"));
  daemon.Terminate();
  ExpectLost(daemon.Join());
}

int64_t ResidentBytes() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// 200 MB of small blocks, all freed except one in a hundred: these keep the rest allocated.
TEST(Memory, AnIdleDaemonGivesItBack) {
  if (kSanitized) GTEST_SKIP() << "the sanitizers' allocators know nothing of this";
  constexpr int kBlocks = 200'000, kBytes = 1000;
  RunningDaemon daemon;
  ASSERT_TRUE(daemon.StartAndWait());
  const int64_t before = ResidentBytes();
  std::vector<std::unique_ptr<char[]>> blocks;
  blocks.reserve(kBlocks);
  for (int i = 0; i < kBlocks; ++i) {
    blocks.push_back(std::make_unique<char[]>(kBytes));
  }
  EXPECT_GT(ResidentBytes(), before + int64_t{kBlocks} * kBytes * 9 / 10);
  for (int i = 0; i < kBlocks; ++i) {
    if (i % 100 != 0) blocks[i].reset();
  }
  // It trims a second after its last work, then once a minute.
  ExpectWhole(RunToEnd(*daemon.stub, TextRequest("x", 5)), 5);
  EXPECT_TRUE(WaitFor([&] { return ResidentBytes() < before + kBlocks * kBytes / 4; }))
      << ResidentBytes() - before;
  ExpectWhole(RunToEnd(*daemon.stub, TextRequest("x", 5)), 5);
}

// bind() requires that the socket's file is gone, and it belongs to the first server.
TEST(Listening, ASecondServerOnAUnixSocketFailsAndTheFirstLives) {
  RunningDaemon daemon;
  ASSERT_TRUE(daemon.StartAndWait());
  EventRouter router;
  Service other({}, &router);
  const auto second = GrpcServer::Start({.listen = daemon.listen()}, &other);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(daemon.listen()));
  const auto channel = grpc::CreateChannel(daemon.listen(), grpc::InsecureChannelCredentials());
  EXPECT_TRUE(RunToEnd(*v1::Hydrant::NewStub(channel), TextRequest("x", 2)).status.ok());
}

}  // namespace
}  // namespace hydrant
