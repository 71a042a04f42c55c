#include "server/net/connection_guard.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <utility>

namespace hydrant {
namespace {

// In this time a connection sends up to 20 MB over loopback, or begins 500 calls.
constexpr int kBetweenLooksMs = 20;
// Bytes of a connection after which the guard asks gRPC for its counters: 500 calls in their
// shortest form.
constexpr uint64_t kBytesBetweenQuestions = 16 << 10;
// Time after which it asks again if gRPC may not have processed all bytes.
constexpr std::chrono::milliseconds kBetweenQuestions{100};
// All connections are checked at this interval, even without epoll events: epoll does not report
// bytes read before the connection was added if the connection is not writable.
constexpr std::chrono::milliseconds kBetweenRounds{1000};
// Unseen bytes of all connections together, above which the guard asks gRPC: these may be 4,000
// calls in their shortest form, and each takes 32 KiB of memory.
constexpr uint64_t kMaxUnseenBytes = 64 << 10;
// The longest that a connection waits for others of its network to be freed.
constexpr std::chrono::seconds kLongestWait{10};
// kHandshake: a connection that gRPC does not list yet counts as new for this long. kSlowStart: a
// new connection may have calls without a message for this long while others wait for its place.
constexpr std::chrono::milliseconds kHandshake{100};
constexpr std::chrono::milliseconds kSlowStart{500};
// Calls without a message that a connection may have without counting as new.
constexpr uint64_t kFewCalls = 8;
// Share of max_held_bytes above which no new connection is admitted. Live connections may always
// hold this share together, even if gRPC frees the ended ones slowly.
constexpr double kFullPart = 0.75;
constexpr auto kNever = std::chrono::steady_clock::time_point::max();
constexpr size_t kMaxUnread = 1 << 30;

struct Bytes {
  uint64_t received = 0, sent = 0;
};
// nullopt: the socket is closed, or the kernel has no counters (before Linux 4.19).
std::optional<Bytes> BytesOf(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      size < offsetof(tcp_info, tcpi_bytes_sent) + sizeof(info.tcpi_bytes_sent))
    return std::nullopt;
  return Bytes{.received = info.tcpi_bytes_received, .sent = info.tcpi_bytes_sent};
}

uint64_t UnreadBytes(int fd) {
  int bytes = 0;
  return ioctl(fd, FIONREAD, &bytes) == 0 ? static_cast<uint64_t>(std::max(bytes, 0)) : 0;
}

bool IsClosed(int fd) {
  pollfd polled{fd, POLLRDHUP, 0};
  return poll(&polled, 1, 0) > 0;
}

}  // namespace

ConnectionGuard::ConnectionGuard(const ConnectionLimits& limits, ConnectionGuardMetrics* metrics,
                                 std::function<void(int fd)> take)
    : limits_(limits),
      metrics_(metrics),
      take_(std::move(take)),
      epoll_fd_(epoll_create1(EPOLL_CLOEXEC)),
      stop_fd_(eventfd(0, EFD_CLOEXEC)) {
  epoll_event stop{.events = EPOLLIN, .data = {.fd = stop_fd_}};
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, stop_fd_, &stop);
  thread_ = std::thread([this] { Run(); });
}

void ConnectionGuard::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!write(stop_fd_, &one, sizeof(one));
  thread_.join();
  close(epoll_fd_);
  close(stop_fd_);
  const MutexLock lock(mutex_);
  for (const ConnectionQueue::Waiting& waiting : queue_.TakeAll()) close(waiting.fd);
}

void ConnectionGuard::Take(int fd) {
  if (const std::optional<SocketPair> pair = SocketPairOf(fd); pair.has_value()) {
    const MutexLock lock(mutex_);
    const std::string network = NetworkOf(pair->remote);
    const Clock::time_point now = Clock::now();
    const auto wait = backoff_.Wait(network, now);
    if (wait.count() > 0 || !queue_.HasRoom(network) || queue_.AnyWaitingOf(network))
      return queue_.Add({.fd = fd, .network = network, .since = now, .until = now + wait});
    queue_.Enter(network);
    Watch(fd, *pair);
  }
  take_(fd);
}

