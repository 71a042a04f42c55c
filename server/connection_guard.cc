#include "server/connection_guard.h"

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
#include <map>
#include <optional>
#include <utility>

namespace hydrant {
namespace {

// A connection brings 20 MB in this time over loopback, or begins 500 calls.
constexpr int kBetweenLooksMs = 20;
// gRPC is asked of a connection after this much of it: 500 calls in their shortest form.
constexpr uint64_t kBytesBetweenQuestions = 16 << 10;
// Or after this time, where gRPC may have been behind.
constexpr std::chrono::milliseconds kBetweenQuestions{100};
// All are looked at so often, even where epoll has told of nothing: it says nothing of what was
// read before it was asked, of a connection that cannot be written to.
constexpr std::chrono::milliseconds kBetweenRounds{1000};
// That a connection waits for others to be freed.
constexpr std::chrono::seconds kLongestWait{10};
constexpr auto kNever = std::chrono::steady_clock::time_point::max();
constexpr size_t kMostUnread = 1 << 30;

struct Bytes {
  uint64_t received = 0, sent = 0;
};
// nullopt: the socket has gone, or the kernel does not count (before Linux 4.19).
std::optional<Bytes> BytesOf(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      size < offsetof(tcp_info, tcpi_bytes_sent) + sizeof(info.tcpi_bytes_sent))
    return std::nullopt;
  return Bytes{.received = info.tcpi_bytes_received, .sent = info.tcpi_bytes_sent};
}

bool HasUnread(int fd) {
  int bytes = 0;
  return ioctl(fd, FIONREAD, &bytes) == 0 && bytes > 0;
}

bool IsLeft(int fd) {
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
  for (const Waiting& waiting : waiting_) close(waiting.fd);
}

void ConnectionGuard::Take(int fd) {
  if (const std::optional<SocketEnds> ends = EndsOfSocket(fd); ends.has_value()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::string network = NetworkOf(ends->remote);
    const Clock::time_point now = Clock::now();
    const auto wait = clients_.Wait(network, now);
    if (wait.count() > 0)
      return waiting_.push_back({.fd = fd, .network = network, .until = now + wait});
    Watch(fd, *ends);
  }
  take_(fd);
}

void ConnectionGuard::Watch(int fd, const SocketEnds& ends) {
  watched_[fd] = {.inode = InodeOf(fd), .ends = ends, .seen_at = Clock::now()};
  // With EPOLLET it is told of what has come since it was told last. Of EPOLLIN alone it would not
  // be told where gRPC has read it already. Closing ends it.
  epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLET, .data = {.fd = fd}};
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
}

void ConnectionGuard::Run() {
  pollfd stop{stop_fd_, POLLIN, 0};
  do {
    LookAtReady();
    TakeDue();
  } while (poll(&stop, 1, kBetweenLooksMs) <= 0);
}

void ConnectionGuard::LookAtReady() {
  std::array<epoll_event, 1024> events{};
  std::unique_lock<std::mutex> lock(mutex_);
  // Only while a connection was ended lately does another begin to wait.
  const bool rests = busy_.empty() && waiting_.empty() && !clients_.Any(Clock::now());
  lock.unlock();
  const int timeout_ms = rests ? static_cast<int>(kBetweenRounds.count()) : 0;
  const int ready = epoll_wait(epoll_fd_, events.data(), events.size(), timeout_ms);
  lock.lock();
  for (int i = 0; i < ready; ++i) busy_.insert(events[i].data.fd);
  if (const auto now = Clock::now(); now >= next_round_) {
    next_round_ = now + kBetweenRounds;
    for (const auto& [fd, connection] : watched_) busy_.insert(fd);
  }
  has_found_ids_ = false;
  std::erase_if(busy_, [this](int fd) {
    const auto found = watched_.find(fd);
    const Next next = found == watched_.end() ? Next::kRest : Look(fd, &found->second);
    if (next == Next::kForget) watched_.erase(found);
    return next != Next::kAgain;
  });
  EndLargest();
}

void ConnectionGuard::EndLargest() {
  while (true) {
    double total = 0, most = 0;
    auto largest = watched_.end();
    for (auto one = watched_.begin(); one != watched_.end(); ++one) {
      const double held = one->second.record.held_bytes();
      total += held;
      if (held > most) largest = one;
      most = std::max(most, held);
    }
    if (total <= limits_.max_held_bytes) return;
    End(largest->first, largest->second, ConnectionRule::kMemory);
    watched_.erase(largest);
  }
}

