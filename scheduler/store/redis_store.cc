#include "scheduler/store/redis_store.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Of a string, in any Redis that was not told otherwise.
constexpr size_t kMostBytes = size_t{512} << 20;
// What a server may send in one answer, and how long it may take if it goes on sending.
constexpr size_t kMostAnswerBytes = kMostBytes + (size_t{1} << 20);
constexpr milliseconds kMostPatience{60'000};
// After a connection has failed nobody else waits for one for so long.
constexpr milliseconds kPause{1'000};

struct FreeContext {
  void operator()(redisContext* context) const { redisFree(context); }
};
struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Context = std::unique_ptr<redisContext, FreeContext>;
using Reply = std::unique_ptr<redisReply, FreeReply>;

timeval ToTimeval(int milliseconds) {
  return {.tv_sec = milliseconds / 1000, .tv_usec = milliseconds % 1000 * 1000};
}

std::string_view TextOf(const redisReply& reply) { return {reply.str, reply.len}; }

// Where a pattern means itself.
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
  RedisStore(RedisAddress address, const ContextStoreOptions& options)
      : address_(std::move(address)), options_(options) {}

  absl::Status Put(std::string_view key, std::string_view value,
                   std::optional<int64_t> ttl_seconds) override {
    HYDRANT_RETURN_IF_ERROR(CheckStoreKey(key));
    if (value.size() > kMostBytes) {
      return absl::ResourceExhaustedError(absl::StrCat("a Redis holds values of up to ", kMostBytes,
                                                       " bytes, this one has ", value.size()));
    }
    const std::string name = NameOf(key);
    std::vector<std::string_view> command = {"SET", name, value};
    const std::string ttl = std::to_string(ttl_seconds.value_or(0));
    if (ttl_seconds.has_value()) command.insert(command.end(), {"EX", ttl});
    HYDRANT_ASSIGN_OR_RETURN(const Reply reply, Ask(command));
    return reply->type == REDIS_REPLY_STATUS ? absl::OkStatus() : Nonsense();
  }

  absl::StatusOr<std::string> Get(std::string_view key) override {
    HYDRANT_RETURN_IF_ERROR(CheckStoreKey(key));
    HYDRANT_ASSIGN_OR_RETURN(const Reply reply, Ask({"GET", NameOf(key)}));
    if (reply->type == REDIS_REPLY_NIL)
      return absl::NotFoundError(absl::StrCat(Description(), " has no ", NameOf(key)));
    if (reply->type != REDIS_REPLY_STRING) return Nonsense();
    return std::string(TextOf(*reply));
  }

  absl::Status Delete(std::string_view key) override {
    HYDRANT_RETURN_IF_ERROR(CheckStoreKey(key));
    HYDRANT_ASSIGN_OR_RETURN(const Reply reply, Ask({"DEL", NameOf(key)}));
    return reply->type == REDIS_REPLY_INTEGER ? absl::OkStatus() : Nonsense();
  }

  absl::StatusOr<std::vector<StoredKey>> List(std::string_view prefix) override {
    std::vector<StoredKey> keys;
    std::string cursor = "0";
    do {
      HYDRANT_ASSIGN_OR_RETURN(cursor, Scan(cursor, prefix, &keys));
    } while (cursor != "0");
    std::sort(keys.begin(), keys.end(),
              [](const StoredKey& a, const StoredKey& b) { return a.key < b.key; });
    // A scan may name a key more than once.
    const auto same = [](const StoredKey& a, const StoredKey& b) { return a.key == b.key; };
    keys.erase(std::unique(keys.begin(), keys.end(), same), keys.end());
    for (StoredKey& stored : keys) {
      HYDRANT_ASSIGN_OR_RETURN(const Reply reply, Ask({"STRLEN", NameOf(stored.key)}));
      if (reply->type != REDIS_REPLY_INTEGER) return Nonsense();
      stored.bytes = reply->integer;
    }
    return keys;
  }

  std::string Description() const override {
    if (!address_.socket.empty()) return absl::StrCat("the Redis at ", address_.socket);
    return absl::StrCat("the Redis at ", address_.host, ":", address_.port);
  }

 private:
  std::string NameOf(std::string_view key) const {
    return absl::StrCat(address_.prefix, std::string(key));
  }

  absl::Status Nonsense() const {
    return absl::DataLossError(
        absl::StrCat(Description(), " gave an answer that a Redis does not give"));
  }

  // The next cursor.
  absl::StatusOr<std::string> Scan(const std::string& cursor, std::string_view prefix,
                                   std::vector<StoredKey>* keys) {
    const std::string pattern = Escaped(NameOf(prefix)) + "*";
    HYDRANT_ASSIGN_OR_RETURN(const Reply reply,
                             Ask({"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"}));
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2) return Nonsense();
    const redisReply& next = *reply->element[0];
    const redisReply& found = *reply->element[1];
    if (next.type != REDIS_REPLY_STRING || found.type != REDIS_REPLY_ARRAY) return Nonsense();
    for (size_t i = 0; i < found.elements; ++i) {
      const redisReply& name = *found.element[i];
      if (name.type != REDIS_REPLY_STRING || !TextOf(name).starts_with(address_.prefix))
        return Nonsense();
      std::string key(TextOf(name).substr(address_.prefix.size()));
      if (CheckStoreKey(key).ok()) keys->push_back({std::move(key), 0});
    }
    return std::string(TextOf(next));
  }

  // One command. A connection that was idle may have been closed meanwhile: then a new one is tried
  // once.
  absl::StatusOr<Reply> Ask(const std::vector<std::string_view>& command) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool was_idle = context_ != nullptr;
    absl::StatusOr<Reply> reply = TryAsk(command);
    if (was_idle && absl::IsUnavailable(reply.status()) && !timed_out_) reply = TryAsk(command);
    return reply;
  }

  // REQUIRES: mutex_ is held, for all below.
  absl::StatusOr<Reply> TryAsk(const std::vector<std::string_view>& command) {
    timed_out_ = false;
    HYDRANT_RETURN_IF_ERROR(Connect());
    return Command(command);
  }

  absl::Status Connect() {
    if (context_ != nullptr) return absl::OkStatus();
    if (Clock::now() < pause_until_) return failed_;
    const timeval timeout = ToTimeval(options_.connect_timeout_ms);
    context_.reset(address_.socket.empty()
                       ? redisConnectWithTimeout(address_.host.c_str(), address_.port, timeout)
                       : redisConnectUnixWithTimeout(address_.socket.c_str(), timeout));
    absl::Status status =
        context_ == nullptr ? absl::ResourceExhaustedError("out of memory") : absl::OkStatus();
    if (status.ok() && context_->err != 0) status = Lost("cannot be reached");
    if (status.ok()) redisSetTimeout(context_.get(), ToTimeval(options_.io_timeout_ms));
    if (status.ok()) status = Introduce();
    if (status.ok()) return status;
    context_.reset();
    failed_ = status;
    pause_until_ = Clock::now() + kPause;
    return status;
  }

  absl::Status Introduce() {
    if (!address_.password.empty()) {
      std::vector<std::string_view> command = {"AUTH"};
      if (!address_.user.empty()) command.push_back(address_.user);
      command.push_back(address_.password);
      HYDRANT_RETURN_IF_ERROR(Command(command).status());
    }
    if (address_.database == 0) return absl::OkStatus();
    return Command({"SELECT", std::to_string(address_.database)}).status();
  }

  absl::StatusOr<Reply> Command(const std::vector<std::string_view>& command) {
    const Clock::time_point deadline = Clock::now() + kMostPatience;
    std::vector<const char*> words;
    std::vector<size_t> sizes;
    for (const std::string_view word : command) {
      words.push_back(word.data());
      sizes.push_back(word.size());
    }
    if (redisAppendCommandArgv(context_.get(), static_cast<int>(words.size()), words.data(),
                               sizes.data()) != REDIS_OK)
      return Lost("takes no command");
    for (int done = 0; done == 0;) {
      if (redisBufferWrite(context_.get(), &done) != REDIS_OK) return Lost("does not listen");
    }
    void* answer = nullptr;
    while (redisGetReplyFromReader(context_.get(), &answer) == REDIS_OK && answer == nullptr) {
      if (redisBufferRead(context_.get()) != REDIS_OK) return Lost("does not answer");
      if (context_->reader->len > kMostAnswerBytes || Clock::now() > deadline) {
        context_.reset();
        return Nonsense();
      }
    }
    if (answer == nullptr) return Lost("gave an answer that a Redis does not give");
    Reply reply(static_cast<redisReply*>(answer));
    if (reply->type != REDIS_REPLY_ERROR) return reply;
    return Refused(std::string(TextOf(*reply)));
  }

  // The connection is of no use any more.
  absl::Status Lost(const char* what) {
    const int error = context_->err;
    const std::string why = context_->errstr;
    timed_out_ = error == REDIS_ERR_IO && (errno == EAGAIN || errno == ETIMEDOUT);
    context_.reset();
    const std::string message = absl::StrCat(Description(), " ", what, ": ", why);
    return error == REDIS_ERR_PROTOCOL ? absl::DataLossError(message)
                                       : absl::UnavailableError(message);
  }

  // Its words do not repeat what was sent.
  absl::Status Refused(const std::string& error) const {
    const std::string message = absl::StrCat(Description(), " says: ", error);
    if (error.starts_with("OOM")) return absl::ResourceExhaustedError(message);
    if (error.starts_with("LOADING") || error.starts_with("BUSY") ||
        error.starts_with("MASTERDOWN") || error.starts_with("CLUSTERDOWN"))
      return absl::UnavailableError(message);
    return absl::PermissionDeniedError(message);
  }

  const RedisAddress address_;
  const ContextStoreOptions options_;

  std::mutex mutex_;
  // Guarded by mutex_.
  Context context_;  // null: there is no connection
  bool timed_out_ = false;
  Clock::time_point pause_until_;
  absl::Status failed_;  // why there is a pause
};

}  // namespace

std::unique_ptr<ContextStore> OpenRedisStore(RedisAddress address,
                                             const ContextStoreOptions& options) {
  return std::make_unique<RedisStore>(std::move(address), options);
}

}  // namespace hydrant
