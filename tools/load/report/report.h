// The figures of a run for programs and people.
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

// What a report says of the run beside its figures.
struct RunDescription {
  std::string backend = "hydrant";
  std::string model;
  std::string label = {};  // the user's own word for it
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

// The object that `vllm bench serve --save-result --save-detailed` writes, with further keys behind
// it (an object an arm in "arms", p90 to p99.9, the run over time, bytes, entries kept).
std::string ToJson(const RunDescription& run, std::span<const Outcome> outcomes,
                   const Objectives& objectives, double warm_up);
// A page with plots that needs nothing else.
std::string ToHtml(const RunDescription& run, std::span<const Outcome> outcomes,
                   const Objectives& objectives, double warm_up);
// A line a request.
std::string ToCsv(const RunDescription& run, std::span<const Outcome> outcomes);
// What a person reads when the run is over.
std::string ToText(const RunDescription& run, std::span<const Outcome> outcomes,
                   const Objectives& objectives, double warm_up);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_REPORT_REPORT_H_
