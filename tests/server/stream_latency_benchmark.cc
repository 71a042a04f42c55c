// How long a token takes from the end of the engine's step to the client: the fake engine steps at
// a fixed pace, every stream gets a token a step, and callback clients on one connection each note
// when it arrives. The figure includes the loop's delivery, the writer thread, gRPC on both sides,
// and the clients themselves, which run in the same process.
//
//   stream_latency_benchmark [steps] [step_us] [streams...]      default 500 20000 1 32 256
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using Clock = std::chrono::steady_clock;

int64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch())
      .count();
}

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// A token's id is the number of its step, modulo this: many steps more than a token may be late,
// and plain ASCII.
constexpr size_t kIdCycle = 100;
constexpr size_t kWarmUpTokens = 20;  // of each stream, not counted

// Steps end at a fixed pace; `ends` holds when each one did.
class Pacer {
 public:
  Pacer(int64_t step_us, size_t most_steps) : step_us_(step_us), ends_(most_steps) {}
  void EndStep() {
    next_us_ = std::max(next_us_ + step_us_, NowUs());
    std::this_thread::sleep_until(Clock::time_point(std::chrono::microseconds(next_us_)));
    const size_t step = count_.load(std::memory_order_relaxed);
    if (step < ends_.size()) ends_[step] = NowUs();
    count_.store(step + 1, std::memory_order_release);
  }
  // The last step that ended before now.
  size_t Count() const { return count_.load(std::memory_order_acquire); }
  int64_t EndOf(size_t step) const { return ends_[step]; }
  // The latest step with this id (its number modulo kIdCycle) that had ended at `us`.
  size_t LastStepOf(uint32_t id, int64_t us) const {
    const auto count = static_cast<std::ptrdiff_t>(std::min(Count(), ends_.size()));
    size_t step = std::upper_bound(ends_.begin(), ends_.begin() + count, us) - ends_.begin() - 1;
    while (step % kIdCycle != id) --step;
    return step;
  }

 private:
  const int64_t step_us_;
  int64_t next_us_ = 0;
  std::vector<int64_t> ends_;
  std::atomic<size_t> count_{0};
};

// Notes the latency of every message: its first token was made in the step that ended last
// before... the tokens of a stream come one a step, so the n-th token of a stream that began in
// step s belongs to step s + n.
class Client final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  explicit Client(std::shared_ptr<grpc::Channel> channel)
      : stub_(v1::Hydrant::NewStub(std::move(channel))) {}

  void Start(const v1::GenerateRequest* request) {
    stub_->async()->Generate(&context_, request, this);
    StartRead(&response_);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    const int64_t now = NowUs();
    for (const uint32_t id : response_.delta().token_ids()) arrivals_.push_back({now, id});
    messages_ += response_.has_delta();
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    const std::lock_guard lock(mutex_);
    ok_ = status.ok();
    done_ = true;
    changed_.notify_all();
  }
  bool Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
    return ok_;
  }
  struct Arrival {
    int64_t us;
    uint32_t id;
  };
  const std::vector<Arrival>& arrivals() const { return arrivals_; }
  int messages() const { return messages_; }

 private:
  std::unique_ptr<v1::Hydrant::Stub> stub_;
  grpc::ClientContext context_;
  v1::GenerateResponse response_;
  std::vector<Arrival> arrivals_;
  int messages_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false, ok_ = false;
};

double Percentile(std::vector<int64_t>& values, double share) {
  if (values.empty()) return 0;
  const size_t at =
      std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return static_cast<double>(values[at]);
}

int Measure(int streams, int steps, int64_t step_us) {
  // Streams begin one after another; they are compared once all run.
  const size_t most_steps = static_cast<size_t>(steps) * 4 + 20000;
  Pacer pacer(step_us, most_steps);
  TestServerOptions options;
  options.limits.max_num_seqs = streams;
  options.limits.max_model_len = steps + 64;
  options.limits.num_blocks = streams * 4 * ((steps + 64) / 16 + 2);
  options.limits.table_entries = int64_t{4} * options.limits.num_blocks;
  options.limits.prefill_arena_tokens = std::max(steps + 64, 8 * streams);
  options.scheduler.watermark = 0;
  // Execute() asks for the tokens before its step counts as ended.
  options.next_token = [&pacer](int32_t) { return static_cast<TokenId>(pacer.Count() % kIdCycle); };
  options.after_step = [&pacer] { pacer.EndStep(); };
  TestServer server(options);
  server.engine.Pause();  // all are queued before the first step
  v1::GenerateRequest request = TextRequest("x", static_cast<uint32_t>(steps));
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < streams; ++i) {
    clients.push_back(std::make_unique<Client>(server.NewChannel()));
    clients.back()->Start(&request);
  }
  WaitFor([&] {
    const LoopSnapshot s = server.loop->Snapshot();
    return s.waiting + s.prefilling + s.running >= streams - 1;
  });
  const double cpu = CpuSeconds();
  const auto start = Clock::now();
  server.engine.Resume();
  int failed = 0;
  for (auto& client : clients) failed += !client->Wait();
  const double wall = std::chrono::duration<double>(Clock::now() - start).count();
  const double used = CpuSeconds() - cpu;

  std::vector<int64_t> latencies, last_of_step;
  const size_t count = pacer.Count();
  std::vector<int64_t> slowest(count, 0);
  int64_t messages = 0;
  for (const auto& client : clients) {
    messages += client->messages();
    for (size_t i = kWarmUpTokens; i < client->arrivals().size(); ++i) {
      const Client::Arrival& arrival = client->arrivals()[i];
      const size_t step = pacer.LastStepOf(arrival.id, arrival.us);
      const int64_t latency = arrival.us - pacer.EndOf(step);
      latencies.push_back(latency);
      slowest[step] = std::max(slowest[step], latency);
    }
  }
  for (const int64_t latency : slowest) {
    if (latency > 0) last_of_step.push_back(latency);
  }
  const int64_t late = std::count_if(latencies.begin(), latencies.end(),
                                     [step_us](int64_t l) { return l > step_us; });
  fmt::print(
      "{:4} streams, {} us steps: token p50 {:.2f} ms, p99 {:.2f} ms; last of a step p50 {:.2f} "
      "ms, p99 {:.2f} ms; "
      "{} of {} after the next step's end; {:.2f} tokens a message; {:.2f} cores, {:.1f} us CPU a "
      "token; {} failed\n",
      streams, step_us, Percentile(latencies, 0.5) * 1e-3, Percentile(latencies, 0.99) * 1e-3,
      Percentile(last_of_step, 0.5) * 1e-3, Percentile(last_of_step, 0.99) * 1e-3, late,
      latencies.size(),
      static_cast<double>(streams) * steps / static_cast<double>(std::max<int64_t>(messages, 1)),
      used / wall, used * 1e6 / (static_cast<double>(streams) * steps), failed);
  return failed;
}

}  // namespace
}  // namespace hydrant

int main(int argc, char** argv) {
  spdlog::set_level(spdlog::level::warn);
  const int steps = argc > 1 ? std::atoi(argv[1]) : 500;
  const int64_t step_us = argc > 2 ? std::atoll(argv[2]) : 20000;
  std::vector<int> sizes;
  for (int i = 3; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  if (sizes.empty()) sizes = {1, 32, 256};
  int failed = 0;
  for (const int streams : sizes) failed += hydrant::Measure(streams, steps, step_us);
  return failed == 0 ? 0 : 1;
}
