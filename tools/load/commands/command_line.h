// Shared by the subcommands of hydrant-load: exit codes, flags, error exits, and Ctrl-C.
#ifndef HYDRANT_TOOLS_LOAD_COMMANDS_COMMAND_LINE_H_
#define HYDRANT_TOOLS_LOAD_COMMANDS_COMMAND_LINE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/load/run/workload.h"
#include "tools/load/targets/hydrant_target.h"
#include "tools/load/targets/openai_target.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the name is the library's
class App;
}

namespace hydrant::load {

// Exit codes.
inline constexpr int kExitErrors = 1;  // requests failed, or a report could not be written
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNoServer = 3;
inline constexpr int kExitInterrupted = 130;

// Flags that describe a load. A command keeps further flags in its own struct.
struct LoadFlags {
  HydrantTargetOptions target;
  // For addresses that begin with http:// or https://; its addresses, sampling, ignore_eos and
  // wait_seconds are the target's.
  OpenAiTargetOptions openai;
  std::vector<std::string> metrics;  // URLs
  double metrics_period = 1.0;       // seconds
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
  std::string label;
  std::string report, html, json, csv;  // a folder, files; empty: none
  int64_t check_quality = 0;
  bool quiet = false;
  bool allow_errors = false;
};

// Each adds a group to --help.
void AddTargetFlags(CLI::App* app, LoadFlags* flags);
void AddWorkloadFlags(CLI::App* app, LoadFlags* flags);
void AddArrivalFlags(CLI::App* app, LoadFlags* flags);
void AddFaultFlags(CLI::App* app, LoadFlags* flags);
void AddReportFlags(CLI::App* app, LoadFlags* flags);

// The options given, by name; after parsing.
std::map<std::string, std::string> GivenOptions(const CLI::App& app);

// True after Ctrl-C or SIGTERM; the first call of CatchInterrupts() installs the handlers.
void CatchInterrupts();
bool Interrupted();

[[noreturn]] void Fail(int code, std::string_view message);
void Warn(std::string_view message);

// A failure is a line on stderr; other reports are still written. Returns success.
bool WriteReport(const std::string& path, std::string_view content);
// Expands --report to its three files: `name`.html, `name`.json and `csv_name`.csv. Fails if any
// report file cannot be written.
void NameReports(const std::string& name, const std::string& csv_name, LoadFlags* flags);
// Fails if it is empty or cannot be read.
std::string ReadFile(const std::string& path);

template <typename T>
T ValueOr(int code, absl::StatusOr<T> value) {
  if (!value.ok()) Fail(code, std::string(value.status().message()));
  return *std::move(value);
}

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_COMMANDS_COMMAND_LINE_H_
