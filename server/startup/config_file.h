// The file of --config: YAML, a map of the flags' names without their dashes.
//
//   model: /srv/models/model.gguf
//   kv-cache-memory-bytes: 4G
//   enforce-eager: true                              # a switch
//   listen-as: ["127.0.0.1:50052=echo:cache_ratio=0.2"]   # a flag that may be given again
//
// What a value may be is the flag's own to say (server/config_flags.h); here is only who has which
// form.
#ifndef HYDRANT_SERVER_STARTUP_CONFIG_FILE_H_
#define HYDRANT_SERVER_STARTUP_CONFIG_FILE_H_

#include <map>
#include <string>
#include <vector>

namespace hydrant {

enum class ConfigForm { kText, kSwitch, kList };

struct ConfigSetting {
  std::string key;
  std::vector<std::string> values;  // one, but of a list, where it is at least one
  int line = 0;                     // from 1
};

struct ConfigFile {
  std::vector<ConfigSetting> settings;  // in the file's order
  std::vector<std::string> problems;    // each names the line, and the key where it is one's
};

// `known`: every key and its form. Settings that are no problem are there even if others are one.
ConfigFile ParseConfigFile(const std::string& yaml, const std::map<std::string, ConfigForm>& known);
// The same of a file; its path is in front of every problem.
ConfigFile ReadConfigFile(const std::string& path, const std::map<std::string, ConfigForm>& known);

// "key: value", as a line or lines of such a file.
std::string ConfigLine(const std::string& key, const std::vector<std::string>& values,
                       ConfigForm form);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_CONFIG_FILE_H_
