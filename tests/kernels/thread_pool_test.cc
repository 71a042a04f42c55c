#include "kernels/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hydrant {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, RunsEveryTaskOnce) {
  ThreadPool pool(GetParam());
  for (int num_tasks : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<std::atomic<int>> runs(num_tasks);
    std::atomic<int> bad_thread{0};
    pool.ParallelFor(num_tasks, [&](int task, int thread) {
      runs[task].fetch_add(1);
      if (thread < 0 || thread >= pool.num_threads()) bad_thread.fetch_add(1);
    });
    for (int task = 0; task < num_tasks; ++task) ASSERT_EQ(runs[task].load(), 1) << "task " << task;
    EXPECT_EQ(bad_thread.load(), 0);
  }
}

TEST_P(ThreadPoolTest, RangesRunEveryTaskOnceAndOnesOwnFirst) {
  ThreadPool pool(GetParam());
  const int threads = pool.num_threads();
  for (int num_tasks : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<std::atomic<int>> runs(num_tasks);
    std::vector<std::vector<int>> of_thread(threads);
    pool.ParallelForRanges(num_tasks, [&](int task, int thread) {
      runs[task].fetch_add(1);
      of_thread[thread].push_back(task);
    });
    for (int task = 0; task < num_tasks; ++task) ASSERT_EQ(runs[task].load(), 1) << "task " << task;
    for (int thread = 0; thread < threads && num_tasks > 1; ++thread) {
      const int begin = num_tasks * thread / threads, end = num_tasks * (thread + 1) / threads;
      const auto is_own = [&](int task) { return task >= begin && task < end; };
      std::vector<int>& tasks = of_thread[thread];
      // A worker still in the previous loop may first take another worker's task.
      if (thread > 0 && !tasks.empty() && !is_own(tasks[0])) tasks.erase(tasks.begin());
      EXPECT_TRUE(std::is_partitioned(tasks.begin(), tasks.end(), is_own)) << num_tasks;
      const auto others = std::partition_point(tasks.begin(), tasks.end(), is_own);
      EXPECT_TRUE(std::is_sorted(tasks.begin(), others)) << num_tasks;
    }
  }
}

// Idle threads help: a thread blocked in a task of its own range leaves the rest of
// the range to others.
TEST_P(ThreadPoolTest, RangesAreHelpedWith) {
  ThreadPool pool(GetParam());
  if (pool.num_threads() == 1) GTEST_SKIP() << "needs a second thread";
  constexpr int kTasks = 100;
  std::atomic<int> ended{0};
  pool.ParallelForRanges(kTasks, [&](int task, int) {
    while (task == 0 && ended.load() < kTasks - 1) std::this_thread::yield();
    ended.fetch_add(1);
  });
  EXPECT_EQ(ended.load(), kTasks);
}

// Plain memory written in a loop is visible to the caller afterwards, and to all
// threads in the next loop.
TEST_P(ThreadPoolTest, LoopsAreOrdered) {
  ThreadPool pool(GetParam());
  constexpr int kTasks = 37;
  std::vector<int64_t> values(kTasks, 0);
  for (int round = 0; round < 3000; ++round) {
    pool.ParallelFor(kTasks, [&](int task, int) { values[task] += 1; });
    const std::vector<int64_t> before = values;
    pool.ParallelForRanges(kTasks,
                           [&](int task, int) { values[task] = before[kTasks - 1 - task] + 1; });
  }
  EXPECT_THAT(values, testing::Each(6000));
}

TEST_P(ThreadPoolTest, AThreadNumberIsUsedByOneThreadAtATime) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<int>> busy(pool.num_threads());
  std::atomic<int> clashes{0};
  for (int round = 0; round < 200; ++round) {
    pool.ParallelFor(50, [&](int, int thread) {
      if (busy[thread].fetch_add(1) != 0) clashes.fetch_add(1);
      busy[thread].fetch_sub(1);
    });
  }
  EXPECT_EQ(clashes.load(), 0);
}

TEST_P(ThreadPoolTest, OnEachThreadVisitsDistinctThreadsAndMixesWithLoops) {
  ThreadPool pool(GetParam());
  std::set<std::thread::id> all_ids;
  for (int round = 0; round < 100; ++round) {
    std::mutex mutex;
    std::set<std::thread::id> ids;
    std::vector<int> visits(pool.num_threads(), 0);
    pool.OnEachThread([&](int thread) {
      ++visits[thread];
      std::lock_guard<std::mutex> lock(mutex);
      ids.insert(std::this_thread::get_id());
    });
    EXPECT_THAT(visits, testing::Each(1));
    EXPECT_EQ(ids.size(), static_cast<size_t>(pool.num_threads()));
    all_ids.insert(ids.begin(), ids.end());
    std::atomic<int> tasks{0};
    pool.ParallelFor(5, [&](int, int) { tasks.fetch_add(1); });
    EXPECT_EQ(tasks.load(), 5);
  }
  EXPECT_EQ(all_ids.size(),
            static_cast<size_t>(pool.num_threads()));  // the same threads every time
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 3, 8));

TEST(ThreadPool, EndsWithoutEverRunning) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(4);
}

}  // namespace
}  // namespace hydrant
