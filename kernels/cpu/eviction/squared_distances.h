// Squared distances between rows of floats, vectorised. Stateless.
#ifndef HYDRANT_KERNELS_CPU_EVICTION_SQUARED_DISTANCES_H_
#define HYDRANT_KERNELS_CPU_EVICTION_SQUARED_DISTANCES_H_

namespace hydrant::cpu {

struct VectorDistances {
  // out[i] = |row - rows[i]|^2; rows: [count, head_dim]. The order of a sum
  // depends on head_dim alone.
  static void SquaredDistances(const float* row, const float* rows, int count, int head_dim,
                               float* out);
};

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_EVICTION_SQUARED_DISTANCES_H_
