#include "tools/load/commands/compare_command.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "kernels/standard_streams.h"
#include "tools/load/commands/command_line.h"
#include "tools/load/report/compare.h"
#include "tools/load/report/report_file.h"

namespace hydrant::load {

void AddCompareFlags(CLI::App* app, CompareFlags* flags) {
  app->add_option(
         "files", flags->files,
         "Reports of --json, of `sweep --json`, or of `vllm bench serve`; the first is what "
         "the others are compared with")
      ->required()
      ->expected(2, 1000)
      ->option_text("FILE FILE ...");
  app->add_option("--fail-if-worse", flags->fail_if_worse,
                  "Exit with 1 where a later report is worse than the first by more: 10%; or of "
                  "measures by name, \"p99_ttft_ms:10% output_throughput:5%\"");
  app->add_option("--json", flags->json, "Write the comparison here");
  app->add_option("--html", flags->html,
                  "Write a page with all of their plots over each other here");
  app->footer(
      "Examples:\n"
      "  hydrant-load compare before.json after.json\n"
      "  hydrant-load compare main.json branch.json --fail-if-worse \"p99_ttft_ms:10% "
      "output_throughput:5%\"\n"
      "  hydrant-load compare full.json h2o.json vllm.json --html all.html\n"
      "Without names --fail-if-worse looks at throughput, goodput, failures and the p99 of TTFT, "
      "TPOT "
      "and E2EL.\n"
      "Exit status: 0 done; 1 something is worse than allowed, or a file could not be written; 2 "
      "wrong "
      "options or files.");
}

int CompareCommand(const CompareFlags& flags) {
  const std::vector<Limit> limits = ValueOr(kExitUsage, ParseLimits(flags.fail_if_worse));
  std::vector<ReportFile> reports;
  for (const std::string& file : flags.files)
    reports.push_back(ValueOr(kExitUsage, ReadReport(file)));
  const Comparison comparison = ValueOr(kExitUsage, Compare(reports));
  const std::vector<std::string> worse = ValueOr(kExitUsage, FindWorse(comparison, limits));
  WriteOutput(ToText(comparison));
  bool written = true;
  if (!flags.json.empty()) written &= WriteReport(flags.json, ToJson(comparison, worse));
  if (!flags.html.empty()) written &= WriteReport(flags.html, ToHtml(comparison, reports, worse));
  for (const std::string& line : worse) Warn(line);
  return worse.empty() && written ? 0 : kExitErrors;
}

}  // namespace hydrant::load
