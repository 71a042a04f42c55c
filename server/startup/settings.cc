#include "server/startup/settings.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "server/startup/config_file.h"

namespace hydrant {
namespace {

ConfigForm FormOf(const CLI::Option& option) {
  if (option.get_expected_min() == 0) return ConfigForm::kSwitch;
  return option.get_items_expected_max() > 1 ? ConfigForm::kList : ConfigForm::kText;
}

// Flags that are settings: not --help, --new-token and the like.
std::vector<const CLI::Option*> SettingsOf(const CLI::App& app) {
  std::vector<const CLI::Option*> settings;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_configurable()) settings.push_back(option);
  }
  return settings;
}

// A Redis address may contain a password.
std::string WithoutSecret(const std::string& name, std::string value) {
  if (name != "context-store" && name != "prefix-cache-store") return value;
  if (const size_t at = value.rfind('@'); at != std::string::npos)
    value.replace(0, at, value.substr(0, value.find("//") + 2) + "...");
  return value;
}

// Sets the flag. Returns the problem of the values, or "".
std::string Give(const std::vector<std::string>& values, CLI::Option* option) {
  try {
    option->add_result(values);
    option->run_callback();
    return {};
  } catch (const CLI::Error& error) {  // the library throws
    const std::string_view why = error.what();
    const std::string flag = option->get_name() + ": ";
    return std::string(why.starts_with(flag) ? why.substr(flag.size()) : why);
  }
}

}  // namespace

std::vector<std::string> FillFromConfig(const std::string& path, CLI::App* app) {
  std::map<std::string, ConfigForm> keys;
  for (const CLI::Option* option : SettingsOf(*app))
    keys[option->get_single_name()] = FormOf(*option);
  ConfigFile file = ReadConfigFile(path, keys);
  // These two are parts of an address; a given address is complete.
  const bool has_address = app->count("--listen") > 0;
  for (const ConfigSetting& setting : file.settings) {
    CLI::Option* option = app->get_option("--" + setting.key);
    if (option->count() > 0) continue;
    if (has_address && (setting.key == "host" || setting.key == "port")) continue;
    const std::string why = Give(setting.values, option);
    if (!why.empty())
      file.problems.push_back(fmt::format("{}:{}: {}: {}", path, setting.line, setting.key, why));
  }
  return file.problems;
}

std::map<std::string, std::string> Settings(const CLI::App& app) {
  std::map<std::string, std::string> settings;
  for (const CLI::Option* option : SettingsOf(app)) {
    const std::string name = option->get_single_name();
    const auto& values = option->results();
    settings[name] =
        WithoutSecret(name, values.empty() ? option->get_default_str() : values.back());
  }
  return settings;
}

std::string SettingsAsConfig(const CLI::App& app) {
  std::string given, by_default = "\n# By default:\n";
  for (const CLI::Option* option : SettingsOf(app)) {
    const std::string name = option->get_single_name();
    const ConfigForm form = FormOf(*option);
    std::vector<std::string> values = option->results();
    for (std::string& value : values) value = WithoutSecret(name, std::move(value));
    if (!values.empty()) {
      given += ConfigLine(name, values, form);
      continue;
    }
    std::string value = option->get_default_str();
    if (value.empty() && form == ConfigForm::kSwitch) value = "false";
    by_default += value.empty() ? fmt::format("# {}:\n", name)
                                : "# " + ConfigLine(name, {value}, ConfigForm::kText);
  }
  return given + by_default;
}

}  // namespace hydrant
