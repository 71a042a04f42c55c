// A file that is being fetched: what is there of it on disk, and its hash so far. Bytes of an
// earlier run count. Owns the descriptor; who makes one holds the blob's lock. Not thread safe.
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

class BlobPart final : public BodyTaker {
 public:
  // Reads what is there, which takes as long as hashing it does. `on_bytes` hears how many bytes of
  // the file are there, at the begin and after each part; an error of it ends the fetching.
  static absl::StatusOr<std::unique_ptr<BlobPart>> Open(
      std::string path, RepoFile file, std::function<absl::Status(int64_t)> on_bytes);
  ~BlobPart() override;
  BlobPart(const BlobPart&) = delete;
  BlobPart& operator=(const BlobPart&) = delete;

  bool IsWhole() const { return bytes_ == file_.size; }

  absl::StatusOr<int64_t> BeginAttempt() override { return bytes_; }
  absl::Status Restart() override;
  absl::Status Take(std::string_view bytes) override;

  // Checks size and hash, writes everything to the disk and gives it its name. DataLoss where they
  // are wrong; the part is then gone.
  absl::Status FinishAs(const std::string& blob_path);

 private:
  BlobPart(std::string path, RepoFile file, int descriptor,
           std::function<absl::Status(int64_t)> on_bytes);
  absl::Status HashWhatIsThere();

  const std::string path_;
  const RepoFile file_;
  const int descriptor_;
  const std::function<absl::Status(int64_t)> on_bytes_;
  BlobDigest digest_;
  int64_t bytes_ = 0;
};

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_BLOB_PART_H_
