// The files of one commit of a repository: as the hub's API lists them, and as stored in the cache
// (trees/COMMIT.json, shared with huggingface_hub). Input is untrusted: sizes are bounded, and
// names that would leave their folder are refused. Stateless.
#ifndef HYDRANT_ENGINE_MODEL_HUB_REPO_LISTING_H_
#define HYDRANT_ENGINE_MODEL_HUB_REPO_LISTING_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hydrant::hub {

inline constexpr size_t kMaxListedFiles = 100'000;
inline constexpr size_t kMaxListingBytes = 64u << 20;  // of one response or one stored listing

struct RepoFile {
  std::string name;      // a relative path, '/' between its parts
  int64_t size = 0;      // bytes
  std::string git_sha1;  // of git's blob: the file, or the pointer to a large file
  std::string sha256;    // of a large file (Git LFS); "" otherwise
  std::string xet_hash;  // written back for huggingface_hub; "" otherwise

  // The hash that names the file in the cache and verifies its bytes.
  const std::string& BlobName() const { return sha256.empty() ? git_sha1 : sha256; }
};

// The commit in the response to /api/models/REPO/revision/REVISION.
absl::StatusOr<std::string> ParseCommit(std::string_view json);

// Adds the files of one page of /api/models/REPO/tree/COMMIT?recursive=true.
absl::Status AppendTreePage(std::string_view json, std::vector<RepoFile>* files);

std::string ToTreeCache(const std::vector<RepoFile>& files);
absl::StatusOr<std::vector<RepoFile>> ParseTreeCache(std::string_view json);

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_REPO_LISTING_H_
