// LogQueue in front of a sink that blocks temporarily or permanently.
#include "server/observe/log_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using testing::ElementsAre;

// Blocks in log() until the gate is open, then keeps the line.
class GatedSink final : public spdlog::sinks::sink {
 public:
  void log(const spdlog::details::log_msg& message) override {
    std::unique_lock<std::mutex> lock(mutex_);
    is_held_ = true;
    opened_.wait(lock, [this] { return is_open_; });
    is_held_ = false;
    if (fails) throw std::runtime_error("no");
    lines_.emplace_back(message.payload.data(), message.payload.size());
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

  void Set(bool is_open) {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = is_open;
    opened_.notify_all();
  }
  bool IsHeld() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return is_held_;
  }
  std::vector<std::string> lines() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return lines_;
  }

  std::atomic<bool> fails = false;

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = true, is_held_ = false;
  std::vector<std::string> lines_;
};

struct Log {
  explicit Log(const LogQueue::Options& options = {})
      : sink(std::make_shared<GatedSink>()),
        queue(std::make_shared<LogQueue>(sink, options)),
        logger("log", queue) {}

  // Closes the gate, and waits until the queue's thread blocks in it.
  void Hold() {
    sink->Set(false);
    logger.info("held");
    EXPECT_TRUE(WaitFor([this] { return sink->IsHeld(); }));
  }

  const std::shared_ptr<GatedSink> sink;
  const std::shared_ptr<LogQueue> queue;
  spdlog::logger logger;
};

constexpr std::chrono::hours kLong{1};
constexpr std::chrono::milliseconds kShort{20};

TEST(LogQueue, WritesLinesInTheirOrder) {
  Log log({.patience = kLong});
  for (int i = 0; i < 3; ++i) log.logger.info("line {}", i);
  log.queue->flush();
  EXPECT_TRUE(log.queue->IsEmpty());
  EXPECT_THAT(log.sink->lines(), ElementsAre("line 0", "line 1", "line 2"));
}

TEST(LogQueue, KeepsTheNewestAndSaysHowManyAreLost) {
  Log log({.max_lines = 3, .patience = kLong});
  log.Hold();
  for (int i = 0; i < 1000; ++i) log.logger.info("line {}", i);  // no call blocks
  log.sink->Set(true);
  log.queue->flush();
  log.logger.info("later");
  log.queue->flush();
  EXPECT_THAT(
      log.sink->lines(),
      ElementsAre("held", "997 lines of the log are lost: it was not taken as fast as it came",
                  "line 997", "line 998", "line 999", "later"));
}

TEST(LogQueue, IsBoundedInBytesToo) {
  Log log({.max_bytes = 100, .patience = kLong});
  log.Hold();
  for (int i = 0; i < 5; ++i) log.logger.info(std::string(40, static_cast<char>('a' + i)));
  log.sink->Set(true);
  log.queue->flush();
  EXPECT_THAT(
      log.sink->lines(),
      ElementsAre("held", "3 lines of the log are lost: it was not taken as fast as it came",
                  std::string(40, 'd'), std::string(40, 'e')));
}

TEST(LogQueue, ASinkThatTakesNothingHoldsNeitherAFlushNorTheEnd) {
  std::shared_ptr<GatedSink> sink;
  {
    Log log({.patience = kShort});
    sink = log.sink;
    log.Hold();
    log.logger.info("never");
    log.queue->flush();
    EXPECT_FALSE(log.queue->IsEmpty());
  }
  sink->Set(true);
  EXPECT_TRUE(WaitFor([&] { return !sink->lines().empty(); }));
  EXPECT_THAT(sink->lines(), ElementsAre("held"));
}

TEST(LogQueue, CountsFailedWrites) {
  Log log({.patience = kLong});
  log.sink->fails = true;
  for (int i = 0; i < 2; ++i) {
    log.logger.info("lost");
    // the lost-lines warning of the first line is written before the second line, and fails too
    log.queue->flush();
  }
  log.sink->fails = false;
  log.logger.info("later");
  log.queue->flush();
  EXPECT_THAT(
      log.sink->lines(),
      ElementsAre("2 lines of the log are lost: it was not taken as fast as it came", "later"));
}

}  // namespace
}  // namespace hydrant
