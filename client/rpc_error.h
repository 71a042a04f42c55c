// A failed call in words a person can act on. Stateless.
#ifndef HYDRANT_CLIENT_RPC_ERROR_H_
#define HYDRANT_CLIENT_RPC_ERROR_H_

#include <grpcpp/support/status.h>

#include <string>

namespace hydrant {

// "RESOURCE_EXHAUSTED".
const char* CodeName(grpc::StatusCode code);
// The server's reason word ("QUEUE_FULL"); empty where it gives none.
std::string ReasonOf(const grpc::Status& status);

// Whether a stream was lost on the way, or could not be opened: a server that ends one gives a
// reason. Sent again with its seed and the ids received so far it goes on where it ended.
bool WasLost(const grpc::Status& status);

// One line: what happened, the server's reason word, when to retry.
std::string DescribeError(const grpc::Status& status, const std::string& address);

// 0 OK; 2 the request was refused as wrong; 3 nobody is there, or not now; 1 all else.
int ExitCodeOf(const grpc::Status& status);

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_RPC_ERROR_H_
