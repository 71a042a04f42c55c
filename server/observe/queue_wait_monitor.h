// Warns if requests wait long in the queue and --target-ttft is not set: at most one log line a
// minute, with the longest wait and the flag that bounds it. Not thread safe.
#ifndef HYDRANT_SERVER_OBSERVE_QUEUE_WAIT_MONITOR_H_
#define HYDRANT_SERVER_OBSERVE_QUEUE_WAIT_MONITOR_H_

#include <optional>
#include <string>

#include "scheduler/options.h"
#include "scheduler/serving_loop.h"

namespace hydrant {

class QueueWaitMonitor {
 public:
  explicit QueueWaitMonitor(const SchedulerOptions& options)
      : is_bounded_(options.target_ttft_us.has_value()) {}

  // The line for the log. Unset: no request waits long, or the last line is less than a minute old.
  std::optional<std::string> Look(const ServingStats& loop, TimeUs now);

 private:
  const bool is_bounded_;  // requests that would be late are refused already
  std::optional<TimeUs> last_line_at_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_QUEUE_WAIT_MONITOR_H_
