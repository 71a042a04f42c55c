#include "tools/load/run/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/tools/load/queue_target.h"
#include "tools/load/report/sweep_report.h"
#include "tools/load/run/probe.h"
#include "tools/load/run/rate_search.h"

namespace hydrant::load {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The rates tried if all up to `capacity` succeed.
std::vector<double> Tried(const RateSearchOptions& options, double capacity, RateSearch* search) {
  std::vector<double> tried;
  while (const std::optional<double> rate = search->Next()) {
    tried.push_back(*rate);
    search->Add(*rate, *rate <= capacity);
    if (tried.size() > 100) break;
  }
  EXPECT_LE(tried.size(), 100u) << "it does not end; first " << options.first;
  return tried;
}

TEST(RateSearchTest, DoublesThenBisects) {
  RateSearch search({.first = 1.0, .resolution = 0.1});
  const std::vector<double> tried = Tried({}, 5.5, &search);
  ASSERT_GE(tried.size(), 5u);
  EXPECT_THAT(std::vector<double>(tried.begin(), tried.begin() + 4), ElementsAre(1, 2, 4, 8));
  EXPECT_LE(*search.highest_met(), 5.5);
  EXPECT_GT(*search.lowest_failed(), 5.5);
  EXPECT_LE(*search.lowest_failed() / *search.highest_met(), 1.1);
}

TEST(RateSearchTest, FindsCapacitiesOfAllSizesWithinTheResolution) {
  for (const double resolution : {0.01, 0.1, 0.5}) {
    for (double capacity = 0.011; capacity < 9000; capacity *= 1.37) {
      const RateSearchOptions options{.first = 3.0, .resolution = resolution};
      RateSearch search(options);
      Tried(options, capacity, &search);
      ASSERT_TRUE(search.highest_met() && search.lowest_failed()) << capacity;
      EXPECT_LE(*search.highest_met(), capacity);
      EXPECT_GT(*search.lowest_failed(), capacity);
      EXPECT_LE(*search.lowest_failed(), *search.highest_met() * (1 + resolution) * (1 + 1e-12));
    }
  }
}

TEST(RateSearchTest, EndsAtItsBounds) {
  RateSearch none({.first = 1.0, .least = 0.3, .most = 3.0});
  EXPECT_THAT(Tried({}, 0.0, &none), ElementsAre(1, 0.5, 0.3));
  EXPECT_FALSE(none.highest_met().has_value());
  RateSearch all({.first = 1.0, .least = 0.3, .most = 3.0});
  EXPECT_THAT(Tried({}, 100.0, &all), ElementsAre(1, 2, 3));
  EXPECT_FALSE(all.lowest_failed().has_value());
  RateSearch list({.rates = {4, 1, 2, 8}});
  EXPECT_THAT(Tried({}, 3.0, &list), ElementsAre(4, 1, 2, 8));
  EXPECT_EQ(list.highest_met(), 2);
  EXPECT_EQ(list.lowest_failed(), 4);
}

TEST(RateSearchTest, ARateAboveOneThatFailedDoesNotCount) {
  RateSearch list({.rates = {1, 2, 4}});
  list.Add(1, true);
  list.Add(2, false);
  list.Add(4, true);
  EXPECT_EQ(list.highest_met(), 1);
}

TEST(RateSearchTest, OptionsOutOfRangeAreNamed) {
  const auto message = [](const RateSearchOptions& options) {
    return std::string(CheckRateSearch(options).message());
  };
  EXPECT_THAT(message({.first = 0.001}), HasSubstr("first-rate: 0.001"));
  EXPECT_THAT(message({.least = 0}), HasSubstr("min-rate: 0"));
  EXPECT_THAT(message({.most = 1e-3}), HasSubstr("max-rate: 0.001"));
  EXPECT_THAT(message({.resolution = 0}), HasSubstr("resolution: 0"));
  EXPECT_THAT(message({.rates = {1, -1}}), HasSubstr("rates: -1"));
  EXPECT_TRUE(CheckRateSearch({}).ok());
}

Workload EndlessWorkload() {
  return *Workload::Create(
      {.num_requests = int64_t{1} << 40, .input_tokens = 1, .output_tokens = 1, .vocab_size = 2});
}

SweptArm FindCapacity(double service, const ProbeOptions& options,
                      const RateSearchOptions& search) {
  const Workload workload = EndlessWorkload();
  std::vector<SweptArm> arms = {{.name = "queue"}};
  EXPECT_TRUE(Sweep(search, {},
                    {.probe =
                         [&](size_t, double rate) {
                           QueueTarget target(service);
                           const Probe probe = ProbeRate(workload, rate, options, &target);
                           EXPECT_TRUE(probe.complete);
                           return Record(probe);
                         }},
                    &arms));
  return arms[0];
}

// Constant gaps: request k waits k * (service - gap), which decides for every rate whether it is
// sustainable.
TEST(SweepTest, FindsTheCapacityOfAQueueOfEvenArrivals) {
  constexpr double kService = 0.02, kLimit = 0.5, kShare = 0.9, kWarmUp = 5, kSeconds = 40;
  const auto is_borne = [&](double rate) {
    int64_t requests = 0, good = 0;
    for (int64_t k = 1; static_cast<double>(k) / rate < kWarmUp + kSeconds; ++k) {
      if (static_cast<double>(k) / rate < kWarmUp) continue;
      ++requests;
      good += kService + static_cast<double>(k - 1) * std::max(0.0, kService - 1 / rate) <= kLimit;
    }
    return static_cast<double>(good) >= kShare * static_cast<double>(requests);
  };
  double capacity = 1;
  while (is_borne(capacity)) capacity *= 1.0005;
  EXPECT_GT(capacity, 50);  // a queue may grow during the whole probe
  EXPECT_LT(capacity, 52);
  ProbeOptions options{.share = kShare,
                       .warm_up = kWarmUp,
                       .seconds = kSeconds,
                       .burstiness = std::numeric_limits<double>::infinity()};
  options.objectives.ttft_ms = kLimit * 1e3;
  const SweptArm arm = FindCapacity(kService, options, {.first = 1, .resolution = 0.01});
  EXPECT_TRUE(arm.finished);
  EXPECT_LE(*arm.highest_met, capacity);
  EXPECT_GE(*arm.lowest_failed, capacity / 1.001);
  EXPECT_LE(*arm.lowest_failed, *arm.highest_met * 1.0101);
}

// The fraction of customers of an M/D/1 queue that wait at most `wait`; Erlang 1909, for `wait` of
// a few service times.
double ShareThatWaitsAtMost(double wait, double rate, double service) {
  double sum = 0.0, factorial = 1.0;
  for (int k = 0; k * service <= wait; ++k) {
    if (k > 0) factorial *= k;
    const double power = rate * (k * service - wait);
    sum += std::pow(power, k) / factorial * std::exp(-power);
  }
  return (1 - rate * service) * sum;
}

TEST(SweepTest, FindsTheCapacityOfAQueueOfPoissonArrivals) {
  constexpr double kService = 0.01, kLimit = 5 * kService;
  double capacity = 1;
  while (ShareThatWaitsAtMost(kLimit - kService, capacity, kService) >= 0.95) capacity *= 1.0005;
  EXPECT_NEAR(capacity, 68, 8) << "of 100 a second";
  ProbeOptions options{.share = 0.95, .warm_up = 5, .seconds = 300, .seed = 7};
  options.objectives.ttft_ms = kLimit * 1e3 + 1e-6;
  const SweptArm arm = FindCapacity(kService, options, {.first = 40, .resolution = 0.02});
  EXPECT_NEAR(*arm.highest_met, capacity, 0.05 * capacity);
  EXPECT_NEAR(*arm.lowest_failed, capacity, 0.05 * capacity);
}

TEST(ProbeTest, CountsRequestsSentInItsWindow) {
  QueueTarget target(0.01);
  ProbeOptions options{.warm_up = 1,
                       .seconds = 4,
                       .least_requests = 100,
                       .burstiness = std::numeric_limits<double>::infinity()};
  options.objectives.ttft_ms = 20;
  const Probe probe = ProbeRate(EndlessWorkload(), 10, options, &target);
  EXPECT_DOUBLE_EQ(probe.seconds, 10) << "until a hundred are due";
  EXPECT_NEAR(probe.requests, 100, 1);
  EXPECT_EQ(probe.good, probe.requests);
  EXPECT_TRUE(probe.met);
  EXPECT_NEAR(probe.Goodput(), 10, 0.11);
  EXPECT_NEAR(probe.output_tokens_per_second, 10, 0.2);
  EXPECT_NEAR(probe.in_flight, 0.1, 0.01) << "Little's law";
}

// At twice the capacity a queue of thousands remains, of which none can be good any more.
TEST(ProbeTest, DoesNotWaitForLostRequests) {
  QueueTarget target(0.02);
  ProbeOptions options{.warm_up = 0,
                       .seconds = 100,
                       .drain = 1e6,
                       .burstiness = std::numeric_limits<double>::infinity()};
  options.objectives.ttft_ms = 1000;
  const Probe probe = ProbeRate(EndlessWorkload(), 100, options, &target);
  EXPECT_TRUE(probe.complete);
  EXPECT_FALSE(probe.met);
  EXPECT_LT(target.Now(), 105);
  EXPECT_NEAR(probe.requests, 10'000, 2);
  EXPECT_NEAR(static_cast<double>(probe.good), 100, 5) << "those of the first two seconds";
  EXPECT_GT(probe.measures.unfinished, 4000);
}

TEST(ProbeTest, ThatIsBrokenOffSaysNothing) {
  QueueTarget target(0.001);
  ProbeOptions options;
  options.objectives.ttft_ms = 1000;
  const Probe probe = ProbeRate(EndlessWorkload(), 10, options, &target,
                                [](double now, std::span<const Outcome>) { return now < 20; });
  EXPECT_FALSE(probe.complete);
  EXPECT_FALSE(probe.met);
}

SweepDescription Description() {
  SweepDescription sweep{.model = "m", .date = "d", .options = {{"--input-len", "5"}}};
  sweep.probe.objectives.ttft_ms = 100;
  return sweep;
}

TEST(SweepTest, GoesOnWhereItWasBrokenOff) {
  const auto capacity = [](size_t arm) { return arm == 0 ? 5.0 : 17.0; };
  const auto probe = [&](size_t arm, double rate) {
    Probe made{.rate = rate, .met = rate <= capacity(arm), .complete = true};
    return Record(made);
  };
  std::vector<SweptArm> whole = {{.name = "a"}, {.name = "b"}};
  EXPECT_TRUE(Sweep({}, {}, {.probe = probe}, &whole));
  const size_t probes = whole[0].probes.size() + whole[1].probes.size();
  for (size_t breaks_after = 0; breaks_after < probes; ++breaks_after) {
    size_t made = 0, told = 0, most = breaks_after;
    std::vector<SweptArm> part = {{.name = "a"}, {.name = "b"}};
    SweepCalls calls;
    calls.probe = [&](size_t arm, double rate) -> std::optional<ProbeRecord> {
      if (made == most) return std::nullopt;
      ++made;
      return probe(arm, rate);
    };
    calls.on_probe = [&](const std::vector<SweptArm>&) { ++told; };
    EXPECT_FALSE(Sweep({}, {}, calls, &part));
    EXPECT_EQ(told, breaks_after);
    SweepDescription partial = Description();
    partial.complete = false;
    const auto known = ParseSweep(SweepJson(partial, part), "file", Description());
    ASSERT_TRUE(known.ok()) << known.status();
    std::vector<SweptArm> rest = {{.name = "a"}, {.name = "b"}};
    most = probes;
    EXPECT_TRUE(Sweep({}, *known, calls, &rest));
    EXPECT_EQ(made, probes) << "none is made twice";
    EXPECT_EQ(SweepJson(Description(), rest), SweepJson(Description(), whole));
  }
}

TEST(SweepTest, DoesNotGoOnWithOtherSettings) {
  const std::string json = SweepJson(Description(), {{.name = "a"}});
  SweepDescription other = Description();
  other.options["--json"] = "elsewhere";
  other.options["--resolution"] = "0.05";
  EXPECT_TRUE(ParseSweep(json, "file", other).ok()) << "which probes find the same";
  other = Description();
  other.probe.seed = 1;
  EXPECT_THAT(std::string(ParseSweep(json, "file", other).status().message()),
              HasSubstr("file: cannot go on: it was made with seed 0, not 1"));
  other = Description();
  other.options["--input-len"] = "6";
  EXPECT_THAT(std::string(ParseSweep(json, "file", other).status().message()),
              HasSubstr("--input-len \"5\", not \"6\""));
  for (const char* bad : {"", "[]", "{}", "{\"kind\":\"sweep\"}"})
    EXPECT_THAT(std::string(ParseSweep(bad, "file", other).status().message()),
                HasSubstr("file: it is no sweep"))
        << bad;
}

TEST(SweepReportTest, WarnsWhereAnArmFoundItsPromptsInACache) {
  std::vector<SweptArm> arms = {{.name = "full"}, {.name = "h2o"}};
  const auto probe = [](size_t arm, double rate) {
    Probe made{
        .rate = rate, .seconds = 10, .requests = 100, .good = 100, .met = true, .complete = true};
    made.measures.input_tokens = 1000;
    made.measures.cached_tokens = arm == 0 ? 0 : 960;
    return Record(made);
  };
  ASSERT_TRUE(Sweep({.rates = {2}}, {}, {.probe = probe}, &arms));
  const std::string text = SweepText(Description(), arms);
  EXPECT_THAT(text, HasSubstr(" 96.0 % "));
  EXPECT_THAT(text, HasSubstr("WARNING: the prefix cache had 96.0 % of the prompts of h2o"));
  EXPECT_THAT(SweepHtml(Description(), arms), HasSubstr("\"warning\":\"the prefix cache had"));
}

TEST(SweepReportTest, AllFacesSayTheSame) {
  std::vector<SweptArm> arms = {{.name = "full"}, {.name = "h2o"}};
  const auto probe = [](size_t arm, double rate) {
    Probe made{.rate = rate,
               .seconds = 10,
               .requests = 100,
               .good = rate <= (arm == 0 ? 2 : 4) ? 100 : 7,
               .complete = true};
    made.met = made.good == 100;
    return Record(made);
  };
  ASSERT_TRUE(Sweep({.rates = {2, 4, 8}}, {}, {.probe = probe}, &arms));
  SweepDescription sweep = Description();
  const nlohmann::json json = nlohmann::json::parse(SweepJson(sweep, arms));
  EXPECT_EQ(json["arms"][0]["highest_rate"], 2);
  EXPECT_EQ(json["arms"][1]["highest_rate"], 4);
  EXPECT_EQ(json["arms"][1]["lowest_failed"], 8);
  EXPECT_EQ(json["arms"][1]["points"][2]["share"], 0.07);
  EXPECT_EQ(json["arms"][1]["points"][2]["request_goodput"], 0.7);
  EXPECT_THAT(SweepCsv(arms), HasSubstr("\"h2o\",0,8,10,100,7,0.07,0.7,"));
  EXPECT_THAT(SweepText(sweep, arms),
              HasSubstr("h2o                                           4            8        2"));
  EXPECT_THAT(SweepHtml(sweep, arms), HasSubstr("\"highest_rate\":4.0"));
  EXPECT_THAT(SweepText(sweep, arms), Not(HasSubstr("WARNING")));
  sweep.complete = false;
  EXPECT_THAT(SweepText(sweep, arms), HasSubstr("PARTIAL"));
}

}  // namespace
}  // namespace hydrant::load
