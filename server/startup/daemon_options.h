// What hydrantd was told on its command line and by --config, checked, with the machine's defaults
// filled in. Plain data.
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
  std::string served_model_name;  // "": the hub's name, else that of the file or folder
  bool generation_config = true;  // take sampling defaults from the model's files
  std::string listen = "127.0.0.1:50051";
  std::string trace_steps;                          // a file (observe/step_trace.h); "": none
  std::string metrics_listen;                       // host:port; "": no metrics, no probes
  std::chrono::milliseconds stall_timeout{60'000};  // without a step, with requests there
  std::chrono::milliseconds drain_delay{0};         // NOT_SERVING, but still taking requests
  std::chrono::milliseconds shutdown_timeout{30'000};
  std::chrono::milliseconds engine_lost_linger{5'000};  // NOT_SERVING, before the process ends
  std::optional<std::chrono::milliseconds> max_connection_age;        // unset: for ever
  std::optional<std::chrono::milliseconds> max_connection_age_grace;  // the same
  std::optional<int64_t> prefix_cache_memory_bytes;  // unset: DefaultReuseBytes(); 0: none
  std::optional<int64_t> context_memory_bytes;       // the same
  std::optional<int64_t> swap_space_bytes;           // unset: none, on a GPU up to 4 GiB
  std::string prefix_store;                          // the same, of prefix blocks
  std::optional<int64_t> prefix_store_bytes;
  std::string context_store;                   // OpenContextStore()'s; "": none
  std::optional<int64_t> context_store_bytes;  // of a folder's; unset: no bound
  std::chrono::milliseconds context_store_timeout{10'000};  // of one call
  DefaultCache default_cache = {};
  // More addresses, each with a default of its own.
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
  std::map<std::string, std::string> flags;  // every setting by its flag's name, for GetServerInfo
};

// What the command line asks for: to run, or to print `text` and leave with `exit_code` (--help,
// --version, --new-token, --check-config, a bad flag).
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
