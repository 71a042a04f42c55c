// Measures the time of a token from the end of the engine's step to the wire: the fake engine steps
// at a fixed pace, every stream gets a token a step, and a client that costs little more than its
// system calls records when the bytes arrive. The figure includes the loop's delivery, the writer
// thread, gRPC's server, the loopback and the client's read.
//
//   stream_latency_benchmark [steps] [step_us] [compute threads] [streams/connections...]
//   default                  500     20000     0                 1/1 32/1 32/32 256/1 256/8 256/256
//
// Compute threads keep that many cores busy during a step, like the CPU backend; without them the
// engine waits, as for a device. Prints a markdown table. The floor is the latency of bare sockets
// on this machine in the same run (loopback_floor.h).
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <sched.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "kernels/thread_pool.h"
#include "tests/server/http2_streams.h"
#include "tests/server/loopback_floor.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using Clock = std::chrono::steady_clock;

int64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch())
      .count();
}

double CpuSeconds(int who) {
  rusage usage;
  getrusage(who, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The client is this thread, all others are the server's.
double ServerCpuSeconds() { return CpuSeconds(RUSAGE_SELF) - CpuSeconds(RUSAGE_THREAD); }

// The client's own wait for a core should not count: it gets priority if the user may set it.
void StandForAnotherMachine() {
  sched_param first = {};
  first.sched_priority = 1;
  static const bool may = sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first) == 0;
  if (!may)
    fmt::print(
        stderr,
        "note: without the right to SCHED_FIFO the client waits for a core like all others\n");
}

// A token's id is the number of its step modulo this, which is far more steps than a token may be
// late, and in plain ASCII.
constexpr size_t kIdCycle = 100;
constexpr size_t kWarmUpTokens = 20;  // per stream, not counted

// Steps end at a fixed pace; `ends` has the end of each one.
class Pacer {
 public:
  Pacer(int64_t step_us, int compute_threads, size_t max_steps)
      : step_us_(step_us), ends_(max_steps) {
    if (compute_threads > 0) pool_.emplace(compute_threads);
  }
  void EndStep() {
    next_us_ = std::max(next_us_ + step_us_, NowUs());
    if (pool_.has_value()) {
      pool_->ParallelFor(pool_->num_threads(), [this](int, int) {
        while (NowUs() < next_us_) {
        }
      });
    } else {
      std::this_thread::sleep_until(Clock::time_point(std::chrono::microseconds(next_us_)));
    }
    const size_t step = count_.load(std::memory_order_relaxed);
    if (step < ends_.size()) ends_[step] = NowUs();
    count_.store(step + 1, std::memory_order_release);
  }
  // The number of steps that have ended.
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
  std::optional<ThreadPool> pool_;
  int64_t next_us_ = 0;
  std::vector<int64_t> ends_;
  std::atomic<size_t> count_{0};
};

// The arrival times of a stream's tokens.
struct Arrivals {
  struct Token {
    int64_t us;
    uint32_t id;
  };
  std::vector<Token> tokens;
  int messages = 0;
};

double Percentile(std::vector<int64_t>& values, double share) {
  if (values.empty()) return 0;
  const size_t at =
      std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return static_cast<double>(values[at]);
}

// "p50 / p99" in milliseconds.
std::string Milliseconds(std::vector<int64_t>& us) {
  return fmt::format("{:.2f} / {:.2f}", Percentile(us, 0.5) * 1e-3, Percentile(us, 0.99) * 1e-3);
}

int Measure(int streams, int connections, int steps, int64_t step_us, int compute_threads) {
  // Streams begin one after another; they are compared once all run.
  const size_t max_steps = static_cast<size_t>(steps) * 4 + 20000;
  Pacer pacer(step_us, compute_threads, max_steps);
  TestServerOptions options;
  options.limits.max_num_seqs = streams;
  options.limits.max_model_len = steps + 64;
  options.limits.num_blocks = streams * 4 * ((steps + 64) / 16 + 2);
  options.limits.table_entries = int64_t{4} * options.limits.num_blocks;
  options.limits.prefill_arena_tokens = std::max(steps + 64, 8 * streams);
  options.scheduler.watermark = 0;
  // Run() calls next_token before its step counts as ended.
  options.next_token = [&pacer](int32_t) { return static_cast<TokenId>(pacer.Count() % kIdCycle); };
  options.after_step = [&pacer] { pacer.EndStep(); };
  if (compute_threads > 0) options.max_write_wait = std::chrono::milliseconds(10);
  TestServer server(options);
  server.engine.Pause();  // all are queued before the first step
  std::vector<Arrivals> arrivals(streams);
  v1::GenerateResponse response;
  Http2Streams clients(server.server->port(), connections,
                       [&](int stream, std::string_view message, int64_t us) {
                         response.ParseFromArray(message.data(), static_cast<int>(message.size()));
                         for (const uint32_t id : response.delta().token_ids())
                           arrivals[stream].tokens.push_back({us, id});
                         arrivals[stream].messages += response.has_delta();
                       });
  const std::string request = TextRequest("x", static_cast<uint32_t>(steps)).SerializeAsString();
  for (int i = 0; i < streams; ++i) clients.Call("/hydrant.v1.Hydrant/Generate", request);
  WaitFor([&] {
    const ServingStats s = server.loop->Stats();
    return s.waiting + s.prefilling + s.running >= streams - 1;
  });
  const double cpu = ServerCpuSeconds();
  server.engine.Resume();
  StandForAnotherMachine();
  const int failed = clients.ReadAll();
  const double used = ServerCpuSeconds() - cpu;

  std::vector<int64_t> latencies, last_of_step;
  const size_t count = pacer.Count();
  std::vector<int64_t> slowest(count, 0);
  int64_t messages = 0;
  for (const Arrivals& stream : arrivals) {
    messages += stream.messages;
    for (size_t i = kWarmUpTokens; i < stream.tokens.size(); ++i) {
      const auto [us, id] = stream.tokens[i];
      const size_t step = pacer.LastStepOf(id, us);
      latencies.push_back(us - pacer.EndOf(step));
      slowest[step] = std::max(slowest[step], latencies.back());
    }
  }
  for (const int64_t latency : slowest) {
    if (latency > 0) last_of_step.push_back(latency);
  }
  const int64_t late = std::count_if(latencies.begin(), latencies.end(),
                                     [step_us](int64_t l) { return l > step_us; });
  std::vector<int64_t> floor =
      MeasureLoopbackFloor(streams, connections, steps, step_us, StandForAnotherMachine);
  fmt::print(
      "| {} over {} | {} | {} | {} | {} of {} | {} | {:.2f} | {:.1f} |\n", streams, connections,
      Milliseconds(latencies), Milliseconds(last_of_step), Milliseconds(floor), late,
      latencies.size(), failed,
      static_cast<double>(streams) * steps / static_cast<double>(std::max<int64_t>(messages, 1)),
      used * 1e6 / (static_cast<double>(streams) * steps));
  std::fflush(stdout);
  return failed;
}

}  // namespace
}  // namespace hydrant

