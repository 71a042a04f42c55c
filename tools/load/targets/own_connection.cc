#include "tools/load/targets/own_connection.h"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

namespace hydrant::load {
namespace {

// -1 on failure.
int Connect(const std::string& host, const std::string& port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return -1;
  int connected = -1;
  for (const addrinfo* info = found; info != nullptr && connected < 0; info = info->ai_next) {
    const int fd = socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC, info->ai_protocol);
    if (fd < 0) continue;
    if (connect(fd, info->ai_addr, info->ai_addrlen) == 0) {
      connected = fd;
    } else {
      close(fd);
    }
  }
  freeaddrinfo(found);
  return connected;
}

}  // namespace

std::optional<OwnConnection> OwnConnection::Open(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  const int socket = Connect(host, address.substr(colon + 1));
  if (socket < 0) return std::nullopt;
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const int grpcs = fcntl(socket, F_DUPFD_CLOEXEC, 0);
  fcntl(grpcs, F_SETFL, fcntl(grpcs, F_GETFL) | O_NONBLOCK);
  return OwnConnection(socket,
                       v1::Hydrant::NewStub(grpc::CreateInsecureChannelFromFd(address, grpcs)));
}

OwnConnection& OwnConnection::operator=(OwnConnection&& other) noexcept {
  std::swap(socket_, other.socket_);
  std::swap(stub_, other.stub_);
  return *this;
}

OwnConnection::~OwnConnection() {
  if (socket_ >= 0) close(socket_);
}

void OwnConnection::Break() { shutdown(socket_, SHUT_RDWR); }

}  // namespace hydrant::load
