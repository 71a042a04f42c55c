// Accepts connections on its own thread and passes them on until the process ends. gRPC's own
// listener stops permanently when accept() fails once, for example without free descriptors. This
// class keeps a reserve of descriptors: a connection that would use the reserve is closed.
//
// Thread safe.
#ifndef HYDRANT_SERVER_NET_ACCEPTOR_H_
#define HYDRANT_SERVER_NET_ACCEPTOR_H_

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "server/net/listening_sockets.h"
#include "server/net/log_rate_limiter.h"

namespace hydrant {

class Acceptor {
 public:
  // `take` gets a non-blocking socket and owns it; called on the acceptor's thread.
  // `max_descriptors` as from DescriptorsForConnections(). `max_connections`: limit for open
  // connections accepted here; 0: any number.
  Acceptor(ListeningSockets sockets, int max_descriptors, std::function<void(int fd)> take,
           int max_connections = 0);
  ~Acceptor() { Stop(); }
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  const ListeningSockets& sockets() const { return sockets_; }
  // Closes the sockets; `take` is not called after it returns. Not thread safe.
  void Stop();

 private:
  void Run();
  // False: nothing can be accepted for now.
  bool AcceptFrom(int listening);
  void Refuse(int fd, const std::string& why);
  // Whether one more connection is allowed.
  bool HasRoom();

  ListeningSockets sockets_;
  const int max_descriptors_;
  const std::function<void(int fd)> take_;
  const size_t max_connections_;
  // Accepted connections, some of which may be closed: then the descriptor is free, or has another
  // inode. Used by the thread.
  struct Taken {
    int fd;
    ino_t inode;
  };
  std::vector<Taken> taken_;
  LogRateLimiter refused_log_, failed_log_;  // used by the thread
  int stop_fd_ = -1;
  std::thread thread_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_ACCEPTOR_H_
