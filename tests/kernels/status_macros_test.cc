// Which values the macros of status_macros.h return, and which they leave alone.
#include "kernels/status_macros.h"

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace hydrant {
namespace {

const absl::Status kWrong = absl::InvalidArgumentError("width: 3 is odd");

absl::StatusOr<std::unique_ptr<int>> Box(int value) {
  if (value < 0) return kWrong;
  return std::make_unique<int>(value);
}

TEST(ReturnIfError, ReturnsTheErrorAndEvaluatesOnce) {
  int evaluated = 0, passed = 0;
  const auto run = [&](const absl::Status& status) -> absl::Status {
    HYDRANT_RETURN_IF_ERROR((++evaluated, status));
    ++passed;
    return absl::OkStatus();
  };
  EXPECT_EQ(run(kWrong), kWrong);
  EXPECT_EQ(passed, 0);
  EXPECT_EQ(run(absl::OkStatus()), absl::OkStatus());
  EXPECT_EQ(passed, 1);
  EXPECT_EQ(evaluated, 2);
}

TEST(ReturnIfError, IsOneStatementAndFitsAFunctionOfAValue) {
  const auto run = [](bool check, const absl::Status& status) -> absl::StatusOr<int> {
    if (check)
      HYDRANT_RETURN_IF_ERROR(status);
    else
      return 2;
    return 1;
  };
  EXPECT_EQ(run(true, kWrong).status(), kWrong);
  EXPECT_EQ(run(true, absl::OkStatus()).value(), 1);
  EXPECT_EQ(run(false, kWrong).value(), 2);
}

TEST(AssignOrReturn, DeclaresOrAssignsMoveOnlyTypes) {
  const auto run = [](int first, int second) -> absl::StatusOr<int> {
    HYDRANT_ASSIGN_OR_RETURN(std::unique_ptr<int> box, Box(first));
    const int sum = *box;
    HYDRANT_ASSIGN_OR_RETURN(box, Box(second));
    return sum + *box;
  };
  EXPECT_EQ(run(1, 2).value(), 3);
  EXPECT_EQ(run(-1, 2).status(), kWrong);
  EXPECT_EQ(run(1, -2).status(), kWrong);
}

TEST(AssignOrReturn, LeavesTheTargetAloneOnAnError) {
  int target = 7;
  const auto run = [&](absl::StatusOr<int> value) -> absl::Status {
    HYDRANT_ASSIGN_OR_RETURN(target, std::move(value));
    return absl::OkStatus();
  };
  EXPECT_EQ(run(kWrong), kWrong);
  EXPECT_EQ(target, 7);
  EXPECT_EQ(run(8), absl::OkStatus());
  EXPECT_EQ(target, 8);
}

TEST(AssignOrReturn, TakesAnExpressionWithCommas) {
  const auto run = []() -> absl::StatusOr<int> {
    HYDRANT_ASSIGN_OR_RETURN(const auto map, absl::StatusOr<std::map<int, std::string>>(
                                                 std::map<int, std::string>{{1, "a"}, {2, "b"}}));
    return static_cast<int>(map.size());
  };
  EXPECT_EQ(run().value(), 2);
}

}  // namespace
}  // namespace hydrant
