// Scrapes the server's metrics during a run.
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

  // Starts the clock of `at` with a scrape of each server, and waits for it: counters are relative
  // to it.
  void Start();
  // After a last scrape of each server.
  std::vector<ServerSeries> Stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_TARGETS_METRICS_SCRAPER_H_
