// hydrant-sim: runs the daemon's scheduler under a simulated load, on simulated machines. Progress
// goes to stderr, the table to stdout.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "fmt/format.h"
#include "kernels/standard_streams.h"
#include "kernels/status_macros.h"
#include "tools/load/run/arrivals.h"
#include "tools/load/run/trace.h"
#include "tools/simulator/command_line.h"
#include "tools/simulator/cost_fit.h"
#include "tools/simulator/mix.h"
#include "tools/simulator/report.h"
#include "tools/simulator/simulation.h"
#include "tools/simulator/trace_copies.h"

namespace hydrant::sim {
namespace {

constexpr int kExitFailed = 1, kExitUsage = 2;

constexpr char kFooter[] =
    "Examples:\n"
    "  hydrant-sim --request-rate 2 --num-prompts 2000 --goodput \"ttft:2000 tpot:100\"\n"
    "  hydrant-sim --trace AzureLLMInferenceTrace_conv.csv --trace-length-scale 0.2 --costs "
    "costs.json --json run.json\n"
    "  hydrant-sim --mix full:tenant=a@10,full:tenant=b@1 --request-rate 10\n"
    "  hydrant-sim --replicas 100 --balancer prefix-aware --trace conversation_trace.jsonl "
    "--request-rate 200 --fold-heads --clip-lengths\n"
    "  hydrant-sim fit steps.json --json costs.json\n"
    "Exit status: 0 all well; 1 failed; 2 wrong options.";

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int Fail(const absl::Status& status) {
  PrintErr("hydrant-sim: {}\n", std::string(status.message()));
  const bool usage = absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
                     absl::IsResourceExhausted(status);
  return usage ? kExitUsage : kExitFailed;
}

absl::Status WriteJson(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file.good()) return absl::OkStatus();
  return absl::UnavailableError(fmt::format("json: {}: cannot be written", path));
}

// Called before any work.
absl::Status CheckJson(const std::string& path) {
  if (path.empty() || std::ofstream(path, std::ios::app).good()) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("json: {}: cannot be written", path));
}

// The factor by which the trace is sped up.
absl::StatusOr<double> TraceSpeed(const Flags& flags,
                                  const std::vector<load::TracedRequest>& trace) {
  if (flags.request_rate.empty()) return flags.trace_rate_scale;
  double rate = 0;
  if (!absl::SimpleAtod(flags.request_rate, &rate) || !(rate > 0 && rate <= 1e9)) {
    return absl::InvalidArgumentError(fmt::format(
        "request-rate: '{}' with --trace is outside (0, 1e9], or no number", flags.request_rate));
  }
  return rate * trace.back().at / static_cast<double>(trace.size());
}

using DueTimes = std::function<double(int64_t)>;

absl::StatusOr<DueTimes> DueTimesOf(const Flags& flags) {
  if (!flags.workload.trace.empty()) {
    HYDRANT_ASSIGN_OR_RETURN(const double speed, TraceSpeed(flags, flags.workload.trace));
    return [&flags, speed](int64_t index) { return flags.workload.trace[index].at / speed; };
  }
  const std::string rate = flags.request_rate.empty() ? "1" : flags.request_rate;
  HYDRANT_ASSIGN_OR_RETURN(load::RateProfile profile, load::RateProfile::Parse(rate));
  if (profile.IsUnlimited()) return [](int64_t) { return 0.0; };
  auto arrivals =
      std::make_shared<load::Arrivals>(std::move(profile), flags.burstiness, flags.workload.seed);
  return [arrivals](int64_t) { return arrivals->Next(); };
}

absl::StatusOr<SimulationOptions> OptionsOf(const Flags& flags) {
  SimulationOptions options;
  options.num_replicas = flags.num_replicas;
  options.balancer = flags.balancer;
  options.clip_lengths = flags.clip_lengths;
  options.seed = flags.workload.seed;
  options.replica.scheduler = flags.scheduler;
  options.replica.cost = DefaultCostModel();
  if (!flags.costs.empty()) {
    HYDRANT_ASSIGN_OR_RETURN(options.replica.cost, ReadCostModel(flags.costs));
  }
  if (flags.noise.has_value()) options.replica.cost.noise = *flags.noise;
  HYDRANT_ASSIGN_OR_RETURN(options.replica.limits,
                           LimitsOf(flags.shape, flags.engine, flags.fold_heads));
  HYDRANT_ASSIGN_OR_RETURN(options.mix, ParseMix(flags.mix));
  // auto acts as learned, too, where the model has a predictor.
  const bool learned = std::ranges::any_of(
      options.mix, [](const Arm& arm) { return arm.request.cache.policy == "learned"; });
  if (learned) options.replica.limits.engine.score_predictor = 1;
  HYDRANT_RETURN_IF_ERROR(CheckMix(options.mix, {.tokens = flags.shape.max_context,
                                                 .num_layers = flags.shape.num_layers,
                                                 .num_kv_heads = flags.shape.num_kv_heads,
                                                 .predicts_scores = true}));
  return options;
}

