// All flags by name: filled from the file of --config, reported by GetServerInfo, printed by
// --check-config. Passwords are removed from the output.
#ifndef HYDRANT_SERVER_STARTUP_SETTINGS_H_
#define HYDRANT_SERVER_STARTUP_SETTINGS_H_

#include <map>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): the name is the library's
class App;
}

namespace hydrant {

// Sets flags that are neither on the command line nor in the environment from the file, with the
// same checks. Call it after the app has parsed. Returns problems, each with file, line and key.
std::vector<std::string> FillFromConfig(const std::string& path, CLI::App* app);

// All flags, as given or by default; the last value of a repeated flag.
std::map<std::string, std::string> Settings(const CLI::App& app);

// A file for --config: given values, then defaults as comments.
std::string SettingsAsConfig(const CLI::App& app);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_SETTINGS_H_
