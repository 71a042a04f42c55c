// The conditions for QueueWaitMonitor's line, and its text.
#include "server/observe/queue_wait_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hydrant {
namespace {

using testing::HasSubstr;

constexpr TimeUs kSecond = 1'000'000;

TEST(QueueWaitMonitor, NamesTheWaitAndTheFlagOnceAMinute) {
  QueueWaitMonitor watch{SchedulerOptions()};
  ServingStats loop;
  loop.waiting = 7;
  loop.longest_wait_us = 9 * kSecond;
  EXPECT_EQ(watch.Look(loop, 1 * kSecond), std::nullopt);
  loop.longest_wait_us = 12 * kSecond;
  const std::optional<std::string> line = watch.Look(loop, 2 * kSecond);
  ASSERT_TRUE(line.has_value());
  EXPECT_THAT(*line, HasSubstr("7 requests wait, the longest for 12 s"));
  EXPECT_THAT(*line, HasSubstr("--target-ttft"));
  EXPECT_EQ(watch.Look(loop, 61 * kSecond), std::nullopt);
  EXPECT_TRUE(watch.Look(loop, 62 * kSecond).has_value());
}

TEST(QueueWaitMonitor, IsSilentWhereATargetBoundsTheWait) {
  QueueWaitMonitor watch{SchedulerOptions{.target_ttft_us = 30 * kSecond}};
  ServingStats loop;
  loop.longest_wait_us = 20 * kSecond;
  EXPECT_EQ(watch.Look(loop, 0), std::nullopt);
}

}  // namespace
}  // namespace hydrant
