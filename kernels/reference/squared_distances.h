// Squared distances between rows of floats, summed in double. Stateless.
#ifndef HYDRANT_KERNELS_REFERENCE_SQUARED_DISTANCES_H_
#define HYDRANT_KERNELS_REFERENCE_SQUARED_DISTANCES_H_

#include <cstddef>

namespace hydrant::reference {

struct DoubleDistances {
  // out[i] = |row - rows[i]|^2, rounded to float. rows: [count, head_dim]
  static void SquaredDistances(const float* row, const float* rows, int count, int head_dim,
                               float* out) {
    for (int i = 0; i < count; ++i) {
      double sum = 0.0;
      for (int d = 0; d < head_dim; ++d) {
        const double difference =
            static_cast<double>(row[d]) - rows[static_cast<size_t>(i) * head_dim + d];
        sum += difference * difference;
      }
      out[i] = static_cast<float>(sum);
    }
  }
};

}  // namespace hydrant::reference

#endif  // HYDRANT_KERNELS_REFERENCE_SQUARED_DISTANCES_H_
