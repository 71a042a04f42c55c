// Parses any bytes as the file of --config: settings of known keys, or problems of one line each;
// no crash. Settings are equal after writing and reading them again.
#include <cstdlib>
#include <string>

#include "server/startup/config_file.h"

namespace {

using namespace hydrant;  // NOLINT(google-build-using-namespace): a fuzzer

const std::map<std::string, ConfigForm>& Known() {
  static const std::map<std::string, ConfigForm> known = {{"model", ConfigForm::kText},
                                                          {"listen", ConfigForm::kText},
                                                          {"insecure", ConfigForm::kSwitch},
                                                          {"listen-as", ConfigForm::kList}};
  return known;
}

bool IsAscii(const std::string& text) {
  for (const char c : text) {
    if (c < 0x20 || c == 0x7f) return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ConfigFile file =
      ParseConfigFile(std::string(reinterpret_cast<const char*>(data), size), Known());
  if (file.settings.size() > Known().size()) std::abort();
  for (const ConfigSetting& setting : file.settings) {
    if (setting.values.empty() || setting.line < 1) std::abort();
    bool ascii = true;  // other bytes may be invalid UTF-8, which YAML does not allow
    for (const std::string& value : setting.values) ascii = ascii && IsAscii(value);
    if (!ascii) continue;
    const ConfigForm form = Known().at(setting.key);
    const ConfigFile again =
        ParseConfigFile(ConfigLine(setting.key, setting.values, form), Known());
    if (!again.problems.empty() || again.settings.size() != 1 ||
        again.settings[0].values != setting.values)
      std::abort();
  }
  return 0;
}
