// Says when the queue makes answers late although nobody asked for that: a line now and then, with
// the wait and with the flag that bounds it. Not thread safe.
#ifndef HYDRANT_SERVER_QUEUE_WATCH_H_
#define HYDRANT_SERVER_QUEUE_WATCH_H_

#include <optional>
#include <string>

#include "scheduler/options.h"
#include "scheduler/serving_loop.h"

namespace hydrant {

class QueueWatch {
 public:
  explicit QueueWatch(const SchedulerOptions& options)
      : is_bounded_(options.target_ttft_us.has_value()) {}

  // The line for the log; unset: there is nothing to say, or it was said less than a minute ago.
  std::optional<std::string> Look(const LoopSnapshot& loop, TimeUs now);

 private:
  const bool is_bounded_;  // who comes too late is refused already
  std::optional<TimeUs> said_at_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_QUEUE_WATCH_H_
