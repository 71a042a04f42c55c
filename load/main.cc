// hydrant-load: sends a load to a daemon and says how it was served. A command is a file of its
// own; what they share is in load/command_line.h (flags) and load/load_setup.h (what comes of
// them).
#include <grpc/support/log.h>

#include <CLI/CLI.hpp>
#include <utility>

#include "fmt/format.h"
#include "load/command_line.h"
#include "load/compare_command.h"
#include "load/run_command.h"
#include "load/sweep_command.h"

int main(int argc, char** argv) {
  gpr_set_log_function([](gpr_log_func_args*) {});  // errors are reported by status
  hydrant::CatchInterrupts();
  hydrant::LoadFlags flags;
  CLI::App app("hydrant-load sends a load to a hydrantd and says how it was served.",
               "hydrant-load");
  hydrant::AddTargetFlags(&app, &flags);
  hydrant::AddWorkloadFlags(&app, &flags);
  hydrant::AddArrivalFlags(&app, &flags);
  hydrant::AddFaultFlags(&app, &flags);
  hydrant::AddReportFlags(&app, &flags);
  hydrant::CompareFlags compare;
  CLI::App* const compare_app =
      app.add_subcommand("compare", "Puts reports beside each other, and fails where one is worse");
  hydrant::AddCompareFlags(compare_app, &compare);
  hydrant::SweepFlags sweep;
  CLI::App* const sweep_app = app.add_subcommand(
      "sweep", "Finds the highest rate at which the objectives are kept, policy by policy");
  hydrant::AddSweepFlags(sweep_app, &sweep);
  app.footer(
      "Examples:\n"
      "  hydrant-load --request-rate 4 --num-prompts 200 --input-len 512 --output-len 128 "
      "--goodput \"ttft:500 tpot:50\"\n"
      "  hydrant-load --mix full@1,h2o:cache_ratio=0.2@1 --max-concurrency 16 --text book.txt "
      "--json result.json\n"
      "  hydrant-load --trace AzureLLMInferenceTrace_conv.csv --trace-rate-scale 2 --max-seconds "
      "300 --cancel-rate 0.05\n"
      "Exit status: 0 all well; 1 requests failed, or a report could not be written; 2 wrong "
      "options; 3 no server;\n"
      "130 broken off (what there was is reported, marked PARTIAL).");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    fmt::print(stderr, "hydrant-load: {} (try --help)\n", error.what());
    return hydrant::kExitUsage;
  }
  if (compare_app->parsed()) return hydrant::CompareCommand(compare);
  if (sweep_app->parsed())
    return hydrant::SweepCommand(std::move(sweep), hydrant::GivenOptions(*sweep_app));
  return hydrant::RunCommand(std::move(flags), hydrant::GivenOptions(app));
}
