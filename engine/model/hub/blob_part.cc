#include "engine/model/hub/blob_part.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant::hub {
namespace {

constexpr size_t kReadBytes = 1 << 20;

absl::Status LastError(const char* what, const std::string& path) {
  const int error = errno;
  const std::string message =
      fmt::format("{} {}: {}", what, Quoted(path), std::generic_category().message(error));
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(message);
  return absl::FailedPreconditionError(message);
}

}  // namespace

BlobPart::BlobPart(std::string path, RepoFile file, int descriptor,
                   std::function<absl::Status(int64_t)> on_bytes)
    : path_(std::move(path)),
      file_(std::move(file)),
      descriptor_(descriptor),
      on_bytes_(std::move(on_bytes)),
      digest_(file_) {}

BlobPart::~BlobPart() { close(descriptor_); }

absl::StatusOr<std::unique_ptr<BlobPart>> BlobPart::Open(
    std::string path, RepoFile file, std::function<absl::Status(int64_t)> on_bytes) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (descriptor < 0) return LastError("cannot write", path);
  std::unique_ptr<BlobPart> part(
      new BlobPart(std::move(path), std::move(file), descriptor, std::move(on_bytes)));
  HYDRANT_RETURN_IF_ERROR(part->HashExistingBytes());
  return part;
}

// A partial file longer than the blob is invalid.
absl::Status BlobPart::HashExistingBytes() {
  const off_t end = lseek(descriptor_, 0, SEEK_END);
  if (end < 0) return LastError("cannot read", path_);
  if (end > file_.size) return Restart();
  if (lseek(descriptor_, 0, SEEK_SET) < 0) return LastError("cannot read", path_);
  std::vector<char> buffer(kReadBytes);
  while (bytes_ < end) {
    const ssize_t got = read(descriptor_, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return LastError("cannot read", path_);
    digest_.Add({buffer.data(), static_cast<size_t>(got)});
    bytes_ += got;
    HYDRANT_RETURN_IF_ERROR(on_bytes_(bytes_));
  }
  return absl::OkStatus();
}

absl::Status BlobPart::Restart() {
  if (ftruncate(descriptor_, 0) != 0 || lseek(descriptor_, 0, SEEK_SET) < 0)
    return LastError("cannot write", path_);
  digest_ = BlobDigest(file_);
  bytes_ = 0;
  return on_bytes_(bytes_);
}

absl::Status BlobPart::Take(std::string_view bytes) {
  if (static_cast<int64_t>(bytes.size()) > file_.size - bytes_) {
    unlink(path_.c_str());
    return absl::DataLossError(fmt::format("{}: the server sends more than the {} bytes it listed",
                                           Quoted(file_.name), file_.size));
  }
  for (std::string_view rest = bytes; !rest.empty();) {
    const ssize_t written = write(descriptor_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return LastError("cannot write", path_);
    rest.remove_prefix(static_cast<size_t>(written));
  }
  digest_.Add(bytes);
  bytes_ += static_cast<int64_t>(bytes.size());
  return on_bytes_(bytes_);
}

absl::Status BlobPart::FinishAs(const std::string& blob_path) {
  if (!IsWhole()) {
    return absl::DataLossError(
        fmt::format("{}: the server sent {} of {} bytes", Quoted(file_.name), bytes_, file_.size));
  }
  if (const std::string digest = digest_.Finish(); digest != file_.BlobName()) {
    unlink(path_.c_str());
    return absl::DataLossError(
        fmt::format("{}: its {} is {}, the hub lists {}; what was fetched is deleted, try again",
                    Quoted(file_.name), file_.sha256.empty() ? "git SHA-1" : "SHA-256", digest,
                    file_.BlobName()));
  }
  // Other readers trust a blob by its name alone, also after a power loss.
  if (fsync(descriptor_) != 0) return LastError("cannot write", path_);
  if (std::rename(path_.c_str(), blob_path.c_str()) != 0)
    return LastError("cannot name", blob_path);
  return absl::OkStatus();
}

}  // namespace hydrant::hub
