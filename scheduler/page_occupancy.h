// The pages that a sequence has held, over time.
#ifndef HYDRANT_SCHEDULER_PAGE_OCCUPANCY_H_
#define HYDRANT_SCHEDULER_PAGE_OCCUPANCY_H_

#include <cstdint>

#include "scheduler/request.h"

namespace hydrant {

class PageOccupancy {
 public:
  // From `now` on the sequence holds this many pages.
  void Hold(int64_t pages, TimeUs now) {
    if (pages_ > 0) {
      held_us_ += now - since_;
      page_us_ += pages_ * (now - since_);
    }
    pages_ = pages;
    since_ = now;
  }
  int64_t pages() const { return pages_; }
  // Until the last Hold(), over the time with pages; 0 where that time is 0.
  double Mean() const {
    return held_us_ > 0 ? static_cast<double>(page_us_) / static_cast<double>(held_us_) : 0;
  }

 private:
  int64_t pages_ = 0;
  TimeUs since_ = 0;
  TimeUs held_us_ = 0;
  int64_t page_us_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_PAGE_OCCUPANCY_H_
