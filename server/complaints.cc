#include "server/complaints.h"

namespace hydrant {
namespace {

constexpr std::chrono::seconds kBetween{10};

}  // namespace

bool Complaints::Due() {
  ++count_;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return false;
  next_ = now + kBetween;
  return true;
}

}  // namespace hydrant
