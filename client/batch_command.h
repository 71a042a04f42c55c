// `hydrant batch`: the requests of a file, a JSON object a line, in one call, and what became of
// each, a JSON object a line.
#ifndef HYDRANT_CLIENT_BATCH_COMMAND_H_
#define HYDRANT_CLIENT_BATCH_COMMAND_H_

#include <string>

#include "client/connection.h"
#include "client/request_flags.h"

namespace hydrant {

// `lines`: requests as protobuf's JSON has them; what a line does not set is as in `flags`. Prints
// each to stdout when it has ended, and with quiet unset a line about all to stderr. Returns the
// exit code: 1 where one has failed.
int RunBatch(Connection* connection, const std::string& lines, const RequestFlags& flags,
             bool quiet);

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_BATCH_COMMAND_H_