// On a terminal a line that is updated every second, else a line every half minute.
ProgressCallback ShowProgress(const Flags& flags, int64_t requests) {
  if (flags.quiet) return nullptr;
  const bool is_terminal = isatty(STDERR_FILENO) != 0;
  const double period = is_terminal ? 1.0 : 30.0;
  const auto start = Clock::now();
  auto shown = std::make_shared<double>(0.0);
  return [=](int64_t arrived, int64_t ended, TimeUs now) {
    const double wall = SecondsSince(start);
    if (wall < *shown + period) return;
    *shown = wall;
    PrintErr("{}{:.0f} s simulated in {:.0f} s: {} of {} requests came, {} ended{}",
             is_terminal ? "\r" : "", static_cast<double>(now) * 1e-6, wall, arrived, requests,
             ended, is_terminal ? " " : "\n");
  };
}

absl::Status Run(Flags flags, const CLI::App& app) {
  HYDRANT_RETURN_IF_ERROR(CompleteFlags(&flags));
  HYDRANT_RETURN_IF_ERROR(CheckJson(flags.json));
  HYDRANT_ASSIGN_OR_RETURN(const SimulationOptions options, OptionsOf(flags));
  HYDRANT_ASSIGN_OR_RETURN(const load::Objectives objectives,
                           load::Objectives::Parse(flags.goodput));
  flags.workload.arm_weights.clear();
  ReportOptions report{.objectives = objectives,
                       .num_replicas = flags.num_replicas,
                       .arms = {},
                       .given = GivenOptions(app)};
  for (const Arm& arm : options.mix) {
    flags.workload.arm_weights.push_back(arm.weight);
    report.arms.push_back(arm.name);
  }
  if (!flags.trace_file.empty()) {
    HYDRANT_ASSIGN_OR_RETURN(const std::vector<load::TracedRequest> trace,
                             load::ReadTrace(flags.trace_file));
    if (app.get_option("--num-prompts")->count() == 0)
      flags.workload.num_requests = static_cast<int64_t>(trace.size()) * flags.trace_copies;
    flags.workload.trace =
        CopiesOf(trace, flags.trace_copies, std::max<int64_t>(1, flags.workload.num_requests),
                 flags.workload.seed);
  }
  HYDRANT_ASSIGN_OR_RETURN(const load::Workload workload, load::Workload::Create(flags.workload));
  HYDRANT_ASSIGN_OR_RETURN(const DueTimes due, DueTimesOf(flags));
  const auto start = Clock::now();
  const ProgressCallback progress = ShowProgress(flags, workload.size());
  HYDRANT_ASSIGN_OR_RETURN(const SimulationResult result,
                           Simulate(options, workload, due, progress));
  report.wall_seconds = SecondsSince(start);
  if (progress != nullptr && isatty(STDERR_FILENO) != 0) PrintErr("\n");
  PrintOut("{}", TableOf(result, report));
  if (!flags.json.empty()) HYDRANT_RETURN_IF_ERROR(WriteJson(flags.json, JsonOf(result, report)));
  const auto completed = [](const SimulatedRequest& request) { return request.completed; };
  return std::any_of(result.requests.begin(), result.requests.end(), completed)
             ? absl::OkStatus()
             : absl::UnknownError("no request was completed; the table says why");
}

absl::Status RunFit(const Flags& flags) {
  std::vector<StepTaken> steps;
  for (const std::string& path : flags.step_traces) {
    HYDRANT_ASSIGN_OR_RETURN(const std::vector<StepTaken> more, ReadStepTrace(path));
    steps.insert(steps.end(), more.begin(), more.end());
  }
  HYDRANT_ASSIGN_OR_RETURN(const CostFit fit, FitCostModel(steps));
  PrintErr("{}\n", fit.model.source);
  if (!flags.fitted.empty()) return WriteJson(flags.fitted, ToJson(fit.model));
  PrintOut("{}", ToJson(fit.model));
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app(
      "hydrant-sim runs hydrantd's scheduler, with its pages and cache plans, over an engine that "
      "only takes time.",
      "hydrant-sim");
  AddSimulateFlags(&app, &flags);
  CLI::App* const fit =
      app.add_subcommand("fit", "Makes a file for --costs of steps that a daemon has taken");
  AddFitFlags(fit, &flags);
  app.footer(kFooter);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    PrintErr("hydrant-sim: {} (try --help)\n", error.what());
    return kExitUsage;
  }
  const absl::Status status = fit->parsed() ? RunFit(flags) : Run(std::move(flags), app);
  return status.ok() ? 0 : Fail(status);
}

}  // namespace
}  // namespace hydrant::sim

int main(int argc, char** argv) {
  return hydrant::EndOutput("hydrant-sim", hydrant::sim::Main(argc, argv));
}
