// hydrant-load: sends a load to a daemon and says how it was served.
#include <grpc/support/log.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <csignal>
#include <ctime>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "load/arrivals.h"
#include "load/hydrant_target.h"
#include "load/live_view.h"
#include "load/measures.h"
#include "load/mix.h"
#include "load/report.h"
#include "load/runner.h"
#include "load/trace.h"
#include "load/workload.h"

namespace hydrant {
namespace {

// Exit codes.
constexpr int kExitErrors = 1;  // requests failed
constexpr int kExitUsage = 2;
constexpr int kExitNoServer = 3;
constexpr int kExitInterrupted = 130;

volatile std::sig_atomic_t interrupted = 0;

struct LoadFlags {
  HydrantTargetOptions target;
  std::string mix = "full";
  WorkloadOptions workload;
  std::string text_file, trace_file;
  double trace_rate_scale = 1.0;
  std::string request_rate = "inf";
  std::string burstiness = "1";
  int64_t max_concurrency = 0;
  double max_seconds = 0.0;
  double warm_up = 0.0;
  std::string goodput;
  std::string json, csv;
  bool quiet = false;
  bool allow_errors = false;
};

[[noreturn]] void Fail(int code, std::string_view message) {
  fmt::print(stderr, "hydrant-load: {}\n", message);
  std::exit(code);
}

template <typename T>
T ValueOr(int code, absl::StatusOr<T> value) {
  if (!value.ok()) Fail(code, std::string(value.status().message()));
  return *std::move(value);
}

void AddTargetFlags(CLI::App* app, LoadFlags* flags) {
  const auto group = "Where to";
  app->add_option(
         "--address", flags->target.addresses,
         "Daemons, or a proxy before them; several, separated by commas, are taken in turn")
      ->delimiter(',')
      ->capture_default_str()
      ->group(group);
  app->add_option("--connections", flags->target.connections, "TCP connections to each address")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str()
      ->group(group);
  app->add_option("--wait", flags->target.wait_seconds, "Seconds until each address has to answer")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(group);
}

void AddWorkloadFlags(CLI::App* app, LoadFlags* flags) {
  const auto group = "What is asked";
  WorkloadOptions& options = flags->workload;
  app->add_option("--num-prompts", options.num_requests, "Requests")
      ->capture_default_str()
      ->group(group);
  app->add_option("--input-len", options.input_tokens, "Tokens of a prompt")
      ->capture_default_str()
      ->group(group);
  app->add_option("--output-len", options.output_tokens, "Tokens to be generated")
      ->capture_default_str()
      ->group(group);
  app->add_option("--range-ratio", options.range_ratio,
                  "Lengths vary by this share of them, evenly, [0, 1)")
      ->capture_default_str()
      ->group(group);
  app->add_option("--text", flags->text_file,
                  "Prompts are pieces of this text file; else they are drawn token ids")
      ->check(CLI::ExistingFile)
      ->group(group);
  app->add_option("--num-prefixes", options.shared_prefixes,
                  "So many prefixes are shared by all requests")
      ->group(group);
  app->add_option("--prefix-len", options.shared_prefix_tokens,
                  "Tokens of each, before the --input-len others")
      ->group(group);
  app->add_option("--mix", flags->mix, "Cache policies and weights: full@1,h2o:cache_ratio=0.2@3")
      ->capture_default_str()
      ->group(group);
  app->add_option("--temperature", flags->target.temperature, "0: greedy")
      ->capture_default_str()
      ->group(group);
  app->add_flag("!--honour-eos", flags->target.ignore_eos,
                "An answer may end before its --output-len");
  app->add_option("--trace", flags->trace_file,
                  "Replay times and lengths: Azure CSV or Mooncake JSONL")
      ->check(CLI::ExistingFile)
      ->group(group);
  app->add_option("--trace-rate-scale", flags->trace_rate_scale,
                  "The trace runs this many times as fast")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(group);
  app->add_option("--trace-length-scale", options.trace_length_scale,
                  "Its lengths are multiplied by this")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(group);
  app->add_option("--seed", options.seed, "One seed is one load")
      ->capture_default_str()
      ->group(group);
}

void AddArrivalFlags(CLI::App* app, LoadFlags* flags) {
  const auto group = "When";
  app->add_option("--request-rate", flags->request_rate,
                  "Requests per second: 5; steps of rate x seconds, 2x30,8x30; a ramp, 1-10x60; "
                  "inf: all at once, or a closed "
                  "loop with --max-concurrency")
      ->capture_default_str()
      ->group(group);
  app->add_option(
         "--burstiness", flags->burstiness,
         "Shape of the Gamma distribution of the gaps; 1: Poisson, less: bursts, inf: even")
      ->capture_default_str()
      ->group(group);
  app->add_option("--max-concurrency", flags->max_concurrency,
                  "Requests in flight at most; 0: any number")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(group);
  app->add_option("--max-seconds", flags->max_seconds,
                  "Nothing is sent after that; 0: until all are sent")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(group);
  app->add_option("--warm-up", flags->warm_up, "Seconds whose requests do not count")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(group);
}

void AddFaultFlags(CLI::App* app, LoadFlags* flags) {
  const auto group = "Clients that misbehave (shares of the requests)";
  const auto rate = [&](const char* name, Fault fault, const char* what) {
    app->add_option(name, flags->workload.fault_rates[static_cast<int>(fault) - 1], what)
        ->check(CLI::Range(0.0, 1.0))
        ->group(group);
  };
  rate("--cancel-rate", Fault::kCancel, "Cancel in the middle of the answer");
  rate("--deadline-rate", Fault::kDeadline, "Give it --fault-deadline seconds");
  rate("--slow-reader-rate", Fault::kSlowReader, "Read a message every --slow-read-delay seconds");
  rate("--oversized-rate", Fault::kOversized, "Send a prompt that no context holds");
  rate("--malformed-rate", Fault::kMalformed, "Send a temperature of -1");
  app->add_option("--fault-deadline", flags->workload.fault_deadline, "Seconds")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(group);
  app->add_option("--slow-read-delay", flags->workload.slow_read_delay, "Seconds")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(group);
}

void AddReportFlags(CLI::App* app, LoadFlags* flags) {
  const auto group = "What is reported";
  app->add_option("--goodput", flags->goodput,
                  "Count as good what keeps these (ms): \"ttft:500 tpot:50\"; also itl, e2el")
      ->group(group);
  app->add_option("--json", flags->json, "Write the figures here, as `vllm bench serve` does")
      ->group(group);
  app->add_option("--csv", flags->csv, "Write a line a request here")->group(group);
  app->add_flag("--allow-errors", flags->allow_errors,
                "Failed requests are no reason to exit with 1")
      ->group(group);
  app->add_flag("--quiet", flags->quiet, "No live view")->group(group);
}

double BurstinessOf(const LoadFlags& flags) {
  if (flags.burstiness == "inf") return std::numeric_limits<double>::infinity();
  char* end = nullptr;
  const double shape = std::strtod(flags.burstiness.c_str(), &end);
  if (*end != '\0' || !(shape > 0.0 && shape <= 1e6))
    Fail(kExitUsage,
         fmt::format("burstiness: '{}' is outside (0, 1e6], and not inf", flags.burstiness));
  return shape;
}

// When each request is due; null: a closed loop.
std::function<double(int64_t)> Intended(const LoadFlags& flags) {
  if (!flags.workload.trace.empty()) {
    return
        [&flags](int64_t index) { return flags.workload.trace[index].at / flags.trace_rate_scale; };
  }
  RateProfile profile = ValueOr(kExitUsage, RateProfile::Parse(flags.request_rate));
  if (profile.IsUnlimited()) {
    if (flags.max_concurrency > 0) return nullptr;
    return [](int64_t) { return 0.0; };
  }
  auto arrivals =
      std::make_shared<Arrivals>(std::move(profile), BurstinessOf(flags), flags.workload.seed);
  return [arrivals](int64_t) { return arrivals->Next(); };
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file || text.empty()) Fail(kExitUsage, fmt::format("{}: empty, or cannot be read", path));
  return text;
}

std::string Today() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", std::localtime(&now));
  return text;
}

