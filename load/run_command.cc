#include "load/run_command.h"

#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "load/live_view.h"
#include "load/load_setup.h"
#include "load/measures.h"
#include "load/report.h"
#include "load/runner.h"

namespace hydrant {
namespace {

// Partial results of a run that was broken off are written as well.
void WriteReports(const LoadFlags& flags, const RunDescription& run,
                  const std::vector<Outcome>& outcomes, const Objectives& objectives) {
  const auto write = [](const std::string& path, const std::string& content) {
    if (path.empty()) return;
    if (const absl::Status status = WriteFile(path, content); !status.ok())
      Fail(kExitErrors, std::string(status.message()));
  };
  fmt::print("{}", ToText(run, outcomes, objectives, flags.warm_up));
  std::fflush(stdout);
  write(flags.json, ToJson(run, outcomes, objectives, flags.warm_up));
  write(flags.csv, ToCsv(run, outcomes));
}

}  // namespace

int RunCommand(LoadFlags flags, const std::map<std::string, std::string>& given) {
  const Objectives objectives = ValueOr(kExitUsage, Objectives::Parse(flags.goodput));
  CompleteFlags(&flags);
  RunOptions options;
  options.intended = IntendedTimes(flags);
  if (flags.max_concurrency > 0) options.concurrency = flags.max_concurrency;
  if (flags.max_seconds > 0.0) options.most_seconds = flags.max_seconds;

  const std::unique_ptr<HydrantTarget> target = OpenTarget(flags.target);
  const Workload workload = MakeWorkload(flags, target.get());
  LiveView view(workload.size(), flags.quiet ? nullptr : stderr);
  options.on_tick = [&](double now, const std::vector<Outcome>& outcomes, int64_t in_flight) {
    view.Show(now, outcomes, in_flight);
    return !Interrupted();
  };
  target->Start();
  const std::vector<Outcome> outcomes = RunLoad(workload, options, target.get());
  view.End();

  RunDescription run = DescribeRun(flags, target->info(), given);
  run.num_prompts = static_cast<int64_t>(outcomes.size());
  run.complete = !Interrupted();
  WriteReports(flags, run, outcomes, objectives);
  if (Interrupted()) return kExitInterrupted;
  return Measure(outcomes, objectives).failed > 0 && !flags.allow_errors ? kExitErrors : 0;
}

}  // namespace hydrant