bool ConnectionGuard::IsDue(const Waiting& waiting, Clock::time_point now) const {
  if (now < waiting.until) return false;
  return now >= waiting.until + kLongestWait ||
         std::none_of(ended_.begin(), ended_.end(),
                      [&waiting](const Ended& ended) { return ended.network == waiting.network; });
}

void ConnectionGuard::TakeDue() {
  std::vector<int> due;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    while (!ended_.empty() && !CallsOfSocket(ended_.front().id).has_value()) ended_.pop_front();
    std::erase_if(waiting_, [&, now = Clock::now()](const Waiting& waiting) {
      const bool is_due = IsDue(waiting, now);
      if (is_due) due.push_back(waiting.fd);
      return is_due;
    });
    // What has been left by its client already may have brought much in the meantime.
    for (int& fd : due) {
      const std::optional<SocketEnds> ends = IsLeft(fd) ? std::nullopt : EndsOfSocket(fd);
      if (ends.has_value()) {
        Watch(fd, *ends);
      } else {
        close(std::exchange(fd, -1));
      }
    }
  }
  for (const int fd : due) {
    if (fd >= 0) take_(fd);
  }
}

ConnectionGuard::Next ConnectionGuard::Look(int fd, Watched* connection) {
  const std::optional<Bytes> bytes = BytesOf(fd);
  if (!bytes.has_value()) return Next::kForget;
  const Clock::time_point now = Clock::now();
  const bool has_grown = bytes->received >= connection->seen_bytes + kBytesBetweenQuestions;
  if (!has_grown && now < connection->again_at)
    return connection->again_at == kNever ? Next::kRest : Next::kAgain;
  if (connection->id == 0 && !std::exchange(has_found_ids_, true)) FindIds();
  const std::optional<SocketCalls> calls = CallsOfSocket(connection->id);
  // gRPC may not have taken in yet what the kernel has.
  const bool is_behind = has_grown || HasUnread(fd);
  connection->again_at = is_behind ? now + kBetweenQuestions : kNever;
  if (!calls.has_value())
    return is_behind ? Next::kAgain : Next::kRest;  // in its handshake, or closing
  const auto elapsed = now - std::exchange(connection->seen_at, now);
  connection->seen_bytes = bytes->received;
  ConnectionRecord& record = connection->record;
  const ConnectionRecord::Verdict verdict = record.Judge(
      limits_, {.bytes_received = bytes->received, .bytes_sent = bytes->sent, .calls = *calls},
      elapsed);
  if (!verdict.holds) {
    End(fd, *connection, verdict.broken);
    return Next::kForget;
  }
  if (!is_behind && record.held_bytes() > 0) connection->again_at = now + kBetweenRounds;
  return connection->again_at == kNever ? Next::kRest : Next::kAgain;
}

void ConnectionGuard::FindIds() {
  const std::map<SocketEnds, int64_t> fresh = ids_.New();
  for (auto& [fd, connection] : watched_) {
    if (connection.id != 0) continue;
    if (const auto found = fresh.find(connection.ends); found != fresh.end())
      connection.id = found->second;
  }
}

void ConnectionGuard::End(int fd, const Watched& connection, ConnectionRule rule) {
  // Where gRPC has closed it the number may be another's by now. A copy stays what it is.
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return;
  const bool is_it = InodeOf(copy) == connection.inode;
  if (is_it) {
    shutdown(copy, SHUT_RDWR);
    // Or gRPC would read on: megabytes may have come already.
    while (recv(copy, nullptr, kMostUnread, MSG_TRUNC | MSG_DONTWAIT) > 0) {
    }
  }
  close(copy);
  if (!is_it) return;
  const std::string network = NetworkOf(connection.ends.remote);
  clients_.Add(network, Clock::now());
  ended_.push_back({connection.id, network});
  if (metrics_ != nullptr) ++metrics_->ended[static_cast<size_t>(rule)];
  if (complaints_.Due())
    spdlog::error("a connection of {} was ended ({} so far): it broke the rule {}",
                  AddressText(connection.ends.remote), complaints_.count(),
                  ConnectionRuleName(rule));
}

}  // namespace hydrant
