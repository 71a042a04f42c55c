// Collects the output of a ServingLoop's streams and lets tests wait for it.
#ifndef HYDRANT_TESTS_SCHEDULER_COLLECTING_SINK_H_
#define HYDRANT_TESTS_SCHEDULER_COLLECTING_SINK_H_

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/serving_loop.h"
#include "tests/scheduler/scheduler_harness.h"

namespace hydrant {

class CollectingSink : public EventSink {
 public:
  void Deliver(std::vector<Event> events) override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Event& event : events) {
      Stream& stream = streams_[event.handle];
      EXPECT_FALSE(stream.Ended()) << "an event follows the end of stream " << event.handle;
      if (auto* delta = std::get_if<Delta>(&event.what)) {
        if (delta->token_id.has_value()) stream.token_ids.push_back(*delta->token_id);
      } else if (auto* finished = std::get_if<Finished>(&event.what)) {
        stream.finished = std::move(*finished);
      } else if (auto* failed = std::get_if<Failed>(&event.what)) {
        stream.failed = std::move(*failed);
      }
    }
    changed_.notify_all();
  }
  Stream WaitForEnd(RequestHandle handle) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return streams_[handle].Ended(); });
    return streams_[handle];
  }
  void WaitForTokens(RequestHandle handle, size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return streams_[handle].token_ids.size() >= count; });
  }
  std::map<RequestHandle, Stream> streams() {
    std::lock_guard<std::mutex> lock(mutex_);
    return streams_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestHandle, Stream> streams_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SCHEDULER_COLLECTING_SINK_H_
