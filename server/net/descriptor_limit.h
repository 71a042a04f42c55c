// The process's limit of open files and sockets.
#ifndef HYDRANT_SERVER_NET_DESCRIPTOR_LIMIT_H_
#define HYDRANT_SERVER_NET_DESCRIPTOR_LIMIT_H_

namespace hydrant {

// Raises the soft limit to the hard one: distributions keep the soft one at 1024 for programs that
// use select(), which this one does not. Returns the new limit.
int RaiseDescriptorLimit();

// The current limit.
int DescriptorLimit();

// The share of `limit` for connections; the rest is reserved for files, the metrics port and
// the log.
int DescriptorsForConnections(int limit);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_DESCRIPTOR_LIMIT_H_
