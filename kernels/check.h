// HYDRANT_CHECK(condition): a violated internal invariant aborts the process with file and line.
// User input never reaches it; errors of users are absl::Status.
#ifndef HYDRANT_KERNELS_CHECK_H_
#define HYDRANT_KERNELS_CHECK_H_

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "kernels/final_line.h"

namespace hydrant {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* condition) {
  char text[1024];
  const int size =
      std::snprintf(text, sizeof(text), "%s:%d: check failed: %s\n", file, line, condition);
  WriteFinalLine({text, std::min(static_cast<size_t>(std::max(size, 0)), sizeof(text) - 1)});
  std::abort();
}

}  // namespace hydrant

#define HYDRANT_CHECK(condition)                                              \
  do {                                                                        \
    if (!(condition)) ::hydrant::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

#endif  // HYDRANT_KERNELS_CHECK_H_
