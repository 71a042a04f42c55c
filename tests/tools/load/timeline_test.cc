#include "tools/load/run/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/tools/load/outcomes.h"

namespace hydrant::load {
namespace {

TEST(TimelineTest, EverythingFallsIntoItsWindow) {
  std::vector<Outcome> outcomes = {Completed(0.5, {1.5, 2.5, 2.75}), Completed(2.25, {3.0, 9.99}),
                                   Failed(4.1, 4.2, "QUEUE_FULL")};
  outcomes[1].arm = 1;
  Objectives objectives;
  objectives.e2el_ms = 3000;
  const Timeline all = MakeTimeline(outcomes, objectives);
  EXPECT_DOUBLE_EQ(all.step, 0.5) << "twenty windows of a short run";
  ASSERT_EQ(all.windows.size(), 20u);
  const auto at = [&](double seconds) { return all.windows[static_cast<size_t>(seconds * 2)]; };
  EXPECT_EQ(at(0.5).due, 1);
  EXPECT_NEAR(at(0.5).ttft.p50, 1000, 1e-9) << "by when it was to be sent";
  EXPECT_NEAR(at(0.5).e2el.max, 2250, 1e-9);
  EXPECT_EQ(at(2.5).output_tokens, 2);
  EXPECT_EQ(at(2.5).itl.count, 2) << "by when the message came";
  EXPECT_NEAR(at(2.5).itl.max, 1000, 1e-9);
  EXPECT_EQ(at(2.75).completed, 1);
  EXPECT_EQ(at(2.75).good, 1);
  EXPECT_EQ(at(9.99).completed, 1);
  EXPECT_EQ(at(9.99).good, 0);
  EXPECT_EQ(at(4.0).errors.at("RESOURCE_EXHAUSTED QUEUE_FULL"), 1);
  EXPECT_NEAR(at(2.5).in_flight, (0.25 + 0.5) / 0.5, 1e-9);
  const Timeline other = MakeTimeline(outcomes, objectives, 1);
  EXPECT_EQ(other.windows.size(), all.windows.size()) << "arms of a run have one clock";
  EXPECT_EQ(other.windows[1].due, 0);
  EXPECT_EQ(other.windows[4].due, 1);
}

// For runs of all lengths: the windows sum up to the totals.
TEST(TimelineTest, NothingIsLost) {
  std::mt19937 random(5);
  for (const int requests : {0, 1, 7, 300, 5000}) {
    for (const double seconds : {0.003, 1.7, 19.99, 3600.0}) {
      std::vector<Outcome> outcomes;
      int64_t tokens = 0;
      double open = 0.0;
      for (int i = 0; i < requests; ++i) {
        std::uniform_real_distribution<double> time(0.0, seconds);
        std::vector<double> times = {time(random), time(random), time(random)};
        std::sort(times.begin(), times.end());
        outcomes.push_back(Completed(times[0], {times[1], times[2]}));
        tokens += 2;
        open += times[2] - times[0];
      }
      const Timeline timeline = MakeTimeline(outcomes, {});
      EXPECT_LE(timeline.windows.size(), 121u);
      const double digits =
          timeline.step / std::pow(10, std::floor(std::log10(timeline.step) + 1e-9));
      EXPECT_TRUE(std::abs(digits - 1) < 1e-6 || std::abs(digits - 2) < 1e-6 ||
                  std::abs(digits - 5) < 1e-6)
          << timeline.step;
      int64_t due = 0, completed = 0, came = 0, gaps = 0;
      double in_flight = 0.0;
      for (const Window& window : timeline.windows) {
        due += window.due;
        completed += window.completed;
        came += window.output_tokens;
        gaps += window.itl.count;
        in_flight += window.in_flight * window.seconds;
      }
      EXPECT_EQ(due, requests);
      EXPECT_EQ(completed, requests);
      EXPECT_EQ(came, tokens);
      EXPECT_EQ(gaps, requests);
      EXPECT_NEAR(in_flight, open, 1e-6 * (1 + open));
    }
  }
}

}  // namespace
}  // namespace hydrant::load
