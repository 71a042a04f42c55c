#include "tools/load/commands/sweep_command.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "kernels/standard_streams.h"
#include "tools/load/commands/load_setup.h"
#include "tools/load/report/sweep_report.h"
#include "tools/load/run/option_group.h"
#include "tools/load/run/probe.h"
#include "tools/load/run/sweep.h"
#include "tools/load/targets/metrics_scraper.h"
#include "tools/load/targets/mix.h"

namespace hydrant::load {
namespace {

// More than any probe sends.
constexpr int64_t kRequests = int64_t{1} << 40;

// Every policy without a budget of its own, combined with each budget. "full" has none.
std::vector<MixedArm> ArmsOf(const SweepFlags& flags) {
  std::vector<MixedArm> arms;
  for (MixedArm& arm : ValueOr(kExitUsage, ParseMix(flags.policies))) {
    const bool has_budget = arm.cache.has_cache_ratio() || arm.cache.has_max_cache_tokens();
    if (flags.budgets.empty() || has_budget || arm.cache.cache_policy() == "full") {
      arms.push_back(std::move(arm));
      continue;
    }
    for (const double budget : flags.budgets) {
      const std::string text = fmt::format("{}:cache_ratio={:g}", arm.name, budget);
      arms.push_back(ValueOr(kExitUsage, ParseMix(text)).front());
    }
  }
  return arms;
}

// The load of a single arm: the same prompts for every arm.
Workload WorkloadOf(const SweepFlags& flags, size_t arm, ServerTarget* target) {
  LoadFlags load = flags.load;
  load.workload.num_requests = kRequests;
  load.workload.arm_weights.assign(load.target.mix.size(), 0.0);
  load.workload.arm_weights[arm] = 1.0;
  return MakeWorkload(load, target);
}

class Command {
 public:
  Command(SweepFlags flags, const std::map<std::string, std::string>& given)
      : flags_(std::move(flags)), arms_(flags_.load.target.mix.size()) {
    for (size_t i = 0; i < arms_.size(); ++i) arms_[i].name = flags_.load.target.mix[i].name;
    const std::unique_ptr<ServerTarget> target = OpenTarget(flags_.load);
    const RunDescription run = DescribeRun(flags_.load, target->info(), given);
    sweep_ = {.backend = run.backend,
              .model = run.model,
              .label = run.label,
              .date = run.date,
              .resolution = flags_.search.resolution,
              .options = run.metadata,
              .complete = false};
    sweep_.probe = {.objectives = ValueOr(kExitUsage, Objectives::Parse(flags_.load.goodput)),
                    .share = flags_.share,
                    .warm_up = flags_.warm_up,
                    .seconds = flags_.seconds,
                    .least_requests = flags_.least_requests,
                    .drain = flags_.drain,
                    .burstiness = BurstinessOf(flags_.load),
                    .seed = flags_.load.workload.seed};
    for (size_t i = 0; i < arms_.size(); ++i)
      workloads_.push_back(WorkloadOf(flags_, i, target.get()));
  }

  int Go() {
    const SweepCalls calls{.probe = [&](size_t arm, double rate) { return ProbeArm(arm, rate); },
                           // Written after every probe, so that a crash loses nothing.
                           .on_probe = [&](const std::vector<SweptArm>&) { WriteFiles(); }};
    sweep_.complete = Sweep(flags_.search, Known(), calls, &arms_);
    const bool written = WriteFiles();
    WriteOutput(SweepText(sweep_, arms_));
    if (!sweep_.complete) return kExitInterrupted;
    return written ? 0 : kExitErrors;
  }

 private:
  std::vector<SweptArm> Known() const {
    const std::string& path = flags_.load.json;
    if (!flags_.resume || !std::filesystem::exists(path)) return {};
    return ValueOr(kExitUsage, ParseSweep(ReadFile(path), path, sweep_));
  }

