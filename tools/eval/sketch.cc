#include "tools/eval/sketch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace hydrant::eval {
namespace {

const float* Row(const float* rows, int row, int d) { return rows + static_cast<int64_t>(row) * d; }

double Logit(const Head& head, const float* query, int entry) {
  const float* key = Row(head.keys, entry, head.d);
  double sum = 0;
  for (int c = 0; c < head.d; ++c) sum += static_cast<double>(query[c]) * key[c];
  return sum / std::sqrt(head.d);
}

double LengthSquared(const float* x, int d) {
  double sum = 0;
  for (int c = 0; c < d; ++c) sum += static_cast<double>(x[c]) * x[c];
  return sum;
}

}  // namespace

std::vector<double> AttendTo(const Head& head, const float* query,
                             const std::vector<int>& entries) {
  std::vector<double> weights;
  weights.reserve(entries.size());
  for (const int entry : entries) weights.push_back(Logit(head, query, entry));
  const double top = *std::max_element(weights.begin(), weights.end());
  double all = 0;
  for (double& weight : weights) all += weight = std::exp(weight - top);
  std::vector<double> out(head.d, 0.0);
  for (size_t i = 0; i < entries.size(); ++i) {
    const float* value = Row(head.values, entries[i], head.d);
    for (int c = 0; c < head.d; ++c) out[c] += weights[i] / all * value[c];
  }
  return out;
}

std::vector<double> AttendToAll(const Head& head, const float* query) {
  std::vector<int> entries(head.n);
  std::iota(entries.begin(), entries.end(), 0);
  return AttendTo(head, query, entries);
}

Clusters ClusterKeys(const Head& head, int n, double radius, int most) {
  Clusters clusters;
  clusters.radius = radius;
  for (int j = 0; j < n; ++j) {
    const float* key = Row(head.keys, j, head.d);
    double least = std::numeric_limits<double>::infinity();
    size_t nearest = 0;
    for (size_t i = 0; i < clusters.members.size(); ++i) {
      const double distance =
          DistanceSquared(key, Row(head.keys, clusters.members[i][0], head.d), head.d);
      if (distance < least) {
        least = distance;
        nearest = i;
      }
    }
    if (least <= radius * radius) {
      clusters.members[nearest].push_back(j);
    } else {
      clusters.members.push_back({j});
      if (static_cast<int>(clusters.members.size()) > most) break;
    }
  }
  return clusters;
}

Clusters ClusterInto(const Head& head, int n, int most) {
  double low = 0, high = 1e-3;
  const auto fits = [&](double radius) {
    return static_cast<int>(ClusterKeys(head, n, radius, most).members.size()) <= most;
  };
  while (!fits(high)) {
    low = high;
    high *= 2;
  }
  while (high - low > 0.01 * high) {
    const double middle = (low + high) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return ClusterKeys(head, n, high, most);
}

SubGenSketch::SubGenSketch(const Head& head, const SketchRule& rule, uint64_t seed) : head_(head) {
  std::mt19937_64 rng(seed);
  const int streamed = std::max(0, head.n - rule.recent);
  for (int j = streamed; j < head.n; ++j) numerator_.push_back({j, 0.0});
  denominator_ = numerator_;
  if (streamed == 0) return;
  std::vector<double> lengths;
  lengths.reserve(streamed);
  for (int j = 0; j < streamed; ++j)
    lengths.push_back(LengthSquared(Row(head.values, j, head.d), head.d));
  const double mu = std::accumulate(lengths.begin(), lengths.end(), 0.0);
  std::discrete_distribution<int> by_length(lengths.begin(), lengths.end());
  for (int i = 0; i < rule.value_samples && mu > 0; ++i) {
    const int entry = by_length(rng);
    numerator_.push_back({entry, std::log(mu / (rule.value_samples * lengths[entry]))});
  }
  const Clusters clusters = ClusterInto(head, streamed, rule.clusters);
  for (const std::vector<int>& members : clusters.members) {
    for (int i = 0; i < rule.cluster_samples; ++i) {
      const int entry = members[std::uniform_int_distribution<size_t>(0, members.size() - 1)(rng)];
      denominator_.push_back(
          {entry, std::log(static_cast<double>(members.size()) / rule.cluster_samples)});
    }
  }
}

std::vector<double> SubGenSketch::Attend(const float* query) const {
  double top = -std::numeric_limits<double>::infinity();
  for (const auto* samples : {&numerator_, &denominator_}) {
    for (const Sample& sample : *samples)
      top = std::max(top, Logit(head_, query, sample.entry) + sample.log_weight);
  }
  std::vector<double> out(head_.d, 0.0);
  for (const Sample& sample : numerator_) {
    const double weight = std::exp(Logit(head_, query, sample.entry) + sample.log_weight - top);
    const float* value = Row(head_.values, sample.entry, head_.d);
    for (int c = 0; c < head_.d; ++c) out[c] += weight * value[c];
  }
  double all = 0;
  for (const Sample& sample : denominator_)
    all += std::exp(Logit(head_, query, sample.entry) + sample.log_weight - top);
  for (double& value : out) value /= all;
  return out;
}

double RelativeError(const std::vector<double>& estimate, const std::vector<double>& exact) {
  double apart = 0, length = 0;
  for (size_t c = 0; c < exact.size(); ++c) {
    apart += (estimate[c] - exact[c]) * (estimate[c] - exact[c]);
    length += exact[c] * exact[c];
  }
  return length > 0 ? std::sqrt(apart / length) : 0.0;
}

}  // namespace hydrant::eval
