// hydrant-load compare: compares reports.
#ifndef HYDRANT_TOOLS_LOAD_COMMANDS_COMPARE_COMMAND_H_
#define HYDRANT_TOOLS_LOAD_COMMANDS_COMPARE_COMMAND_H_

#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): the name is the library's
class App;
}

namespace hydrant::load {

struct CompareFlags {
  std::vector<std::string> files;
  std::string json, html;
  std::string fail_if_worse;
};

void AddCompareFlags(CLI::App* app, CompareFlags* flags);
// Returns the exit code.
int CompareCommand(const CompareFlags& flags);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_COMMANDS_COMPARE_COMMAND_H_