void ConnectionGuard::Watch(int fd, const SocketPair& pair) {
  Forget(fd);  // a former connection with the same descriptor
  const Clock::time_point now = Clock::now();
  watched_[fd] = {.inode = InodeOf(fd), .pair = pair, .seen_at = now, .new_since = now};
  busy_.insert(fd);  // if it closes before epoll reports it, Forget() frees its place
  // EPOLLET reports new bytes even if gRPC has already read them; level-triggered EPOLLIN would
  // not. Closing the descriptor removes it from epoll.
  epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLET, .data = {.fd = fd}};
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
}

void ConnectionGuard::Forget(int fd) {
  const auto found = watched_.find(fd);
  if (found == watched_.end()) return;
  if (found->second.is_new) queue_.Settle(NetworkOf(found->second.pair.remote));
  watched_.erase(found);
}

void ConnectionGuard::Run() {
  pollfd stop{stop_fd_, POLLIN, 0};
  do {
    PollReady();
    AdmitWaiting();
  } while (poll(&stop, 1, kBetweenLooksMs) <= 0);
}

void ConnectionGuard::PollReady() {
  std::array<epoll_event, 1024> events{};
  MutexLock lock(mutex_);
  // While none of these conditions holds, no connection needs attention, so epoll may block. New
  // connections are in busy_.
  const bool rests =
      busy_.empty() && !queue_.AnyWaiting() && !queue_.IsFull() && !backoff_.Any(Clock::now());
  lock.Unlock();
  const int timeout_ms = rests ? static_cast<int>(kBetweenRounds.count()) : 0;
  const int ready = epoll_wait(epoll_fd_, events.data(), events.size(), timeout_ms);
  lock.Lock();
  for (int i = 0; i < ready; ++i) busy_.insert(events[i].data.fd);
  if (const auto now = Clock::now(); now >= next_round_) {
    next_round_ = now + kBetweenRounds;
    for (const auto& [fd, connection] : watched_) busy_.insert(fd);
  }
  has_found_ids_ = false;
  std::erase_if(busy_, [this](int fd) HYDRANT_REQUIRES(mutex_) {
    const auto found = watched_.find(fd);
    if (found == watched_.end()) return true;
    if (Measure(fd, &found->second)) return false;
    Forget(fd);
    return true;
  });
  QueryBusy();
  EndLargest();
}

bool ConnectionGuard::Measure(int fd, Watched* connection) {
  // The descriptor may have been closed and reused for a waiting connection.
  if (InodeOf(fd) != connection->inode) return false;
  const std::optional<Bytes> bytes = BytesOf(fd);
  if (!bytes.has_value()) return false;
  const uint64_t unread = std::min(UnreadBytes(fd), bytes->received);
  const uint64_t read = bytes->received - unread;
  connection->has_unread = unread > 0;
  connection->unseen_bytes = read - std::min(read, connection->seen_bytes);
  return true;
}

bool ConnectionGuard::IsDue(const Watched& connection, Clock::time_point now) const {
  return connection.unseen_bytes >= kBytesBetweenQuestions || now >= connection.again_at ||
         ((connection.is_new || connection.id == 0) && connection.unseen_bytes > 0);
}

