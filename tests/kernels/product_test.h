// A fixture for tests of matrix products: runs a product on a backend and in double precision.
#ifndef HYDRANT_TESTS_KERNELS_PRODUCT_TEST_H_
#define HYDRANT_TESTS_KERNELS_PRODUCT_TEST_H_

#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/backend_test.h"

namespace hydrant {

class ProductTest : public BackendTest {
 protected:
  // x [m, cols] times the weight, plus the bias if it is not empty; added to `start`
  // unless that is NaN.
  std::vector<float> Run(const Weight& weight, const std::vector<float>& x, int m,
                         float start = kNan, const std::vector<float>& bias = {}) {
    auto device_x = Upload(x), device_bias = Upload(bias);
    auto y = Upload(std::vector<float>(static_cast<size_t>(m) * weight.rows(), start));
    backend().Matmul({.x = device_x.data(),
                      .m = m,
                      .weight = &weight,
                      .y = y.data(),
                      .accumulate = !std::isnan(start),
                      .bias = bias.empty() ? nullptr : device_bias.data()});
    return y.Read();
  }

  // Checks that y is the result of Run() for a weight [rows, cols] with the given values, within
  // tolerance(row of the weight, row of x, sum of the terms' magnitudes).
  template <typename Tolerance>
  static void ExpectProduct(const std::vector<float>& x, int m, const std::vector<float>& weight,
                            int rows, int cols, float start, const std::vector<float>& bias,
                            const std::vector<float>& y, const std::string& what,
                            Tolerance tolerance) {
    std::vector<double> expected(y.size()), tolerances(y.size());
    for (int i = 0; i < m; ++i) {
      const float* const row = &x[static_cast<size_t>(i) * cols];
      for (int j = 0; j < rows; ++j) {
        const float* const w = &weight[static_cast<size_t>(j) * cols];
        double sum = std::isnan(start) ? 0.0 : start, size = std::abs(sum);
        for (int k = 0; k < cols; ++k) {
          const double term = double{row[k]} * w[k];
          sum += term;
          size += std::abs(term);
        }
        if (!bias.empty()) {
          sum += bias[j];
          size += std::abs(bias[j]);
        }
        const size_t at = static_cast<size_t>(i) * rows + j;
        expected[at] = sum;
        tolerances[at] = tolerance(w, row, size);
      }
    }
    ExpectNear(y, expected, tolerances,
               what + " " + std::to_string(m) + " x " + std::to_string(cols) + " x " +
                   std::to_string(rows));
  }
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_KERNELS_PRODUCT_TEST_H_
