// Logits, softmax, and the reduction of its weights over the query heads that share a KV head
// (GroupReduce, kernels/kv_pages.h), in double.
#ifndef HYDRANT_KERNELS_REFERENCE_ATTENTION_WEIGHTS_H_
#define HYDRANT_KERNELS_REFERENCE_ATTENTION_WEIGHTS_H_

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/kv_pages.h"

namespace hydrant::reference {

// Caps a logit to within +-softcap; softcap 0: no cap.
inline double SoftCap(double logit, double softcap) {
  return softcap == 0.0 ? logit : softcap * std::tanh(logit / softcap);
}

// weights: [group][entries]; reduces the group's weights on entry `entry`.
inline double ReduceGroup(GroupReduce reduce, const std::vector<std::vector<double>>& weights,
                          int entry) {
  double sum = 0.0, sum_of_squares = 0.0, highest = 0.0;
  for (const std::vector<double>& head : weights) {
    sum += head[entry];
    sum_of_squares += head[entry] * head[entry];
    highest = std::max(highest, head[entry]);
  }
  switch (reduce) {
    case GroupReduce::kMax:
      return highest;
    case GroupReduce::kSumOfSquares:
      return sum_of_squares;
    case GroupReduce::kMean:
      break;
  }
  return sum / static_cast<double>(weights.size());
}

// The sink logit of a query head, -infinity where there is none.
inline double SinkLogit(const float* sink_logits, int head) {
  return sink_logits == nullptr ? -std::numeric_limits<double>::infinity() : sink_logits[head];
}

// Softmax of the logits together with a sink, in place. REQUIRES: not empty.
inline void Softmax(std::vector<double>& logits, double sink) {
  const double highest = std::max(sink, *std::max_element(logits.begin(), logits.end()));
  double sum = std::exp(sink - highest);
  for (double& value : logits) sum += value = std::exp(value - highest);
  for (double& value : logits) value /= sum;
}

}  // namespace hydrant::reference

#endif  // HYDRANT_KERNELS_REFERENCE_ATTENTION_WEIGHTS_H_
