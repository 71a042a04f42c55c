#include "server/net/socket_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"

namespace hydrant {
namespace {

constexpr std::chrono::milliseconds kBetweenTries{10};
constexpr int kMaxTries = 100;

int LockedFolder(const std::string& socket_path) {
  const std::filesystem::path folder = std::filesystem::path(socket_path).parent_path();
  const int fd = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int i = 0; fd >= 0 && i < kMaxTries; ++i) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) break;
    std::this_thread::sleep_for(kBetweenTries);
  }
  return fd;
}

const char* KindOf(mode_t mode) {
  return S_ISREG(mode)    ? "a regular file"
         : S_ISLNK(mode)  ? "a link"
         : S_ISDIR(mode)  ? "a folder"
         : S_ISFIFO(mode) ? "a pipe"
                          : "a device";
}

// 0: a process listens there. ECONNREFUSED: no process does. Other errors: unknown. Never blocks,
// even if the process has not accepted earlier connections.
int ErrorOfConnecting(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  const int error =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
  close(fd);
  return error == EAGAIN || error == EINPROGRESS ? 0 : error;
}

}  // namespace

SocketFolderLock::SocketFolderLock(const std::string& socket_path)
    : fd_(LockedFolder(socket_path)) {}

SocketFolderLock::~SocketFolderLock() {
  if (fd_ >= 0) close(fd_);
}

absl::Status FreeSocketPath(const std::string& path) {
  struct stat there {};
  if (lstat(path.c_str(), &there) != 0) return absl::OkStatus();  // bind() reports other errors
  if (!S_ISSOCK(there.st_mode)) {
    return absl::UnavailableError(absl::StrCat("the path is of ", KindOf(there.st_mode),
                                               ", which is left as it is: move it away, or name "
                                               "another path"));
  }
  const int error = ErrorOfConnecting(path);
  if (error == 0)
    return absl::UnavailableError(
        "another process listens there: end it first, or name another path");
  if (error != ECONNREFUSED) {
    return absl::UnavailableError(absl::StrCat("a socket is there that another process may use (",
                                               std::strerror(error),
                                               "): remove it if none does, or name another path"));
  }
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "the socket there, which no process uses, cannot be removed: ", std::strerror(errno)));
}

SocketFileId SocketFileAt(const std::string& path) {
  struct stat file {};
  if (lstat(path.c_str(), &file) != 0) return {};
  return {.device = file.st_dev, .inode = file.st_ino};
}

void RemoveSocketFile(const std::string& path, const SocketFileId& id) {
  if (SocketFileAt(path) == id) unlink(path.c_str());
}

}  // namespace hydrant
