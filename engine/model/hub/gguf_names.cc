#include "engine/model/hub/gguf_names.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"

namespace hydrant::hub {
namespace {

constexpr std::string_view kSuffix = ".gguf";
constexpr size_t kPartDigits = 5;
constexpr std::string_view kOf = "-of-";

bool AllDigits(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return absl::ascii_isdigit(c); });
}

int NumberOf(std::string_view digits) {
  int number = 0;
  for (const char digit : digits) number = 10 * number + (digit - '0');
  return number;
}

// Removes "-00001-of-00003" from the end of `stem`. Returns the number of parts, 1 without such an
// end.
int TakePart(std::string* stem) {
  constexpr size_t kLength = 1 + kPartDigits + kOf.size() + kPartDigits;
  if (stem->size() <= kLength) return 1;
  const std::string_view part = std::string_view(*stem).substr(stem->size() - kLength);
  const std::string_view index = part.substr(1, kPartDigits);
  const std::string_view count = part.substr(kLength - kPartDigits);
  if (part[0] != '-' || part.substr(1 + kPartDigits, kOf.size()) != kOf || !AllDigits(index) ||
      !AllDigits(count) || NumberOf(count) < 1)
    return 1;
  const int parts = NumberOf(count);
  stem->resize(stem->size() - kLength);
  return parts;
}

bool IsLanguageModel(std::string_view name) {
  const std::string base = absl::AsciiStrToLower(std::string(name.substr(name.rfind('/') + 1)));
  return !base.starts_with("mmproj") && !base.starts_with("imatrix");
}

// A whole word: bounded by the ends of `text` or any of "-._/".
bool EndsWithWord(const std::string& text, const std::string& word) {
  if (!text.ends_with(word)) return false;
  const size_t before = text.size() - word.size();
  return before == 0 || std::string_view("-._/").find(text[before - 1]) != std::string_view::npos;
}

}  // namespace

std::vector<GgufModel> GgufModels(const std::vector<RepoFile>& listing) {
  std::map<std::pair<std::string, int>, GgufModel> models;
  for (const RepoFile& file : listing) {
    if (!absl::AsciiStrToLower(file.name).ends_with(kSuffix) || !IsLanguageModel(file.name))
      continue;
    std::string stem = file.name.substr(0, file.name.size() - kSuffix.size());
    const int num_parts = TakePart(&stem);
    GgufModel& model = models[{stem, num_parts}];
    model.stem = std::move(stem);
    model.num_parts = num_parts;
    model.parts.push_back(file);
  }
  std::vector<GgufModel> result;
  for (auto& [key, model] : models) {
    std::ranges::sort(model.parts, {}, &RepoFile::name);
    result.push_back(std::move(model));
  }
  return result;
}

bool HasTag(const GgufModel& model, std::string_view tag) {
  const std::string word = absl::AsciiStrToLower(std::string(tag));
  const std::string stem = absl::AsciiStrToLower(model.stem);
  if (word.empty()) return false;
  if (EndsWithWord(stem, word)) return true;
  const size_t slash = stem.rfind('/');
  return slash != std::string::npos && EndsWithWord(stem.substr(0, slash), word);
}

}  // namespace hydrant::hub
