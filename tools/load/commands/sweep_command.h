// hydrant-load sweep: finds the highest sustainable rate of each policy and budget.
#ifndef HYDRANT_TOOLS_LOAD_COMMANDS_SWEEP_COMMAND_H_
#define HYDRANT_TOOLS_LOAD_COMMANDS_SWEEP_COMMAND_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/load/commands/command_line.h"
#include "tools/load/run/rate_search.h"

namespace hydrant::load {

struct SweepFlags {
  LoadFlags load;  // the load and its target
  std::string policies = "full";
  std::vector<double> budgets;
  double share = 0.99;
  double seconds = 30.0, warm_up = 5.0, drain = 30.0;
  int64_t least_requests = 100;
  int tries = 1;
  RateSearchOptions search;
  bool resume = false;
};

void AddSweepFlags(CLI::App* app, SweepFlags* flags);
// `given`: the options of the command line. Returns the exit code.
int SweepCommand(SweepFlags flags, const std::map<std::string, std::string>& given);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_COMMANDS_SWEEP_COMMAND_H_
