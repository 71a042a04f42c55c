#include "tests/server/relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>

namespace hydrant {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

int NewSocket() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) std::abort();
  return fd;
}

bool SendAll(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    data += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

}  // namespace

Relay::Relay(int server_port) : server_port_(server_port) {
  listen_fd_ = NewSocket();
  wake_fd_ = eventfd(0, EFD_CLOEXEC);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (bind(listen_fd_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listen_fd_, 16) != 0 ||
      getsockname(listen_fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::abort();
  }
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Run(); });
}

Relay::~Relay() {
  stopping_ = true;
  Wake();
  thread_.join();
  CloseAll();
  close(listen_fd_);
  close(wake_fd_);
}

void Relay::Vanish() {
  vanished_ = true;
  Wake();
}

void Relay::Cut() {
  cut_ = true;
  Wake();
}

void Relay::CloseAll() {
  for (const int fd : sockets_) {
    if (fd >= 0) close(fd);
  }
  sockets_.clear();
}

void Relay::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_fd_, &one, sizeof(one));
}

void Relay::Run() {
  while (!stopping_) {
    std::vector<pollfd> fds = {{wake_fd_, POLLIN, 0}};
    if (!vanished_) {
      fds.push_back({listen_fd_, POLLIN, 0});
      for (const int fd : sockets_) fds.push_back({fd, POLLIN, 0});  // negative ones are ignored
    }
    if (poll(fds.data(), fds.size(), -1) < 0) continue;
    if (fds[0].revents != 0) {
      uint64_t count;
      (void)!read(wake_fd_, &count, sizeof(count));
      if (cut_.exchange(false)) CloseAll();
      continue;
    }
    for (size_t i = 2; i < fds.size(); ++i) {
      if (fds[i].revents != 0) Carry(i - 2);
    }
    if (fds[1].revents != 0) Accept();
  }
}

void Relay::Accept() {
  const int client = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC);
  if (client < 0) return;
  const int server = NewSocket();
  const sockaddr_in address = Loopback(server_port_);
  if (connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close(client);
    close(server);
    return;
  }
  sockets_.insert(sockets_.end(), {client, server});
}

void Relay::Carry(size_t from) {
  const size_t to = from ^ 1;
  if (sockets_[from] < 0) return;
  std::array<char, 16384> buffer;
  const ssize_t count = recv(sockets_[from], buffer.data(), buffer.size(), 0);
  if (count > 0 && SendAll(sockets_[to], buffer.data(), static_cast<size_t>(count))) {
    if (from % 2 == 0) ++pieces_from_clients_;
    return;
  }
  close(sockets_[from]);
  close(sockets_[to]);
  sockets_[from] = sockets_[to] = -1;
}

}  // namespace hydrant
