// hydrant-load: sends a load to a daemon and reports how it was served. Each command has its own
// file; command_line.h (flags) and load_setup.h (their evaluation) are shared.
#include <grpc/support/log.h>

#include <CLI/CLI.hpp>
#include <utility>

#include "kernels/standard_streams.h"
#include "tools/load/commands/command_line.h"
#include "tools/load/commands/compare_command.h"
#include "tools/load/commands/run_command.h"
#include "tools/load/commands/sweep_command.h"

namespace hydrant::load {
namespace {

constexpr char kFooter[] =
    "Examples:\n"
    "  hydrant-load --request-rate 4 --num-prompts 200 --input-len 512 --output-len 128 "
    "--goodput \"ttft:500 tpot:50\"\n"
    "  hydrant-load --mix full@1,auto:cache_ratio=0.2@1 --max-concurrency 16 --text book.txt "
    "--json result.json\n"
    "  hydrant-load --trace AzureLLMInferenceTrace_conv.csv --trace-rate-scale 2 --max-seconds "
    "300 --cancel-rate 0.05\n"
    "Exit status: 0 all well; 1 requests failed, or a report could not be written; 2 wrong "
    "options; 3 no server;\n"
    "130 broken off (what there was is reported, marked PARTIAL).";

int Main(int argc, char** argv) {
  gpr_set_log_function([](gpr_log_func_args*) {});  // errors are reported by status
  CatchInterrupts();
  LoadFlags flags;
  CLI::App app("hydrant-load sends a load to a hydrantd and says how it was served.",
               "hydrant-load");
  AddTargetFlags(&app, &flags);
  AddWorkloadFlags(&app, &flags);
  AddArrivalFlags(&app, &flags);
  AddFaultFlags(&app, &flags);
  AddReportFlags(&app, &flags);
  CompareFlags compare;
  CLI::App* const compare_app =
      app.add_subcommand("compare", "Puts reports beside each other, and fails where one is worse");
  AddCompareFlags(compare_app, &compare);
  SweepFlags sweep;
  CLI::App* const sweep_app = app.add_subcommand(
      "sweep", "Finds the highest rate at which the objectives are kept, policy by policy");
  AddSweepFlags(sweep_app, &sweep);
  app.footer(kFooter);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    PrintErr("hydrant-load: {} (try --help)\n", error.what());
    return kExitUsage;
  }
  if (compare_app->parsed()) return CompareCommand(compare);
  if (sweep_app->parsed()) return SweepCommand(std::move(sweep), GivenOptions(*sweep_app));
  return RunCommand(std::move(flags), GivenOptions(app));
}

}  // namespace
}  // namespace hydrant::load

int main(int argc, char** argv) {
  return hydrant::EndOutput("hydrant-load", hydrant::load::Main(argc, argv));
}
