// The log's way to a sink that may take no more for a while, or for ever: stderr, where it is a
// pipe that is not read. Lines wait in a bounded queue for a thread that writes them. When there
// are too many the oldest are dropped, and the next line that is written says how many. No caller
// ever waits but in flush(). Thread safe.
#ifndef HYDRANT_SERVER_LOG_QUEUE_H_
#define HYDRANT_SERVER_LOG_QUEUE_H_

#include <spdlog/sinks/sink.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>

namespace hydrant {

class LogQueue final : public spdlog::sinks::sink {
 public:
  struct Options {
    size_t max_lines = 8192;
    size_t max_bytes = 8 << 20;                // of their text
    std::chrono::milliseconds patience{1000};  // of flush()
  };
  // `out` is used by the queue's thread alone from the first line on.
  LogQueue(spdlog::sink_ptr out, const Options& options);
  explicit LogQueue(spdlog::sink_ptr out) : LogQueue(std::move(out), Options()) {}
  // A flush(). A thread that `out` still holds is left to itself, with what it needs.
  ~LogQueue() override;
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;

  void log(const spdlog::details::log_msg& message) override;
  // Waits until all that was logged is written, but no longer than `patience`.
  void flush() override;
  // Whether all is written. Where it is not after a flush(), exit() would wait for the same lock of
  // stdio as the thread: a process ends by _Exit().
  bool IsEmpty() const;

  void set_pattern(const std::string& pattern) override;
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override;

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  const Options options_;
  const std::shared_ptr<State> state_;  // the thread's, too
  std::thread thread_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_LOG_QUEUE_H_
