// The file of --config: YAML, a map of the flags' names without their dashes.
//
//   model: /srv/models/model.gguf
//   kv-cache-memory-bytes: 4G
//   enforce-eager: true                              # a switch
//   listen-as: ["127.0.0.1:50052=echo:cache_ratio=0.2"]   # a flag that may be repeated
//
// The flags themselves check their values (server/startup/settings.h); this file checks only
// the form.
#ifndef HYDRANT_SERVER_STARTUP_CONFIG_FILE_H_
#define HYDRANT_SERVER_STARTUP_CONFIG_FILE_H_

#include <map>
#include <string>
#include <vector>

namespace hydrant {

enum class ConfigForm { kText, kSwitch, kList };

struct ConfigSetting {
  std::string key;
  std::vector<std::string> values;  // at least one; more only for a list
  int line = 0;                     // from 1
};

struct ConfigFile {
  std::vector<ConfigSetting> settings;  // in file order
  std::vector<std::string> problems;    // each names the line, and the key if it concerns one
};

// `known`: every key and its form. Valid settings are returned even if others have problems.
ConfigFile ParseConfigFile(const std::string& yaml, const std::map<std::string, ConfigForm>& known);
// As ParseConfigFile(), for a file; every problem begins with its path.
ConfigFile ReadConfigFile(const std::string& path, const std::map<std::string, ConfigForm>& known);

// "key: value" in the format of the file.
std::string ConfigLine(const std::string& key, const std::vector<std::string>& values,
                       ConfigForm form);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_CONFIG_FILE_H_
