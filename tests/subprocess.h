// A child process; reads its stdout and stderr through one pipe each. Not thread safe.
#ifndef HYDRANT_TESTS_SUBPROCESS_H_
#define HYDRANT_TESTS_SUBPROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace hydrant {

class Subprocess {
 public:
  explicit Subprocess(const std::vector<std::string>& arguments);
  ~Subprocess();  // kills a process that still runs

  // Reads stderr until a line contains `text` and returns that line; "" if stderr ends first.
  std::string WaitForErrorLine(const std::string& text);
  // Reads stdout until it has `bytes` bytes; false if it ends first.
  bool WaitForOutput(size_t bytes);
  void Signal(int signal);  // no effect after the process has ended
  // Reads both streams to their ends and returns the exit code; 128 + n after signal n.
  int Wait();
  // Like Wait(), as a client that reads nothing; nullopt: still running after `time`.
  std::optional<int> WaitUnread(std::chrono::seconds time);
  // Like Wait() for at most `time`; nullopt: still running.
  std::optional<int> WaitFor(std::chrono::milliseconds time);

  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

 private:
  pid_t pid_ = -1;
  int out_fd_ = -1, err_fd_ = -1;
  std::string out_, err_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SUBPROCESS_H_
