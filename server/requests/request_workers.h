// Threads for work too long for gRPC's threads: parsing a long request, rendering its chat,
// tokenizing its text. A gRPC callback that takes seconds delays the streams and keepalive pings of
// other clients.
//
// Jobs begin in FIFO order. Thread safe.
#ifndef HYDRANT_SERVER_REQUESTS_REQUEST_WORKERS_H_
#define HYDRANT_SERVER_REQUESTS_REQUEST_WORKERS_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/mutex.h"

namespace hydrant {

class RequestWorkers {
 public:
  // `max_waiting_bytes`: limit for the requests of jobs that have not begun.
  RequestWorkers(int num_threads, size_t max_waiting_bytes);
  ~RequestWorkers();  // waits for all jobs

  // False, and the job is not queued, if the queue is full. An empty queue takes a request of any
  // size; otherwise a request above the limit would always be refused. `job` must not wait for
  // another job.
  bool Run(size_t request_bytes, std::function<void()> job);
  // False, and the job is not queued, if no thread is idle.
  bool RunNow(std::function<void()> job);

  size_t max_waiting_bytes() const { return max_waiting_bytes_; }

 private:
  struct Job {
    size_t request_bytes;
    std::function<void()> run;
  };

  void Work();

  const size_t max_waiting_bytes_;
  Mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> waiting_ HYDRANT_GUARDED_BY(mutex_);
  size_t waiting_bytes_ HYDRANT_GUARDED_BY(mutex_) = 0;
  // Idle threads, including those that are about to take a job of waiting_.
  size_t num_idle_ HYDRANT_GUARDED_BY(mutex_) = 0;
  bool stopping_ HYDRANT_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_REQUESTS_REQUEST_WORKERS_H_
