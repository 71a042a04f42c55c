#include "server/net/connection_queue.h"

#include <algorithm>
#include <utility>

namespace hydrant {
namespace {

// New connections that gRPC may have at a time. gRPC reads 500 calls in 5 to 10 ms.
constexpr size_t kMaxNew = 64, kMaxNewOfNetwork = 16;
constexpr size_t kMaxWaiting = 1024;
constexpr std::chrono::seconds kLongestWait{12};

}  // namespace

bool ConnectionQueue::HasRoom(const std::string& network) const {
  const auto found = new_.find(network);
  return !is_full_ && num_new_ < kMaxNew &&
         (found == new_.end() || found->second < kMaxNewOfNetwork);
}

void ConnectionQueue::Enter(const std::string& network) {
  ++new_[network];
  ++num_new_;
}

void ConnectionQueue::Settle(const std::string& network) {
  const auto found = new_.find(network);
  if (found == new_.end()) return;
  if (--found->second == 0) new_.erase(found);
  --num_new_;
}

bool ConnectionQueue::AnyWaitingOf(const std::string& network) const {
  return std::ranges::any_of(
      waiting_, [&network](const Waiting& waiting) { return waiting.network == network; });
}

std::vector<ConnectionQueue::Waiting> ConnectionQueue::TakeAll() {
  return std::exchange(waiting_, {});
}

ConnectionQueue::Next ConnectionQueue::Choose(Clock::time_point now,
                                              const std::function<uint64_t(int fd)>& unread_bytes,
                                              const std::function<bool(const Waiting&)>& is_free) {
  for (Waiting& waiting : waiting_) waiting.unread_bytes = unread_bytes(waiting.fd);
  std::ranges::stable_sort(waiting_, {}, &Waiting::unread_bytes);
  Next next;
  std::vector<Waiting> left;
  for (Waiting& waiting : waiting_) {
    const bool has_room = HasRoom(waiting.network);
    const bool may = is_free(waiting);
    next.lacks_room |= may && !has_room;
    if (may && has_room) {
      Enter(waiting.network);
      next.enter.push_back(std::move(waiting));
    } else if (now >= waiting.since + kLongestWait || left.size() == kMaxWaiting) {
      next.refuse.push_back(std::move(waiting));
    } else {
      left.push_back(std::move(waiting));
    }
  }
  std::ranges::stable_sort(left, {}, &Waiting::since);
  waiting_ = std::move(left);
  return next;
}

}  // namespace hydrant
