// Finds what a failing run of many parts can do without, whether it fails an assertion, aborts or
// never ends: each try is a process of its own.
#ifndef HYDRANT_TESTS_SCHEDULER_SHRINK_H_
#define HYDRANT_TESTS_SCHEDULER_SHRINK_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace hydrant {

enum class ChildOutput : uint8_t { kShown, kDropped };
// Runs it in a child process. Whether it failed: a test's assertion, a signal, more than 120 s.
bool FailsInChild(const std::function<void()>& run, ChildOutput output);

// What is left of `parts`, in their order, when runs of them that it fails without have been left
// out: longer runs first, then single ones until it needs each. After `most_tries` what is left
// then. (A plain form of Zeller and Hildebrandt's delta debugging, 2002.) REQUIRES: fails(parts)
std::vector<int> Shrink(std::vector<int> parts,
                        const std::function<bool(const std::vector<int>&)>& fails,
                        int most_tries = 3000);

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SCHEDULER_SHRINK_H_
