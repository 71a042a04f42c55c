#include "server/startup/systemd_notifier.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <string>

namespace hydrant {
namespace {

absl::Status CannotTell(std::string_view path) {
  return absl::ErrnoToStatus(errno, fmt::format("NOTIFY_SOCKET {}", path));
}

}  // namespace

absl::Status NotifySystemd(std::string_view state) {
  const char* variable = std::getenv("NOTIFY_SOCKET");
  const std::string_view path = variable == nullptr ? "" : variable;
  if (path.empty()) return absl::OkStatus();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path))
    return absl::InvalidArgumentError(fmt::format("NOTIFY_SOCKET {}: too long a path", path));
  std::copy(path.begin(), path.end(), address.sun_path);
  if (path[0] == '@') address.sun_path[0] = '\0';  // Linux' abstract namespace

  const int socket_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket_fd < 0) return CannotTell(path);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  const ssize_t sent = sendto(socket_fd, state.data(), state.size(), MSG_NOSIGNAL,
                              reinterpret_cast<const sockaddr*>(&address), length);
  const absl::Status status = sent < 0 ? CannotTell(path) : absl::OkStatus();
  close(socket_fd);
  return status;
}

}  // namespace hydrant
