#include "tools/load/commands/command_line.h"

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "kernels/standard_streams.h"
#include "tools/load/report/write_file.h"
#include "tools/load/run/option_group.h"

namespace hydrant::load {
namespace {

volatile std::sig_atomic_t interrupted = 0;

void AddPromptFlags(const OptionGroup& group, LoadFlags* flags) {
  WorkloadOptions& options = flags->workload;
  group.Option("--num-prompts", options.num_requests, "Requests");
  group.Option("--input-len", options.input_tokens, "Tokens of a prompt");
  group.Option("--output-len", options.output_tokens, "Tokens to be generated");
  group.Option("--range-ratio", options.range_ratio,
               "Lengths vary by this share of them, evenly, [0, 1)");
  group
      .Option("--text", flags->text_file,
              "Prompts are pieces of this text file; else they are drawn token ids")
      ->check(CLI::ExistingFile);
  group.Option("--num-prefixes", options.shared_prefixes,
               "So many prefixes are shared by all requests");
  group.Option("--prefix-len", options.shared_prefix_tokens,
               "Tokens of each, before the --input-len others");
}

void AddConversationFlags(const OptionGroup& group, WorkloadOptions* options) {
  group.Option("--turns", options->turns,
               "Requests of a conversation: each has all that was said before and --input-len "
               "tokens more");
  group.Option("--think-time", options->think_seconds,
               "Seconds between an answer and the next turn, on average");
}

void AddAnswerFlags(const OptionGroup& group, LoadFlags* flags) {
  group.Option("--mix", flags->mix, "Cache policies and weights: full@1,auto:cache_ratio=0.2@3");
  Sampling& sampling = flags->target.sampling;
  group.Option("--temperature", sampling.temperature, "0: greedy");
  group.Option(
      "--top-p", sampling.top_p,
      "The likeliest tokens that have this probability together are drawn from; of this and "
      "the next five, what is not given is the server's default");
  group.Option("--top-k", sampling.top_k, "So many of the likeliest tokens are");
  group.Option("--min-p", sampling.min_p,
               "Tokens with this share of the likeliest one's probability are");
  group.Option("--repetition-penalty", sampling.repetition_penalty,
               "Of tokens in the prompt or the answer; 1: none");
  group.Option("--presence-penalty", sampling.presence_penalty,
               "Of tokens in the answer, once each; 0: none");
  group.Option("--frequency-penalty", sampling.frequency_penalty,
               "Of tokens in the answer, for each time; 0: none");
  group.Flag("!--honour-eos", flags->target.ignore_eos,
             "An answer may end before its --output-len");
}

void AddTraceFlags(const OptionGroup& group, LoadFlags* flags) {
  group
      .Option("--trace", flags->trace_file, "Replay times and lengths: Azure CSV or Mooncake JSONL")
      ->check(CLI::ExistingFile);
  group
      .Option("--trace-rate-scale", flags->trace_rate_scale,
              "The trace runs this many times as fast")
      ->check(CLI::PositiveNumber);
  group
      .Option("--trace-length-scale", flags->workload.trace_length_scale,
              "Its lengths are multiplied by this")
      ->check(CLI::PositiveNumber);
}

}  // namespace

void AddTargetFlags(CLI::App* app, LoadFlags* flags) {
  const OptionGroup group(app, "Where to");
  group
      .Option("--address", flags->target.addresses,
              "Daemons, or a proxy before them; several, separated by commas, are taken in turn. "
              "http://host:port is a server with OpenAI's API")
      ->delimiter(',');
  group.Option("--connections", flags->target.connections, "TCP connections to each address")
      ->check(CLI::Range(1, 1000));
  AccessFlags& access = flags->target.access;
  group.Option("--tls-ca", access.tls_ca, "PEM file with the servers' CA: connections are TLS");
  group.Option("--tls-certificate", access.tls_certificate,
               "PEM file with a certificate of its own");
  group.Option("--tls-key", access.tls_key, "PEM file with its private key");
  group.Option("--token-file", access.token_file,
               "File with the token that servers want; default: HYDRANT_TOKEN's");
  group.Option("--wait", flags->target.wait_seconds, "Seconds until each address has to answer")
      ->check(CLI::NonNegativeNumber);
  group
      .Option("--metrics", flags->metrics,
              "Pages of Prometheus metrics to be scraped meanwhile, http://host:port/metrics")
      ->delimiter(',');
  group.Option("--metrics-period", flags->metrics_period, "Seconds between scrapes")
      ->check(CLI::Range(0.05, 3600.0));
  const OptionGroup openai(app, "Where to, if it is http:// (the key is read from OPENAI_API_KEY)");
  openai
      .Option("--tokenizer", flags->openai.tokenizer,
              "The model's GGUF file, tokenizer.json, or the folder that has it")
      ->check(CLI::ExistingPath);
  openai.Option("--model", flags->openai.model, "Default: the first of /v1/models");
  openai.Flag("--prompt-ids", flags->openai.prompt_ids,
              "Send prompts as token ids, which not all servers take");
}

void AddWorkloadFlags(CLI::App* app, LoadFlags* flags) {
  const OptionGroup group(app, "What is asked");
  AddPromptFlags(group, flags);
  AddConversationFlags(group, &flags->workload);
  AddAnswerFlags(group, flags);
  AddTraceFlags(group, flags);
  group.Option("--seed", flags->workload.seed, "One seed is one load");
}

void AddArrivalFlags(CLI::App* app, LoadFlags* flags) {
  const OptionGroup group(app, "When");
  group.Option("--request-rate", flags->request_rate,
               "Requests per second: 5; steps of rate x seconds, 2x30,8x30; a ramp, 1-10x60; "
               "inf: all at once, or a closed "
               "loop with --max-concurrency");
  group.Option("--burstiness", flags->burstiness,
               "Shape of the Gamma distribution of the gaps; 1: Poisson, less: bursts, inf: even");
  group
      .Option("--max-concurrency", flags->max_concurrency,
              "Requests in flight at most; 0: any number")
      ->check(CLI::NonNegativeNumber);
  group
      .Option("--max-seconds", flags->max_seconds,
              "Nothing is sent after that; 0: until all are sent")
      ->check(CLI::NonNegativeNumber);
  group.Option("--warm-up", flags->warm_up, "Seconds whose requests do not count")
      ->check(CLI::NonNegativeNumber);
}

void AddFaultFlags(CLI::App* app, LoadFlags* flags) {
  const OptionGroup group(app, "Clients that misbehave (shares of the requests)");
  const auto rate = [&](const char* name, Fault fault, const char* what) {
    group.Option(name, flags->workload.fault_rates[static_cast<int>(fault) - 1], what)
        ->check(CLI::Range(0.0, 1.0));
  };
  rate("--cancel-rate", Fault::kCancel, "Cancel in the middle of the answer");
  rate("--deadline-rate", Fault::kDeadline, "Give it --fault-deadline seconds");
  rate("--disconnect-rate", Fault::kDisconnect, "Break the connection in the middle of the answer");
  rate("--slow-reader-rate", Fault::kSlowReader, "Read a message every --slow-read-delay seconds");
  rate("--oversized-rate", Fault::kOversized, "Send a prompt that no context holds");
  rate("--malformed-rate", Fault::kMalformed, "Send a temperature of -1");
  group.Option("--fault-deadline", flags->workload.fault_deadline, "Seconds")
      ->check(CLI::PositiveNumber);
  group.Option("--slow-read-delay", flags->workload.slow_read_delay, "Seconds")
      ->check(CLI::PositiveNumber);
}

void AddReportFlags(CLI::App* app, LoadFlags* flags) {
  const OptionGroup group(app, "What is reported");
  group.Option("--goodput", flags->goodput,
               "Count as good what keeps these (ms): \"ttft:500 tpot:50\"; also itl, e2el");
  group
      .Option("--check-quality", flags->check_quality,
              "Answer so many of the prompts again, greedily under full and under each policy, "
              "and say how far they agree")
      ->check(CLI::NonNegativeNumber);
  group.Option("--report", flags->report,
               "Write all three files below to this folder: report.html, .json, requests.csv");
  group.Option("--html", flags->html, "Write a page with plots here");
  group.Option("--json", flags->json, "Write the figures here, as `vllm bench serve` does");
  group.Option("--csv", flags->csv, "Write a line a request here");
  group.Option("--label", flags->label, "What this run is called in pages and comparisons");
  group.Flag("--allow-errors", flags->allow_errors, "Failed requests are no reason to exit with 1");
  group.Flag("--quiet", flags->quiet, "No live view");
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

void Warn(std::string_view message) { PrintErr("hydrant-load: {}\n", message); }

void Fail(int code, std::string_view message) {
  Warn(message);
  std::exit(code);
}

bool WriteReport(const std::string& path, std::string_view content) {
  const absl::Status status = WriteFile(path, content);
  if (!status.ok()) Warn(std::string(status.message()));
  return status.ok();
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

}  // namespace hydrant::load
