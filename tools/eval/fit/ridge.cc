#include "tools/eval/fit/ridge.h"

#include <Eigen/Cholesky>
#include <Eigen/Core>

namespace hydrant::eval {

struct Ridge::Sums {
  int64_t samples = 0;
  Eigen::MatrixXf xx;  // [width, width], its lower triangle
  Eigen::MatrixXd xy;  // [width, targets]
  Eigen::VectorXd x;   // [width]
  Eigen::VectorXd y;   // [targets]
};

Ridge::Ridge(int width, int targets) : sums_(std::make_unique<Sums>()) {
  sums_->xx = Eigen::MatrixXf::Zero(width, width);
  sums_->xy = Eigen::MatrixXd::Zero(width, targets);
  sums_->x = Eigen::VectorXd::Zero(width);
  sums_->y = Eigen::VectorXd::Zero(targets);
}
Ridge::~Ridge() = default;
Ridge::Ridge(Ridge&&) noexcept = default;

void Ridge::Add(const float* x, int rows, std::span<const std::vector<float>> y) {
  const Eigen::Map<const Eigen::MatrixXf> columns(x, sums_->x.size(), rows);  // a sample a column
  sums_->xx.selfadjointView<Eigen::Lower>().rankUpdate(columns);
  sums_->x += columns.cast<double>().rowwise().sum();
  for (size_t target = 0; target < y.size(); ++target) {
    const Eigen::Map<const Eigen::VectorXf> values(y[target].data(), rows);
    sums_->xy.col(static_cast<Eigen::Index>(target)) += (columns * values).cast<double>();
    sums_->y[static_cast<Eigen::Index>(target)] += values.cast<double>().sum();
  }
  sums_->samples += rows;
}

void Ridge::Solve(double penalty, float* weights, float* biases) const {
  const auto n = static_cast<double>(sums_->samples);
  const Eigen::VectorXd mean_x = sums_->x / n;
  const Eigen::VectorXd mean_y = sums_->y / n;
  Eigen::MatrixXd covariance = sums_->xx.cast<double>() / n;  // the lower triangle counts
  covariance -= mean_x * mean_x.transpose();
  covariance.diagonal().array() += penalty * covariance.diagonal().mean();
  const Eigen::MatrixXd right = sums_->xy / n - mean_x * mean_y.transpose();
  const Eigen::MatrixXd solved = covariance.selfadjointView<Eigen::Lower>().llt().solve(right);
  Eigen::Map<Eigen::MatrixXf>(weights, solved.rows(), solved.cols()) = solved.cast<float>();
  Eigen::Map<Eigen::VectorXf>(biases, mean_y.size()) =
      (mean_y - solved.transpose() * mean_x).cast<float>();
}

}  // namespace hydrant::eval
