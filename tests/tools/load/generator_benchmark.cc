// Measures the capacity of one core of hydrant-load: a fake server, in its own process and on
// another core, sends to every stream at a fixed pace.
//
//   generator_benchmark [seconds] [streams...]      default 60 500 2000 4000
//
// Requests arrive as a Poisson process, each for 20 s of 5 messages of 5 tokens a second, so that
// the given number of streams is open on average from 20 s on. Lateness is the time from a
// request's intended to its actual send. Prints a markdown table.
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/tools/load/fake_server.h"
#include "tools/load/run/arrivals.h"
#include "tools/load/run/measures.h"
#include "tools/load/run/runner.h"
#include "tools/load/run/workload.h"
#include "tools/load/targets/hydrant_target.h"
#include "tools/load/targets/mix.h"

namespace hydrant::load {
namespace {

constexpr FakePace kPace = {.messages_per_second = 5.0, .tokens_per_message = 5};
constexpr double kStreamSeconds = 20.0;

// Reserves a core as far as the user may: other processes should not be measured.
void TakeCore(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0)
    fmt::print(stderr, "note: cannot be kept on core {}\n", core);
  sched_param first = {};
  first.sched_priority = 1;
  if (sched_setscheduler(0, SCHED_FIFO, &first) != 0)
    fmt::print(stderr, "note: without the right to SCHED_FIFO core {} is shared\n", core);
}

// Runs a server in a child process that ends with this one. Before any use of gRPC, which does not
// survive a fork.
int ForkServer() {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) std::abort();
  if (fork() == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    TakeCore(1);
    const FakeServer server(kPace);
    const int port = server.port();
    if (write(pipe_ends[1], &port, sizeof(port)) != sizeof(port)) std::abort();
    while (true) pause();
  }
  int port = 0;
  if (read(pipe_ends[0], &port, sizeof(port)) != sizeof(port)) std::abort();
  return port;
}

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

bool MeasureStreams(int port, int streams, double seconds) {
  HydrantTargetOptions options;
  options.addresses = {fmt::format("127.0.0.1:{}", port)};
  options.mix = *ParseMix("full");
  auto target = HydrantTarget::Create(std::move(options));
  if (!target.ok()) {
    fmt::print(stderr, "{}\n", target.status().ToString());
    return false;
  }
  WorkloadOptions work;
  work.num_requests = 1 << 30;
  work.input_tokens = 512;
  work.vocab_size = 32'000;
  work.output_tokens =
      static_cast<int64_t>(kStreamSeconds * kPace.messages_per_second * kPace.tokens_per_message);
  const Workload workload = *Workload::Create(work);
  Arrivals arrivals(RateProfile::Constant(streams / kStreamSeconds), 1.0, 1);
  RunOptions run;
  run.intended = [&](int64_t) { return arrivals.Next(); };
  run.most_seconds = seconds;
  // Events between the ramp and the last request sent.
  int64_t most = 0;
  run.on_tick = [&](double now, const std::vector<Outcome>&, int64_t in_flight) {
    most = std::max(most, in_flight);
    return now < seconds + 1.5 * kStreamSeconds;
  };
  (*target)->Start();
  const double cpu = CpuSeconds();
  const std::vector<Outcome> outcomes = RunLoad(workload, run, target->get());
  const double used = CpuSeconds() - cpu;
  double tokens = 0, messages = 0;
  int64_t failed = 0;
  for (const Outcome& outcome : outcomes) {
    failed += outcome.ending != Ending::kCompleted;
    for (const TokenMessage& message : outcome.messages) {
      if (message.at < kStreamSeconds || message.at > seconds) continue;
      messages += 1;
      tokens += message.tokens;
    }
  }
  const double span = seconds - kStreamSeconds;
  const Measures measures = Measure(outcomes, {}, -1, kStreamSeconds);
  fmt::print(
      "| {} | {} | {:.0f} | {:.0f} | {:.2f} / {:.2f} / {:.2f} | {:.1f} / {:.1f} | {:.0f} % | {} "
      "|\n",
      streams, most, messages / span, tokens / span, measures.lateness.p50, measures.lateness.p99,
      measures.lateness.max, measures.itl.p50, measures.itl.p99, 100 * used / measures.seconds,
      failed);
  std::fflush(stdout);
  return failed == 0;
}

}  // namespace
}  // namespace hydrant::load

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 60;
  if (seconds <= 1.5 * hydrant::load::kStreamSeconds) {
    fmt::print(stderr, "seconds: more than {}\n", 1.5 * hydrant::load::kStreamSeconds);
    return 2;
  }
  std::vector<int> sizes;
  for (int i = 2; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  if (sizes.empty()) sizes = {500, 2000, 4000};
  const int port = hydrant::load::ForkServer();
  hydrant::load::TakeCore(0);
  fmt::print(
      "| streams | open at most | messages/s | tokens/s | sent late, ms: p50 / p99 / max | between "
      "messages, ms: p50 / p99 (sent every {:.0f}) | of a core | failed "
      "|\n|---|---|---|---|---|---|---|---|\n",
      1000 / hydrant::load::kPace.messages_per_second);
  bool ok = true;
  for (const int streams : sizes) ok &= hydrant::load::MeasureStreams(port, streams, seconds);
  return ok ? 0 : 1;
}
