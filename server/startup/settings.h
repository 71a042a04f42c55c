// The flags by their names: filled from the file of --config, told to whoever asks GetServerInfo,
// printed by --check-config. No text that leaves here holds a password.
#ifndef HYDRANT_SERVER_STARTUP_SETTINGS_H_
#define HYDRANT_SERVER_STARTUP_SETTINGS_H_

#include <map>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): the name is the library's
class App;
}

namespace hydrant {

// Gives the flags that neither the command line nor the environment gave what the file says, each
// checked as on the command line. Call after the app has parsed. Returns what is wrong, each with
// file, line and key; empty: nothing.
std::vector<std::string> FillFromConfig(const std::string& path, CLI::App* app);

// Every flag, as given or by default; the last value where it may be given again.
std::map<std::string, std::string> Settings(const CLI::App& app);

// As a file for --config: what was given, then what is as by default, in comments.
std::string SettingsAsConfig(const CLI::App& app);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_SETTINGS_H_
