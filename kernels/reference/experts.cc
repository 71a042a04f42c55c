#include "kernels/ops/experts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/reference/ops.h"
#include "kernels/reference/route_experts.h"

namespace hydrant::reference {
namespace {

// Whether expert a ranks before expert b.
bool Before(const float* logits, int a, int b) {
  const bool nan_a = std::isnan(logits[a]), nan_b = std::isnan(logits[b]);
  if (nan_a != nan_b) return nan_a;
  if (!nan_a && logits[a] != logits[b]) return logits[a] > logits[b];
  return a < b;
}

}  // namespace

void ChooseExperts(const RouteExpertsArgs& args, int row) {
  const float* logits = args.logits + static_cast<size_t>(row) * args.experts;
  int32_t* chosen = args.chosen + static_cast<size_t>(row) * args.per_row;
  float* weights = args.weights + static_cast<size_t>(row) * args.per_row;
  int count = 0;  // best experts so far, in rank order
  for (int e = 0; e < args.experts; ++e) {
    if (count == args.per_row && !Before(logits, e, chosen[count - 1])) continue;
    int at = count < args.per_row ? count++ : count - 1;
    for (; at > 0 && Before(logits, e, chosen[at - 1]); --at) chosen[at] = chosen[at - 1];
    chosen[at] = e;
  }
  const double most = logits[chosen[0]];
  double sum = 0.0;
  if (args.kind == ExpertWeights::kOfAll) {
    for (int e = 0; e < args.experts; ++e) sum += std::exp(logits[e] - most);
  } else {
    for (int c = 0; c < count; ++c) sum += std::exp(logits[chosen[c]] - most);
  }
  for (int c = 0; c < count; ++c)
    weights[c] = static_cast<float>(std::exp(logits[chosen[c]] - most) / sum);
}

void GroupByExpert(const RouteExpertsArgs& args) {
  const int num_places = args.rows * args.per_row;
  int32_t* const offsets = args.offsets;
  std::fill(offsets, offsets + args.experts + 1, 0);
  for (int i = 0; i < num_places; ++i) ++offsets[args.chosen[i] + 1];
  for (int e = 0; e < args.experts; ++e) offsets[e + 1] += offsets[e];
  // offsets[e] counts the places taken; at the end it is the start of e + 1.
  for (int i = 0; i < num_places; ++i) {
    const int32_t place = offsets[args.chosen[i]]++;
    args.sources[place] = i / args.per_row;
    args.places[i] = place;
  }
  for (int e = args.experts; e > 0; --e) offsets[e] = offsets[e - 1];
  offsets[0] = 0;
}

void RouteExperts(const RouteExpertsArgs& args) {
  for (int row = 0; row < args.rows; ++row) ChooseExperts(args, row);
  GroupByExpert(args);
}

void CombineExperts(const CombineExpertsArgs& args) {
  for (int row = 0; row < args.rows; ++row) {
    const size_t first = static_cast<size_t>(row) * args.per_row;
    for (int j = 0; j < args.n; ++j) {
      double sum = 0.0;
      for (int c = 0; c < args.per_row; ++c) {
        const size_t at = static_cast<size_t>(args.places[first + c]) * args.n + j;
        sum += static_cast<double>(args.weights[first + c]) * args.y[at];
      }
      float& out = args.out[static_cast<size_t>(row) * args.n + j];
      out = static_cast<float>(out + sum);
    }
  }
}

}  // namespace hydrant::reference
