// The files of a sweep: its probes, and the highest rate of each arm.
#ifndef HYDRANT_TOOLS_LOAD_REPORT_SWEEP_REPORT_H_
#define HYDRANT_TOOLS_LOAD_REPORT_SWEEP_REPORT_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/load/run/probe.h"
#include "tools/load/run/server_series.h"
#include "tools/load/run/sweep.h"

namespace hydrant::load {

struct SweepDescription {
  std::string backend = "hydrant";
  std::string model;
  std::string label = {};
  std::string date;
  double resolution = 0.1;
  ProbeOptions probe = {};
  std::map<std::string, std::string> options = {};  // of the command line, by name
  bool complete = true;
};

// With the metrics scraped during it, if any.
ProbeRecord Record(const Probe& probe, const ProbeOptions& options = {},
                   const std::vector<ServerSeries>& servers = {});

std::string SweepJson(const SweepDescription& sweep, const std::vector<SweptArm>& arms);
std::string SweepHtml(const SweepDescription& sweep, const std::vector<SweptArm>& arms);
// One line per probe.
std::string SweepCsv(const std::vector<SweptArm>& arms);
// One line per arm.
std::string SweepText(const SweepDescription& sweep, const std::vector<SweptArm>& arms);

// The probes of an interrupted sweep, from its JSON; `path` names it in errors. InvalidArgument if
// it is not a sweep, or was made with other settings: it names one.
absl::StatusOr<std::vector<SweptArm>> ParseSweep(std::string_view json, const std::string& path,
                                                 const SweepDescription& sweep);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_REPORT_SWEEP_REPORT_H_