void ConnectionGuard::QueryBusy() {
  const Clock::time_point now = Clock::now();
  std::vector<int> due;
  std::vector<std::pair<uint64_t, int>> rest;  // bytes and descriptor
  uint64_t unseen = 0;
  for (const auto& [fd, connection] : watched_) {
    if (IsDue(connection, now)) {
      due.push_back(fd);
    } else if (connection.unseen_bytes > 0 && connection.id != 0) {
      rest.emplace_back(connection.unseen_bytes, fd);
      unseen += connection.unseen_bytes;
    }
  }
  std::ranges::sort(rest, std::greater());
  for (auto one = rest.begin(); unseen > kMaxUnseenBytes; ++one) {
    due.push_back(one->second);
    unseen -= one->first;
  }
  for (const int fd : due) {
    if (!QueryCalls(fd, &watched_.at(fd))) Forget(fd);
  }
  std::erase_if(busy_, [&](int fd) HYDRANT_REQUIRES(mutex_) {
    const auto found = watched_.find(fd);
    if (found == watched_.end()) return true;
    Watched& connection = found->second;
    Place(&connection, now);
    return !connection.is_new && !connection.has_unread && connection.again_at == kNever;
  });
}

bool ConnectionGuard::QueryCalls(int fd, Watched* connection) {
  const std::optional<Bytes> bytes = BytesOf(fd);
  if (!bytes.has_value()) return false;
  const Clock::time_point now = Clock::now();
  if (connection->id == 0 && !std::exchange(has_found_ids_, true)) FindIds();
  const std::optional<SocketCalls> calls = CallsOfSocket(connection->id);
  // gRPC may not have processed all bytes that it has read.
  const bool is_behind = connection->unseen_bytes > 0 || connection->has_unread;
  connection->again_at = is_behind ? now + kBetweenQuestions : kNever;
  if (!calls.has_value()) return true;  // in its handshake, or closing
  const auto elapsed = now - std::exchange(connection->seen_at, now);
  connection->seen_bytes += std::exchange(connection->unseen_bytes, 0);
  ConnectionRecord& record = connection->record;
  const ConnectionRecord::Verdict verdict = record.Judge(
      limits_, {.bytes_received = bytes->received, .bytes_sent = bytes->sent, .calls = *calls},
      elapsed);
  if (!verdict.holds) {
    End(fd, *connection, verdict.broken);
    return false;
  }
  if (!is_behind && record.held_bytes() > 0) connection->again_at = now + kBetweenRounds;
  return true;
}

void ConnectionGuard::Place(Watched* connection, Clock::time_point now) {
  const ConnectionRecord& record = connection->record;
  const bool asks_much = connection->has_unread || record.calls_without_message() > kFewCalls;
  const std::string network = NetworkOf(connection->pair.remote);
  if (connection->is_new) {
    const bool is_seen = connection->unseen_bytes == 0 ||
                         (connection->id == 0 && now >= connection->new_since + kHandshake);
    if (asks_much || !is_seen) return;
    connection->is_new = false;
    queue_.Settle(network);
  } else if (asks_much && !record.has_begun()) {  // it had sent nothing when it was admitted
    connection->is_new = true;
    connection->new_since = now;
    queue_.Enter(network);
  }
}

void ConnectionGuard::EndLargest() {
  std::vector<std::pair<double, int>> holders;  // bytes and descriptor
  double held = 0, ended = 0;
  for (const auto& [fd, connection] : watched_) {
    const double bytes = connection.record.held_bytes();
    if (bytes > 0) holders.emplace_back(bytes, fd);
    held += bytes;
  }
  for (const Ended& one : ended_) ended += one.held_bytes;
  const double most = limits_.max_held_bytes;
  const double allowed = std::max(most - ended, kFullPart * most);
  if (held > allowed) std::ranges::sort(holders, std::greater());
  for (auto one = holders.begin(); one != holders.end() && held > allowed; ++one) {
    End(one->second, watched_.at(one->second), ConnectionRule::kMemory);
    Forget(one->second);
    held -= one->first;
    ended += one->first;
  }
  queue_.SetFull(held + ended > kFullPart * most);
}

// Whether the connection has waited long enough for ended connections of its network.
bool ConnectionGuard::IsFree(const ConnectionQueue::Waiting& waiting, Clock::time_point now) const {
  if (now < waiting.until) return false;
  return now >= waiting.until + kLongestWait ||
         std::none_of(ended_.begin(), ended_.end(), [&waiting](const Ended& ended) {
           return ended.holds_others_up && ended.network == waiting.network;
         });
}

