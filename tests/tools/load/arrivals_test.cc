#include "tools/load/run/arrivals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace hydrant::load {
namespace {

constexpr double kEven = std::numeric_limits<double>::infinity();

std::vector<double> Gaps(Arrivals arrivals, int count) {
  std::vector<double> gaps;
  for (double before = 0.0; count > 0; --count) {
    const double at = arrivals.Next();
    gaps.push_back(at - before);
    before = at;
  }
  return gaps;
}

double Mean(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double Variance(const std::vector<double>& values) {
  const double mean = Mean(values);
  double sum = 0.0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return sum / static_cast<double>(values.size() - 1);
}

TEST(ArrivalsTest, EvenGapsAreOneOverTheRate) {
  for (const double gap : Gaps(Arrivals(RateProfile::Constant(4), kEven, 1), 100))
    EXPECT_NEAR(gap, 0.25, 1e-9);
}

// A Gamma distribution of mean m and shape k has the variance m^2 / k.
TEST(ArrivalsTest, GapsHaveTheMeanAndVarianceOfTheirShape) {
  constexpr int kCount = 200'000;
  for (const double shape : {0.25, 1.0, 4.0}) {
    SCOPED_TRACE(shape);
    const std::vector<double> gaps = Gaps(Arrivals(RateProfile::Constant(10), shape, 7), kCount);
    EXPECT_NEAR(Mean(gaps), 0.1, 5 * 0.1 / std::sqrt(shape * kCount));
    // The variance of a sample's variance is (kurtosis - 1 + ...) / n; 6 / shape + 2 for a Gamma.
    const double variance = 0.01 / shape;
    EXPECT_NEAR(Variance(gaps), variance, 5 * variance * std::sqrt((6 / shape + 2) / kCount));
  }
}

TEST(ArrivalsTest, PoissonCountsInASecondVaryAsMuchAsTheirMean) {
  Arrivals arrivals(RateProfile::Constant(20), 1.0, 3);
  std::vector<double> counts(5000, 0.0);
  for (double at = arrivals.Next(); at < 5000; at = arrivals.Next())
    ++counts[static_cast<size_t>(at)];
  EXPECT_NEAR(Mean(counts), 20, 0.4);
  EXPECT_NEAR(Variance(counts) / Mean(counts), 1.0, 0.1);
}

TEST(ArrivalsTest, OneSeedIsOneLoad) {
  const auto drawn = [](uint64_t seed) {
    return Gaps(Arrivals(RateProfile::Constant(5), 1.0, seed), 50);
  };
  EXPECT_EQ(drawn(11), drawn(11));
  EXPECT_NE(drawn(11), drawn(12));
}

// Compares the profile with a sum of the rate over small steps.
TEST(RateProfileTest, TimesInvertTheSumOfTheRate) {
  const RateProfile profile = *RateProfile::Parse("2x10,0x5,1-9x20,4x10");
  const auto rate = [](double t) {
    return t < 10 ? 2.0 : t < 15 ? 0.0 : t < 35 ? 1 + 8 * (t - 15) / 20 : 4.0;
  };
  constexpr double kStep = 1e-4;
  double due = 0.0, target = 0.5;
  for (double t = 0.0; t < 80; t += kStep) {
    due += rate(t + kStep / 2) * kStep;
    if (due < target) continue;
    EXPECT_NEAR(profile.TimeOf(target), t, 3e-3) << target << " requests";
    target += 1.0;
  }
  EXPECT_GT(target, 200) << "4 a second hold on after the last piece";
  EXPECT_DOUBLE_EQ(profile.SecondsOfPieces(), 45);
}

TEST(RateProfileTest, ErrorsNameTheText) {
  for (const char* bad :
       {"", "x", "-1", "0", "5x", "x5", "5x0", "1-", "1-2", "3,4", "2x10,nan", "1e10", "5y"}) {
    const auto profile = RateProfile::Parse(bad);
    ASSERT_FALSE(profile.ok()) << bad;
    EXPECT_THAT(std::string(profile.status().message()), testing::HasSubstr("request-rate: "))
        << bad;
  }
  EXPECT_TRUE(RateProfile::Parse("inf")->IsUnlimited());
  EXPECT_EQ(RateProfile::Parse("inf")->TimeOf(1000), 0.0);
  EXPECT_EQ(RateProfile::Parse("3x2,0x1")->TimeOf(7), kEven)
      << "nothing comes after a last rate of 0";
}

}  // namespace
}  // namespace hydrant::load
