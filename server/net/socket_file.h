// The file of a unix socket. A new socket may replace a socket file on which no process listens,
// such as a killed server leaves behind. No other file is ever removed. Stateless functions over
// the file system; thread safe.
#ifndef HYDRANT_SERVER_NET_SOCKET_FILE_H_
#define HYDRANT_SERVER_NET_SOCKET_FILE_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"

namespace hydrant {

// Hold it from before FreeSocketPath() until the new socket listens: a socket that is bound but
// does not listen yet looks like that of an ended process. Another server waits at most a second
// for the lock. After that, or if the file system has no locks, it continues without the lock.
class SocketFolderLock {
 public:
  explicit SocketFolderLock(const std::string& socket_path);
  ~SocketFolderLock();
  SocketFolderLock(const SocketFolderLock&) = delete;
  SocketFolderLock& operator=(const SocketFolderLock&) = delete;

 private:
  const int fd_;
};

// OK: bind() may create the file. Unavailable, with a message that says what to do: a process
// listens there or may listen there, the path is no socket, or the stale socket cannot be removed.
// REQUIRES: `path` fits a sockaddr_un.
absl::Status FreeSocketPath(const std::string& path);

// Identifies a file independently of its path. All zero: there is no file.
struct SocketFileId {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const SocketFileId&) const = default;
};
SocketFileId SocketFileAt(const std::string& path);

// Removes the file at `path` if it is still the file `id`.
void RemoveSocketFile(const std::string& path, const SocketFileId& id);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_SOCKET_FILE_H_
