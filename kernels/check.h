// HYDRANT_CHECK(condition): a broken invariant of our own ends the process with its place. What a
// user sends never gets here: that is an absl::Status.
#ifndef HYDRANT_KERNELS_CHECK_H_
#define HYDRANT_KERNELS_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define HYDRANT_CHECK(condition)                                                         \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

#endif  // HYDRANT_KERNELS_CHECK_H_
