#include "server/startup/config_file.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/small_file.h"
#include "server/startup/nearest_name.h"

namespace hydrant {
namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;
constexpr size_t kMaxListedBytes = 64;  // length of a key in a problem

std::vector<std::string> NamesOf(const std::map<std::string, ConfigForm>& known) {
  std::vector<std::string> names;
  names.reserve(known.size());
  for (const auto& [name, form] : known) names.push_back(name);
  return names;
}

bool IsText(const YAML::Node& node) { return node.IsScalar() && !node.Scalar().empty(); }

// The problem of the node; "" if its values were added.
std::string AddValues(const YAML::Node& node, ConfigForm form, std::vector<std::string>* values) {
  if (form == ConfigForm::kSwitch) {
    bool on = false;
    if (!node.IsScalar() || !YAML::convert<bool>::decode(node, on))
      return "is neither true nor false";
    values->push_back(on ? "true" : "false");
    return {};
  }
  if (form == ConfigForm::kList && node.IsSequence()) {
    if (node.size() == 0) return "is an empty list; leave the key out";
    for (const YAML::Node& entry : node) {
      if (!IsText(entry)) return "is not a list of texts";
      values->push_back(entry.Scalar());
    }
    return {};
  }
  if (node.IsNull() || (node.IsScalar() && node.Scalar().empty()))
    return "has no value; leave the key out for the default";
  if (!node.IsScalar()) {
    return form == ConfigForm::kList ? "is neither a text nor a list of texts"
                                     : "is not one text or number";
  }
  values->push_back(node.Scalar());
  return {};
}

// Counts the documents of a text, up to two: for some malformed texts the library finds
// documents endlessly.
class Documents : public YAML::EventHandler {
 public:
  void Count(const std::string& yaml) {
    std::istringstream text(yaml);
    YAML::Parser parser(text);
    while (count < 2 && parser.HandleNextDocument(*this)) {
    }
  }

  int count = 0;
  YAML::Mark last;

 private:
  void OnDocumentStart(const YAML::Mark& mark) override {
    ++count;
    last = mark;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

class Reader {
 public:
  explicit Reader(const std::map<std::string, ConfigForm>& known) : known_(known) {}

  void Read(const std::string& yaml) {
    constexpr char kNoMap[] = "the file is not one map of settings";
    Documents documents;
    documents.Count(yaml);
    if (documents.count > 1) return WrongAt(documents.last, "", kNoMap);
    const YAML::Node root = YAML::Load(yaml);
    if (!root.IsDefined() || root.IsNull()) return;
    if (!root.IsMap()) return Wrong(root, "", kNoMap);
    for (const auto& entry : root) ReadEntry(entry.first, entry.second);
  }

  void Wrong(const YAML::Node& node, const std::string& key, const std::string& why) {
    WrongAt(node.Mark(), key, why);
  }
  void WrongAt(const YAML::Mark& mark, const std::string& key, const std::string& why) {
    file_.problems.push_back(absl::StrCat(mark.line + 1, ": ", key, key.empty() ? "" : ": ", why));
  }
  ConfigFile Take() { return std::move(file_); }

 private:
  void ReadEntry(const YAML::Node& name, const YAML::Node& value) {
    if (!name.IsScalar()) return Wrong(name, "", "a key is not a text");
    const std::string& key = name.Scalar();
    const std::string shown = key.substr(0, kMaxListedBytes);
    const auto known = known_.find(key);
    if (known == known_.end())
      return Wrong(name, shown,
                   "is not known; the nearest key is " + NearestName(shown, NamesOf(known_)));
    if (!seen_.insert(key).second) return Wrong(name, shown, "is there a second time");
    ConfigSetting setting{.key = key, .values = {}, .line = name.Mark().line + 1};
    const std::string why = AddValues(value, known->second, &setting.values);
    if (!why.empty()) return Wrong(name, shown, why);
    file_.settings.push_back(std::move(setting));
  }

  const std::map<std::string, ConfigForm>& known_;
  ConfigFile file_;
  std::set<std::string> seen_;
};

}  // namespace

ConfigFile ParseConfigFile(const std::string& yaml,
                           const std::map<std::string, ConfigForm>& known) {
  Reader reader(known);
  // Appends an explicit end of document on its own line: the library takes the end of the file as
  // the end of an unterminated quote.
  std::string lines = yaml;
  if (!lines.ends_with('\n')) lines += '\n';
  const auto end = std::ranges::count(lines, '\n');
  try {
    reader.Read(lines + "...\n");
  } catch (const YAML::Exception& error) {  // the library throws
    reader.WrongAt(error.mark, "", error.mark.line < end ? error.msg : "the file ends in a value");
  }
  return reader.Take();
}

ConfigFile ReadConfigFile(const std::string& path, const std::map<std::string, ConfigForm>& known) {
  const absl::StatusOr<std::string> yaml = ReadSmallFile(path, kMaxConfigBytes);
  if (!yaml.ok())
    return {.settings = {}, .problems = {absl::StrCat("--config: ", yaml.status().message())}};
  ConfigFile file = ParseConfigFile(*yaml, known);
  for (std::string& problem : file.problems) problem = absl::StrCat(path, ":", problem);
  return file;
}

std::string ConfigLine(const std::string& key, const std::vector<std::string>& values,
                       ConfigForm form) {
  YAML::Emitter line;
  line << YAML::BeginMap << YAML::Key << key << YAML::Value;
  if (form == ConfigForm::kList) {
    line << YAML::Flow << values;
  } else {
    line << (values.empty() ? "" : values.front());
  }
  line << YAML::EndMap;
  return std::string(line.c_str()) + "\n";
}

}  // namespace hydrant
