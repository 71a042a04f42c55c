// A file mapped read-only into memory. Owns the map; the bytes live as long as the object.
// Immutable, so any thread may read. The file must not be shortened or written while it is open: a
// read past its new end ends the process (engine/model/sigbus_handler.h). Replace model files by
// renaming, which leaves an open map intact.
#ifndef HYDRANT_ENGINE_MODEL_MAPPED_FILE_H_
#define HYDRANT_ENGINE_MODEL_MAPPED_FILE_H_

#include <time.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace hydrant {

class MappedFile {
 public:
  // Errors name the path and the system's reason. An empty file is an error: no format here allows
  // one.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const uint8_t> bytes() const { return bytes_; }

  // FailedPrecondition if the file's size or modification time differs from Open(): the bytes read
  // may mix two files, or be zeros.
  absl::Status CheckUnchanged() const;
  // Lets the system drop the resident pages of the map; later reads load them from the file again.
  void ReleasePages() const;

 private:
  MappedFile(std::string path, int fd, std::span<const uint8_t> bytes, timespec written);

  const std::string path_;
  const int fd_;  // owned
  const std::span<const uint8_t> bytes_;
  const timespec written_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_MAPPED_FILE_H_
