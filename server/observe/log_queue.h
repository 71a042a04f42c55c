// A bounded queue in front of a log sink that may block temporarily or permanently, such as stderr
// if it is a pipe without a reader. A thread writes the lines to the sink. If too many lines wait,
// the oldest are dropped, and a line in the log reports how many. Only flush() and the destructor
// wait. Thread safe.
#ifndef HYDRANT_SERVER_OBSERVE_LOG_QUEUE_H_
#define HYDRANT_SERVER_OBSERVE_LOG_QUEUE_H_

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
    size_t max_bytes = 8 << 20;                // text of the waiting lines
    std::chrono::milliseconds patience{1000};  // the longest wait of flush()
  };
  // From the first line on only the queue's thread uses `out`: set patterns and formatters before.
  LogQueue(spdlog::sink_ptr out, const Options& options);
  explicit LogQueue(spdlog::sink_ptr out) : LogQueue(std::move(out), Options()) {}
  // Calls flush(). If `out` still blocks the thread, the thread is detached; it shares its state.
  ~LogQueue() override;
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;

  void log(const spdlog::details::log_msg& message) override;
  // Waits until all logged lines are written, but no longer than `patience`.
  void flush() override;
  // Whether all lines are written. If not even after flush(), end the process with _Exit(): exit()
  // would wait for the stdio lock that the blocked thread holds.
  bool IsEmpty() const;

  void set_pattern(const std::string& pattern) override;
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override;

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  const Options options_;
  const std::shared_ptr<State> state_;  // shared with the thread
  std::thread thread_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_LOG_QUEUE_H_
