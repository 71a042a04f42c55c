// Flags of hydrant-eval, their validation, error exits, and Ctrl-C.
#ifndef HYDRANT_TOOLS_EVAL_COMMAND_LINE_H_
#define HYDRANT_TOOLS_EVAL_COMMAND_LINE_H_

#include <string>
#include <string_view>
#include <vector>

#include "tools/eval/daemon/daemon_runner.h"
#include "tools/eval/laboratory.h"
#include "tools/eval/tasks.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the name is the library's
class App;
}

namespace hydrant::eval {

// Exit codes.
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

inline constexpr char kNoTask[] = "none";  // value of --tasks: only --anatomy

struct Flags {
  std::string model;       // as given on the command line
  std::string model_path;  // the local path
  std::vector<std::string> texts;
  std::vector<std::string> tasks = {"perplexity", "needle", "needle-unseen"};
  std::vector<std::string> policies = {"h2o",
                                       "h2o:protected_window_size=0",
                                       "ada-h2o",
                                       "local",
                                       "streaming",
                                       "scissorhands",
                                       "tova",
                                       "snapkv",
                                       "ada-snapkv",
                                       "pyramidkv",
                                       "ada-pyramid",
                                       "co2:self_tuning=true",
                                       "subgen-kcenter",
                                       "random",
                                       "reconstruct",
                                       "echo",
                                       "auto",
                                       "oracle",
                                       "oracle:budget_scope=model"};
  std::vector<double> budgets = {0.05, 0.1, 0.2, 0.4, 0.6};
  TaskOptions task;
  std::vector<std::string> against;
  std::string out = "eval-results";
  std::string write_cases;
  std::string form = "auto";
  std::string score_predictor;
  DaemonOptions daemon;
  std::string device = "cpu";
  std::string dtype = "bfloat16";
  std::string kv_cache_dtype = "float32";
  int threads = 2;
  double memory_gb = 1.0;
  bool append = false;
  bool anatomy = false;
  bool report_only = false;
  bool quick = false;
  bool list_policies = false;
  bool list_tasks = false;
};

void AddFlags(CLI::App* app, Flags* flags);
// Ends the program if a flag is invalid, before any work begins.
void CheckFlags(const Flags& flags);
// Ends the program if a flag or a case needs figures that a daemon does not report.
void CheckForDaemon(const Flags& flags, const std::vector<Case>& cases);
// "name:parameter=value:..", without a budget; ends the program if a value is not a number.
Arm ParseArm(const std::string& text);
// The tasks with their groups replaced by the tasks of each. REQUIRES: CheckFlags()
std::vector<std::string> TasksOf(const Flags& flags);
// Prints the output of --list-policies and --list-tasks to stdout.
void PrintLists(const Flags& flags);

// True after Ctrl-C or SIGTERM; the first call of CatchInterrupts() installs the handlers.
void CatchInterrupts();
bool Interrupted();

[[noreturn]] void Fail(std::string_view message, int code = kExitFailed);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_COMMAND_LINE_H_
