#include "tools/load/run/quality.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace hydrant::load {
namespace {

using testing::HasSubstr;

using Ids = std::vector<uint32_t>;

TEST(AgreementTest, CountsPositionsOfTheLongerAnswer) {
  Agreement agreement;
  AddPair(Ids{1, 2, 3, 4}, Ids{1, 2, 9, 4}, &agreement);  // differs at the third
  EXPECT_EQ(agreement.positions, 4);
  EXPECT_EQ(agreement.before_difference, 2);
  EXPECT_EQ(agreement.matched, 3);
  EXPECT_EQ(agreement.identical, 0);
  AddPair(Ids{1, 2}, Ids{1, 2, 3, 4, 5, 6}, &agreement);  // one ended early
  EXPECT_EQ(agreement.positions, 10);
  EXPECT_EQ(agreement.before_difference, 4);
  EXPECT_EQ(agreement.matched, 5);
  EXPECT_EQ(agreement.identical, 0);
  AddPair(Ids{7}, Ids{7}, &agreement);
  EXPECT_EQ(agreement.identical, 1);
  EXPECT_EQ(agreement.prompts, 3);
  EXPECT_DOUBLE_EQ(agreement.BeforeDifferenceShare(), 5.0 / 11);
  EXPECT_DOUBLE_EQ(agreement.MatchedShare(), 6.0 / 11);
  EXPECT_DOUBLE_EQ(agreement.IdenticalShare(), 1.0 / 3);
}

// Answers a prompt of one token t with t, t + 1, ..., one token per message; arm 2 answers 0 from
// the third token on. A prompt of 13 fails.
class FakeTarget final : public Target {
 public:
  int64_t max_in_flight = 0;
  bool tells_ids = true;

  double Now() override { return now_; }
  uint64_t Send(const PlannedRequest& request) override {
    max_in_flight = std::max(max_in_flight, ++in_flight_);
    for (int64_t i = 0; i < request.max_tokens; ++i) {
      StreamEvent event{.index = request.index, .tokens = 1};
      const uint32_t id = request.arm == 2 && i >= 2 ? 0 : request.prompt[0] + i;
      if (tells_ids) event.token_ids = {id};
      events_.push_back(event);
    }
    StreamEvent end{.index = request.index, .ended = true};
    end.status = request.prompt[0] == 13 && request.arm == 1 ? "INTERNAL" : "OK";
    end.error = "unlucky";
    events_.push_back(end);
    return 0;
  }
  void Cancel(int64_t) override {}
  void Disconnect(int64_t) override {}
  bool Wait(double until, StreamEvent* event) override {
    if (events_.empty()) {
      now_ = until;
      return false;
    }
    *event = std::move(events_.front());
    events_.pop_front();
    in_flight_ -= event->ended;
    return true;
  }

 private:
  double now_ = 0.0;
  int64_t in_flight_ = 0;
  std::deque<StreamEvent> events_;
};

std::vector<PlannedRequest> Prompts(const std::vector<uint32_t>& firsts) {
  std::vector<PlannedRequest> prompts;
  prompts.reserve(firsts.size());
  for (const uint32_t first : firsts)
    prompts.push_back({.prompt = {first}, .max_tokens = 5, .fault = Fault::kCancel});
  return prompts;
}

const std::vector<std::string> kArms = {"full", "full, again", "worse"};

TEST(CheckQualityTest, EveryArmIsComparedOverTheSamePrompts) {
  FakeTarget target;
  const auto agreements = CheckQuality(Prompts({20, 13, 40}), kArms, {.concurrency = 4}, &target);
  ASSERT_TRUE(agreements.ok()) << agreements.status();
  ASSERT_EQ(agreements->size(), 2u);
  EXPECT_EQ((*agreements)[0].arm, "full, again");
  EXPECT_EQ((*agreements)[0].prompts, 2) << "one was not answered under every arm";
  EXPECT_EQ((*agreements)[0].MatchedShare(), 1.0);
  EXPECT_EQ((*agreements)[1].arm, "worse");
  EXPECT_EQ((*agreements)[1].prompts, 2);
  EXPECT_EQ((*agreements)[1].positions, 10);
  EXPECT_EQ((*agreements)[1].before_difference, 4);
  EXPECT_EQ(target.max_in_flight, 4);
}

TEST(CheckQualityTest, SaysWhyThereIsNothingToCompare) {
  FakeTarget target;
  auto agreements = CheckQuality(Prompts({13}), kArms, {}, &target);
  EXPECT_THAT(std::string(agreements.status().message()),
              HasSubstr("no prompt was answered: INTERNAL unlucky"));
  target.tells_ids = false;
  agreements = CheckQuality(Prompts({20}), kArms, {}, &target);
  EXPECT_THAT(std::string(agreements.status().message()), HasSubstr("no token ids"));
  agreements = CheckQuality(Prompts({20}), kArms, {.go_on = [] { return false; }}, &target);
  EXPECT_THAT(std::string(agreements.status().message()), HasSubstr("broken off"));
}

}  // namespace
}  // namespace hydrant::load
