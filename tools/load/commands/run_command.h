// hydrant-load without a subcommand: sends one load and reports how it was served.
#ifndef HYDRANT_TOOLS_LOAD_COMMANDS_RUN_COMMAND_H_
#define HYDRANT_TOOLS_LOAD_COMMANDS_RUN_COMMAND_H_

#include <map>
#include <string>

#include "tools/load/commands/command_line.h"

namespace hydrant::load {

// `given`: the options of the command line. Returns the exit code.
int RunCommand(LoadFlags flags, const std::map<std::string, std::string>& given);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_COMMANDS_RUN_COMMAND_H_
