#include "server/observe/load_meter.h"

#include <algorithm>
#include <ctime>

namespace hydrant {
namespace {

// CPU time of this process, all threads.
double CpuTime() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Another server might have succeeded.
bool IsFault(grpc::StatusCode code) {
  return code == grpc::StatusCode::INTERNAL || code == grpc::StatusCode::UNAVAILABLE ||
         code == grpc::StatusCode::RESOURCE_EXHAUSTED || code == grpc::StatusCode::UNKNOWN;
}

double Share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

// All used pages of the pool belong to live sequences; cached prefixes and contexts are stored
// elsewhere. Waiting requests count, so that of two full servers the less loaded one is chosen.
void AddLoop(const ServingStats& loop, int max_num_seqs, int ending, LoadMeter::Report* report) {
  const int running = std::max(loop.running + loop.prefilling, ending);
  const double pool = Share(loop.pages_total - loop.pages_free, loop.pages_total);
  report->set_mem_utilization(pool);
  report->set_application_utilization(std::max(pool, Share(running + loop.waiting, max_num_seqs)));
  auto& named = *report->mutable_named_metrics();
  named["kv_cache_usage_perc"] = pool;
  named["num_requests_running"] = running;
  named["num_requests_waiting"] = loop.waiting;
}

}  // namespace

LoadMeter::LoadMeter(double cpus)
    : cpus_(cpus),
      calls_(std::chrono::steady_clock::now()),
      faults_(std::chrono::steady_clock::now()),
      cpu_at_(std::chrono::steady_clock::now()),
      cpu_seconds_(CpuTime()) {}

void LoadMeter::CountCall(grpc::StatusCode code) {
  const MutexLock lock(mutex_);
  const Time now = std::chrono::steady_clock::now();
  calls_.Add(now);
  if (IsFault(code)) faults_.Add(now);
}

// Measured between two reports at least a second apart.
double LoadMeter::CpuUtilization(Time now) {
  const std::chrono::duration<double> passed = now - cpu_at_;
  if (cpus_ <= 0 || passed < std::chrono::seconds(1)) return cpu_utilization_;
  const double seconds = CpuTime();
  cpu_utilization_ = std::max(seconds - cpu_seconds_, 0.0) / passed.count() / cpus_;
  cpu_seconds_ = seconds;
  cpu_at_ = now;
  return cpu_utilization_;
}

LoadMeter::Report LoadMeter::Measure(const ServingState& serving, int ending) {
  Report report;
  if (serving.model != nullptr)
    AddLoop(serving.loop->Stats(), serving.model->limits.max_num_seqs, ending, &report);
  const MutexLock lock(mutex_);
  const Time now = std::chrono::steady_clock::now();
  report.set_cpu_utilization(CpuUtilization(now));
  report.set_rps_fractional(calls_.PerSecond(now));
  report.set_eps(faults_.PerSecond(now));
  return report;
}

}  // namespace hydrant
