// Converts flags to arguments of RunLoad(). User errors and unreachable servers end the program
// with a line and its exit code.
#ifndef HYDRANT_TOOLS_LOAD_COMMANDS_LOAD_SETUP_H_
#define HYDRANT_TOOLS_LOAD_COMMANDS_LOAD_SETUP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "tools/load/commands/command_line.h"
#include "tools/load/report/report.h"
#include "tools/load/run/workload.h"
#include "tools/load/targets/hydrant_target.h"

namespace hydrant::load {

// Parses --mix and reads --trace: the steps that need no server.
void CompleteFlags(LoadFlags* flags);
bool IsHttp(const LoadFlags& flags);
std::unique_ptr<ServerTarget> OpenTarget(const LoadFlags& flags);
// Tokenizes --text with the target's tokenizer.
Workload MakeWorkload(const LoadFlags& flags, ServerTarget* target);
// --burstiness; infinity: equal gaps.
double BurstinessOf(const LoadFlags& flags);
// The intended time of each request; null: a closed loop. It refers to the flags.
std::function<double(int64_t)> IntendedTimes(const LoadFlags& flags);
// The description before the run. `given`: the options of the command line.
RunDescription DescribeRun(const LoadFlags& flags, const TargetInfo& info,
                           std::map<std::string, std::string> given);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_COMMANDS_LOAD_SETUP_H_
