// Delta debugging: reduces the parts of a failing run, whether it fails an assertion, aborts or
// hangs. Each try is a process of its own.
#ifndef HYDRANT_TESTS_SCHEDULER_SHRINK_H_
#define HYDRANT_TESTS_SCHEDULER_SHRINK_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace hydrant {

enum class ChildOutput : uint8_t { kShown, kDropped };
// Runs it in a child process. Returns whether it failed: a test's assertion, a signal, more than
// 120 s.
bool FailsInChild(const std::function<void()>& run, ChildOutput output);

// Returns the parts that the failure needs, in their order: removes runs of parts, longer runs
// first, then single parts, until each is needed. After `max_tries` returns the parts left so far.
// (A plain form of Zeller and Hildebrandt's delta debugging, 2002.) REQUIRES: fails(parts)
std::vector<int> Shrink(std::vector<int> parts,
                        const std::function<bool(const std::vector<int>&)>& fails,
                        int max_tries = 3000);

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SCHEDULER_SHRINK_H_
