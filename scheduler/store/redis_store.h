// A Redis, or a server with its protocol (Valkey, KeyDB, Dragonfly); each key is a string there.
#ifndef HYDRANT_SCHEDULER_STORE_REDIS_STORE_H_
#define HYDRANT_SCHEDULER_STORE_REDIS_STORE_H_

#include <memory>
#include <string>

#include "scheduler/store/context_store.h"

namespace hydrant {

struct RedisAddress {
  std::string socket;  // a path; "": host and port
  std::string host;
  int port = 6379;
  std::string user, password;  // "": none
  int database = 0;
  std::string prefix = "hydrant:";  // of every key in the Redis
};

// A call without an idle connection opens one, so that calls do not wait for each other.
std::unique_ptr<ContextStore> OpenRedisStore(RedisAddress address);

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_STORE_REDIS_STORE_H_
