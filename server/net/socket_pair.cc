#include "server/net/socket_pair.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

namespace hydrant {
namespace {

constexpr size_t kIpv6Bytes = 16;

SocketAddress EndOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    return {std::string(reinterpret_cast<const char*>(&four.sin_addr), 4), ntohs(four.sin_port)};
  }
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  std::string bytes(reinterpret_cast<const char*>(&six.sin6_addr), kIpv6Bytes);
  if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr) != 0) bytes.erase(0, kIpv6Bytes - 4);
  return {bytes, ntohs(six.sin6_port)};
}

}  // namespace

std::optional<SocketPair> SocketPairOf(int fd) {
  sockaddr_storage remote{}, local{};
  socklen_t remote_size = sizeof(remote), local_size = sizeof(local);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&remote), &remote_size) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&local), &local_size) != 0 ||
      (remote.ss_family != AF_INET && remote.ss_family != AF_INET6))
    return std::nullopt;
  return SocketPair{.remote = EndOf(remote), .local = EndOf(local)};
}

std::string AddressText(const SocketAddress& end) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(end.address.size() == kIpv6Bytes ? AF_INET6 : AF_INET, end.address.data(), text,
            sizeof(text));
  return text;
}

std::string NetworkOf(const SocketAddress& end) {
  return end.address.size() == kIpv6Bytes ? end.address.substr(0, 8) : end.address;
}

ino_t InodeOf(int fd) {
  struct stat file {};
  return fstat(fd, &file) == 0 ? file.st_ino : 0;
}

}  // namespace hydrant
