// Metrics of a server during a load. Plain data.
#ifndef HYDRANT_TOOLS_LOAD_RUN_SERVER_SERIES_H_
#define HYDRANT_TOOLS_LOAD_RUN_SERVER_SERIES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hydrant::load {

// Values plotted over time; NaN if the server lacks them. From hydrantd's or vLLM's metrics.
struct ServerSample {
  double at = 0.0;  // seconds from the start of the run
  double running = 0.0;
  double waiting = 0.0;
  double pages_free = 0.0;
  double pages_total = 0.0;
  double cache_usage = 0.0;  // fraction, [0, 1]
};

struct ServerSeries {
  std::string url;
  std::vector<ServerSample> samples = {};
  // Increase of every counter from the first scrape to the last: by name and labels.
  std::map<std::string, double> counters = {};
  int64_t failed = 0;      // scrapes
  std::string error = {};  // of the last failed scrape
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_SERVER_SERIES_H_
