// Replaces the default log during its lifetime, and lets a test wait for a line. Create it before
// the threads that log, and destroy it after them.
#ifndef HYDRANT_TESTS_SERVER_LOG_WATCH_H_
#define HYDRANT_TESTS_SERVER_LOG_WATCH_H_

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/test_server.h"

namespace hydrant {

class LogWatch {
 public:
  LogWatch() : before_(spdlog::default_logger()), sink_(std::make_shared<Lines>()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("watched", sink_));
  }
  ~LogWatch() { spdlog::set_default_logger(before_); }
  LogWatch(const LogWatch&) = delete;
  LogWatch& operator=(const LogWatch&) = delete;

  // False if no line contains both within WaitFor()'s timeout.
  bool WaitForLine(const std::string& one, const std::string& other) {
    return WaitFor([&] { return HasLine(one, other); });
  }
  bool HasLine(const std::string& one, const std::string& other) { return sink_->Has(one, other); }

 private:
  class Lines final : public spdlog::sinks::base_sink<std::mutex> {
   public:
    bool Has(const std::string& one, const std::string& other) {
      const std::lock_guard lock(mutex_);
      return std::any_of(lines_.begin(), lines_.end(), [&](const std::string& line) {
        return line.find(one) != line.npos && line.find(other) != line.npos;
      });
    }

   private:
    void sink_it_(const spdlog::details::log_msg& message) override {
      lines_.emplace_back(message.payload.data(), message.payload.size());
    }
    void flush_() override {}
    std::vector<std::string> lines_;  // guarded by the base's mutex_
  };

  const std::shared_ptr<spdlog::logger> before_;
  const std::shared_ptr<Lines> sink_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SERVER_LOG_WATCH_H_
