// The dot product of the tests' references in double precision.
#ifndef HYDRANT_TESTS_DOT_H_
#define HYDRANT_TESTS_DOT_H_

#include <cstddef>

namespace hydrant {

// The sum in four parts, so that the compiler can use vectors.
inline double Dot(const double* a, const double* b, size_t n) {
  double sums[4] = {};
  size_t d = 0;
  for (; d + 4 <= n; d += 4) {
    for (int i = 0; i < 4; ++i) sums[i] += a[d + i] * b[d + i];
  }
  for (; d < n; ++d) sums[0] += a[d] * b[d];
  return sums[0] + sums[1] + sums[2] + sums[3];
}

}  // namespace hydrant

#endif  // HYDRANT_TESTS_DOT_H_
