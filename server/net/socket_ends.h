// Which socket it is: the two addresses of a TCP connection, and the inode behind a descriptor,
// whose number is given to another when it is closed.
#ifndef HYDRANT_SERVER_NET_SOCKET_ENDS_H_
#define HYDRANT_SERVER_NET_SOCKET_ENDS_H_

#include <sys/types.h>

#include <compare>
#include <optional>
#include <string>

namespace hydrant {

struct SocketEnd {
  // 4 bytes, or 16 of IPv6, in the order of the network. What has come by IPv4 to a socket of IPv6
  // has 4.
  std::string address;
  int port = 0;
  auto operator<=>(const SocketEnd&) const = default;
};
struct SocketEnds {
  SocketEnd remote, local;
  auto operator<=>(const SocketEnds&) const = default;
};

// nullopt: not of TCP, or not connected.
std::optional<SocketEnds> EndsOfSocket(int fd);

// As people write it, without the port.
std::string AddressText(const SocketEnd& end);
// What one client has for itself: an address of IPv4, the 64 bits of a network of IPv6.
std::string NetworkOf(const SocketEnd& end);

// Of an open descriptor; 0: there is none.
ino_t InodeOf(int fd);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_SOCKET_ENDS_H_
