// Random schedules: ten thousand short ones, with a few requests in a pool that is too small and
// with failing calls, and some long ones. A failing schedule is reduced to the events that make it
// fail, and the test prints how to repeat them.
//
//   HYDRANT_SOAK_SEED      runs only this seed, in this process, and prints its events
//   HYDRANT_SOAK_EVENTS    runs only these of its events, as 0,3,4; in their order
//   HYDRANT_SOAK_SCHEDULES number of each size, instead of 10,000 and 150 (with ThreadSanitizer 2,000
//                          and 40)
//   HYDRANT_SOAK_FIRST     the first seed, instead of 1
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "tests/sanitized.h"
#include "tests/scheduler/random_schedule.h"
#include "tests/scheduler/shrink.h"

namespace hydrant {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

std::vector<int> AllOf(const std::vector<ScheduleEvent>& events) {
  std::vector<int> all(events.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

ScheduleCounts RunEvents(uint64_t seed, const ScheduleSize& size, const std::vector<int>& indices,
                         bool tells) {
  const std::vector<ScheduleEvent> all = DrawEvents(seed, size);
  std::vector<ScheduleEvent> events;
  events.reserve(indices.size());
  for (const int index : indices) events.push_back(all.at(index));
  return RandomSchedule(seed, size, tells).Run(events);
}

// Reduces the schedule, reports the remaining events, and runs them once more with visible output.
void Shorten(uint64_t seed, const ScheduleSize& size) {
  const std::vector<ScheduleEvent> events = DrawEvents(seed, size);
  const auto fails = [&](const std::vector<int>& indices) {
    return FailsInChild([&] { RunEvents(seed, size, indices, false); }, ChildOutput::kDropped);
  };
  if (!fails(AllOf(events))) {
    ADD_FAILURE() << "seed " << seed
                  << " fails, but not alone: only behind the seeds before it, or "
                  << "because their child ran for longer than FailsInChild() allows";
    return;
  }
  const std::vector<int> enough = Shrink(AllOf(events), fails);
  int arrivals = 0;
  for (const int index : enough) arrivals += events[index].what == Incident::kArrival ? 1 : 0;
  FailsInChild([&] { RunEvents(seed, size, enough, true); }, ChildOutput::kShown);
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  ADD_FAILURE() << "seed " << seed << " fails; of its " << events.size() << " events these "
                << enough.size() << " are enough, " << arrivals << " of them arrivals:\n  "
                << "HYDRANT_SOAK_SEED=" << seed
                << " HYDRANT_SOAK_EVENTS=" << absl::StrJoin(enough, ",")
                << " scheduler_soak_test --gtest_filter=" << test.test_suite_name() << "."
                << test.name();
}

// Runs the schedule that HYDRANT_SOAK_SEED names.
void Repeat(uint64_t seed, const ScheduleSize& size) {
  std::vector<int> indices = AllOf(DrawEvents(seed, size));
  if (const char* some = std::getenv("HYDRANT_SOAK_EVENTS"); some != nullptr) {
    indices.clear();
    for (const absl::string_view index : absl::StrSplit(some, ',', absl::SkipEmpty())) {
      indices.emplace_back();
      ASSERT_TRUE(absl::SimpleAtoi(index, &indices.back())) << index;
    }
  }
  RunEvents(seed, size, indices, true);
}

// Shared memory in which a child reports to its parent.
struct Progress {
  uint64_t seed = 0;  // the schedule that runs now
  ScheduleCounts counts;
};

// Schedules run in child processes, so that a crash is reported like any other failure. A child
// runs only as many as finish far within its time limit, under a sanitizer too.
ScheduleCounts RunSchedules(uint64_t count, const ScheduleSize& size) {
  constexpr int kStepsAtOnce = kThreadSanitizer ? 1000 : 5000;
  const auto at_once = static_cast<uint64_t>(std::max(1, kStepsAtOnce / size.steps));
  void* const memory =
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  HYDRANT_CHECK(memory != MAP_FAILED);
  auto* const progress = new (memory) Progress;
  const uint64_t first = FromEnvironment("HYDRANT_SOAK_FIRST", 1);
  const uint64_t end = first + FromEnvironment("HYDRANT_SOAK_SCHEDULES", count);
  std::cout << "seeds " << first << ".." << end - 1 << "\n";
  for (uint64_t begin = first; begin < end && !testing::Test::HasFailure(); begin += at_once) {
    const auto run = [&] {
      for (uint64_t& seed = progress->seed = begin;
           seed < std::min(begin + at_once, end) && !testing::Test::HasFailure(); ++seed) {
        progress->counts.Add(RunEvents(seed, size, AllOf(DrawEvents(seed, size)), false));
        if (testing::Test::HasFailure()) break;
      }
    };
    if (FailsInChild(run, ChildOutput::kDropped)) Shorten(progress->seed, size);
  }
  const ScheduleCounts counts = progress->counts;
  munmap(memory, sizeof(Progress));
  return counts;
}

void ExpectAllHappened(const ScheduleCounts& counts) {
  const std::pair<const char*, uint64_t> all[] = {
      {"preemptions", counts.preemptions},
      {"swaps", counts.swaps},
      {"caches cut for others", counts.shrinks},
      {"compressed for want of room", counts.compressed},
      {"that nothing was taken from", counts.guaranteed},
      {"tokens from prefix blocks", counts.hit_tokens},
      {"of these evicted", counts.evicted_blocks},
      {"went on from a context", counts.continued},
      {"contexts evicted", counts.contexts_evicted},
      {"contexts loaded", counts.loaded},
      {"runs appended", counts.appended},
      {"raised budgets", counts.turns},
      {"samples forked", counts.forks},
      {"pages copied", counts.copies},
      {"states alone", counts.state_copies},
      {"tokens of prompts in others' pages", counts.shared_tokens},
      {"streams equal to their run alone", counts.compared},
      {"finished", counts.finished},
      {"cancelled", counts.cancelled},
      {"clients gone", counts.gone},
      {"slow readers cut off", counts.slow},
      {"late", counts.late},
      {"lost with the engine", counts.lost},
      {"ended by a shortage", counts.starved},
      {"refused", counts.refused}};
  for (const auto& [what, count] : all) {
    std::cout << "  " << what << ": " << count << "\n";
    EXPECT_GT(count, 0u) << what;
  }
}

void Soak(uint64_t count, const ScheduleSize& size) {
  if (const uint64_t seed = FromEnvironment("HYDRANT_SOAK_SEED", 0); seed > 0)
    return Repeat(seed, size);
  const ScheduleCounts counts = RunSchedules(count, size);
  // ThreadSanitizer's fewer schedules need not meet the rare events.
  if (!kThreadSanitizer && !testing::Test::HasFailure()) ExpectAllHappened(counts);
}

// scripts/test --long runs more.
TEST(SchedulerSoakTest, ShortSchedules) { Soak(kThreadSanitizer ? 2'000 : 10'000, kShortSchedule); }
TEST(SchedulerSoakTest, LongSchedules) { Soak(kThreadSanitizer ? 40 : 150, kLongSchedule); }

}  // namespace
}  // namespace hydrant
