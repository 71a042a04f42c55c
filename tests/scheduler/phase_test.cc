// The table of phase transitions, compared with the diagram in the header.
#include "scheduler/phase.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace hydrant {
namespace {

constexpr Phase kAll[] = {Phase::kWaiting,  Phase::kPreempted, Phase::kSwapped, Phase::kReading,
                          Phase::kResuming, Phase::kRunning,   Phase::kEnded};

TEST(PhaseTest, MovesEqualTheDocumentedOnes) {
  using P = Phase;
  const std::set<std::pair<P, P>> moves = {
      {P::kWaiting, P::kReading},   {P::kWaiting, P::kResuming},   {P::kWaiting, P::kRunning},
      {P::kPreempted, P::kReading}, {P::kPreempted, P::kResuming}, {P::kSwapped, P::kResuming},
      {P::kReading, P::kRunning},   {P::kReading, P::kPreempted},  {P::kResuming, P::kRunning},
      {P::kRunning, P::kReading},   {P::kRunning, P::kPreempted},  {P::kRunning, P::kSwapped},
      {P::kWaiting, P::kEnded},     {P::kPreempted, P::kEnded},    {P::kSwapped, P::kEnded},
      {P::kReading, P::kEnded},     {P::kRunning, P::kEnded}};
  for (const Phase from : kAll) {
    for (const Phase to : kAll) {
      EXPECT_EQ(MayMove(from, to), moves.contains({from, to}))
          << static_cast<int>(from) << " to " << static_cast<int>(to);
    }
  }
}

TEST(PhaseTest, ThreePhasesWaitInTheQueue) {
  for (const Phase phase : kAll) {
    EXPECT_EQ(IsQueued(phase),
              phase == Phase::kWaiting || phase == Phase::kPreempted || phase == Phase::kSwapped);
  }
}

}  // namespace
}  // namespace hydrant
