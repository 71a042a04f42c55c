// Prints a daemon's information, as text or as JSON: server, model, pool, load and cache policies.
// Both functions return the exit code.
#ifndef HYDRANT_CLIENT_SERVER_INFO_H_
#define HYDRANT_CLIENT_SERVER_INFO_H_

#include <string>

#include "client/connection.h"

namespace hydrant {

// A line for each policy.
int PrintInfo(Connection* connection, bool json);
// Prints all parameters of one policy; for an unknown name exit code 2 and the known names.
int PrintPolicy(Connection* connection, const std::string& name, bool json);

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_SERVER_INFO_H_