RunDescription Describe(const LoadFlags& flags, const TargetInfo& info, const CLI::App& app) {
  RunDescription run;
  run.model = info.model;
  run.date = Today();
  run.request_rate = flags.workload.trace.empty() ? flags.request_rate : "trace";
  run.burstiness = std::isinf(BurstinessOf(flags)) ? 0.0 : BurstinessOf(flags);
  run.max_concurrency = flags.max_concurrency;
  for (const MixedArm& arm : flags.target.mix) run.arms.push_back(arm.name);
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0)
      run.metadata[option->get_name()] = fmt::format("{}", fmt::join(option->results(), ","));
  }
  run.metadata["server_version"] = info.server_version;
  return run;
}

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

int Run(LoadFlags flags, const CLI::App& app) {
  const Objectives objectives = ValueOr(kExitUsage, Objectives::Parse(flags.goodput));
  flags.target.mix = ValueOr(kExitUsage, ParseMix(flags.mix));
  flags.workload.arm_weights.clear();
  for (const MixedArm& arm : flags.target.mix) flags.workload.arm_weights.push_back(arm.weight);
  if (!flags.trace_file.empty())
    flags.workload.trace = ValueOr(kExitUsage, ReadTrace(flags.trace_file));
  RunOptions options;
  options.intended = Intended(flags);
  if (flags.max_concurrency > 0) options.concurrency = flags.max_concurrency;
  if (flags.max_seconds > 0.0) options.most_seconds = flags.max_seconds;

  absl::StatusOr<std::unique_ptr<HydrantTarget>> made = HydrantTarget::Create(flags.target);
  if (!made.ok()) {
    Fail(made.status().code() == absl::StatusCode::kUnavailable ? kExitNoServer : kExitUsage,
         std::string(made.status().message()));
  }
  HydrantTarget& target = **made;
  flags.workload.vocab_size = target.info().vocab_size;
  if (!flags.text_file.empty())
    flags.workload.text = ValueOr(kExitNoServer, target.Tokenize(ReadFile(flags.text_file)));
  const Workload workload = ValueOr(kExitUsage, Workload::Create(flags.workload));
  LiveView view(workload.size(), flags.quiet ? nullptr : stderr);
  options.on_tick = [&](double now, const std::vector<Outcome>& outcomes, int64_t in_flight) {
    view.Show(now, outcomes, in_flight);
    return interrupted == 0;
  };

  target.Start();
  const std::vector<Outcome> outcomes = RunLoad(workload, options, &target);
  view.End();
  RunDescription run = Describe(flags, target.info(), app);
  run.num_prompts = static_cast<int64_t>(outcomes.size());
  run.complete = interrupted == 0;
  WriteReports(flags, run, outcomes, objectives);
  if (interrupted != 0) return kExitInterrupted;
  return Measure(outcomes, objectives).failed > 0 && !flags.allow_errors ? kExitErrors : 0;
}

}  // namespace
}  // namespace hydrant

