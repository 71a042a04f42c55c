// Whether what is put side by side found alike much of its prompts in the server's caches: where
// one had to read what another found, their times differ by that and not by their policies.
// Stateless.
#ifndef HYDRANT_LOAD_REPORT_HIT_RATES_H_
#define HYDRANT_LOAD_REPORT_HIT_RATES_H_

#include <span>
#include <string>

namespace hydrant::load {

struct HitRate {
  std::string name;    // of the arm, or of the run
  double share = 0.0;  // of its prompts' tokens, [0, 1]
};

// One line that names the two that differ most; empty: all are within 5 %.
std::string WarnOfHitRates(std::span<const HitRate> rates);

}  // namespace hydrant::load

#endif  // HYDRANT_LOAD_REPORT_HIT_RATES_H_
