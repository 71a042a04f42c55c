// Linear least squares with a penalty on the weights (ridge regression), for several targets of the
// same features, accumulated a block of samples at a time.
#ifndef HYDRANT_TOOLS_EVAL_FIT_RIDGE_H_
#define HYDRANT_TOOLS_EVAL_FIT_RIDGE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace hydrant::eval {

class Ridge {
 public:
  Ridge(int width, int targets);
  ~Ridge();
  Ridge(Ridge&&) noexcept;

  // x: [rows, width]; y: [targets][rows]
  void Add(const float* x, int rows, std::span<const std::vector<float>> y);

  // The minimum over weights w and bias b of the mean of (w x + b - y)^2, plus penalty * v * |w|^2,
  // where v is the mean variance of a feature. weights: [targets, width], biases: [targets].
  // REQUIRES: samples, penalty > 0
  void Solve(double penalty, float* weights, float* biases) const;

 private:
  struct Sums;
  std::unique_ptr<Sums> sums_;
};

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_FIT_RIDGE_H_
