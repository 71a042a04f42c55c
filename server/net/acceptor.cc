#include "server/net/acceptor.h"

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "server/net/socket_pair.h"

namespace hydrant {
namespace {

constexpr int kPauseMs = 100;  // after accept() failed: waits for free resources

// Errors of the connection, or transient ones; see accept(2).
bool IsHarmless(int error) {
  return error == EAGAIN || error == EINTR || error == ECONNABORTED || error == EPROTO ||
         error == ENETDOWN || error == ENETUNREACH || error == EHOSTDOWN || error == EHOSTUNREACH ||
         error == ENOPROTOOPT || error == ENONET || error == EOPNOTSUPP;
}

}  // namespace

Acceptor::Acceptor(ListeningSockets sockets, int max_descriptors, std::function<void(int fd)> take,
                   int max_connections)
    : sockets_(std::move(sockets)),
      max_descriptors_(max_descriptors),
      take_(std::move(take)),
      max_connections_(max_connections),
      stop_fd_(eventfd(0, EFD_CLOEXEC)),
      thread_([this] { Run(); }) {}

void Acceptor::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!write(stop_fd_, &one, sizeof(one));
  thread_.join();
  close(stop_fd_);
  sockets_.Close();
}

void Acceptor::Run() {
  std::vector<pollfd> polled{{stop_fd_, POLLIN, 0}};
  for (const int fd : sockets_.fds()) polled.push_back({fd, POLLIN, 0});
  while (true) {
    if (poll(polled.data(), polled.size(), -1) < 0) continue;
    if (polled[0].revents != 0) return;
    bool can_accept = true;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents != 0) can_accept = AcceptFrom(polled[i].fd) && can_accept;
    }
    // The connection still waits, so poll() would return immediately.
    if (!can_accept && poll(polled.data(), 1, kPauseMs) > 0) return;
  }
}

bool Acceptor::AcceptFrom(int listening) {
  const int fd = accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  const int error = errno;
  if (fd < 0) {
    if (IsHarmless(error)) return true;
    if (failed_log_.Due())
      spdlog::error("cannot accept connections: {} ({} times so far); trying again",
                    std::strerror(error), failed_log_.count());
    return false;
  }
  // The kernel assigns the lowest free number, so at least `fd` descriptors are open.
  if (fd >= max_descriptors_) {
    Refuse(fd, fmt::format("{} descriptors are open, the rest is kept for files and probes; raise "
                           "the limit (ulimit -n, LimitNOFILE), or have clients share connections",
                           max_descriptors_));
  } else if (!HasRoom()) {
    Refuse(fd, fmt::format("{} are open, which is --max-connections", max_connections_));
  } else {
    if (max_connections_ > 0) taken_.push_back({fd, InodeOf(fd)});
    take_(fd);
  }
  return true;
}

void Acceptor::Refuse(int fd, const std::string& why) {
  close(fd);
  if (refused_log_.Due())
    spdlog::error("a connection was refused ({} so far): {}", refused_log_.count(), why);
}

bool Acceptor::HasRoom() {
  if (max_connections_ == 0 || taken_.size() < max_connections_) return true;
  std::erase_if(taken_, [](const Taken& taken) { return InodeOf(taken.fd) != taken.inode; });
  return taken_.size() < max_connections_;
}

}  // namespace hydrant
