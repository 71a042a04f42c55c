// A dot product in double.
#ifndef HYDRANT_KERNELS_REFERENCE_DOT_H_
#define HYDRANT_KERNELS_REFERENCE_DOT_H_

namespace hydrant::reference {

// a, b: [size]. Four independent sums hide the latency of an addition.
inline double Dot(const float* a, const float* b, int size) {
  constexpr int kSums = 4;
  double sums[kSums] = {};
  int i = 0;
  for (; i + kSums <= size; i += kSums) {
    for (int s = 0; s < kSums; ++s) sums[s] += static_cast<double>(a[i + s]) * b[i + s];
  }
  for (; i < size; ++i) sums[0] += static_cast<double>(a[i]) * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace hydrant::reference

#endif  // HYDRANT_KERNELS_REFERENCE_DOT_H_