int main(int argc, char** argv) {
  spdlog::set_level(spdlog::level::warn);
  const int steps = argc > 1 ? std::atoi(argv[1]) : 500;
  const int64_t step_us = argc > 2 ? std::atoll(argv[2]) : 20000;
  const int compute_threads = argc > 3 ? std::atoi(argv[3]) : 0;
  std::vector<std::pair<int, int>> sizes;
  for (int i = 4; i < argc; ++i) {
    std::pair<int, int> size;
    if (std::sscanf(argv[i], "%d/%d", &size.first, &size.second) != 2) return 2;
    sizes.push_back(size);
  }
  if (sizes.empty()) sizes = {{1, 1}, {32, 1}, {32, 32}, {256, 1}, {256, 8}, {256, 256}};
  fmt::print(
      "Steps of {} us, {} compute threads; milliseconds from a step's end, p50 / p99.\n\n"
      "| streams over connections | a token | the last token of a step | floor | after the next "
      "step's "
      "end | failed streams | tokens a message | server's CPU us a token "
      "|\n|---|---|---|---|---|---|---|---|\n",
      step_us, compute_threads);
  int failed = 0;
  for (const auto& [streams, connections] : sizes) {
    failed += hydrant::Measure(streams, connections, steps, step_us, compute_threads);
  }
  return failed == 0 ? 0 : 1;
}
