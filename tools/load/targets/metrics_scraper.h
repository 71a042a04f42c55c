// The server's own metrics, scraped beside a run: what it did while the load saw what it saw.
#ifndef HYDRANT_TOOLS_LOAD_TARGETS_METRICS_SCRAPER_H_
#define HYDRANT_TOOLS_LOAD_TARGETS_METRICS_SCRAPER_H_

#include <memory>
#include <string>
#include <vector>

#include "tools/load/run/server_series.h"

namespace hydrant::load {

// One thread, from Start to Stop. Not thread safe.
class MetricsScraper {
 public:
  MetricsScraper(std::vector<std::string> urls, double period_seconds);
  ~MetricsScraper();  // Stop()

  // The clock of `at` begins, with a scrape of each, which is waited for: counters count from
  // there.
  void Start();
  // After a last scrape of each.
  std::vector<ServerSeries> Stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_TARGETS_METRICS_SCRAPER_H_
