// How many files and sockets this process may have open.
#ifndef HYDRANT_SERVER_NET_DESCRIPTOR_LIMIT_H_
#define HYDRANT_SERVER_NET_DESCRIPTOR_LIMIT_H_

namespace hydrant {

// Raises the soft limit to the hard one: distributions keep the soft one at 1024 for programs that
// use select(), and this one does not. Returns the limit that holds then.
int RaiseDescriptorLimit();

// The limit that holds now.
int DescriptorLimit();

// What of `limit` connections may have; the rest is kept for files, the metrics port and the log.
int DescriptorsForConnections(int limit);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_DESCRIPTOR_LIMIT_H_
