// Structure of point sets: a projection on two principal components, and the greedy k-center of
// SubGen's figure 1 (arXiv 2402.06082, section 3.1; Gonzalez 1985). Points are rows [n, d]. Sums in
// double.
#ifndef HYDRANT_TOOLS_EVAL_CLUSTERS_H_
#define HYDRANT_TOOLS_EVAL_CLUSTERS_H_

#include <vector>

namespace hydrant::eval {

struct Points {
  const float* rows = nullptr;  // [n, d]
  int n = 0;
  int d = 0;
};

struct Plane {
  std::vector<double> x, y;  // [n] of the points about their mean
  double share = 0;          // of the points' variance in the plane
};
// By power iteration on the covariance.
Plane PrincipalPlane(const Points& points);

// Root of the mean squared distance from the mean.
double Spread(const Points& points);

struct Centres {
  std::vector<int> points;  // in order of selection
  double radius = 0;        // the cost: the largest distance to the nearest centre
};
// The first centre is point 0, each next one the point farthest from all centres; ties take the
// first. REQUIRES: 1 <= k <= n
Centres GreedyCentres(const Points& points, int k);

double DistanceSquared(const float* a, const float* b, int d);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_CLUSTERS_H_
