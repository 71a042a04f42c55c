// One repository in the cache on disk, in the layout of huggingface_hub, which may read and write
// it at the same time:
//
//   CACHE/models--ORG--NAME/blobs/HASH              bytes, by their SHA-256, or git's SHA-1
//                           blobs/HASH.incomplete   a partial download
//                           refs/REVISION           the commit that a branch or tag stood for
//                           snapshots/COMMIT/FILE   a relative link to its blob
//                           trees/COMMIT.json       the files of a commit
//   CACHE/.locks/models--ORG--NAME/HASH.lock        held (flock) during the download of that blob
//
// Files appear atomically: they are written beside their place and renamed. Paths only, no state;
// any thread may call.
#ifndef HYDRANT_ENGINE_MODEL_HUB_HUB_CACHE_H_
#define HYDRANT_ENGINE_MODEL_HUB_HUB_CACHE_H_

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/hub/repo_listing.h"

namespace hydrant::hub {

// Holds a lock file until it is destroyed. Movable.
class FileLock {
 public:
  FileLock() = default;
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  int descriptor_ = -1;
};

class HubCache {
 public:
  // `folder`: HubSettings::cache. `repo`: a valid ORG/NAME.
  HubCache(const std::string& folder, const std::string& repo);

  const std::string& folder() const { return folder_; }  // CACHE/models--ORG--NAME
  std::string SnapshotFolder(const std::string& commit) const;
  std::string BlobPath(const std::string& blob) const;
  std::string PartPath(const std::string& blob) const;

  // The commit of `revision`, as of the last pull.
  std::optional<std::string> CommitOf(const std::string& revision) const;
  // Does nothing if `revision` is the commit. The snapshot's folder must exist.
  absl::Status WriteRef(const std::string& revision, const std::string& commit) const;

  // NotFound, or InvalidArgument if it is damaged.
  absl::StatusOr<std::vector<RepoFile>> ReadTree(const std::string& commit) const;
  absl::Status WriteTree(const std::string& commit, const std::vector<RepoFile>& files) const;

  bool HasBlob(const RepoFile& file) const;  // at its full size
  int64_t PartBytes(const RepoFile& file) const;
  // The files of a snapshot that are present with their bytes, without hashes.
  std::vector<RepoFile> FilesOf(const std::string& commit) const;

  // Creates the folders. PermissionDenied and similar errors name the folder.
  absl::Status Prepare(const std::string& commit) const;
  // Links a file with a present blob into the snapshot.
  absl::Status Link(const std::string& commit, const RepoFile& file) const;

  // Waits for the lock; `on_wait` is called several times a second meanwhile and may end the wait
  // by an error. A file system without locks gives an empty lock.
  absl::StatusOr<FileLock> Lock(const std::string& blob,
                                const std::function<absl::Status()>& on_wait) const;

 private:
  std::string folder_, locks_, root_;
};

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_HUB_CACHE_H_
