#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "engine/cache/kv_cache_dtype.h"
#include "engine/run/weight_dtype_names.h"
#include "kernels/device_choice.h"
#include "kernels/status_macros.h"
#include "server/auth/token_file.h"
#include "server/net/listening_sockets.h"
#include "server/startup/daemon_options.h"
#include "server/startup/machine_limits.h"
#include "server/startup/model_argument.h"
#include "server/startup/nearest_name.h"
#include "server/startup/options_check.h"
#include "server/startup/settings.h"

namespace hydrant {
namespace {

constexpr char kExamples[] = R"(Examples:
  hydrantd model.gguf
  hydrantd ./Llama-3.2-1B --dtype bfloat16 --kv-cache-memory-bytes 2G --listen 127.0.0.1:50052
  hydrantd model.gguf --listen 0.0.0.0:50051 --tls-certificate tls.crt --tls-key tls.key --auth-tokens tokens.yaml
  hydrantd ./Llama-3.2-1B --load-format dummy              (random weights: for load tests)
  hydrantd HuggingFaceTB/SmolLM2-135M-Instruct             (fetched into the cache of huggingface_hub)
Then, in another terminal:
  hydrant chat "What is the capital of France?"

Threads default to the cores that affinity and cgroup allow (hyper-threads count once), the KV cache to a quarter of the memory that is
available, or less where max-num-seqs sequences of max-model-len tokens need less. On a GPU it takes what weights
and activations leave of --gpu-memory-utilization. The prefix cache and kept contexts take at most an eighth of the available memory each,
as they fill; on a GPU pinned memory, from the start.

SIGTERM and SIGINT drain and end it, a second one at once; SIGHUP has tokens and certificates read anew; SIGUSR1 and
SIGUSR2 are ignored; SIGQUIT ends it with a core dump.)";

// CLI::Range accepts "nan", because its comparisons with nan are all false.
CLI::Validator Within(double least, double most) {
  const auto check = [least, most](const std::string& text) -> std::string {
    double value = 0;
    const bool is_number = CLI::detail::lexical_cast(text, value);
    if (is_number && value >= least && value <= most) return {};
    return fmt::format("{} is not a number from {} to {}", text, least, most);
  };
  return {check, fmt::format("FLOAT in [{} - {}]", least, most)};
}

CLI::Validator Count(int64_t most) { return CLI::Range(int64_t{1}, most); }
constexpr int64_t kMaxQueuedReqs = 1'000'000, kMaxQueuedTokens = 1'000'000'000'000;
constexpr int64_t kMaxBatchedTokens = 1'000'000;

// The default is one thread per core; many more threads only wait for each other.
CLI::Validator ThreadCount(const MachineLimits& machine) {
  constexpr int kAlways = 8, kTimes = 4;
  const int cpus = static_cast<int>(std::ceil(machine.cpus));
  const int most = std::max(kAlways, kTimes * cpus);
  const auto check = [=](const std::string& text) -> std::string {
    int count = 0;
    if (CLI::detail::lexical_cast(text, count) && count >= 1 && count <= most) return {};
    return fmt::format("{} is outside [1, {}] on the {} CPUs that this process may use", text, most,
                       cpus);
  };
  return {check, fmt::format("INT in [1 - {}]", most)};
}

std::vector<std::string> WithAuto(std::vector<std::string> names) {
  names.insert(names.begin(), "auto");
  return names;
}

// Flag values that are not options yet.
struct Flags {
  std::string config;
  bool check_config = false;
  std::string load_format = "auto";
  std::string generation_config = "auto";
  std::string dtype = "auto";
  std::string async_scheduling = "auto";
  std::string kv_cache_dtype = "auto";
  std::string kv_cache_memory_bytes, prefix_cache_memory_bytes, context_memory_bytes;
  std::string swap_space;
  std::string context_store, context_store_bytes, prefix_store, prefix_store_bytes;
  bool prefix_caching = true;
  double gpu_memory_utilization = EngineOptions{}.gpu_memory_utilization;
  std::string host;
  int port = -1;
  double target_ttft_s = 0, target_tpot_s = 0;
  std::string policy_under_pressure = "wait";
  std::string default_cache_policy = "full";
  std::vector<std::string> listen_as;
  std::string tenant_weights;
  double stall_timeout_s = 60;
  double drain_delay_s = 0;
  double shutdown_timeout_s = 30;
  double context_store_timeout_s = 10;
  double max_connection_age_s = 0;
  double max_connection_age_grace_s = 0;
  std::string log_format = "text";
  int num_gpu_blocks_override = 0;
  int max_model_len = 0;
};

void AddConfigFlags(CLI::App* app, Flags* flags) {
  const auto group = "Configuration";
  app->add_option("--config", flags->config,
                  "A YAML file of flags by their names without dashes, such as `max-num-seqs: 8`; "
                  "the command line and the environment win over it")
      ->configurable(false)
      ->group(group);
  app->add_flag("--check-config", flags->check_config,
                "Check all that can be known without loading the model, print the settings as such "
                "a file, secrets hidden, and end")
      ->configurable(false)
      ->group(group);
}

void AddModelFlags(CLI::App* app, DaemonOptions* options, Flags* flags) {
  const auto group = "Model";
  app->add_option("model,-m,--model", options->model_path,
                  "A .gguf file, a folder with one or with config.json, or "
                  "[hf:]ORG/NAME[@REVISION][:FILE] of the Hugging Face hub, fetched once")
      ->type_name("MODEL")
      ->group(group);
  app->add_option("--load-format", flags->load_format,
                  "auto, or dummy: random weights for a config.json")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str()
      ->group(group);
  app->add_option("--tokenizer", options->tokenizer_path,
                  "A folder or file with the tokenizer; default: the model's own")
      ->group(group);
  app->add_option("--score-predictor", options->score_predictor,
                  "A file of hydrant-eval fit, for policy learned, or none; default: "
                  "MODEL.scores.safetensors, if it is there")
      ->group(group);
  app->add_option("--served-model-name", options->served_model_name,
                  "The name clients may use; default: the hub's, or the file's or folder's without "
                  "its ending, where a GGUF file's own name is taken as well")
      ->group(group);
  app->add_option("--generation-config", flags->generation_config,
                  "auto: what the model's files recommend for sampling (generation_config.json, "
                  "general.sampling of a GGUF file) is the default of requests; none: temperature "
                  "1, and no more")
      ->check(CLI::IsMember({"auto", "none"}))
      ->capture_default_str()
      ->group(group);
  app->add_option("--max-model-len", flags->max_model_len,
                  "Tokens of one sequence, prompt and output; default: the model's context")
      ->check(CLI::Range(2, 1 << 30))
      ->group(group);
}

void AddEngineFlags(const MachineLimits& machine, CLI::App* app, DaemonOptions* options,
                    Flags* flags) {
  const auto group = "Engine";
  EngineOptions& engine = options->engine;
  app->add_option("--device", engine.device,
                  "auto (cuda where a GPU can be used, else cpu), cuda, cpu, or reference (slow, "
                  "plain loops)")
      ->check(CLI::IsMember(std::vector<std::string>(kDeviceNames.begin(), kDeviceNames.end())))
      ->capture_default_str()
      ->group(group);
  app->add_option("--threads", engine.num_threads, "Threads of the engine")
      ->check(ThreadCount(machine))
      ->capture_default_str()
      ->group(group);
  app->add_option(
         "--dtype", flags->dtype,
         "Weights: stored (as in the files), bfloat16, float32; q8_0, q4_0 or fp8: stored, but "
         "floats are quantised while they are loaded (with q4_0 the vocabulary's rows as q8_0); "
         "auto: bfloat16 on a GPU, else stored")
      ->check(CLI::IsMember(WithAuto(WeightDTypeNames())))
      ->capture_default_str()
      ->group(group);
  app->add_flag("--force-dtype", options->force_dtype,
                "Serve with a --dtype of q8_0, q4_0 or fp8 without the check at the start, which "
                "reads a text with the weights as stored as well and refuses a type that changes "
                "the model's answers much")
      ->group(group);
  app->add_option("--async-scheduling", flags->async_scheduling,
                  "Schedule a step while the one before runs: on, off, or auto: on for a GPU")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str()
      ->group(group);
  app->add_flag(
         "--enforce-eager", engine.enforce_eager,
         "On a GPU, start every operation of a step by itself instead of as a recorded graph")
      ->group(group);
  app->add_flag("--batch-invariant", engine.batch_invariant,
                "A request's tokens never depend on what else is in the batch; slower. Prompts of "
                "quantised weights are then never multiplied in 8 bits")
      ->group(group);
  app->add_option("--kv-cache-dtype", flags->kv_cache_dtype, std::string(kKvCacheDTypeHelp))
      ->check(CLI::IsMember(KvCacheDTypeNames()))
      ->capture_default_str()
      ->group(group);
  app->add_flag(
         "--force-kv-cache-dtype", options->force_kv_cache_dtype,
         "Serve with a --kv-cache-dtype of 4 or 8 bits without the check at the start, which "
         "refuses a type that changes the model's answers much")
      ->group(group);
  app->add_option("--kv-cache-memory-bytes", flags->kv_cache_memory_bytes,
                  "Size of the KV pool, such as 512M or 2G; default: see below")
      ->group(group);
  app->add_flag(
         "--enable-prefix-caching,!--no-enable-prefix-caching", flags->prefix_caching,
         "Keep what was read of prompts, so that one that begins alike is not read again; on "
         "by default")
      ->default_str("true")
      ->group(group);
  app->add_option("--prefix-cache-memory-bytes", flags->prefix_cache_memory_bytes,
                  "Of the host's memory, for that, such as 512M or 2G; default: see below")
      ->group(group);
  app->add_option(
         "--prefix-cache-store", flags->prefix_store,
         "Where what was read is saved too, so that it outlives the process and other replicas "
         "need not read it: dir:PATH, redis://HOST[:PORT][/DB], or unix:PATH of a Redis; "
         "default: nowhere")
      ->envname("HYDRANT_PREFIX_CACHE_STORE")
      ->group(group);
  app->add_option("--prefix-cache-store-bytes", flags->prefix_store_bytes,
                  "As --context-store-bytes, of --prefix-cache-store")
      ->group(group);
  app->add_option(
         "--swap-space", flags->swap_space,
         "Of the host's memory, for sequences whose pages others need: they come back as they "
         "were, "
         "and read nothing again. 0: none, they read again; default: none, on a GPU up to 4G")
      ->group(group);
  app->add_option("--swap-directory", options->engine.swap_directory,
                  "A folder: swap space and contexts lie in a file there, not in memory. Not on a "
                  "GPU; default: memory")
      ->group(group);
  app->add_option("--context-memory-bytes", flags->context_memory_bytes,
                  "Of the host's memory, for the caches of requests that have ended and asked for "
                  "it (`keep`); 0: none; default: see below")
      ->group(group);
  app->add_option(
         "--context-store", flags->context_store,
         "Where these caches are saved, so that they outlive the process and other replicas "
         "can use them: dir:PATH, redis://HOST[:PORT][/DB], or unix:PATH of a Redis; "
         "default: nowhere")
      ->envname("HYDRANT_CONTEXT_STORE")
      ->group(group);
  app->add_option(
         "--context-store-bytes", flags->context_store_bytes,
         "What a folder may hold, such as 20G; those that were not used for longest leave; "
         "default: no bound")
      ->group(group);
  app->add_option("--context-store-timeout", flags->context_store_timeout_s,
                  "Seconds that a call waits for --context-store, all in all; what is saved in the "
                  "background has three times as long")
      ->check(Within(0.1, 3600.0))
      ->capture_default_str()
      ->group(group);
  app->add_option("--gpu-memory-utilization", flags->gpu_memory_utilization,
                  "Share of a GPU's memory that weights, activations and KV pool may fill; other "
                  "processes count")
      ->check(Within(0.01, 1.0))
      ->capture_default_str()
      ->group(group);
  app->add_option("--num-gpu-blocks-override", flags->num_gpu_blocks_override,
                  "Size of the KV pool in pages, instead of bytes")
      ->check(CLI::Range(1, 1 << 30))
      ->group(group);
  app->add_option("--block-size", engine.block_size, "Entries of a page")
      ->check(CLI::Range(1, 256))
      ->capture_default_str()
      ->group(group);
}

void AddSchedulerFlags(CLI::App* app, DaemonOptions* options, Flags* flags) {
  const auto group = "Scheduling";
  SchedulerOptions& scheduler = options->scheduler;
  app->add_option("--max-num-seqs", options->engine.max_num_seqs,
                  "Sequences that run at the same time")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str()
      ->group(group);
  app->add_option("--max-num-batched-tokens", scheduler.max_num_batched_tokens,
                  "Prompt tokens a step reads while others decode; default: 512, on a GPU 2048")
      ->check(Count(kMaxBatchedTokens))
      ->group(group);
  app->add_option("--max-num-queued-reqs", scheduler.max_num_queued_reqs, "Requests that may wait")
      ->check(Count(kMaxQueuedReqs))
      ->capture_default_str()
      ->group(group);
  app->add_option("--max-num-queued-tokens", scheduler.max_num_queued_tokens,
                  "Prompt tokens that may wait")
      ->check(Count(kMaxQueuedTokens))
      ->capture_default_str()
      ->group(group);
  app->add_option("--target-ttft", flags->target_ttft_s,
                  "Seconds within which a first token is to come: requests that cannot keep it are "
                  "refused, with a "
                  "time to retry after, and not served late. Default: none")
      ->check(Within(0.001, 86400.0))
      ->group(group);
  app->add_option("--target-tpot", flags->target_tpot_s,
                  "Seconds within which each further token is to come: as many sequences run, and "
                  "as much of prompts "
                  "is read, as keeps it. Default: none, the most tokens a second")
      ->check(Within(0.0001, 86400.0))
      ->group(group);
  app->add_option("--tenant-weights", flags->tenant_weights,
                  "While several tenants wait, their shares of the machine: NAME=WEIGHT,...; a "
                  "weight is in (0, 1000], and 1 where none is named")
      ->group(group);
  app->add_option("--watermark", scheduler.watermark,
                  "Share of the pages kept free at admission, [0, 0.5]")
      ->check(Within(0.0, 0.5))
      ->capture_default_str()
      ->group(group);
  app->add_option("--default-cache-policy", flags->default_cache_policy,
                  "The policy of requests that name none, with its settings, such as "
                  "auto:cache_ratio=0.2; a setting that such a request names is its own")
      ->capture_default_str()
      ->group(group);
  app->add_option(
         "--policy-under-pressure", flags->policy_under_pressure,
         "What requests for the full cache do whose whole cache does not fit when their "
         "turn comes: wait, or be compressed by a policy, such as h2o:cache_ratio=0.2, and "
         "be told so")
      ->capture_default_str()
      ->group(group);
}

void AddServerFlags(CLI::App* app, DaemonOptions* options, Flags* flags) {
  const auto group = "Server";
  app->add_option("--listen", options->listen,
                  "host:port, or unix:/path; port 0 takes any free one")
      ->capture_default_str()
      ->group(group);
  app->add_option("--listen-as", flags->listen_as,
                  "ADDRESS=POLICY, such as 127.0.0.1:50052=echo:cache_ratio=0.2: one more address, "
                  "for whose requests --default-cache-policy is this one; may be given again")
      ->group(group);
  app->add_option("--host", flags->host, "The host of --listen alone")->group(group);
  app->add_option("--port", flags->port, "The port of --listen alone")
      ->check(CLI::Range(0, 65535))
      ->group(group);
  app->add_option(
         "--trace-steps", options->trace_steps,
         "A file for every step and request on a timeline, which ui.perfetto.dev opens; about half "
         "a kilobyte a step. Default: none")
      ->group(group);
  app->add_option("--metrics-listen", options->metrics_listen,
                  "host:port for HTTP: /metrics (Prometheus), /livez, /readyz; default: none")
      ->group(group);
  app->add_option("--stall-timeout", flags->stall_timeout_s,
                  "Seconds without a step, with requests there, after which health says no; more "
                  "than the longest step takes")
      ->check(Within(0.001, 86400.0))
      ->capture_default_str()
      ->group(group);
  app->add_option("--drain-delay", flags->drain_delay_s,
                  "Seconds after SIGTERM in which health says no and new requests are still taken, "
                  "so that balancers get to notice")
      ->check(Within(0.0, 86400.0))
      ->capture_default_str()
      ->group(group);
  app->add_option("--shutdown-timeout", flags->shutdown_timeout_s,
                  "Seconds that running requests get to end after SIGTERM")
      ->check(Within(0.0, 86400.0))
      ->capture_default_str()
      ->group(group);
  app->add_option("--max-connection-age", flags->max_connection_age_s,
                  "Seconds after which a client is told to connect anew, so that a balancer of "
                  "connections gets to choose again; its streams go on; 0: never")
      ->check(Within(0.0, 2e6))
      ->capture_default_str()
      ->group(group);
  app->add_option("--max-connection-age-grace", flags->max_connection_age_grace_s,
                  "Seconds that the streams of such a connection get to end; more than the "
                  "longest takes; 0: as long as they take")
      ->check(Within(0.0, 2e6))
      ->capture_default_str()
      ->group(group);
  app->add_option("--log-format", flags->log_format,
                  "text, or json: an object a line, with a request's counts and times as fields")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str()
      ->group(group);
  app->add_option("--log-level", options->log_level, "debug, info, warning, error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str()
      ->group(group);
}

// Errors name the flag.
absl::Status CheckHostPort(const char* flag, const std::string& listen) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(listen);
  if (parsed.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{}: {}", flag, std::string(parsed.status().message())));
}

absl::StatusOr<DefaultCache> ParseDefaultCache(const char* flag, const std::string& text) {
  absl::StatusOr<CacheSpec> spec = ParseDefaultCachePolicy(text);
  if (!spec.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {}", flag, std::string(spec.status().message())));
  }
  return DefaultCache{text, *std::move(spec)};
}

absl::StatusOr<DaemonOptions::ListenAs> ParseListenAs(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) {
    return absl::InvalidArgumentError(fmt::format(
        "--listen-as: '{}' is not ADDRESS=POLICY, such as 127.0.0.1:50052=auto:cache_ratio=0.2",
        text));
  }
  DaemonOptions::ListenAs listener{.address = text.substr(0, equals), .cache = {}};
  if (!listener.address.starts_with("unix:"))
    HYDRANT_RETURN_IF_ERROR(CheckHostPort("--listen-as", listener.address));
  HYDRANT_ASSIGN_OR_RETURN(listener.cache,
                           ParseDefaultCache("--listen-as", text.substr(equals + 1)));
  return listener;
}

absl::Status ApplyListen(const Flags& flags, DaemonOptions* options) {
  if (options->listen.starts_with("unix:")) return absl::OkStatus();
  const size_t colon = options->listen.find_last_of(':');
  std::string host = options->listen.substr(0, colon);
  std::string port = colon == std::string::npos ? "50051" : options->listen.substr(colon + 1);
  if (!flags.host.empty()) host = flags.host;
  if (flags.port >= 0) port = std::to_string(flags.port);
  options->listen = host + ":" + port;
  return CheckHostPort("--listen", options->listen);
}

TimeUs Micros(double seconds) { return static_cast<TimeUs>(seconds * 1e6); }

std::chrono::milliseconds Millis(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// Parses the size of a flag. where_zero: the error for 0; null: 0 is allowed.
absl::StatusOr<int64_t> ToBytes(const char* flag, const std::string& text, const char* where_zero) {
  const absl::StatusOr<int64_t> bytes = ParseByteSize(text);
  if (!bytes.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {}", flag, std::string(bytes.status().message())));
  }
  if (*bytes == 0 && where_zero != nullptr)
    return absl::InvalidArgumentError(fmt::format("{}: {}", flag, where_zero));
  // Other servers take such a flag in GiB: a small number without a unit is most likely a mistake.
  constexpr int64_t kLeast = 1 << 20;
  if (*bytes > 0 && *bytes < kLeast && absl::ascii_isdigit(text.back())) {
    return absl::InvalidArgumentError(fmt::format("{}: {} is {} bytes; did you mean {}{}?", flag,
                                                  text, *bytes, text, *bytes < 1024 ? "G" : "K"));
  }
  return *bytes;
}

// The size limit of a store in a folder.
absl::StatusOr<std::optional<int64_t>> StoreBytes(const std::string& flag, const std::string& store,
                                                  const std::string& text) {
  if (text.empty()) return std::nullopt;
  const std::string own = flag + "-bytes";
  HYDRANT_ASSIGN_OR_RETURN(const int64_t bytes, ToBytes(own.c_str(), text, "must be more than 0"));
  if (!store.starts_with("dir:")) {
    return absl::InvalidArgumentError(
        fmt::format("{}: is for {} dir:PATH; a Redis has its maxmemory", own, flag));
  }
  return bytes;
}

// The name is sent to clients and logged, so it must be short and printable.
absl::Status CheckServedName(const std::string& name) {
  if (name.empty() || IsModelName(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "--served-model-name: is no name; it has 1 to {} bytes of UTF-8 without control characters",
      kMaxModelNameBytes));
}

absl::Status ApplyFlags(const Flags& flags, DaemonOptions* options) {
  for (std::string* path : {&options->tokenizer_path, &options->score_predictor,
                            &options->trace_steps, &options->engine.swap_directory,
                            &options->security.auth_tokens, &options->security.tls.certificate,
                            &options->security.tls.key, &options->security.tls.client_ca})
    *path = WithHome(std::move(*path));
  options->model_path = ModelOfArgument(options->model_path);
  HYDRANT_RETURN_IF_ERROR(CheckServedName(options->served_model_name));
  options->generation_config = flags.generation_config == "auto";
  options->load_format = flags.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kAuto;
  EngineOptions& engine = options->engine;
  engine.dtype = WeightDTypeOf(flags.dtype);
  if (flags.async_scheduling != "auto") engine.async_scheduling = flags.async_scheduling == "on";
  engine.kv_cache_dtype = KvCacheDTypeOf(flags.kv_cache_dtype);
  if (!flags.kv_cache_memory_bytes.empty()) {
    HYDRANT_ASSIGN_OR_RETURN(
        engine.kv_cache_memory_bytes,
        ToBytes("--kv-cache-memory-bytes", flags.kv_cache_memory_bytes, "must be more than 0"));
  }
  if (!flags.prefix_cache_memory_bytes.empty()) {
    HYDRANT_ASSIGN_OR_RETURN(
        options->prefix_cache_memory_bytes,
        ToBytes("--prefix-cache-memory-bytes", flags.prefix_cache_memory_bytes,
                "must be more than 0; --no-enable-prefix-caching turns the cache off"));
  }
  if (!flags.context_memory_bytes.empty()) {
    HYDRANT_ASSIGN_OR_RETURN(
        options->context_memory_bytes,
        ToBytes("--context-memory-bytes", flags.context_memory_bytes, nullptr));
  }
  if (!flags.swap_space.empty()) {
    HYDRANT_ASSIGN_OR_RETURN(options->swap_space_bytes,
                             ToBytes("--swap-space", flags.swap_space, nullptr));
  }
  if (!options->engine.swap_directory.empty() && engine.device == "cuda") {
    return absl::InvalidArgumentError(
        "--swap-directory: a GPU copies to memory alone; leave it out, or use --device cpu");
  }
  options->context_store = flags.context_store;
  options->context_store_timeout = Millis(flags.context_store_timeout_s);
  options->prefix_store = flags.prefix_store;
  HYDRANT_ASSIGN_OR_RETURN(
      options->context_store_bytes,
      StoreBytes("--context-store", flags.context_store, flags.context_store_bytes));
  HYDRANT_ASSIGN_OR_RETURN(
      options->prefix_store_bytes,
      StoreBytes("--prefix-cache-store", flags.prefix_store, flags.prefix_store_bytes));
  if (!flags.prefix_caching) {
    options->prefix_cache_memory_bytes = 0;
    if (!flags.prefix_store.empty()) {
      return absl::InvalidArgumentError(
          "--prefix-cache-store: there is nothing to save with --no-enable-prefix-caching");
    }
  }
  engine.gpu_memory_utilization = flags.gpu_memory_utilization;
  if (flags.num_gpu_blocks_override > 0) engine.num_blocks_override = flags.num_gpu_blocks_override;
  if (flags.max_model_len > 0) engine.max_model_len = flags.max_model_len;
  if (flags.target_ttft_s > 0) options->scheduler.target_ttft_us = Micros(flags.target_ttft_s);
  if (flags.target_tpot_s > 0) options->scheduler.target_tpot_us = Micros(flags.target_tpot_s);
  absl::StatusOr<CacheSpec> policy = ParsePolicyUnderPressure(flags.policy_under_pressure);
  if (!policy.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("--policy-under-pressure: {}", std::string(policy.status().message())));
  }
  options->scheduler.policy_under_pressure = *std::move(policy);
  HYDRANT_ASSIGN_OR_RETURN(options->default_cache,
                           ParseDefaultCache("--default-cache-policy", flags.default_cache_policy));
  for (const std::string& listen_as : flags.listen_as) {
    HYDRANT_ASSIGN_OR_RETURN(DaemonOptions::ListenAs listener, ParseListenAs(listen_as));
    options->listen_as.push_back(std::move(listener));
  }
  HYDRANT_ASSIGN_OR_RETURN(options->scheduler.tenant_weights,
                           ParseTenantWeights(flags.tenant_weights));
  options->stall_timeout = Millis(flags.stall_timeout_s);
  options->drain_delay = Millis(flags.drain_delay_s);
  if (flags.max_connection_age_s > 0)
    options->max_connection_age = Millis(flags.max_connection_age_s);
  if (flags.max_connection_age_grace_s > 0)
    options->max_connection_age_grace = Millis(flags.max_connection_age_grace_s);
  options->log_json = flags.log_format == "json";
  options->shutdown_timeout = Millis(flags.shutdown_timeout_s);
  if (!options->metrics_listen.empty()) {
    HYDRANT_RETURN_IF_ERROR(CheckHostPort("--metrics-listen", options->metrics_listen));
  }
  HYDRANT_RETURN_IF_ERROR(CompleteSecurity(&options->security));
  HYDRANT_RETURN_IF_ERROR(CheckTraces(options->traces));
  return ApplyListen(flags, options);
}

CommandLine Refuse(const std::vector<std::string>& problems) {
  CommandLine line{.options = std::nullopt, .text = "", .exit_code = 1};
  for (const std::string& problem : problems) line.text += fmt::format("hydrantd: {}\n", problem);
  return line;
}

// Flags shown by --help.
constexpr std::string_view kMaxWanted[] = {"--help",
                                           "--help-all",
                                           "--version",
                                           "--model",
                                           "--config",
                                           "--check-config",
                                           "--served-model-name",
                                           "--max-model-len",
                                           "--device",
                                           "--threads",
                                           "--dtype",
                                           "--kv-cache-memory-bytes",
                                           "--max-num-seqs",
                                           "--listen",
                                           "--metrics-listen",
                                           "--default-cache-policy",
                                           "--policy-under-pressure",
                                           "--target-ttft",
                                           "--target-tpot",
                                           "--tls-certificate",
                                           "--tls-key",
                                           "--auth-tokens",
                                           "--log-level"};

std::string ShortHelp(CLI::App* app) {
  for (CLI::Option* option : app->get_options()) {
    const std::string name = "--" + option->get_single_name();
    if (std::ranges::find(kMaxWanted, name) == std::end(kMaxWanted)) option->group("");
  }
  return app->help();
}

// The error message for the first unknown argument.
std::string DescribeUnknown(const CLI::App& app) {
  const std::string unknown = app.remaining().front();
  if (!unknown.starts_with('-'))
    return fmt::format("{} is one argument too many; only the model stands without a flag",
                       unknown);
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const std::string flag = unknown.substr(0, unknown.find('='));
  return fmt::format("{} is not known; the nearest flag is {} (try --help-all)", flag,
                     NearestName(flag, names));
}

CommandLine PrintNewToken(const std::string& tenant) {
  const absl::StatusOr<std::string> text = DescribeNewToken(tenant);
  if (text.ok()) return {std::nullopt, *text, 0};
  return Refuse({std::string(text.status().message())});
}

}  // namespace

