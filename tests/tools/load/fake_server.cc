#include "tests/tools/load/fake_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "hydrant/v1/hydrant.grpc.pb.h"

namespace hydrant::load {
namespace {

using Clock = std::chrono::steady_clock;

class FakeStream;

// The next write time of each stream. Thread safe.
class Schedule {
 public:
  struct Entry {
    Clock::time_point due;
    FakeStream* stream;
    bool operator<(const Entry& other) const { return due > other.due; }  // the earliest on top
  };

  void Add(Clock::time_point due, FakeStream* stream) {
    const std::lock_guard lock(mutex_);
    entries_.push({due, stream});
  }

  // The streams that are due.
  std::vector<Entry> Take(Clock::time_point now) {
    const std::lock_guard lock(mutex_);
    std::vector<Entry> due;
    while (!entries_.empty() && entries_.top().due <= now) {
      due.push_back(entries_.top());
      entries_.pop();
    }
    return due;
  }

 private:
  std::mutex mutex_;
  std::priority_queue<Entry> entries_;
};

// A cancelled stream is finished when it is next due.
class FakeStream final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  FakeStream(const v1::GenerateRequest& request, const FakePace& pace, Schedule* schedule)
      : schedule_(schedule),
        left_(static_cast<int>(request.stopping().max_tokens())),
        tokens_per_message_(pace.tokens_per_message),
        gap_(std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double>(1.0 / pace.messages_per_second))) {
    prompt_tokens_ = static_cast<uint32_t>(request.token_ids().ids_size());
    due_ = Clock::now() + gap_;
    schedule_->Add(due_, this);
  }

  void Turn() {
    if (cancelled_.load()) return Finish(grpc::Status::CANCELLED);
    message_.Clear();
    if (left_ > 0) {
      const int tokens = std::min(left_, tokens_per_message_);
      for (int i = 0; i < tokens; ++i) message_.mutable_delta()->add_token_ids(100 + i);
      message_.mutable_delta()->set_text("five words or a few");
      left_ -= tokens;
      StartWrite(&message_);
    } else {
      message_.mutable_usage()->set_prompt_tokens(prompt_tokens_);
      StartWriteAndFinish(&message_, {}, grpc::Status::OK);
    }
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    if (!message_.has_usage()) schedule_->Add(due_ += gap_, this);
  }
  void OnCancel() override { cancelled_.store(true); }
  void OnDone() override { delete this; }

 private:
  Schedule* const schedule_;
  int left_;
  const int tokens_per_message_;
  const Clock::duration gap_;
  uint32_t prompt_tokens_ = 0;
  Clock::time_point due_;
  v1::GenerateResponse message_;
  std::atomic<bool> cancelled_{false};
};

class FakeService final : public v1::Hydrant::CallbackService {
 public:
  FakeService(FakePace pace, Schedule* schedule) : pace_(pace), schedule_(schedule) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* /*context*/, const v1::GenerateRequest* request) override {
    return new FakeStream(*request, pace_, schedule_);
  }
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const v1::GetModelInfoRequest* /*request*/,
                                         v1::GetModelInfoResponse* response) override {
    response->set_name("fake");
    response->set_vocab_size(32'000);
    response->set_max_model_len(1 << 20);
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* /*request*/,
                                          v1::GetServerInfoResponse* response) override {
    response->set_version("fake");
    response->add_policies()->set_name("full");
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const FakePace pace_;
  Schedule* const schedule_;
};

}  // namespace

struct FakeServer::Impl {
  Schedule schedule;
  FakeService service;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
  std::atomic<bool> stop{false};
  std::thread ticker;

  explicit Impl(FakePace pace) : service(pace, &schedule) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1 << 20);
    server = builder.BuildAndStart();
    if (server == nullptr) {
      fmt::print(stderr, "fake server: no port\n");
      std::abort();
    }
    ticker = std::thread([this] {
      while (!stop.load()) {
        for (const Schedule::Entry& entry : schedule.Take(Clock::now())) entry.stream->Turn();
        std::this_thread::sleep_for(std::chrono::microseconds(500));
      }
    });
  }
};

FakeServer::FakeServer(FakePace pace) : impl_(std::make_unique<Impl>(pace)) {}

FakeServer::~FakeServer() {
  // Cancels open streams; the ticker finishes them.
  impl_->server->Shutdown(std::chrono::system_clock::now());
  impl_->stop.store(true);
  impl_->ticker.join();
}

int FakeServer::port() const { return impl_->port; }

}  // namespace hydrant::load
