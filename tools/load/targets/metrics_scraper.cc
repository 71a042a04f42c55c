#include "tools/load/targets/metrics_scraper.h"

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <thread>
#include <utility>

#include "kernels/mutex.h"
#include "tools/load/targets/http_get.h"
#include "tools/load/targets/prometheus_text.h"

namespace hydrant::load {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMaxSeconds = 5.0;  // limit of a scrape

double Either(double a, double b) { return std::isnan(a) ? b : a; }

ServerSample SampleOf(const PrometheusValues& said, double at) {
  ServerSample sample{.at = at};
  const double decoding = said.Sum("hydrant_live_requests", "state=\"running\"");
  const double prefilling = said.Sum("hydrant_live_requests", "state=\"prefilling\"");
  sample.running = Either(decoding + prefilling, said.Sum("vllm:num_requests_running"));
  sample.waiting = Either(said.Sum("hydrant_live_requests", "state=\"waiting\""),
                          said.Sum("vllm:num_requests_waiting"));
  sample.pages_free = said.Sum("hydrant_pages", "state=\"free\"");
  sample.pages_total = said.Sum("hydrant_pages");
  sample.cache_usage =
      Either(said.Sum("vllm:kv_cache_usage_perc"), 1.0 - sample.pages_free / sample.pages_total);
  return sample;
}

// The base name with a known type for "name_bucket{...}" and similar series.
std::string TypeOf(const PrometheusValues& said, const std::string& series) {
  const std::string name = series.substr(0, series.find('{'));
  const auto found = said.types.find(name);
  return found == said.types.end() ? "" : found->second;
}

}  // namespace

struct MetricsScraper::Impl {
  struct Server {
    ServerSeries series;
    PrometheusValues first = {}, last = {};
  };

  double period = 1.0;
  std::vector<Server> servers;  // owned by the thread while it runs
  Clock::time_point start;
  std::thread thread;
  Mutex mutex;
  std::condition_variable wake;
  bool stop HYDRANT_GUARDED_BY(mutex) = false;

  void Scrape() {
    for (Server& server : servers) {
      const absl::StatusOr<std::string> page = HttpGet(server.series.url, "", kMaxSeconds);
      absl::StatusOr<PrometheusValues> said =
          page.ok() ? ParsePrometheusText(*page) : page.status();
      if (!said.ok()) {
        ++server.series.failed;
        server.series.error = std::string(said.status().message());
        continue;
      }
      const double at = std::chrono::duration<double>(Clock::now() - start).count();
      server.series.samples.push_back(SampleOf(*said, at));
      if (server.first.values.empty()) server.first = *said;
      server.last = *std::move(said);
    }
  }

  void Run() {
    MutexLock lock(mutex);
    auto due = Clock::now();
    while (!stop) {
      due += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(period));
      if (wake.wait_until(lock.native(), due, [this]() HYDRANT_REQUIRES(mutex) { return stop; }))
        return;
      lock.Unlock();
      Scrape();
      lock.Lock();
    }
  }
};

MetricsScraper::MetricsScraper(std::vector<std::string> urls, double period_seconds)
    : impl_(std::make_unique<Impl>()) {
  impl_->period = period_seconds;
  for (std::string& url : urls) impl_->servers.push_back({.series = {.url = std::move(url)}});
}

MetricsScraper::~MetricsScraper() { Stop(); }

void MetricsScraper::Start() {
  impl_->start = Clock::now();
  impl_->Scrape();
  if (!impl_->servers.empty()) impl_->thread = std::thread([this] { impl_->Run(); });
}

std::vector<ServerSeries> MetricsScraper::Stop() {
  if (impl_->thread.joinable()) {
    {
      const MutexLock lock(impl_->mutex);
      impl_->stop = true;
    }
    impl_->wake.notify_all();
    impl_->thread.join();
    impl_->Scrape();
  }
  std::vector<ServerSeries> all;
  for (Impl::Server& server : impl_->servers) {
    for (const auto& [name, value] : server.last.values) {
      if (TypeOf(server.last, name) != "counter") continue;
      // A counter that was absent counts as 0.
      const auto before = server.first.values.find(name);
      server.series.counters[name] =
          value - (before == server.first.values.end() ? 0.0 : before->second);
    }
    all.push_back(server.series);
  }
  return all;
}

}  // namespace hydrant::load
