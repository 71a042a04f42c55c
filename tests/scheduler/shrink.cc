#include "tests/scheduler/shrink.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "gtest/gtest.h"
#include "kernels/check.h"

namespace hydrant {

bool FailsInChild(const std::function<void()>& run, ChildOutput output) {
  std::cout.flush();
  std::fflush(nullptr);  // else the child writes it again
  const pid_t child = fork();
  HYDRANT_CHECK(child >= 0);
  if (child == 0) {
    alarm(120);
    if (output == ChildOutput::kDropped) {
      const int nowhere = open("/dev/null", O_WRONLY);
      dup2(nowhere, STDOUT_FILENO);
      dup2(nowhere, STDERR_FILENO);
    }
    run();
    std::cout.flush();
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  HYDRANT_CHECK(waitpid(child, &status, 0) == child);
  return status != 0;
}

std::vector<int> Shrink(std::vector<int> parts,
                        const std::function<bool(const std::vector<int>&)>& fails, int max_tries) {
  size_t run = std::max<size_t>(1, parts.size() / 2);
  while (true) {
    const size_t before = parts.size();
    for (size_t begin = 0; begin < parts.size();) {
      if (max_tries-- <= 0) return parts;
      std::vector<int> rest = parts;
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(begin),
                 rest.begin() + static_cast<std::ptrdiff_t>(std::min(begin + run, rest.size())));
      if (fails(rest)) {
        parts = std::move(rest);
      } else {
        begin += run;
      }
    }
    if (run == 1 && parts.size() == before) return parts;
    run = std::max<size_t>(1, run / 2);
  }
}

}  // namespace hydrant
