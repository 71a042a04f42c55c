#include "scheduler/store/redis_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using Clock = std::chrono::steady_clock;

// Limit for answers other than strings. hiredis needs several times as much memory for a list of
// small elements.
constexpr size_t kMaxOtherBytes = size_t{4} << 20;
// Bytes around a string: its length and line ends.
constexpr size_t kFraming = 64;

// Words of a command up to this size are copied and sent together.
constexpr size_t kCopiedBytes = 4096;

// Waits until the socket is ready for `events`, or has failed; the next call on the socket reports
// the failure. False: the deadline passed first.
bool Await(int fd, short events, StoreDeadline deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    pollfd wanted = {fd, events, 0};
    const int ready = poll(&wanted, 1, static_cast<int>(std::min<int64_t>(left.count(), 60'000)));
    if (ready > 0 || (ready < 0 && errno != EINTR)) return true;
  }
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

// Size limit of an answer that begins with `first`.
size_t MaxBytes(char first, size_t max_bytes) {
  return first == '$' ? std::max(max_bytes, kMaxOtherBytes) + kFraming : kMaxOtherBytes;
}

}  // namespace

std::string DescriptionOf(const RedisAddress& address) {
  if (!address.socket.empty()) return absl::StrCat("the Redis at ", address.socket);
  return absl::StrCat("the Redis at ", address.host, ":", address.port);
}

absl::Status MalformedReply(const std::string& description) {
  return absl::DataLossError(
      absl::StrCat(description, " gave an answer that a Redis does not give"));
}

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisConnection::Open(const RedisAddress& address,
                                                                       StoreDeadline deadline) {
  std::unique_ptr<RedisConnection> connection(new RedisConnection(DescriptionOf(address)));
  HYDRANT_RETURN_IF_ERROR(connection->Connect(address, deadline));
  HYDRANT_RETURN_IF_ERROR(connection->Authenticate(address, deadline));
  return connection;
}

absl::Status RedisConnection::Connect(const RedisAddress& address, StoreDeadline deadline) {
  constexpr char kUnreached[] = "cannot be reached";
  context_.reset(address.socket.empty() ? redisConnectNonBlock(address.host.c_str(), address.port)
                                        : redisConnectUnixNonBlock(address.socket.c_str()));
  if (context_ == nullptr) return absl::ResourceExhaustedError("out of memory");
  if (context_->err != 0) return Lost(kUnreached, context_->errstr);
  if (!Await(context_->fd, POLLOUT, deadline)) return Lost(kUnreached, "it did not answer in time");
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(context_->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return Lost(kUnreached, std::strerror(error));
  good_ = true;
  return absl::OkStatus();
}

absl::Status RedisConnection::Authenticate(const RedisAddress& address, StoreDeadline deadline) {
  if (!address.password.empty()) {
    std::vector<std::string_view> command = {"AUTH"};
    if (!address.user.empty()) command.push_back(address.user);
    command.push_back(address.password);
    HYDRANT_RETURN_IF_ERROR(Ask(command, 0, deadline).status());
  }
  if (address.database == 0) return absl::OkStatus();
  return Ask({"SELECT", std::to_string(address.database)}, 0, deadline).status();
}

absl::StatusOr<RedisReply> RedisConnection::Ask(const std::vector<std::string_view>& command,
                                                size_t max_bytes, StoreDeadline deadline) {
  good_ = false;  // until the answer is complete
  std::string head = absl::StrCat("*", command.size(), "\r\n");
  for (const std::string_view word : command) {
    absl::StrAppend(&head, "$", word.size(), "\r\n");
    if (word.size() <= kCopiedBytes) {
      head.append(word);
    } else {
      HYDRANT_RETURN_IF_ERROR(Send(head, deadline));
      HYDRANT_RETURN_IF_ERROR(Send(word, deadline));
      head.clear();
    }
    head += "\r\n";
  }
  HYDRANT_RETURN_IF_ERROR(Send(head, deadline));
  HYDRANT_ASSIGN_OR_RETURN(RedisReply reply, Receive(max_bytes, deadline));
  good_ = true;
  if (reply->type != REDIS_REPLY_ERROR) return reply;
  return Refused(std::string(reply->str, reply->len));
}

absl::Status RedisConnection::Send(std::string_view bytes, StoreDeadline deadline) {
  while (!bytes.empty()) {
    if (!Await(context_->fd, POLLOUT, deadline))
      return Lost("does not listen", "it did not take all in time");
    const ssize_t sent =
        send(context_->fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && WouldBlock(errno)) continue;
    if (sent < 0) return Lost("does not listen", std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return absl::OkStatus();
}

absl::StatusOr<RedisReply> RedisConnection::Receive(size_t max_bytes, StoreDeadline deadline) {
  std::array<char, 65536> buffer;
  size_t taken = 0;
  char first = 0;
  while (true) {
    void* answer = nullptr;
    if (redisGetReplyFromReader(context_.get(), &answer) != REDIS_OK)
      return MalformedReply(absl::StrCat(description_, " (", context_->errstr, ")"));
    if (answer != nullptr) return RedisReply(static_cast<redisReply*>(answer));
    if (!Await(context_->fd, POLLIN, deadline)) return Lost("does not answer", "not in time");
    const ssize_t count = recv(context_->fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && WouldBlock(errno)) continue;
    if (count < 0) return Lost("does not answer", std::strerror(errno));
    if (count == 0) return Lost("does not answer", "it has closed the connection");
    if (taken == 0) first = buffer[0];
    taken += static_cast<size_t>(count);
    if (taken > MaxBytes(first, max_bytes)) {
      return absl::ResourceExhaustedError(absl::StrCat(description_, " sends more than the ",
                                                       MaxBytes(first, max_bytes),
                                                       " bytes that there is room for"));
    }
    redisReaderFeed(context_->reader, buffer.data(), static_cast<size_t>(count));
  }
}

absl::Status RedisConnection::Lost(const char* what, const std::string& why) const {
  return absl::UnavailableError(absl::StrCat(description_, " ", what, ": ", why));
}

// The error for an unknown command repeats its arguments, which may contain a password.
absl::Status RedisConnection::Refused(const std::string& error) const {
  const std::string message =
      absl::StrCat(description_, " says: ", error.substr(0, error.find(", with args")));
  if (error.starts_with("OOM")) return absl::ResourceExhaustedError(message);
  if (error.starts_with("LOADING") || error.starts_with("BUSY") ||
      error.starts_with("MASTERDOWN") || error.starts_with("CLUSTERDOWN"))
    return absl::UnavailableError(message);
  return absl::PermissionDeniedError(message);
}

}  // namespace hydrant
