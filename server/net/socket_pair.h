// Identifies a TCP connection: by its two addresses, and by the inode behind a descriptor, because
// descriptor numbers are reused.
#ifndef HYDRANT_SERVER_NET_SOCKET_PAIR_H_
#define HYDRANT_SERVER_NET_SOCKET_PAIR_H_

#include <sys/types.h>

#include <compare>
#include <optional>
#include <string>

namespace hydrant {

struct SocketAddress {
  // 4 bytes, or 16 for IPv6, in network byte order. 4 for IPv4 connections to an IPv6 socket.
  std::string address;
  int port = 0;
  auto operator<=>(const SocketAddress&) const = default;
};
struct SocketPair {
  SocketAddress remote, local;
  auto operator<=>(const SocketPair&) const = default;
};

// nullopt: not TCP, or not connected.
std::optional<SocketPair> SocketPairOf(int fd);

// The address as text, without the port.
std::string AddressText(const SocketAddress& end);
// The address range of one client: an IPv4 address, or the 64-bit prefix of an IPv6 address.
std::string NetworkOf(const SocketAddress& end);

// The inode of an open descriptor; 0: not open.
ino_t InodeOf(int fd);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_SOCKET_PAIR_H_
