// The last resort of a shutdown: ends the process at a time, whatever its threads wait for.
#ifndef HYDRANT_SERVER_EXIT_DEADLINE_H_
#define HYDRANT_SERVER_EXIT_DEADLINE_H_

#include <chrono>
#include <memory>

namespace hydrant {

class ExitDeadline {
 public:
  ExitDeadline();
  ~ExitDeadline();  // all has ended by itself: the process stays
  ExitDeadline(const ExitDeadline&) = delete;
  ExitDeadline& operator=(const ExitDeadline&) = delete;

  // After so long the process ends with a line in the log and EXIT_FAILURE, by a thread that
  // nothing waits for. Of one thread.
  void Set(std::chrono::milliseconds time);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // shared with that thread
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_EXIT_DEADLINE_H_
