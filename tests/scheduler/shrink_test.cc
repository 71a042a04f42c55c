// The result of shrinking is compared with the parts that the predicate needs.
#include "tests/scheduler/shrink.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "gtest/gtest.h"

namespace hydrant {
namespace {

std::vector<int> UpTo(int count) {
  std::vector<int> all(count);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST(ShrinkTest, KeepsTheEventsThatTheFailureNeeds) {
  for (const std::vector<int>& needed :
       {std::vector<int>{}, {0}, {99}, {0, 99}, {49, 50}, {3, 4, 71}, UpTo(100)}) {
    const auto fails = [&](const std::vector<int>& parts) {
      return std::includes(parts.begin(), parts.end(), needed.begin(), needed.end());
    };
    EXPECT_EQ(Shrink(UpTo(100), fails), needed);
  }
}

// An odd number of parts fails: pairs can be removed, but no single part of the last three.
TEST(ShrinkTest, LeavesAPartThatNoneCanBeTakenFrom) {
  const auto fails = [](const std::vector<int>& parts) { return parts.size() % 2 == 1; };
  const std::vector<int> left = Shrink(UpTo(99), fails);
  EXPECT_TRUE(fails(left));
  EXPECT_LT(left.size(), 99u);
}

TEST(ShrinkTest, StopsAfterAsManyTriesAsItHas) {
  int tries = 0;
  const auto fails = [&](const std::vector<int>& parts) {
    ++tries;
    return parts.size() > 40;
  };
  const std::vector<int> left = Shrink(UpTo(100), fails, 10);
  EXPECT_EQ(tries, 10);
  EXPECT_GT(left.size(), 40u);
}

TEST(FailsInChildTest, KnowsEveryKindOfEnd) {
  const auto fails = [](void (*run)()) { return FailsInChild(run, ChildOutput::kDropped); };
  EXPECT_FALSE(fails([] {}));
  EXPECT_TRUE(fails([] { ADD_FAILURE(); }));
  EXPECT_TRUE(fails([] { std::abort(); }));
  EXPECT_TRUE(fails([] { std::exit(3); }));
  EXPECT_FALSE(HasFailure()) << "a child's failures are its own";
}

}  // namespace
}  // namespace hydrant
