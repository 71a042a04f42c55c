// The thread's memory policy in the kernel.
#include "server/startup/numa.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

namespace hydrant {
namespace {

int PolicyOfThread() {
  int mode = -1;
  syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0);
  return mode;
}

TEST(Numa, MemoryOfAThreadAndItsChildrenIsInterleaved) {
  std::thread([] {
    if (PolicyOfThread() != MPOL_DEFAULT) GTEST_SKIP() << "somebody chose a policy before";
    const absl::Status status = InterleaveMemory({0});
    if (!status.ok()) GTEST_SKIP() << status;
    EXPECT_EQ(PolicyOfThread(), MPOL_INTERLEAVE);
    std::thread([] { EXPECT_EQ(PolicyOfThread(), MPOL_INTERLEAVE); }).join();
  }).join();
  EXPECT_NE(PolicyOfThread(), MPOL_INTERLEAVE);
}

TEST(Numa, AnEarlierChoiceStays) {
  std::thread([] {
    if (syscall(SYS_set_mempolicy, MPOL_LOCAL, nullptr, 0) != 0) GTEST_SKIP() << "not allowed";
    EXPECT_TRUE(InterleaveMemory({0}).ok());
    EXPECT_EQ(PolicyOfThread(), MPOL_LOCAL);
  }).join();
}

}  // namespace
}  // namespace hydrant
