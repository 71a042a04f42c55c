#include "tools/eval/clusters.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

namespace hydrant::eval {
namespace {

constexpr int kIterations = 300;

std::vector<double> MeanOf(const Points& points) {
  std::vector<double> mean(points.d, 0.0);
  for (int i = 0; i < points.n; ++i) {
    for (int c = 0; c < points.d; ++c) mean[c] += points.rows[i * points.d + c];
  }
  for (double& value : mean) value /= points.n;
  return mean;
}

// [d, d] sums of products about the mean.
std::vector<double> Scatter(const Points& points, const std::vector<double>& mean) {
  const int d = points.d;
  std::vector<double> scatter(static_cast<size_t>(d) * d, 0.0);
  std::vector<double> about(d);
  for (int i = 0; i < points.n; ++i) {
    for (int c = 0; c < d; ++c) about[c] = points.rows[i * d + c] - mean[c];
    for (int a = 0; a < d; ++a) {
      for (int b = 0; b < d; ++b) scatter[a * d + b] += about[a] * about[b];
    }
  }
  return scatter;
}

// Scales x to length 1; false if its length is 0.
bool Normalise(std::vector<double>* x) {
  const double length = std::sqrt(std::inner_product(x->begin(), x->end(), x->begin(), 0.0));
  if (!(length > 0)) return false;
  for (double& value : *x) value /= length;
  return true;
}

// The eigenvector of the largest eigenvalue orthogonal to `other` (empty: of all), and the
// eigenvalue.
std::pair<std::vector<double>, double> Largest(const std::vector<double>& matrix, int d,
                                               const std::vector<double>& other) {
  std::vector<double> direction(d), next(d);
  const auto straighten = [&](std::vector<double>* x) {
    if (!other.empty()) {
      const double along = std::inner_product(x->begin(), x->end(), other.begin(), 0.0);
      for (int c = 0; c < d; ++c) (*x)[c] -= along * other[c];
    }
    return Normalise(x);
  };
  for (int c = 0; c < d; ++c) direction[c] = 1.0 + 0.37 * ((c * 7) % 5);
  straighten(&direction);
  double value = 0;
  for (int i = 0; i < kIterations; ++i) {
    for (int a = 0; a < d; ++a)
      next[a] = std::inner_product(direction.begin(), direction.end(),
                                   matrix.begin() + static_cast<ptrdiff_t>(a) * d, 0.0);
    value = std::inner_product(direction.begin(), direction.end(), next.begin(), 0.0);
    if (!straighten(&next)) break;
    direction.swap(next);
  }
  return {direction, value};
}

}  // namespace

Plane PrincipalPlane(const Points& points) {
  const std::vector<double> mean = MeanOf(points);
  const std::vector<double> scatter = Scatter(points, mean);
  double all = 0;
  for (int c = 0; c < points.d; ++c) all += scatter[c * points.d + c];
  Plane plane;
  double within = 0;
  std::vector<double> first;
  for (std::vector<double>* axis : {&plane.x, &plane.y}) {
    const auto [direction, value] = Largest(scatter, points.d, first);
    within += value;
    first = direction;
    for (int i = 0; i < points.n; ++i) {
      double along = 0;
      for (int c = 0; c < points.d; ++c)
        along += (points.rows[i * points.d + c] - mean[c]) * direction[c];
      axis->push_back(along);
    }
  }
  plane.share = all > 0 ? within / all : 1.0;
  return plane;
}

double Spread(const Points& points) {
  const std::vector<double> mean = MeanOf(points);
  double sum = 0;
  for (int i = 0; i < points.n; ++i) {
    for (int c = 0; c < points.d; ++c) {
      const double about = points.rows[i * points.d + c] - mean[c];
      sum += about * about;
    }
  }
  return std::sqrt(sum / points.n);
}

double DistanceSquared(const float* a, const float* b, int d) {
  double sum = 0;
  for (int c = 0; c < d; ++c) {
    const double apart = static_cast<double>(a[c]) - b[c];
    sum += apart * apart;
  }
  return sum;
}

Centres GreedyCentres(const Points& points, int k) {
  std::vector<double> nearest(points.n, std::numeric_limits<double>::infinity());
  Centres centres;
  int next = 0;
  for (int i = 0; i < k; ++i) {
    centres.points.push_back(next);
    const float* centre = points.rows + static_cast<int64_t>(next) * points.d;
    for (int j = 0; j < points.n; ++j)
      nearest[j] = std::min(
          nearest[j],
          DistanceSquared(points.rows + static_cast<int64_t>(j) * points.d, centre, points.d));
    next = static_cast<int>(std::max_element(nearest.begin(), nearest.end()) - nearest.begin());
  }
  centres.radius = std::sqrt(nearest[next]);
  return centres;
}

}  // namespace hydrant::eval