CommandLine ParseCommandLine(int argc, const char* const* argv) {
  DaemonOptions options;
  options.engine.device = "auto";
  const MachineLimits machine = ReadMachineLimits("", AffinityCpus());
  options.engine.num_threads = DefaultThreads(machine);
  Flags flags;
  CLI::App app("hydrantd serves a language model over gRPC, from a KV cache that evicts per head.",
               "hydrantd");
  app.set_version_flag("--version", std::string("hydrantd ") + HYDRANT_VERSION);
  app.footer(kExamples);
  app.set_help_flag("-h,--help", "The flags that most people want, and end");
  app.set_help_all_flag("--help-all", "All flags, and end");
  AddConfigFlags(&app, &flags);
  AddModelFlags(&app, &options, &flags);
  AddEngineFlags(machine, &app, &options, &flags);
  AddSchedulerFlags(&app, &options, &flags);
  AddServerFlags(&app, &options, &flags);
  AddSecurityFlags(&app, &options.security);
  AddTraceFlags(&app, &options.traces);
  try {
    app.parse(argc, argv);
    TakeTraceEnvironment(&app, &options.traces);
  } catch (const CLI::CallForHelp&) {
    return {std::nullopt, ShortHelp(&app), 0};
  } catch (const CLI::CallForAllHelp&) {
    return {std::nullopt, app.help(), 0};
  } catch (const CLI::CallForVersion&) {
    return {std::nullopt, std::string("hydrantd ") + HYDRANT_VERSION + "\n", 0};
  } catch (const CLI::ExtrasError&) {
    return Refuse({DescribeUnknown(app)});
  } catch (const CLI::ParseError& error) {
    return Refuse({fmt::format("{} (try --help)", error.what())});
  }
  if (!options.security.new_token.empty()) return PrintNewToken(options.security.new_token);
  if (!flags.config.empty()) {
    flags.config = WithHome(std::move(flags.config));
    const std::vector<std::string> problems = FillFromConfig(flags.config, &app);
    if (!problems.empty()) return Refuse(problems);
  }
  if (options.model_path.empty())
    return Refuse(
        {"no model is given: hydrantd MODEL, a .gguf file, a folder or ORG/NAME (try "
         "--help)"});
  if (const absl::Status applied = ApplyFlags(flags, &options); !applied.ok())
    return Refuse({std::string(applied.message())});
  if (flags.check_config) {
    const std::vector<std::string> problems = FindProblems(options);
    if (!problems.empty()) return Refuse(problems);
    return {std::nullopt, SettingsAsConfig(app), 0};
  }
  options.flags = Settings(app);
  return {std::move(options), "", 0};
}

}  // namespace hydrant
