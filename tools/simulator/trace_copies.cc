#include "tools/simulator/trace_copies.h"

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

// Requests before `horizon` of the copies that begin at `begins`, each `seconds` long; unsorted.
std::vector<load::TracedRequest> CopiesUntil(double horizon,
                                             const std::vector<load::TracedRequest>& trace,
                                             const std::vector<double>& begins, double seconds) {
  const int64_t hashes = HashesOf(trace);
  std::vector<load::TracedRequest> all;
  for (size_t copy = 0; copy < begins.size(); ++copy) {
    for (const load::TracedRequest& request : trace) {
      double at = request.at - begins[copy];
      if (at < 0) at += seconds;
      if (at >= horizon) continue;
      all.push_back(request);
      all.back().at = at;
      for (int64_t& hash : all.back().hashes) hash += static_cast<int64_t>(copy) * hashes;
    }
  }
  return all;
}

}  // namespace

std::vector<load::TracedRequest> CopiesOf(const std::vector<load::TracedRequest>& trace, int copies,
                                          int64_t most, uint64_t seed) {
  const auto count = static_cast<int64_t>(trace.size());
  most = std::min(most, count * copies);
  // Adds an average gap after the last request.
  const double seconds = trace.back().at * (1.0 + 1.0 / static_cast<double>(count));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> place(0.0, seconds);
  std::vector<double> begins(copies, 0.0);
  for (auto begin = begins.begin() + 1; begin != begins.end(); ++begin) *begin = place(random);
  // Requests far beyond the first `most` are omitted to bound memory; a trace that begins slowly
  // gets a larger horizon.
  double horizon = seconds * static_cast<double>(most) / static_cast<double>(count) / copies;
  std::vector<load::TracedRequest> all;
  do {
    horizon = 2 * horizon >= seconds ? std::numeric_limits<double>::infinity() : 2 * horizon;
    all = CopiesUntil(horizon, trace, begins, seconds);
  } while (static_cast<int64_t>(all.size()) < most);
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.at < b.at; });
  all.resize(most);
  return all;
}

}  // namespace hydrant::sim
