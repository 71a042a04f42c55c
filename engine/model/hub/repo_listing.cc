#include "engine/model/hub/repo_listing.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/hub/model_reference.h"
#include "engine/model/json_text.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant::hub {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxFileBytes = int64_t{1} << 50;
constexpr int kTreeCacheVersion = 1;

// "" if the field is absent or not a string.
std::string TextOf(const Json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

absl::StatusOr<int64_t> SizeOf(const Json& object, const char* field, const std::string& name) {
  const auto found = object.find(field);
  if (found != object.end() && found->is_number_unsigned() &&
      found->get<uint64_t>() <= static_cast<uint64_t>(kMaxFileBytes))
    return found->get<int64_t>();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " of file ", Quoted(name), " is not a number of bytes up to 2^50"));
}

// Names of the fields in the API and in the cache.
struct Fields {
  const char *git_sha1, *lfs_sha256, *xet_hash;
};

absl::Status CheckHashes(const RepoFile& file, bool is_large) {
  if (IsHex(file.git_sha1, 40) && (!is_large || IsHex(file.sha256, 64))) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("file ", Quoted(file.name), " is listed without a valid hash"));
}

// `large`: the object with the size and the hash of a large file, null for others.
absl::StatusOr<RepoFile> ReadFile(const std::string& name, const Json& entry, const Json* large,
                                  const char* large_size, const Fields& fields) {
  HYDRANT_RETURN_IF_ERROR(CheckRelativeName("listed file", name));
  RepoFile file;
  file.name = name;
  file.git_sha1 = TextOf(entry, fields.git_sha1);
  if (large != nullptr) file.sha256 = TextOf(*large, fields.lfs_sha256);
  HYDRANT_RETURN_IF_ERROR(CheckHashes(file, large != nullptr));
  HYDRANT_ASSIGN_OR_RETURN(
      file.size, large != nullptr ? SizeOf(*large, large_size, name) : SizeOf(entry, "size", name));
  if (std::string xet = TextOf(entry, fields.xet_hash); IsHex(xet, 64))
    file.xet_hash = std::move(xet);
  return file;
}

absl::Status TooManyFiles() {
  return absl::InvalidArgumentError(
      absl::StrCat("more than ", kMaxListedFiles, " files are listed"));
}

}  // namespace

absl::StatusOr<std::string> ParseCommit(std::string_view json) {
  HYDRANT_ASSIGN_OR_RETURN(const Json root, ParseJsonObject(json));
  std::string commit = TextOf(root, "sha");
  if (!IsCommit(commit))
    return absl::InvalidArgumentError(absl::StrCat("sha is ", Quoted(commit), ", not a commit"));
  return commit;
}

absl::Status AppendTreePage(std::string_view json, std::vector<RepoFile>* files) {
  constexpr Fields kApiFields{.git_sha1 = "oid", .lfs_sha256 = "oid", .xet_hash = "xetHash"};
  HYDRANT_ASSIGN_OR_RETURN(const Json page, ParseJson(json));
  if (!page.is_array()) return absl::InvalidArgumentError("not a list of files");
  for (const Json& entry : page) {
    if (!entry.is_object()) return absl::InvalidArgumentError("an entry is not an object");
    if (TextOf(entry, "type") != "file") continue;
    if (files->size() == kMaxListedFiles) return TooManyFiles();
    const auto lfs = entry.find("lfs");
    const bool is_large = lfs != entry.end() && lfs->is_object();
    HYDRANT_ASSIGN_OR_RETURN(
        RepoFile file,
        ReadFile(TextOf(entry, "path"), entry, is_large ? &*lfs : nullptr, "size", kApiFields));
    files->push_back(std::move(file));
  }
  return absl::OkStatus();
}

std::string ToTreeCache(const std::vector<RepoFile>& files) {
  Json listed = Json::object();
  for (const RepoFile& file : files) {
    Json& entry = listed[file.name];
    entry["size"] = file.size;
    entry["blob_id"] = file.git_sha1;
    if (!file.sha256.empty()) {
      entry["lfs_sha256"] = file.sha256;
      entry["lfs_size"] = file.size;
    }
    if (!file.xet_hash.empty()) entry["xet_hash"] = file.xet_hash;
  }
  const Json root = {{"format_version", kTreeCacheVersion}, {"files", std::move(listed)}};
  return root.dump(1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<std::vector<RepoFile>> ParseTreeCache(std::string_view json) {
  constexpr Fields kFields{
      .git_sha1 = "blob_id", .lfs_sha256 = "lfs_sha256", .xet_hash = "xet_hash"};
  HYDRANT_ASSIGN_OR_RETURN(const Json root, ParseJsonObject(json));
  const auto version = root.find("format_version");
  const auto listed = root.find("files");
  if (version == root.end() || *version != kTreeCacheVersion || listed == root.end() ||
      !listed->is_object())
    return absl::InvalidArgumentError("not a list of files, version 1");
  if (listed->size() > kMaxListedFiles) return TooManyFiles();
  std::vector<RepoFile> files;
  for (const auto& [name, entry] : listed->items()) {
    if (!entry.is_object()) return absl::InvalidArgumentError("an entry is not an object");
    const bool is_large = entry.contains("lfs_sha256");
    HYDRANT_ASSIGN_OR_RETURN(
        RepoFile file, ReadFile(name, entry, is_large ? &entry : nullptr, "lfs_size", kFields));
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace hydrant::hub
