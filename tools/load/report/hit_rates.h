// Warns if compared arms or runs have different prefix cache hit rates, as their times then differ
// for that reason and not because of their policies. Stateless.
#ifndef HYDRANT_TOOLS_LOAD_REPORT_HIT_RATES_H_
#define HYDRANT_TOOLS_LOAD_REPORT_HIT_RATES_H_

#include <span>
#include <string>

namespace hydrant::load {

struct HitRate {
  std::string name;    // of the arm or run
  double share = 0.0;  // share of prompt tokens, [0, 1]
};

// One line with the highest and the lowest rate; empty if they differ by 0.05 at most.
std::string WarnOfHitRates(std::span<const HitRate> rates);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_REPORT_HIT_RATES_H_
