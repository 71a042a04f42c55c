// Describes failed calls with advice for users. Stateless.
#ifndef HYDRANT_CLIENT_RPC_ERROR_H_
#define HYDRANT_CLIENT_RPC_ERROR_H_

#include <grpcpp/support/status.h>

#include <string>

namespace hydrant {

// "RESOURCE_EXHAUSTED".
const char* CodeName(grpc::StatusCode code);
// The server's reason ("QUEUE_FULL"); "" if there is none.
std::string ReasonOf(const grpc::Status& status);

// Whether a stream was lost or could not be opened; a server that ends a stream gives a reason. The
// request can be sent again with its seed and the received ids, and continues there.
bool WasLost(const grpc::Status& status);

// One line: the error, the server's reason, when to retry.
std::string DescribeError(const grpc::Status& status, const std::string& address);

// 0 OK; 2 invalid request; 3 no server, or not ready; 1 all else.
int ExitCodeOf(const grpc::Status& status);

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_RPC_ERROR_H_
