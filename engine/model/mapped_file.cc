#include "engine/model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/lfs_pointer.h"
#include "engine/model/sigbus_handler.h"
#include "engine/model/text.h"

namespace hydrant {
namespace {

// Closes the descriptor unless it is released.
class ScopedFd {
 public:
  explicit ScopedFd(int fd) : fd_(fd) {}
  ~ScopedFd() {
    if (fd_ >= 0) close(fd_);
  }
  ScopedFd(const ScopedFd&) = delete;
  ScopedFd& operator=(const ScopedFd&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO by mistake must not hang; it has no effect on a regular file.
  ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", Quoted(path)));
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot examine ", Quoted(path)));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(path), " is not a regular file"));
  }
  if (info.st_size == 0) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(path), " is empty"));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  void* base = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (base == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot map ", Quoted(path)));
  }
  const std::span<const uint8_t> bytes(static_cast<const uint8_t*>(base), size);
  if (IsLfsPointer({static_cast<const char*>(base), size})) {
    munmap(base, size);
    return LfsPointerError(path);
  }
  return std::unique_ptr<MappedFile>(new MappedFile(path, fd.Release(), bytes, info.st_mtim));
}

MappedFile::MappedFile(std::string path, int fd, std::span<const uint8_t> bytes, timespec written)
    : path_(std::move(path)), fd_(fd), bytes_(bytes), written_(written) {
  RegisterMapping(bytes_, path_);
}

MappedFile::~MappedFile() {
  UnregisterMapping(bytes_);
  munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
  close(fd_);
}

void MappedFile::ReleasePages() const {
  madvise(const_cast<uint8_t*>(bytes_.data()), bytes_.size(), MADV_DONTNEED);  // a hint: may fail
}

absl::Status MappedFile::CheckUnchanged() const {
  struct stat info = {};
  if (fstat(fd_, &info) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot examine ", Quoted(path_)));
  if (static_cast<size_t>(info.st_size) == bytes_.size() &&
      info.st_mtim.tv_sec == written_.tv_sec && info.st_mtim.tv_nsec == written_.tv_nsec) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      Quoted(path_), " was written while it was read: it had ", bytes_.size(), " bytes and has ",
      info.st_size, ". Start again, and replace model files by renaming"));
}

}  // namespace hydrant
