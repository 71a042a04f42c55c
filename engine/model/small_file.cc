#include "engine/model/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace hydrant {
namespace {

absl::Status CannotRead(const std::filesystem::path& path, int error) {
  const std::string why = absl::StrCat(path.string(), ": cannot be read: ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(why);
  if (error == EISDIR) return absl::InvalidArgumentError(why);
  return absl::UnavailableError(why);
}

absl::StatusOr<std::string> Read(int fd, const std::filesystem::path& path, uintmax_t max_bytes) {
  const auto wrong = [&](std::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": ", std::string(why)));
  };
  struct stat info = {};
  if (fstat(fd, &info) != 0) return CannotRead(path, errno);
  if (S_ISDIR(info.st_mode)) return CannotRead(path, EISDIR);
  if (!S_ISREG(info.st_mode)) return wrong("is no regular file");
  // The file may grow while it is read, and files that the system generates (/proc) report size 0.
  std::string text;
  std::string part(std::clamp<uintmax_t>(info.st_size + 1, 4096, uintmax_t{1} << 20), '\0');
  while (true) {
    const ssize_t count = read(fd, part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return CannotRead(path, errno);
    if (count == 0) return text;
    if (text.size() + static_cast<size_t>(count) > max_bytes)
      return wrong(absl::StrCat("has more than the ", max_bytes, " bytes that are read"));
    text.append(part.data(), static_cast<size_t>(count));
  }
}

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::filesystem::path& path, uintmax_t max_bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return CannotRead(path, errno);
  absl::StatusOr<std::string> text = Read(fd, path, max_bytes);
  close(fd);
  return text;
}

}  // namespace hydrant
