#include "tools/simulator/command_line.h"

#include <cmath>
#include <limits>
#include <string_view>

#include "engine/cache/kv_cache_dtype.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "kernels/status_macros.h"
#include "tools/load/run/option_group.h"
#include "tools/simulator/balancer.h"

namespace hydrant::sim {
namespace {

using load::OptionGroup;

void AddModelFlags(CLI::App* app, Flags* flags) {
  const OptionGroup group(app, "Model (SmolLM2-135M's shape by default)");
  group.Option("--num-layers", flags->shape.num_layers, "Layers");
  group.Option("--num-heads", flags->shape.num_heads, "Query heads of a layer");
  group.Option("--num-kv-heads", flags->shape.num_kv_heads, "KV heads of a layer");
  group.Option("--head-dim", flags->shape.head_dim, "Elements of a key");
  group.Option("--max-model-len", flags->shape.max_context,
               "Tokens of one sequence, prompt and output");
  group.Option("--vocab-size", flags->shape.vocab_size, "Token ids are below it")
      ->check(CLI::Range(1, 1 << 30));
  group.Flag("--fold-heads", flags->fold_heads,
             "One head stands for all: faster, and the same where no policy tells heads apart");
}

void AddEngineFlags(CLI::App* app, Flags* flags) {
  const OptionGroup group(app, "Engine, as hydrantd's");
  group.Option("--device", flags->engine.device, "cpu or cuda: their defaults")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  group
      .Option("--async-scheduling", flags->async_scheduling,
              "Schedule a step while the one before runs: on, off, or auto: on for a GPU")
      ->check(CLI::IsMember({"auto", "on", "off"}));
  group.Option("--kv-cache-dtype", flags->kv_cache_dtype, std::string(kKvCacheDTypeHelp))
      ->check(CLI::IsMember(KvCacheDTypeNames()));
  group.Bytes("--kv-cache-memory-bytes", flags->kv_cache_memory_bytes, "Size of the KV pool");
  group
      .Option("--num-gpu-blocks-override", flags->engine.num_blocks_override,
              "Size of the KV pool in pages, instead of bytes")
      ->check(CLI::Range(1, 1 << 30));
  group.Option("--block-size", flags->engine.block_size, "Entries of a page");
  group.Flag("--enable-prefix-caching,!--no-enable-prefix-caching", flags->prefix_caching,
             "Prompts that begin alike are read once; on by default");
  group.Bytes("--prefix-cache-memory-bytes", flags->prefix_cache_memory_bytes,
              "Of the host's memory, for that");
  group.Bytes("--swap-space", flags->swap_space_bytes,
              "Of the host's memory, for sequences whose pages others need");
}

void AddSchedulerFlags(CLI::App* app, Flags* flags) {
  const OptionGroup group(app, "Scheduling, as hydrantd's");
  SchedulerOptions& scheduler = flags->scheduler;
  group.Option("--max-num-seqs", flags->engine.max_num_seqs, "Sequences that run at the same time");
  group.Option("--max-num-batched-tokens", scheduler.max_num_batched_tokens,
               "Prompt tokens a step reads while others decode; default: 512, on a GPU 2048");
  group.Option("--max-num-queued-reqs", scheduler.max_num_queued_reqs, "Requests that may wait");
  group.Option("--max-num-queued-tokens", scheduler.max_num_queued_tokens,
               "Prompt tokens that may wait");
  group
      .Option("--target-ttft", flags->target_ttft_s,
              "Seconds within which a first token is to come; default: none")
      ->check(CLI::Range(0.001, 86400.0));
  group
      .Option("--target-tpot", flags->target_tpot_s,
              "Seconds within which each further token is to come; default: none")
      ->check(CLI::Range(0.0001, 86400.0));
  group.Option("--tenant-weights", flags->tenant_weights,
               "While several tenants wait, their shares: NAME=WEIGHT,... in (0, 1000]; else 1");
  group.Option("--watermark", scheduler.watermark,
               "Share of the pages kept free at admission, [0, 0.5]");
  group.Option("--policy-under-pressure", flags->policy_under_pressure,
               "What requests for the full cache do whose whole cache does not fit when their turn "
               "comes: wait, or be compressed by a policy: h2o:cache_ratio=0.2");
}

void AddMachineFlags(CLI::App* app, Flags* flags) {
  const OptionGroup group(app, "Machines");
  group
      .Option("--costs", flags->costs,
              "What steps take: a JSON file that `fit` has written; default: SmolLM2-135M on two "
              "cores, about")
      ->check(CLI::ExistingFile);
  group
      .Option("--noise", flags->noise,
              "Instead of the file's: of the logarithm of the times of short steps")
      ->check(CLI::Range(0.0, 2.0));
  group.Option("--replicas", flags->num_replicas, "Daemons behind a balancer");
  group.Option("--balancer", flags->balancer, fmt::format("{}", fmt::join(kBalancerNames, ", ")))
      ->check(CLI::IsMember(
          std::vector<std::string>(std::begin(kBalancerNames), std::end(kBalancerNames))));
}

void AddLoadFlags(CLI::App* app, Flags* flags) {
  const OptionGroup group(app, "Load, as hydrant-load's");
  load::WorkloadOptions& load = flags->workload;
  group.Option("--num-prompts", load.num_requests,
               "Requests; of a trace its first, all by default");
  group.Option("--input-len", load.input_tokens, "Tokens of a prompt");
  group.Option("--output-len", load.output_tokens, "Tokens to be generated");
  group.Option("--range-ratio", load.range_ratio,
               "Lengths vary by this share of them, evenly, [0, 1)");
  group.Option("--num-prefixes", load.shared_prefixes,
               "So many prefixes are shared by all requests");
  group.Option("--prefix-len", load.shared_prefix_tokens,
               "Tokens of each, before the --input-len others");
  group.Option("--mix", flags->mix,
               "Policies, settings and weights: full:tenant=a@10,h2o:cache_ratio=0.2:tenant=b@1");
  group.Option("--request-rate", flags->request_rate,
               "Requests per second: 5; steps, 2x30,8x30; a ramp, 1-10x60; inf: all at once. With "
               "--trace one number, its mean. Default: 1, or as the trace has it");
  group
      .Option("--burstiness", flags->burstiness,
              "Shape of the Gamma distribution of the gaps; 1: Poisson, less: bursts")
      ->check(CLI::Range(1e-3, 1e6));
  group.Option("--seed", load.seed, "One seed is one load, and one simulation");
}

void AddTraceFlags(CLI::App* app, Flags* flags) {
  const OptionGroup group(app, "Trace");
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
  group
      .Option("--trace-copies", flags->trace_copies,
              "It is played so many times at once, from places drawn, each with prompts of its "
              "own: as many users more")
      ->check(CLI::Range(1, 100'000));
  group.Flag("--clip-lengths", flags->clip_lengths,
             "What is longer than --max-model-len is made to fit, and counted; else it is refused");
}

void AddReportFlags(CLI::App* app, Flags* flags) {
  const OptionGroup group(app, "What is reported");
  group.Option("--goodput", flags->goodput,
               "Count as good what keeps these (ms): \"ttft:500 tpot:50\"; also itl, e2el");
  group.Option("--json", flags->json, "Write the figures here, and how they went over time");
  group.Flag("--quiet", flags->quiet, "No progress");
}

// Refuses loads that would not fit into memory, or take days.
absl::Status CheckLoad(const load::WorkloadOptions& load) {
  constexpr int64_t kMaxRequests = 100'000'000, kMaxTokens = 100'000'000;
  const std::pair<const char*, std::pair<int64_t, int64_t>> sizes[] = {
      {"num-prompts", {load.num_requests, kMaxRequests}},
      {"input-len", {load.input_tokens, kMaxTokens}},
      {"output-len", {load.output_tokens, kMaxTokens}},
      {"prefix-len", {load.shared_prefix_tokens, kMaxTokens}}};
  for (const auto& [name, size] : sizes) {
    if (size.first > size.second)
      return absl::InvalidArgumentError(
          fmt::format("{}: {} is more than {}", name, size.first, size.second));
  }
  return absl::OkStatus();
}

std::optional<TimeUs> Micros(const std::optional<double>& seconds) {
  if (!seconds.has_value()) return std::nullopt;
  return std::llround(*seconds * 1e6);
}

}  // namespace

void AddSimulateFlags(CLI::App* app, Flags* flags) {
  AddModelFlags(app, flags);
  AddEngineFlags(app, flags);
  AddSchedulerFlags(app, flags);
  AddMachineFlags(app, flags);
  AddLoadFlags(app, flags);
  AddTraceFlags(app, flags);
  AddReportFlags(app, flags);
}

void AddFitFlags(CLI::App* app, Flags* flags) {
  app->add_option("trace", flags->step_traces, "Files that hydrantd --trace-steps has written")
      ->required()
      ->check(CLI::ExistingFile);
  app->add_option("--json", flags->fitted, "Write the costs here; default: standard output");
}

absl::Status CompleteFlags(Flags* flags) {
  EngineOptions& engine = flags->engine;
  constexpr uint64_t kMaxBytes = uint64_t{1} << 50;
  const std::pair<const char*, uint64_t> sizes[] = {
      {"kv-cache-memory-bytes", flags->kv_cache_memory_bytes},
      {"prefix-cache-memory-bytes", flags->prefix_cache_memory_bytes},
      {"swap-space", flags->swap_space_bytes}};
  for (const auto& [name, bytes] : sizes) {
    if (bytes > kMaxBytes)
      return absl::InvalidArgumentError(
          fmt::format("{}: {} exceeds {} bytes", name, bytes, kMaxBytes));
  }
  engine.kv_cache_memory_bytes = static_cast<int64_t>(flags->kv_cache_memory_bytes);
  engine.prefix_cache_memory_bytes =
      flags->prefix_caching ? static_cast<int64_t>(flags->prefix_cache_memory_bytes) : 0;
  engine.swap_space_bytes = static_cast<int64_t>(flags->swap_space_bytes);
  engine.host_memory_bytes = std::numeric_limits<int64_t>::max();  // simulated machines
  engine.kv_cache_dtype = KvCacheDTypeOf(flags->kv_cache_dtype);
  if (flags->async_scheduling != "auto") engine.async_scheduling = flags->async_scheduling == "on";
  HYDRANT_ASSIGN_OR_RETURN(flags->scheduler.tenant_weights,
                           ParseTenantWeights(flags->tenant_weights));
  flags->scheduler.target_ttft_us = Micros(flags->target_ttft_s);
  flags->scheduler.target_tpot_us = Micros(flags->target_tpot_s);
  absl::StatusOr<CacheSpec> policy = ParsePolicyUnderPressure(flags->policy_under_pressure);
  if (!policy.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("policy-under-pressure: {}", std::string(policy.status().message())));
  }
  flags->scheduler.policy_under_pressure = *std::move(policy);
  // Progress events are unused here.
  flags->scheduler.progress_interval_us = std::numeric_limits<TimeUs>::max() / 4;
  flags->workload.vocab_size = flags->shape.vocab_size;
  return CheckLoad(flags->workload);
}

std::map<std::string, std::string> GivenOptions(const CLI::App& app) {
  std::map<std::string, std::string> given;
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0)
      given[option->get_name()] = fmt::format("{}", fmt::join(option->results(), ","));
  }
  return given;
}

}  // namespace hydrant::sim
