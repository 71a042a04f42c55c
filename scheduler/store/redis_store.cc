#include "scheduler/store/redis_store.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/mutex.h"
#include "kernels/status_macros.h"
#include "scheduler/store/redis_connection.h"

namespace hydrant {
namespace {

// Redis' default limit of a string.
constexpr size_t kMaxBytes = size_t{512} << 20;
// Idle connections kept for later calls.
constexpr size_t kMaxIdle = 8;

std::string_view TextOf(const redisReply& reply) { return {reply.str, reply.len}; }

// Escapes the special characters of a pattern.
std::string Escaped(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view("*?[]^-\\").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

class RedisStore final : public ContextStore {
 public:
  explicit RedisStore(RedisAddress address) : address_(std::move(address)) {}

  absl::Status Put(std::string_view key, std::string_view value, std::optional<int64_t> ttl_seconds,
                   StoreDeadline deadline) override {
    HYDRANT_RETURN_IF_ERROR(CheckStoreKey(key));
    if (value.size() > kMaxBytes) {
      return absl::ResourceExhaustedError(absl::StrCat("a Redis holds values of up to ", kMaxBytes,
                                                       " bytes, this one has ", value.size()));
    }
    const std::string name = NameOf(key);
    std::vector<std::string_view> command = {"SET", name, value};
    const std::string ttl = std::to_string(ttl_seconds.value_or(0));
    if (ttl_seconds.has_value()) command.insert(command.end(), {"EX", ttl});
    HYDRANT_ASSIGN_OR_RETURN(const RedisReply reply, Ask(command, 0, deadline));
    return reply->type == REDIS_REPLY_STATUS ? absl::OkStatus() : MalformedAnswer();
  }

  absl::StatusOr<std::string> Get(std::string_view key, size_t max_bytes,
                                  StoreDeadline deadline) override {
    HYDRANT_RETURN_IF_ERROR(CheckStoreKey(key));
    HYDRANT_ASSIGN_OR_RETURN(const RedisReply reply,
                             Ask({"GET", NameOf(key)}, std::min(max_bytes, kMaxBytes), deadline));
    if (reply->type == REDIS_REPLY_NIL) return HasNone(key);
    if (reply->type != REDIS_REPLY_STRING) return MalformedAnswer();
    if (reply->len > max_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          Description(), " has ", reply->len, " bytes, and there is room for ", max_bytes));
    }
    return std::string(TextOf(*reply));
  }

  absl::StatusOr<int64_t> SizeOf(std::string_view key, StoreDeadline deadline) override {
    HYDRANT_RETURN_IF_ERROR(CheckStoreKey(key));
    HYDRANT_ASSIGN_OR_RETURN(const int64_t bytes, AskForNumber({"STRLEN", NameOf(key)}, deadline));
    if (bytes > 0) return bytes;
    HYDRANT_ASSIGN_OR_RETURN(const int64_t found, AskForNumber({"EXISTS", NameOf(key)}, deadline));
    if (found > 0) return 0;
    return HasNone(key);
  }

  absl::StatusOr<bool> Delete(std::string_view key, StoreDeadline deadline) override {
    HYDRANT_RETURN_IF_ERROR(CheckStoreKey(key));
    HYDRANT_ASSIGN_OR_RETURN(const int64_t deleted, AskForNumber({"DEL", NameOf(key)}, deadline));
    return deleted > 0;
  }

  absl::StatusOr<std::vector<StoredKey>> List(std::string_view prefix,
                                              StoreDeadline deadline) override {
    std::vector<StoredKey> keys;
    std::string cursor = "0";
    do {
      HYDRANT_ASSIGN_OR_RETURN(cursor, Scan(cursor, prefix, &keys, deadline));
      if (keys.size() > kMaxListedKeys) return TooManyKeys(Description());
      if (std::chrono::steady_clock::now() > deadline) return DeadlineError(Description());
    } while (cursor != "0");
    std::sort(keys.begin(), keys.end(),
              [](const StoredKey& a, const StoredKey& b) { return a.key < b.key; });
    // A scan may return a key more than once.
    const auto same = [](const StoredKey& a, const StoredKey& b) { return a.key == b.key; };
    keys.erase(std::unique(keys.begin(), keys.end(), same), keys.end());
    for (StoredKey& stored : keys) {
      HYDRANT_ASSIGN_OR_RETURN(stored.bytes,
                               AskForNumber({"STRLEN", NameOf(stored.key)}, deadline));
    }
    return keys;
  }

