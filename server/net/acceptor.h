// Accepts connections on a thread of its own and hands them on, for as long as the process lives:
// gRPC's own listener gives up for good when accept() fails once, and it fails when there are no
// descriptors left. Here some are always left: a connection that would use them is closed at once.
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

#include "server/net/complaints.h"
#include "server/net/listening_sockets.h"

namespace hydrant {

class Acceptor {
 public:
  // `take` gets a socket that does not block, and owns it; called on the acceptor's thread.
  // `max_descriptors` as from DescriptorsForConnections(); max_connections: that are open at a
  // time, of those accepted here; 0: any number.
  Acceptor(ListeningSockets sockets, int max_descriptors, std::function<void(int fd)> take,
           int max_connections = 0);
  ~Acceptor() { Stop(); }
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  const ListeningSockets& sockets() const { return sockets_; }
  // Closes the sockets; `take` is not called any more when it returns. Not from two threads.
  void Stop();

 private:
  void Run();
  // False where nothing can be accepted for now.
  bool AcceptFrom(int listening);
  void Refuse(int fd, const std::string& why);
  // Whether one more may be taken.
  bool HasRoom();

  ListeningSockets sockets_;
  const int max_descriptors_;
  const std::function<void(int fd)> take_;
  const size_t max_connections_;
  // Taken and perhaps closed since: a descriptor is then nobody's, or of another inode. The
  // thread's.
  struct Taken {
    int fd;
    ino_t inode;
  };
  std::vector<Taken> taken_;
  Complaints refused_, failed_;  // the thread's
  int stop_fd_ = -1;
  std::thread thread_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_ACCEPTOR_H_
