// What hydrant-eval is asked for: its flags, how they are checked, how it fails, and Ctrl-C.
#ifndef HYDRANT_TOOLS_EVAL_COMMAND_LINE_H_
#define HYDRANT_TOOLS_EVAL_COMMAND_LINE_H_

#include <string>
#include <string_view>
#include <vector>

#include "tools/eval/laboratory.h"
#include "tools/eval/tasks.h"

namespace CLI {
class App;
}

namespace hydrant::eval {

// Exit codes.
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

inline constexpr char kNoTask[] = "none";  // of --tasks: --anatomy alone

struct Flags {
  std::string model;       // as it was given
  std::string model_path;  // where it is on this machine
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
// Ends the program where a flag is wrong, before any work begins.
void CheckFlags(const Flags& flags);
// "name:parameter=value:..", without a budget; ends the program where a value is no number.
Arm ParseArm(const std::string& text);
// What --list-policies and --list-tasks ask for, on stdout.
void PrintLists(const Flags& flags);

// From Ctrl-C or SIGTERM on; the handlers are set by the first call of CatchInterrupts().
void CatchInterrupts();
bool Interrupted();

[[noreturn]] void Fail(std::string_view message, int code = kExitFailed);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_COMMAND_LINE_H_
