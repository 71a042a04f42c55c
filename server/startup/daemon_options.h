// The options of hydrantd from its command line and --config, checked, with defaults for the
// machine. Plain data.
#ifndef HYDRANT_SERVER_STARTUP_DAEMON_OPTIONS_H_
#define HYDRANT_SERVER_STARTUP_DAEMON_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_source.h"
#include "engine/run/engine.h"
#include "scheduler/options.h"
#include "server/auth/security_options.h"
#include "server/observe/trace_options.h"
#include "server/wire/default_cache.h"

namespace hydrant {

struct DaemonOptions {
  std::string model_path;  // or "hf:ORG/NAME", a model of the Hugging Face hub
  LoadFormat load_format = LoadFormat::kAuto;
  std::string tokenizer_path;     // "": the model's own
  std::string score_predictor;    // FindScorePredictor()
  std::string served_model_name;  // "": the hub's name, else from the file or folder
  bool generation_config = true;  // take sampling defaults from the model's files
  std::string listen = "127.0.0.1:50051";
  std::string trace_steps;     // path of the trace (observe/step_trace.h); "": none
  std::string metrics_listen;  // host:port; "": no metrics, no probes
  std::chrono::milliseconds stall_timeout{60'000};  // without a step while there are requests
  // health reports NOT_SERVING, requests are still accepted
  std::chrono::milliseconds drain_delay{0};
  std::chrono::milliseconds shutdown_timeout{30'000};
  // time in NOT_SERVING before the process ends
  std::chrono::milliseconds engine_lost_linger{5'000};
  std::optional<std::chrono::milliseconds> max_connection_age;        // unset: unlimited
  std::optional<std::chrono::milliseconds> max_connection_age_grace;  // unset: unlimited
  std::optional<int64_t> prefix_cache_memory_bytes;  // unset: DefaultReuseBytes(); 0: none
  std::optional<int64_t> context_memory_bytes;       // unset: DefaultReuseBytes(); 0: none
  std::optional<int64_t> swap_space_bytes;           // unset: none, on a GPU up to 4 GiB
  std::string prefix_store;  // URI for OpenContextStore(), for prefix blocks; "": none
  std::optional<int64_t> prefix_store_bytes;
  std::string context_store;                                // URI for OpenContextStore(); "": none
  std::optional<int64_t> context_store_bytes;               // for a folder; unset: no limit
  std::chrono::milliseconds context_store_timeout{10'000};  // per call
  // Serve without the check of the types (startup/rounding_check.h).
  bool force_dtype = false;
  bool force_kv_cache_dtype = false;
  DefaultCache default_cache = {};
  // Additional addresses, each with its own default policy.
  struct ListenAs {
    std::string address;  // as `listen`
    DefaultCache cache;
  };
  std::vector<ListenAs> listen_as = {};
  SecurityOptions security;
  TraceOptions traces;
  std::string log_level = "info";
  bool log_json = false;
  EngineOptions engine;
  SchedulerOptions scheduler;
  std::map<std::string, std::string> flags;  // all settings by flag name, for GetServerInfo
};

// Result of parsing: options to run with, or `text` to print and an exit code (--help, --version,
// --new-token, --check-config, an invalid flag).
struct CommandLine {
  std::optional<DaemonOptions> options;
  std::string text;
  int exit_code = 0;
};

CommandLine ParseCommandLine(int argc, const char* const* argv);

// "512M" -> 536870912. Whole numbers with K, M, G or T (powers of 1024), optionally followed by B,
// i or iB.
absl::StatusOr<int64_t> ParseByteSize(const std::string& text);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_DAEMON_OPTIONS_H_
