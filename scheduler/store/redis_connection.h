// One connection to a Redis. Every wait ends at a deadline, and every answer has a size limit. Not
// thread safe.
#ifndef HYDRANT_SCHEDULER_STORE_REDIS_CONNECTION_H_
#define HYDRANT_SCHEDULER_STORE_REDIS_CONNECTION_H_

#include <hiredis/hiredis.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/store/redis_store.h"
#include "scheduler/store/store_wait.h"

namespace hydrant {

struct FreeRedisReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using RedisReply = std::unique_ptr<redisReply, FreeRedisReply>;

std::string DescriptionOf(const RedisAddress& address);
absl::Status MalformedReply(const std::string& description);

class RedisConnection {
 public:
  // Connects, sends the password and selects the database. Errors as ContextStore's. Resolving a
  // host name has no deadline.
  static absl::StatusOr<std::unique_ptr<RedisConnection>> Open(const RedisAddress& address,
                                                               StoreDeadline deadline);

  // Sends one command and reads its answer. RESOURCE_EXHAUSTED: a string has more than
  // max(max_bytes, a few megabytes), or another answer more than a few megabytes. An error from the
  // Redis is returned as a status.
  absl::StatusOr<RedisReply> Ask(const std::vector<std::string_view>& command, size_t max_bytes,
                                 StoreDeadline deadline);
  // False: the connection cannot send another command.
  bool IsGood() const { return good_; }

 private:
  struct FreeContext {
    void operator()(redisContext* context) const { redisFree(context); }
  };

  explicit RedisConnection(std::string description) : description_(std::move(description)) {}
  absl::Status Connect(const RedisAddress& address, StoreDeadline deadline);
  absl::Status Authenticate(const RedisAddress& address, StoreDeadline deadline);
  absl::Status Send(std::string_view bytes, StoreDeadline deadline);
  absl::StatusOr<RedisReply> Receive(size_t max_bytes, StoreDeadline deadline);
  absl::Status Lost(const char* what, const std::string& why) const;
  absl::Status Refused(const std::string& error) const;

  const std::string description_;
  std::unique_ptr<redisContext, FreeContext> context_;
  bool good_ = false;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_STORE_REDIS_CONNECTION_H_