  // The best of several tries; stops as soon as the objectives are met.
  std::optional<ProbeRecord> ProbeArm(size_t arm, double rate) const {
    std::optional<Probe> best;
    std::vector<ServerSeries> servers;
    for (int i = 0; i < flags_.tries && !(best && best->met); ++i) {
      std::vector<ServerSeries> scraped;
      Probe probe = ProbeOnce(arm, rate, &scraped);
      if (!probe.complete) return std::nullopt;
      if (best && probe.Share() <= best->Share()) continue;
      best = std::move(probe);
      servers = std::move(scraped);
    }
    return Record(*best, sweep_.probe, servers);
  }

  // With new connections, so that nothing of the previous probe remains.
  Probe ProbeOnce(size_t arm, double rate, std::vector<ServerSeries>* servers) const {
    const std::unique_ptr<ServerTarget> target = OpenTarget(flags_.load);
    Say("{}: {:.4g} requests/s for {:.0f} s\n", arms_[arm].name, rate,
        sweep_.probe.warm_up + SecondsOf(sweep_.probe, rate));
    MetricsScraper scraper(flags_.load.metrics, flags_.load.metrics_period);
    scraper.Start();
    target->Start();
    const Probe probe = ProbeRate(workloads_[arm], rate, sweep_.probe, target.get(),
                                  [](double, std::span<const Outcome>) { return !Interrupted(); });
    *servers = scraper.Stop();
    if (probe.complete)
      Say("  {:.1f} % of {} requests kept the objectives: {}; {:.4g} good/s, {:.4g} tokens/s, TTFT "
          "p99 {:.0f} ms, TPOT p99 {:.1f} ms, {} failed\n",
          100 * probe.Share(), probe.requests, probe.met ? "met" : "not met", probe.Goodput(),
          probe.output_tokens_per_second, probe.measures.ttft.p99, probe.measures.tpot.p99,
          probe.measures.failed);
    return probe;
  }

  template <typename... Args>
  void Say(fmt::format_string<Args...> text, Args&&... args) const {
    if (!flags_.load.quiet) PrintErr(text, std::forward<Args>(args)...);
  }

  bool WriteFiles() const {
    bool all = true;
    const LoadFlags& to = flags_.load;
    if (!to.json.empty()) all &= WriteReport(to.json, SweepJson(sweep_, arms_));
    if (!to.csv.empty()) all &= WriteReport(to.csv, SweepCsv(arms_));
    if (!to.html.empty()) all &= WriteReport(to.html, SweepHtml(sweep_, arms_));
    return all;
  }

