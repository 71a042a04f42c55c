#include "engine/model/hub/model_reference.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant::hub {
namespace {

constexpr size_t kMaxNamePart = 96;
constexpr size_t kMaxPathPart = 255;
constexpr size_t kMaxPath = 1024;

bool IsNameCharacter(char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.'; }

// ORG or NAME. The hub requires a word character at both ends.
bool IsNamePart(std::string_view part) {
  const auto is_end = [](char c) { return absl::ascii_isalnum(c) || c == '_'; };
  return !part.empty() && part.size() <= kMaxNamePart && is_end(part.front()) &&
         is_end(part.back()) && std::all_of(part.begin(), part.end(), IsNameCharacter);
}

absl::Status CheckRepo(std::string_view repo) {
  const size_t slash = repo.find('/');
  const bool has_org = slash != std::string_view::npos;
  const bool parts_are_names = IsNamePart(has_org ? repo.substr(slash + 1) : repo) &&
                               (!has_org || IsNamePart(repo.substr(0, slash)));
  if (!parts_are_names) {
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(repo), " is not a model of the hub: wanted ORG/NAME, each at most ", kMaxNamePart,
        " letters, digits, '_', '-' and '.', with neither '-' nor '.' at an end"));
  }
  if (repo.find("--") != std::string_view::npos || repo.find("..") != std::string_view::npos ||
      repo.ends_with(".git")) {
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(repo), " is not a model of the hub: '--', '..' and a final '.git' are not allowed"));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsHubModel(std::string_view path) { return path.starts_with(kHubPrefix); }

bool IsHex(std::string_view name, size_t digits) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return name.size() == digits && std::all_of(name.begin(), name.end(), is_digit);
}

bool IsCommit(std::string_view revision) { return IsHex(revision, 40); }

absl::Status CheckRelativeName(std::string_view what, std::string_view name) {
  const auto refuse = [&](std::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(what), " ", Quoted(name), " ", std::string(why)));
  };
  if (name.empty()) return refuse("is empty");
  if (name.size() > kMaxPath) return refuse("is longer than 1024 bytes");
  for (const char c : name) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c)) || c == '\\')
      return refuse("holds a control character or a backslash");
  }
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..")
      return refuse("would not stay inside of its folder");
    if (part.size() > kMaxPathPart) return refuse("has a part longer than 255 bytes");
    begin = end + 1;
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelReference> ParseModelReference(std::string_view text) {
  if (IsHubModel(text)) text.remove_prefix(kHubPrefix.size());
  if (text.find("://") != std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(text), " is an address: wanted ORG/NAME; HF_ENDPOINT names another hub"));
  }
  ModelReference reference;
  if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
    reference.file = text.substr(colon + 1);
    HYDRANT_RETURN_IF_ERROR(CheckRelativeName("file", reference.file));
    text = text.substr(0, colon);
  }
  if (const size_t at = text.find('@'); at != std::string_view::npos) {
    reference.revision = text.substr(at + 1);
    HYDRANT_RETURN_IF_ERROR(CheckRelativeName("revision", reference.revision));
    text = text.substr(0, at);
  }
  reference.repo = text;
  HYDRANT_RETURN_IF_ERROR(CheckRepo(reference.repo));
  return reference;
}

std::string ToText(const ModelReference& reference) {
  std::string text = reference.repo;
  if (reference.revision != "main") absl::StrAppend(&text, "@", reference.revision);
  if (!reference.file.empty()) absl::StrAppend(&text, ":", reference.file);
  return text;
}

}  // namespace hydrant::hub
