#include "server/observe/queue_wait_monitor.h"

#include <fmt/format.h>

namespace hydrant {
namespace {

constexpr TimeUs kLongUs = 10'000'000;  // a wait that is too long for an interactive user
constexpr TimeUs kBetweenLinesUs = 60'000'000;

}  // namespace

std::optional<std::string> QueueWaitMonitor::Look(const ServingStats& loop, TimeUs now) {
  if (is_bounded_ || loop.longest_wait_us < kLongUs) return std::nullopt;
  if (last_line_at_.has_value() && now - *last_line_at_ < kBetweenLinesUs) return std::nullopt;
  last_line_at_ = now;
  return fmt::format(
      "answers are late: {} requests wait, the longest for {:.0f} s; --target-ttft SECONDS serves "
      "those that can still begin in time and refuses the others at once",
      loop.waiting, static_cast<double>(loop.longest_wait_us) * 1e-6);
}

}  // namespace hydrant