  const SweepFlags flags_;
  std::vector<SweptArm> arms_;
  SweepDescription sweep_;
  std::vector<Workload> workloads_;
};

void AddSearchFlags(CLI::App* app, SweepFlags* flags) {
  const OptionGroup group(app, "Which rates");
  group.Option("--first-rate", flags->search.first, "Requests per second to begin with");
  group.Option("--min-rate", flags->search.least, "None lower is tried");
  group.Option("--max-rate", flags->search.most, "None higher is tried");
  group.Option("--resolution", flags->search.resolution,
               "It ends when the rates that are met and not are apart by this share at most");
  group.Option("--rates", flags->search.rates, "Probe exactly these, separated by commas")
      ->delimiter(',');
  group.Option("--burstiness", flags->load.burstiness,
               "Shape of the Gamma distribution of the gaps; 1: Poisson, inf: even");
}

void AddProbeFlags(CLI::App* app, SweepFlags* flags) {
  const OptionGroup group(app, "A probe");
  group
      .Option("--goodput", flags->load.goodput,
              "What a request has to keep (ms): \"ttft:500 tpot:50\"; also itl, e2el")
      ->required();
  group.Option("--share", flags->share, "Of the requests that have to, (0, 1]")
      ->check(CLI::Range(1e-6, 1.0));
  group.Option("--warm-up", flags->warm_up, "Seconds whose requests do not count")
      ->check(CLI::NonNegativeNumber);
  group.Option("--probe-seconds", flags->seconds, "Seconds after them in which requests are sent")
      ->check(CLI::PositiveNumber);
  group.Option("--min-requests", flags->least_requests, "As long as it takes for so many")
      ->check(CLI::PositiveNumber);
  group
      .Option("--tries", flags->tries,
              "A rate that is not met is probed so often, and the best counts: for machines that "
              "others use too")
      ->check(CLI::Range(1, 100));
  group.Option("--drain", flags->drain, "Seconds that the last have to end")
      ->check(CLI::NonNegativeNumber);
}

void AddSweepReportFlags(CLI::App* app, SweepFlags* flags) {
  const OptionGroup group(app, "What is reported");
  group.Option("--report", flags->load.report,
               "Write all three files below to this folder: sweep.html, .json, .csv");
  group.Option("--html", flags->load.html, "Write a page with plots here");
  group.Option("--json", flags->load.json, "Write all probes here, after each of them");
  group.Option("--csv", flags->load.csv, "Write a line a probe here");
  group.Flag("--resume", flags->resume, "Go on where the sweep of the JSON file was broken off");
  group.Option("--label", flags->load.label, "What this is called in pages and comparisons");
  group.Flag("--quiet", flags->load.quiet, "No line a probe");
}

}  // namespace

void AddSweepFlags(CLI::App* app, SweepFlags* flags) {
  AddTargetFlags(app, &flags->load);
  AddWorkloadFlags(app, &flags->load);
  // A probe has its own length and a single policy.
  for (const char* name :
       {"--num-prompts", "--mix", "--trace", "--trace-rate-scale", "--trace-length-scale"})
    app->remove_option(app->get_option(name));
  app->add_option("--policies", flags->policies,
                  "Cache policies, each swept by itself: full,auto,h2o:cache_ratio=0.2")
      ->capture_default_str()
      ->group("What is asked");
  app->add_option("--budgets", flags->budgets,
                  "Each as the cache_ratio of every policy that names none: 0.1,0.2,0.4")
      ->delimiter(',')
      ->check(CLI::Range(1e-6, 1.0))
      ->group("What is asked");
  AddProbeFlags(app, flags);
  AddSearchFlags(app, flags);
  AddSweepReportFlags(app, flags);
  app->footer(
      "Examples:\n"
      "  hydrant-load sweep --goodput \"ttft:500 tpot:50\" --input-len 512 --output-len 128\n"
      "  hydrant-load sweep --policies full,auto,h2o --budgets 0.1,0.2 --goodput \"ttft:2000 "
      "tpot:100\" --text book.txt --report results\n"
      "  hydrant-load sweep --rates 1,2,4,8 --goodput e2el:5000 --share 0.95 --json curve.json\n"
      "The rate is doubled until too few requests keep the objectives (or halved until enough do), "
      "then "
      "bisected. `hydrant-load\n"
      "compare` takes several --json files: of other servers, or of other pool sizes.\n"
      "Exit status: 0 done; 1 a file could not be written; 2 wrong options; 3 no server; 130 "
      "broken "
      "off (what there was is\nwritten, marked PARTIAL; --resume goes on).");
}

int SweepCommand(SweepFlags flags, const std::map<std::string, std::string>& given) {
  if (const absl::Status status = CheckRateSearch(flags.search); !status.ok())
    Fail(kExitUsage, std::string(status.message()));
  if (!ValueOr(kExitUsage, Objectives::Parse(flags.load.goodput)).Any())
    Fail(kExitUsage, "goodput: a sweep needs an objective, as ttft:500");
  NameReports("sweep", "sweep", &flags.load);
  if (flags.resume && flags.load.json.empty())
    Fail(kExitUsage, "resume: it goes on from --json (or --report), which is not given");
  CompleteFlags(&flags.load);
  flags.load.target.mix = ArmsOf(flags);
  return Command(std::move(flags), given).Go();
}

}  // namespace hydrant::load
