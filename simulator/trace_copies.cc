#include "simulator/trace_copies.h"

#include <algorithm>
#include <limits>
#include <random>

namespace hydrant::sim {
namespace {

int64_t HashesOf(const std::vector<load::TracedRequest>& trace) {
  int64_t hashes = 0;
  for (const load::TracedRequest& request : trace) {
    for (const int64_t hash : request.hashes) hashes = std::max(hashes, hash + 1);
  }
  return hashes;
}

}  // namespace

std::vector<load::TracedRequest> CopiesOf(const std::vector<load::TracedRequest>& trace, int copies,
                                          int64_t most, uint64_t seed) {
  const auto count = static_cast<int64_t>(trace.size());
  // A gap behind the last one, as long as the others are on average.
  const double seconds = trace.back().at * (1.0 + 1.0 / static_cast<double>(count));
  // What comes later is not among the first, but for bad luck; nobody holds a million of them.
  constexpr double kMargin = 1.5;
  double horizon =
      kMargin * seconds * static_cast<double>(most) / static_cast<double>(count) / copies;
  if (most >= count * copies || horizon > seconds)
    horizon = std::numeric_limits<double>::infinity();
  const int64_t hashes = HashesOf(trace);
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> place(0.0, seconds);
  std::vector<load::TracedRequest> all;
  for (int copy = 0; copy < copies; ++copy) {
    const double begin = copy == 0 ? 0.0 : place(random);
    for (const load::TracedRequest& request : trace) {
      const double at = request.at < begin ? request.at - begin + seconds : request.at - begin;
      if (at >= horizon) continue;
      all.push_back(request);
      all.back().at = at;
      for (int64_t& hash : all.back().hashes) hash += copy * hashes;
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.at < b.at; });
  if (static_cast<int64_t>(all.size()) > most) all.resize(most);
  return all;
}

}  // namespace hydrant::sim