  std::string Description() const override { return DescriptionOf(address_); }

 private:
  std::string NameOf(std::string_view key) const {
    return absl::StrCat(address_.prefix, std::string(key));
  }

  absl::Status MalformedAnswer() const { return MalformedReply(Description()); }
  absl::Status HasNone(std::string_view key) const {
    return absl::NotFoundError(absl::StrCat(Description(), " has no ", NameOf(key)));
  }

  // Returns the next cursor.
  absl::StatusOr<std::string> Scan(const std::string& cursor, std::string_view prefix,
                                   std::vector<StoredKey>* keys, StoreDeadline deadline) {
    const std::string pattern = Escaped(NameOf(prefix)) + "*";
    HYDRANT_ASSIGN_OR_RETURN(const RedisReply reply,
                             Ask({"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"}, 0, deadline));
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2) return MalformedAnswer();
    const redisReply& next = *reply->element[0];
    const redisReply& found = *reply->element[1];
    if (next.type != REDIS_REPLY_STRING || found.type != REDIS_REPLY_ARRAY)
      return MalformedAnswer();
    for (size_t i = 0; i < found.elements; ++i) {
      const redisReply& name = *found.element[i];
      if (name.type != REDIS_REPLY_STRING || !TextOf(name).starts_with(address_.prefix))
        return MalformedAnswer();
      std::string key(TextOf(name).substr(address_.prefix.size()));
      if (CheckStoreKey(key).ok()) keys->push_back({std::move(key), 0});
    }
    return std::string(TextOf(next));
  }

  absl::StatusOr<int64_t> AskForNumber(const std::vector<std::string_view>& command,
                                       StoreDeadline deadline) {
    HYDRANT_ASSIGN_OR_RETURN(const RedisReply reply, Ask(command, 0, deadline));
    if (reply->type != REDIS_REPLY_INTEGER) return MalformedAnswer();
    return static_cast<int64_t>(reply->integer);
  }

  // Sends one command. The server may have closed an idle connection; then one new connection is
  // tried.
  absl::StatusOr<RedisReply> Ask(const std::vector<std::string_view>& command, size_t max_bytes,
                                 StoreDeadline deadline) {
    if (std::unique_ptr<RedisConnection> idle = TakeIdle()) {
      absl::StatusOr<RedisReply> reply = AskBy(std::move(idle), command, max_bytes, deadline);
      if (!absl::IsUnavailable(reply.status()) || std::chrono::steady_clock::now() >= deadline)
        return reply;
    }
    HYDRANT_ASSIGN_OR_RETURN(std::unique_ptr<RedisConnection> fresh,
                             RedisConnection::Open(address_, deadline));
    return AskBy(std::move(fresh), command, max_bytes, deadline);
  }

  absl::StatusOr<RedisReply> AskBy(std::unique_ptr<RedisConnection> connection,
                                   const std::vector<std::string_view>& command, size_t max_bytes,
                                   StoreDeadline deadline) {
    absl::StatusOr<RedisReply> reply = connection->Ask(command, max_bytes, deadline);
    if (!connection->IsGood()) return reply;
    const MutexLock lock(mutex_);
    if (idle_.size() < kMaxIdle) idle_.push_back(std::move(connection));
    return reply;
  }

  std::unique_ptr<RedisConnection> TakeIdle() {
    const MutexLock lock(mutex_);
    if (idle_.empty()) return nullptr;
    std::unique_ptr<RedisConnection> idle = std::move(idle_.back());
    idle_.pop_back();
    return idle;
  }

  const RedisAddress address_;
  Mutex mutex_;
  std::vector<std::unique_ptr<RedisConnection>> idle_ HYDRANT_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<ContextStore> OpenRedisStore(RedisAddress address) {
  return std::make_unique<RedisStore>(std::move(address));
}

}  // namespace hydrant
