// One head's attention estimated from fewer entries, by SubGen (arXiv 2402.06082, algorithm 1) and
// by a subset of the entries: errors at equal memory. Double precision.
//
// The sketch is built from all keys at once instead of a stream: a key farther than the radius from
// all centres founds a cluster, and samples are drawn from their final uniform distribution. Their
// distribution is the algorithm's; the radius is the best one for the memory, which a stream has to
// guess.
#ifndef HYDRANT_TOOLS_EVAL_SKETCH_H_
#define HYDRANT_TOOLS_EVAL_SKETCH_H_

#include <cstdint>
#include <random>
#include <vector>

#include "tools/eval/clusters.h"

namespace hydrant::eval {

// Keys and values of a head, [n, d] each.
struct Head {
  const float* keys = nullptr;
  const float* values = nullptr;
  int n = 0;
  int d = 0;
};

// softmax(q K / sqrt(d)) V over the entries named, ascending.
std::vector<double> AttendTo(const Head& head, const float* query, const std::vector<int>& entries);
std::vector<double> AttendToAll(const Head& head, const float* query);

struct Clusters {
  std::vector<std::vector<int>> members;  // the first of each is its centre
  double radius = 0;
};
// Clusters the first n keys; each joins the nearest centre within the radius or founds a cluster.
// Stops early beyond `most` clusters.
Clusters ClusterKeys(const Head& head, int n, double radius, int most = 1 << 30);
// With the smallest radius, to a percent, that gives at most `most` clusters.
Clusters ClusterInto(const Head& head, int n, int most);

struct SketchRule {
  int recent = 1;           // the last entries, exact
  int value_samples = 1;    // s
  int cluster_samples = 1;  // t
  int clusters = 1;         // m
  int Entries() const { return recent + value_samples + cluster_samples * clusters; }
};

class SubGenSketch {
 public:
  SubGenSketch(const Head& head, const SketchRule& rule, uint64_t seed);
  std::vector<double> Attend(const float* query) const;

 private:
  struct Sample {
    int entry = 0;
    double log_weight = 0;
  };
  Head head_;
  std::vector<Sample> numerator_, denominator_;  // recent entries in both
};

// |estimate - exact| / |exact|
double RelativeError(const std::vector<double>& estimate, const std::vector<double>& exact);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_SKETCH_H_
