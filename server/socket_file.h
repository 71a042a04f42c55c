// The file of a unix socket: it is made where nothing is, or takes the place of a socket on which
// no process listens, as a server that was killed leaves it. Nothing else is ever removed. Pure
// functions over the file system; thread safe.
#ifndef HYDRANT_SERVER_SOCKET_FILE_H_
#define HYDRANT_SERVER_SOCKET_FILE_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"

namespace hydrant {

// Held from FreeSocketPath() until the new socket listens: a socket that is bound and does not
// listen yet looks like one whose process has ended. Another server waits for the lock, for a
// second at most; a file system without locks is used without.
class SocketFolderLock {
 public:
  explicit SocketFolderLock(const std::string& socket_path);
  ~SocketFolderLock();
  SocketFolderLock(const SocketFolderLock&) = delete;
  SocketFolderLock& operator=(const SocketFolderLock&) = delete;

 private:
  const int fd_;
};

// OK where bind() may make the file. Unavailable, with what to do, where a process listens there,
// or where the path is of anything but a socket. `path` fits a sockaddr_un.
absl::Status FreeSocketPath(const std::string& path);

// Which file it is, whatever its path; all zero: there is none.
struct SocketFileId {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const SocketFileId&) const = default;
};
SocketFileId SocketFileAt(const std::string& path);

// Where the path is still of that file.
void RemoveSocketFile(const std::string& path, const SocketFileId& id);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_SOCKET_FILE_H_
