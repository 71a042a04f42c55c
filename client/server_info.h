// What a daemon says of itself, for a person or as JSON: server, model, pool, load and cache
// policies. Both functions return the exit code.
#ifndef HYDRANT_CLIENT_SERVER_INFO_H_
#define HYDRANT_CLIENT_SERVER_INFO_H_

#include <string>

#include "client/connection.h"

namespace hydrant {

// A line for each policy.
int PrintInfo(Connection* connection, bool json);
// All parameters of one policy; exit code 2 and the names there are where there is none of that
// name.
int PrintPolicy(Connection* connection, const std::string& name, bool json);

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_SERVER_INFO_H_
