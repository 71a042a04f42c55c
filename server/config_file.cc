#include "server/config_file.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hydrant {
namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;
constexpr size_t kMaxListedBytes = 64;  // of a key, in a problem

// Insertions, deletions and replacements that make one of the other.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

std::string Nearest(std::string_view key, const std::map<std::string, ConfigForm>& known) {
  const auto nearest = std::ranges::min_element(
      known, {}, [key](const auto& entry) { return EditDistance(key, entry.first); });
  return nearest == known.end() ? "" : nearest->first;
}

bool IsText(const YAML::Node& node) { return node.IsScalar() && !node.Scalar().empty(); }

// What is wrong with the node, or nothing after its values were added.
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

// How many a text begins, up to two: some that are no YAML begin new ones for ever where the
// library is asked for all.
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
      return Wrong(name, shown, "is not known; the nearest key is " + Nearest(shown, known_));
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

// At most a byte more than may be read.
std::optional<std::string> ReadBytes(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxConfigBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad() || errno != 0) return std::nullopt;
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

}  // namespace

ConfigFile ParseConfigFile(const std::string& yaml,
                           const std::map<std::string, ConfigForm>& known) {
  Reader reader(known);
  // The end is said, on a line of its own: the library takes a quote that nobody closes for closed
  // by the file's.
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
  const std::optional<std::string> yaml = ReadBytes(path);
  if (!yaml.has_value())
    return {.settings = {},
            .problems = {absl::StrCat(path, ": cannot be read: ", std::strerror(errno))}};
  if (yaml->size() > kMaxConfigBytes)
    return {.settings = {},
            .problems = {absl::StrCat(path, ": has more than the ", kMaxConfigBytes,
                                      " bytes that are read")}};
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
