// ExitDeadline ends a process if its shutdown hangs, and not otherwise.
#include "server/startup/exit_deadline.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <future>
#include <thread>

namespace hydrant {
namespace {

using std::chrono::milliseconds;

TEST(ExitDeadline, EndsAProcessThatDoesNotEnd) {
  const auto stuck = [] {
    ExitDeadline deadline;
    deadline.Set(milliseconds(20));
    std::promise<void>().get_future().wait();
  };
  EXPECT_EXIT(stuck(), testing::ExitedWithCode(EXIT_FAILURE), "");
}

// If the deadline were not cancelled, it would end the test program.
TEST(ExitDeadline, LeavesAProcessWhoseShutdownHasEnded) {
  {
    ExitDeadline deadline;
    deadline.Set(milliseconds(20));
  }
  std::this_thread::sleep_for(milliseconds(400));
}

}  // namespace
}  // namespace hydrant
