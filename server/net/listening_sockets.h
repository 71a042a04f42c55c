// Sockets that listen on one address: host:port, or unix:/path. Owns them and the unix socket's
// file. Not thread safe, but any thread may poll the descriptors and accept from them.
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

// "/path" of "unix:/path"; "" for other addresses.
std::string UnixPath(std::string_view listen);

class ListeningSockets {
 public:
  // Binds all addresses of the host; "", 0.0.0.0 and [::] are all of IPv4 and IPv6. The sockets do
  // not block. InvalidArgument if `listen` is malformed, Unavailable if it cannot be bound, for
  // example if the file at unix:/path is not a socket, or a process listens on it.
  static absl::StatusOr<ListeningSockets> Open(const std::string& listen);
  ~ListeningSockets() { Close(); }
  ListeningSockets(ListeningSockets&& other) noexcept;
  ListeningSockets& operator=(ListeningSockets&&) = delete;

  const std::vector<int>& fds() const { return fds_; }
  int port() const { return port_; }  // the actual port; 0 for unix:
  // Whether only processes of this machine can connect: loopback addresses, a unix socket.
  bool AreLocal() const;

  // An address at which processes of this machine reach the first socket.
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
  // 0, or errno. An address with port 0 gets the port of an earlier one.
  int Add(const sockaddr* address, socklen_t size);

  std::vector<int> fds_;
  int port_ = 0;
  std::string unix_path_;   // removed by Close(),
  SocketFileId unix_file_;  // if it is still this file
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_LISTENING_SOCKETS_H_
