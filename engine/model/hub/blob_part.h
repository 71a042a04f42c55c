// A file that is being downloaded: its bytes on disk, including those of an earlier run, and their
// hash. Owns the descriptor; the creator must hold the blob's lock. Not thread safe.
#ifndef HYDRANT_ENGINE_MODEL_HUB_BLOB_PART_H_
#define HYDRANT_ENGINE_MODEL_HUB_BLOB_PART_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/hub/blob_digest.h"
#include "engine/model/hub/hub_client.h"
#include "engine/model/hub/repo_listing.h"

namespace hydrant::hub {

class BlobPart final : public BodyReceiver {
 public:
  // Hashes the bytes on disk, which takes time. `on_bytes` gets the number of bytes present, at the
  // beginning and after each part; an error from it ends the download.
  static absl::StatusOr<std::unique_ptr<BlobPart>> Open(
      std::string path, RepoFile file, std::function<absl::Status(int64_t)> on_bytes);
  ~BlobPart() override;
  BlobPart(const BlobPart&) = delete;
  BlobPart& operator=(const BlobPart&) = delete;

  bool IsWhole() const { return bytes_ == file_.size; }

  absl::StatusOr<int64_t> BeginAttempt() override { return bytes_; }
  absl::Status Restart() override;
  absl::Status Take(std::string_view bytes) override;

  // Checks size and hash, syncs to disk and renames. DataLoss on a mismatch; a wrong hash also
  // deletes the partial file.
  absl::Status FinishAs(const std::string& blob_path);

 private:
  BlobPart(std::string path, RepoFile file, int descriptor,
           std::function<absl::Status(int64_t)> on_bytes);
  absl::Status HashExistingBytes();

  const std::string path_;
  const RepoFile file_;
  const int descriptor_;
  const std::function<absl::Status(int64_t)> on_bytes_;
  BlobDigest digest_;
  int64_t bytes_ = 0;
};

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_BLOB_PART_H_
