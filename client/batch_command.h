// `hydrant batch`: sends the requests of a file in one call, and prints each result. Input and
// output have a JSON object a line.
#ifndef HYDRANT_CLIENT_BATCH_COMMAND_H_
#define HYDRANT_CLIENT_BATCH_COMMAND_H_

#include <string>

#include "client/connection.h"
#include "client/request_flags.h"

namespace hydrant {

// `lines`: requests in protobuf's JSON; fields that a line does not set are as in `flags`. Prints
// each result to stdout when its request has ended, and a summary to stderr unless quiet. Returns
// the exit code: 1 if a request failed.
int RunBatch(Connection* connection, const std::string& lines, const RequestFlags& flags,
             bool quiet);

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_BATCH_COMMAND_H_
