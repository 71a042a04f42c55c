#include "load/command_line.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "load/write_file.h"

namespace hydrant {
namespace {

volatile std::sig_atomic_t interrupted = 0;

}  // namespace

void AddTargetFlags(CLI::App* app, LoadFlags* flags) {
  const auto group = "Where to";
  app->add_option(
         "--address", flags->target.addresses,
         "Daemons, or a proxy before them; several, separated by commas, are taken in turn. "
         "http://host:port is a server with OpenAI's API")
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
  app->add_option("--metrics", flags->metrics,
                  "Pages of Prometheus metrics to be scraped meanwhile, http://host:port/metrics")
      ->delimiter(',')
      ->group(group);
  app->add_option("--metrics-period", flags->metrics_period, "Seconds between scrapes")
      ->check(CLI::Range(0.05, 3600.0))
      ->capture_default_str()
      ->group(group);
  const auto openai = "Where to, if it is http:// (the key is read from OPENAI_API_KEY)";
  app->add_option("--tokenizer", flags->openai.tokenizer,
                  "The model's GGUF file, tokenizer.json, or the folder that has it")
      ->check(CLI::ExistingPath)
      ->group(openai);
  app->add_option("--model", flags->openai.model, "Default: the first of /v1/models")
      ->group(openai);
  app->add_flag("--prompt-ids", flags->openai.prompt_ids,
                "Send prompts as token ids, which not all servers take")
      ->group(openai);
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
  app->add_option("--turns", options.turns,
                  "Requests of a conversation: each has all that was said before and --input-len "
                  "tokens more")
      ->capture_default_str()
      ->group(group);
  app->add_option("--think-time", options.think_seconds,
                  "Seconds between an answer and the next turn, on average")
      ->capture_default_str()
      ->group(group);
  app->add_option("--mix", flags->mix, "Cache policies and weights: full@1,h2o:cache_ratio=0.2@3")
      ->capture_default_str()
      ->group(group);
  app->add_option("--temperature", flags->target.temperature, "0: greedy")
      ->capture_default_str()
      ->group(group);
  app->add_flag("!--honour-eos", flags->target.ignore_eos,
                "An answer may end before its --output-len")
      ->group(group);
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
  rate("--disconnect-rate", Fault::kDisconnect, "Break the connection in the middle of the answer");
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
  app->add_option("--check-quality", flags->check_quality,
                  "Answer so many of the prompts again, greedily under full and under each policy, "
                  "and say how far they agree")
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  app->add_option("--report", flags->report,
                  "Write all three files below to this folder: report.html, .json, requests.csv")
      ->group(group);
  app->add_option("--html", flags->html, "Write a page with plots here")->group(group);
  app->add_option("--json", flags->json, "Write the figures here, as `vllm bench serve` does")
      ->group(group);
  app->add_option("--csv", flags->csv, "Write a line a request here")->group(group);
  app->add_option("--label", flags->label, "What this run is called in pages and comparisons")
      ->group(group);
  app->add_flag("--allow-errors", flags->allow_errors,
                "Failed requests are no reason to exit with 1")
      ->group(group);
  app->add_flag("--quiet", flags->quiet, "No live view")->group(group);
}

std::map<std::string, std::string> GivenOptions(const CLI::App& app) {
  std::map<std::string, std::string> given;
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0)
      given[option->get_name()] = fmt::format("{}", fmt::join(option->results(), ","));
  }
  return given;
}

void CatchInterrupts() {
  std::signal(SIGINT, [](int) { interrupted = 1; });
  std::signal(SIGTERM, [](int) { interrupted = 1; });
}

bool Interrupted() { return interrupted != 0; }

void Warn(std::string_view message) { fmt::print(stderr, "hydrant-load: {}\n", message); }

void Fail(int code, std::string_view message) {
  Warn(message);
  std::exit(code);
}

bool WriteReport(const std::string& path, std::string_view content) {
  const absl::Status status = WriteFile(path, content);
  if (!status.ok()) Warn(std::string(status.message()));
  return status.ok();
}

bool PrintReport(std::string_view text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) Warn(fmt::format("standard output: cannot be written: {}", std::strerror(errno)));
  return written;
}

void NameReports(const std::string& name, const std::string& csv_name, LoadFlags* flags) {
  if (!flags->report.empty()) {
    std::error_code error;
    std::filesystem::create_directories(flags->report, error);
    if (error) Fail(kExitUsage, fmt::format("report: {}: {}", flags->report, error.message()));
    const std::filesystem::path folder = flags->report;
    if (flags->html.empty()) flags->html = folder / (name + ".html");
    if (flags->json.empty()) flags->json = folder / (name + ".json");
    if (flags->csv.empty()) flags->csv = folder / (csv_name + ".csv");
  }
  for (const std::string* path : {&flags->html, &flags->json, &flags->csv}) {
    if (path->empty()) continue;
    const absl::Status status = CheckWritable(*path);
    if (!status.ok()) Fail(kExitUsage, std::string(status.message()));
  }
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file || text.empty()) Fail(kExitUsage, fmt::format("{}: empty, or cannot be read", path));
  return text;
}

}  // namespace hydrant
