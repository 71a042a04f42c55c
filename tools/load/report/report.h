// Reports of a run for programs and people.
#ifndef HYDRANT_TOOLS_LOAD_REPORT_REPORT_H_
#define HYDRANT_TOOLS_LOAD_REPORT_REPORT_H_

#include <map>
#include <span>
#include <string>
#include <vector>

#include "tools/load/run/measures.h"
#include "tools/load/run/outcome.h"
#include "tools/load/run/quality.h"
#include "tools/load/run/server_series.h"

namespace hydrant::load {

// Facts about the run besides its figures.
struct RunDescription {
  std::string backend = "hydrant";
  std::string model;
  std::string label = {};  // set by the user
  std::string date;        // "20251122-140301"
  std::string request_rate;
  double burstiness = 1.0;
  int64_t max_concurrency = 0;  // 0: unbounded
  int64_t num_prompts = 0;
  bool complete = true;
  std::vector<std::string> arms = {};                // of the mix
  std::map<std::string, std::string> metadata = {};  // all options, by name
  std::vector<Agreement> quality = {};               // of --check-quality
  std::vector<ServerSeries> servers = {};            // of --metrics
};

// The object of `vllm bench serve --save-result --save-detailed`, with additional keys (an object
// per arm in "arms", p90 to p99.9, the run over time, bytes, entries kept).
std::string ToJson(const RunDescription& run, std::span<const Outcome> outcomes,
                   const Objectives& objectives, double warm_up);
// A self-contained page with plots.
std::string ToHtml(const RunDescription& run, std::span<const Outcome> outcomes,
                   const Objectives& objectives, double warm_up);
// One line per request.
std::string ToCsv(const RunDescription& run, std::span<const Outcome> outcomes);
// The summary printed at the end of the run.
std::string ToText(const RunDescription& run, std::span<const Outcome> outcomes,
                   const Objectives& objectives, double warm_up);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_REPORT_REPORT_H_
