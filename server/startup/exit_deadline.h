// The last resort of a shutdown: ends the process after a time, even if its threads still wait.
#ifndef HYDRANT_SERVER_STARTUP_EXIT_DEADLINE_H_
#define HYDRANT_SERVER_STARTUP_EXIT_DEADLINE_H_

#include <chrono>
#include <memory>

namespace hydrant {

class ExitDeadline {
 public:
  ExitDeadline();
  ~ExitDeadline();  // cancels the deadline: the shutdown has ended in time
  ExitDeadline(const ExitDeadline&) = delete;
  ExitDeadline& operator=(const ExitDeadline&) = delete;

  // After `time` a detached thread logs an error and ends the process with EXIT_FAILURE. A second
  // call adds a deadline; the earliest holds. Not thread safe.
  void Set(std::chrono::milliseconds time);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // shared with the detached thread
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_EXIT_DEADLINE_H_
