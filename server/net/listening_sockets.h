// Sockets that listen on one address: host:port, or unix:/path. Owns them, and the unix socket's
// file; closes both. Not thread safe, but the descriptors may be polled and accepted from anywhere.
#ifndef HYDRANT_SERVER_NET_LISTENING_SOCKETS_H_
#define HYDRANT_SERVER_NET_LISTENING_SOCKETS_H_

#include <sys/socket.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/net/socket_file.h"

namespace hydrant {

struct HostPort {
  std::string host;  // without the brackets of IPv6; "": every address
  int port = 0;      // 0: any free one
};
// InvalidArgument where `listen` is not host:port with a port from 0 to 65535.
absl::StatusOr<HostPort> ParseHostPort(const std::string& listen);

// "/path" of "unix:/path"; "" for any other address.
std::string UnixPath(std::string_view listen);

class ListeningSockets {
 public:
  // Binds every address of the host; "", 0.0.0.0 and [::] are all of IPv4 and IPv6. The sockets do
  // not block. InvalidArgument if `listen` is no address, Unavailable if it cannot be bound, for
  // example if the file at unix:/path is not a socket, or a process listens on it.
  static absl::StatusOr<ListeningSockets> Open(const std::string& listen);
  ~ListeningSockets() { Close(); }
  ListeningSockets(ListeningSockets&& other) noexcept;
  ListeningSockets& operator=(ListeningSockets&&) = delete;

  const std::vector<int>& fds() const { return fds_; }
  int port() const { return port_; }  // the real one; 0 for unix:
  // Whether processes of this machine alone can reach them: loopback addresses, a unix socket.
  bool AreLocal() const;

  // Where a process of this machine reaches the first of them.
  struct Address {
    sockaddr_storage bytes{};
    socklen_t size = 0;
  };
  Address LocalAddress() const;

  void Close();

 private:
  ListeningSockets() = default;
  absl::Status OpenUnix(const std::string& path);
  absl::Status OpenHost(const HostPort& to);
  // 0, or errno. An address with port 0 gets the port that an earlier one was given.
  int Add(const sockaddr* address, socklen_t size);

  std::vector<int> fds_;
  int port_ = 0;
  std::string unix_path_;   // Close() removes it,
  SocketFileId unix_file_;  // if it is still this file
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_LISTENING_SOCKETS_H_
