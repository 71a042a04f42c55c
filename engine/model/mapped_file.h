// A file mapped read-only into memory. Owns the map; the bytes live as long as the object.
// Immutable, so any thread may read. The file must not be shortened while it is open: a read past
// its new end raises SIGBUS, as with every memory-mapped file. Replace model files by renaming,
// which leaves an open map intact.
#ifndef HYDRANT_ENGINE_MODEL_MAPPED_FILE_H_
#define HYDRANT_ENGINE_MODEL_MAPPED_FILE_H_

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

 private:
  explicit MappedFile(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  std::span<const uint8_t> bytes_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_MAPPED_FILE_H_
