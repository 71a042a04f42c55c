#include "server/requests/request_workers.h"

#include <utility>

namespace hydrant {

RequestWorkers::RequestWorkers(int num_threads, size_t max_waiting_bytes)
    : max_waiting_bytes_(max_waiting_bytes) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Work(); });
}

RequestWorkers::~RequestWorkers() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool RequestWorkers::Run(size_t request_bytes, std::function<void()> job) {
  {
    const MutexLock lock(mutex_);
    const bool full = waiting_bytes_ + request_bytes > max_waiting_bytes_;
    if (full && !waiting_.empty()) return false;
    waiting_.push_back({request_bytes, std::move(job)});
    waiting_bytes_ += request_bytes;
  }
  changed_.notify_one();
  return true;
}

bool RequestWorkers::RunNow(std::function<void()> job) {
  {
    const MutexLock lock(mutex_);
    if (waiting_.size() >= num_idle_) return false;
    waiting_.push_back({0, std::move(job)});
  }
  changed_.notify_one();
  return true;
}

void RequestWorkers::Work() {
  while (true) {
    Job job;
    {
      MutexLock lock(mutex_);
      ++num_idle_;
      changed_.wait(lock.native(),
                    [this]() HYDRANT_REQUIRES(mutex_) { return stopping_ || !waiting_.empty(); });
      --num_idle_;
      if (waiting_.empty()) return;
      job = std::move(waiting_.front());
      waiting_.pop_front();
      waiting_bytes_ -= job.request_bytes;
    }
    job.run();
  }
}

}  // namespace hydrant
