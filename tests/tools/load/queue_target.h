// A server in simulated time: handles requests one after the other, each with the same service time
// and a single token at its end. Constant gaps give a D/D/1 queue, Poisson arrivals an M/D/1 queue
// of known capacity.
#ifndef HYDRANT_TESTS_TOOLS_LOAD_QUEUE_TARGET_H_
#define HYDRANT_TESTS_TOOLS_LOAD_QUEUE_TARGET_H_

#include <algorithm>
#include <deque>

#include "tools/load/run/target.h"

namespace hydrant::load {

class QueueTarget final : public Target {
 private:
  struct Job {
    int64_t index = 0;
    double at = 0.0;  // completion time
    bool answered = false;
    bool cancelled = false;
  };

 public:
  explicit QueueTarget(double service) : service_(service) {}

  double Now() override { return now_; }

  uint64_t Send(const PlannedRequest& request) override {
    free_ = std::max(free_, now_) + service_;
    queue_.push_back({.index = request.index, .at = free_});
    return 1;
  }

  void Cancel(int64_t index) override {
    const auto job = std::lower_bound(queue_.begin(), queue_.end(), index,
                                      [](const Job& one, int64_t i) { return one.index < i; });
    if (job != queue_.end() && job->index == index) job->cancelled = true;
  }

  void Disconnect(int64_t index) override { Cancel(index); }

  bool Wait(double until, StreamEvent* event) override {
    if (queue_.empty() || queue_.front().at > until) {
      now_ = std::max(now_, until);
      return false;
    }
    Job& job = queue_.front();
    now_ = std::max(now_, job.at);
    *event = {.index = job.index, .at = now_};
    if (!job.answered && !job.cancelled) {
      event->tokens = 1;
      job.answered = true;
      return true;
    }
    event->ended = true;
    event->status = job.cancelled ? "CANCELLED" : "OK";
    queue_.pop_front();
    return true;
  }

 private:
  double service_;
  double now_ = 0.0;
  double free_ = 0.0;
  std::deque<Job> queue_;  // ascending in index
};

}  // namespace hydrant::load

#endif  // HYDRANT_TESTS_TOOLS_LOAD_QUEUE_TARGET_H_
