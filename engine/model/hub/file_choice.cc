#include "engine/model/hub/file_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "engine/model/hub/gguf_names.h"
#include "engine/model/json_text.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant::hub {
namespace {

constexpr size_t kMaxNamesListed = 12;
constexpr size_t kMaxLetters = 64;  // longest name compared by edit distance
constexpr std::array kPreferred{"Q4_K_M", "Q8_0", "Q6_K", "Q5_K_M", "Q4_0",
                                "Q4_1",   "BF16", "F16",  "F32"};
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr char kSingleFile[] = "model.safetensors";

const RepoFile* Find(const std::vector<RepoFile>& listing, const std::string& name) {
  const auto found = std::ranges::find(listing, name, &RepoFile::name);
  return found == listing.end() ? nullptr : &*found;
}

// "model-00001-of-00004.safetensors".
bool IsShard(const std::string& name) {
  return name.starts_with("model-") && name.ends_with(".safetensors") &&
         name.find('/') == std::string::npos;
}

// Files at the top of a repository that describe how to run its weights.
bool IsCompanion(const std::string& name) {
  static const std::set<std::string, std::less<>> kNames = {
      "config.json",       "generation_config.json", "special_tokens_map.json",
      "added_tokens.json", "tokenizer.model",        "vocab.json",
      "merges.txt",        "chat_template.jinja",    "chat_template.json"};
  return kNames.contains(name) || (name.starts_with("tokenizer") && name.ends_with(".json") &&
                                   name.find('/') == std::string::npos);
}

// Levenshtein distance of names in lower case.
size_t Distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({replaced, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

std::string Lowered(std::string_view name) {
  return absl::AsciiStrToLower(std::string(name.substr(0, kMaxLetters)));
}

// Distance of `name` from the requested name: of its last part or of its last word, whichever is
// smaller.
size_t DistanceTo(const std::string& wanted, const std::string& name) {
  const std::string_view base = std::string_view(name).substr(name.rfind('/') + 1);
  const std::string_view stem = base.substr(0, base.rfind('.'));
  const std::string_view word = stem.substr(stem.find_last_of("-.") + 1);
  return std::min(Distance(Lowered(wanted), Lowered(base)),
                  Distance(Lowered(wanted), Lowered(word)));
}

// A few of `names`, those nearest to `wanted` first if it is not "".
std::string NamesText(const std::vector<std::string>& names, const std::string& wanted) {
  if (names.empty()) return "nothing";
  std::vector<std::pair<size_t, size_t>> order;  // distance, index
  order.reserve(names.size());
  for (size_t i = 0; i < names.size(); ++i)
    order.emplace_back(wanted.empty() ? 0 : DistanceTo(wanted, names[i]), i);
  std::ranges::sort(order);
  const size_t shown = std::min(names.size(), kMaxNamesListed);
  std::vector<std::string> quoted;
  quoted.reserve(shown);
  for (size_t i = 0; i < shown; ++i) quoted.push_back(Quoted(names[order[i].second]));
  const std::string more =
      names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : "";
  return fmt::format("{}{}", fmt::join(quoted, ", "), more);
}

std::vector<std::string> NamesOf(const std::vector<RepoFile>& files) {
  std::vector<std::string> names;
  names.reserve(files.size());
  for (const RepoFile& file : files) names.push_back(file.name);
  return names;
}

std::vector<std::string> NamesOf(const std::vector<GgufModel>& models) {
  std::vector<std::string> names;
  names.reserve(models.size());
  for (const GgufModel& model : models) names.push_back(model.parts[0].name);
  return names;
}

absl::StatusOr<FileChoice> Choose(const GgufModel& model) {
  if (!model.IsWhole()) {
    return absl::FailedPreconditionError(fmt::format("{} of the {} parts of {} are there",
                                                     model.parts.size(), model.num_parts,
                                                     Quoted(model.stem)));
  }
  return FileChoice{.files = model.parts, .served = model.parts[0].name, .note = ""};
}

absl::StatusOr<FileChoice> ChooseByName(const std::vector<RepoFile>& listing,
                                        const std::string& wanted) {
  const std::vector<GgufModel> models = GgufModels(listing);
  std::vector<GgufModel> tagged;
  for (const GgufModel& model : models) {
    if (Find(model.parts, wanted) != nullptr) return Choose(model);
    if (HasTag(model, wanted)) tagged.push_back(model);
  }
  if (const RepoFile* file = Find(listing, wanted); file != nullptr)
    return FileChoice{.files = {*file}, .served = wanted, .note = ""};
  if (tagged.size() == 1) return Choose(tagged[0]);
  if (tagged.size() > 1) {
    return absl::NotFoundError(fmt::format("{} files end with {}: choose one of {}", tagged.size(),
                                           Quoted(wanted), NamesText(NamesOf(tagged), "")));
  }
  const std::vector<std::string> names = models.empty() ? NamesOf(listing) : NamesOf(models);
  return absl::NotFoundError(
      fmt::format("there is no file {}; there is {}", Quoted(wanted), NamesText(names, wanted)));
}

bool HasSafetensors(const std::vector<RepoFile>& listing) {
  return Find(listing, "config.json") != nullptr &&
         (Find(listing, kSingleFile) != nullptr || Find(listing, kIndexFile) != nullptr);
}

// If both exist, the single file is opened.
FileChoice ChooseSafetensors(const std::vector<RepoFile>& listing) {
  const bool is_single = Find(listing, kSingleFile) != nullptr;
  FileChoice choice;
  for (const RepoFile& file : listing) {
    const bool is_weights =
        is_single ? file.name == kSingleFile : file.name == kIndexFile || IsShard(file.name);
    if (is_weights || IsCompanion(file.name)) choice.files.push_back(file);
  }
  return choice;
}

absl::StatusOr<FileChoice> ChooseGguf(const std::vector<GgufModel>& models) {
  if (models.size() == 1) return Choose(models[0]);
  for (const char* tag : kPreferred) {
    std::vector<const GgufModel*> tagged;
    for (const GgufModel& model : models) {
      if (HasTag(model, tag)) tagged.push_back(&model);
    }
    if (tagged.size() != 1) continue;
    HYDRANT_ASSIGN_OR_RETURN(FileChoice choice, Choose(*tagged[0]));
    choice.note = fmt::format(
        "{} of {} GGUF models; another by its name or quantisation, as :{}", Quoted(choice.served),
        models.size(), tagged[0] == &models[0] ? models[1].parts[0].name : models[0].parts[0].name);
    return choice;
  }
  return absl::NotFoundError(fmt::format("there are {} GGUF models: choose one of {}",
                                         models.size(), NamesText(NamesOf(models), "")));
}

}  // namespace

absl::StatusOr<FileChoice> ChooseFiles(const std::vector<RepoFile>& listing,
                                       const std::string& wanted) {
  if (!wanted.empty()) return ChooseByName(listing, wanted);
  if (HasSafetensors(listing)) return ChooseSafetensors(listing);
  if (const std::vector<GgufModel> models = GgufModels(listing); !models.empty())
    return ChooseGguf(models);
  return absl::NotFoundError(
      fmt::format("there is neither a GGUF file nor config.json with {} or {}; there is {}",
                  kSingleFile, kIndexFile, NamesText(NamesOf(listing), "")));
}

absl::Status CheckNothingMissing(const FileChoice& choice, const std::string& index) {
  if (Find(choice.files, kIndexFile) == nullptr) return absl::OkStatus();
  HYDRANT_ASSIGN_OR_RETURN(const nlohmann::json root, ParseJsonObject(index));
  const auto map = root.find("weight_map");
  if (map == root.end() || !map->is_object())
    return absl::FailedPreconditionError(fmt::format("{} has no weight_map", kIndexFile));
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string() || Find(choice.files, shard.get<std::string>()) == nullptr)
      return absl::FailedPreconditionError(
          fmt::format("{} of {} is missing", Quoted(shard.dump()), kIndexFile));
  }
  return absl::OkStatus();
}

}  // namespace hydrant::hub