void ConnectionGuard::AdmitWaiting() {
  ConnectionQueue::Next next;
  {
    const MutexLock lock(mutex_);
    while (!ended_.empty() && !CallsOfSocket(ended_.front().id).has_value()) ended_.pop_front();
    const Clock::time_point now = Clock::now();
    next = queue_.Choose(now, UnreadBytes, [this, now](const ConnectionQueue::Waiting& waiting) {
      return IsFree(waiting, now);
    });
    if (next.lacks_room) EndSlowStarts(now);
    // The client of a waiting connection may be gone and have left many bytes; gRPC does not
    // get it.
    std::erase_if(
        next.enter, [this](const ConnectionQueue::Waiting& waiting) HYDRANT_REQUIRES(mutex_) {
          const auto pair = IsClosed(waiting.fd) ? std::nullopt : SocketPairOf(waiting.fd);
          if (pair.has_value()) {
            Watch(waiting.fd, *pair);
          } else {
            queue_.Settle(waiting.network);
            close(waiting.fd);
          }
          return !pair.has_value();
        });
  }
  for (const ConnectionQueue::Waiting& waiting : next.refuse) Refuse(waiting);
  for (const ConnectionQueue::Waiting& waiting : next.enter) take_(waiting.fd);
}

void ConnectionGuard::Refuse(const ConnectionQueue::Waiting& waiting) {
  const std::optional<SocketPair> pair = SocketPairOf(waiting.fd);
  close(waiting.fd);
  if (refused_log_.Due())
    spdlog::error("a connection of {} was closed unread ({} so far): more come than can be served",
                  pair.has_value() ? AddressText(pair->remote) : "a client that has gone",
                  refused_log_.count());
}

void ConnectionGuard::EndSlowStarts(Clock::time_point now) {
  std::vector<int> slow;
  for (const auto& [fd, connection] : watched_) {
    // Unread bytes do not count, because they may be gRPC's delay.
    if (connection.is_new && connection.record.calls_without_message() > kFewCalls &&
        now >= connection.new_since + kSlowStart)
      slow.push_back(fd);
  }
  for (const int fd : slow) {
    End(fd, watched_.at(fd), ConnectionRule::kSlowStart);
    Forget(fd);
  }
}

void ConnectionGuard::FindIds() {
  const std::map<SocketPair, int64_t> fresh = ids_.New();
  for (auto& [fd, connection] : watched_) {
    if (connection.id != 0) continue;
    if (const auto found = fresh.find(connection.pair); found != fresh.end())
      connection.id = found->second;
  }
}

void ConnectionGuard::End(int fd, const Watched& connection, ConnectionRule rule) {
  // If gRPC has closed the descriptor, its number may have been reused. The copy refers to a
  // fixed socket.
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return;
  const bool is_it = InodeOf(copy) == connection.inode;
  if (is_it) {
    shutdown(copy, SHUT_RDWR);
    // Discards received bytes, possibly megabytes, that gRPC would otherwise still read.
    while (recv(copy, nullptr, kMaxUnread, MSG_TRUNC | MSG_DONTWAIT) > 0) {
    }
  }
  close(copy);
  if (!is_it) return;
  const std::string network = NetworkOf(connection.pair.remote);
  const bool holds_others_up = rule != ConnectionRule::kSlowStart;
  if (holds_others_up) backoff_.Add(network, Clock::now());
  ended_.push_back({.id = connection.id,
                    .network = network,
                    .held_bytes = connection.record.held_bytes(),
                    .holds_others_up = holds_others_up});
  if (metrics_ != nullptr) ++metrics_->ended[static_cast<size_t>(rule)];
  if (ended_log_.Due())
    spdlog::error("a connection of {} was ended ({} so far): it broke the rule {}",
                  AddressText(connection.pair.remote), ended_log_.count(),
                  ConnectionRuleName(rule));
}

}  // namespace hydrant
