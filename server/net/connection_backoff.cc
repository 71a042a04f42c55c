#include "server/net/connection_backoff.h"

#include <algorithm>

namespace hydrant {
namespace {

constexpr std::chrono::seconds kRemembered{10};
constexpr std::chrono::milliseconds kWait{500};

}  // namespace

void ConnectionBackoff::Add(const std::string& network, Clock::time_point now) {
  std::erase_if(forgotten_at_, [now](const auto& entry) { return entry.second <= now; });
  forgotten_at_[network] = now + kRemembered;
}

std::chrono::milliseconds ConnectionBackoff::Wait(const std::string& network,
                                                  Clock::time_point now) const {
  const auto found = forgotten_at_.find(network);
  return found == forgotten_at_.end() || found->second <= now ? std::chrono::milliseconds(0)
                                                              : kWait;
}

bool ConnectionBackoff::Any(Clock::time_point now) const {
  return std::any_of(forgotten_at_.begin(), forgotten_at_.end(),
                     [now](const auto& entry) { return entry.second > now; });
}

}  // namespace hydrant
