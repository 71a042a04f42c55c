#include "tools/load/commands/run_command.h"

#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "kernels/standard_streams.h"
#include "tools/load/commands/live_view.h"
#include "tools/load/commands/load_setup.h"
#include "tools/load/report/report.h"
#include "tools/load/report/write_file.h"
#include "tools/load/run/measures.h"
#include "tools/load/run/quality.h"
#include "tools/load/run/runner.h"
#include "tools/load/targets/metrics_scraper.h"
#include "tools/load/targets/mix.h"

namespace hydrant::load {
namespace {

constexpr int64_t kQualityConcurrency = 8;

// Also writes partial results of an aborted run. Returns whether all were written.
bool WriteReports(const LoadFlags& flags, const RunDescription& run,
                  const std::vector<Outcome>& outcomes, const Objectives& objectives) {
  WriteOutput(ToText(run, outcomes, objectives, flags.warm_up));
  bool all = true;
  const auto write = [&](const std::string& path, const auto& content) {
    if (!path.empty()) all &= WriteReport(path, content());
  };
  write(flags.json, [&] { return ToJson(run, outcomes, objectives, flags.warm_up); });
  write(flags.csv, [&] { return ToCsv(run, outcomes); });
  write(flags.html, [&] { return ToHtml(run, outcomes, objectives, flags.warm_up); });
  return all;
}

// Sends some of the run's prompts under full, again under full, and under each policy.
std::vector<Agreement> CheckQuality(const LoadFlags& flags, const Workload& workload) {
  LoadFlags quality = flags;
  HydrantTargetOptions& options = quality.target;
  options.sampling = {};  // greedy
  options.mix = *ParseMix("full,full");
  options.mix[1].name = "full, again";
  for (const MixedArm& arm : flags.target.mix) {
    if (arm.name != "full") options.mix.push_back(arm);
  }
  std::vector<std::string> arms;
  for (const MixedArm& arm : options.mix) arms.push_back(arm.name);
  std::vector<PlannedRequest> prompts;
  for (int64_t i = 0;
       i < workload.size() && static_cast<int64_t>(prompts.size()) < flags.check_quality;
       i += workload.turns()) {  // later turns need earlier answers
    PlannedRequest request = workload.Make(i);
    if (request.fault != Fault::kOversized) prompts.push_back(std::move(request));
  }
  const std::unique_ptr<ServerTarget> target = OpenTarget(quality);
  absl::StatusOr<std::vector<Agreement>> agreements = CheckQuality(
      prompts, arms,
      {.concurrency = flags.max_concurrency > 0 ? flags.max_concurrency : kQualityConcurrency,
       .go_on = [] { return !Interrupted(); }},
      target.get());
  if (agreements.ok()) return *std::move(agreements);
  Warn(std::string(agreements.status().message()));
  return {};
}

}  // namespace

int RunCommand(LoadFlags flags, const std::map<std::string, std::string>& given) {
  const Objectives objectives = ValueOr(kExitUsage, Objectives::Parse(flags.goodput));
  CompleteFlags(&flags);
  if (flags.check_quality > 0 && IsHttp(flags))
    Fail(kExitUsage, "check-quality: a server with OpenAI's API knows no cache policies");
  NameReports("report", "requests", &flags);
  RunOptions options;
  options.intended = IntendedTimes(flags);
  if (flags.max_concurrency > 0) options.concurrency = flags.max_concurrency;
  if (flags.max_seconds > 0.0) options.most_seconds = flags.max_seconds;

  const std::unique_ptr<ServerTarget> target = OpenTarget(flags);
  const Workload workload = MakeWorkload(flags, target.get());
  LiveView view(workload.size(), flags.quiet ? nullptr : stderr);
  options.on_tick = [&](double now, const std::vector<Outcome>& outcomes, int64_t in_flight) {
    view.Show(now, outcomes, in_flight);
    return !Interrupted();
  };
  MetricsScraper scraper(flags.metrics, flags.metrics_period);
  scraper.Start();
  target->Start();
  const std::vector<Outcome> outcomes = RunLoad(workload, options, target.get());
  view.End();

  RunDescription run = DescribeRun(flags, target->info(), given);
  run.num_prompts = static_cast<int64_t>(outcomes.size());
  run.complete = !Interrupted();
  run.servers = scraper.Stop();
  const bool quality = flags.check_quality > 0 && !Interrupted();
  if (quality) run.quality = CheckQuality(flags, workload);
  const bool written = WriteReports(flags, run, outcomes, objectives);
  if (Interrupted()) return kExitInterrupted;
  const bool failed = Measure(outcomes, objectives).failed > 0 && !flags.allow_errors;
  return failed || !written || (quality && run.quality.empty()) ? kExitErrors : 0;
}

}  // namespace hydrant::load