int main(int argc, char** argv) {
  gpr_set_log_function([](gpr_log_func_args*) {});  // errors are reported by status
  std::signal(SIGINT, [](int) { hydrant::interrupted = 1; });
  std::signal(SIGTERM, [](int) { hydrant::interrupted = 1; });
  hydrant::LoadFlags flags;
  CLI::App app("hydrant-load sends a load to a hydrantd and says how it was served.",
               "hydrant-load");
  hydrant::AddTargetFlags(&app, &flags);
  hydrant::AddWorkloadFlags(&app, &flags);
  hydrant::AddArrivalFlags(&app, &flags);
  hydrant::AddFaultFlags(&app, &flags);
  hydrant::AddReportFlags(&app, &flags);
  app.footer(
      "Examples:\n"
      "  hydrant-load --request-rate 4 --num-prompts 200 --input-len 512 --output-len 128 "
      "--goodput \"ttft:500 tpot:50\"\n"
      "  hydrant-load --mix full@1,h2o:cache_ratio=0.2@1 --max-concurrency 16 --text book.txt "
      "--json result.json\n"
      "  hydrant-load --trace AzureLLMInferenceTrace_conv.csv --trace-rate-scale 2 --max-seconds "
      "300 --cancel-rate 0.05\n"
      "Exit status: 0 all well; 1 requests failed, or a report could not be written; 2 wrong "
      "options; 3 no server;\n"
      "130 broken off (what there was is reported, marked PARTIAL).");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    fmt::print(stderr, "hydrant-load: {} (try --help)\n", error.what());
    return hydrant::kExitUsage;
  }
  return hydrant::Run(std::move(flags), app);
}
