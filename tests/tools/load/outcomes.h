// Outcomes for tests of their evaluation.
#ifndef HYDRANT_TESTS_TOOLS_LOAD_OUTCOMES_H_
#define HYDRANT_TESTS_TOOLS_LOAD_OUTCOMES_H_

#include <string>
#include <vector>

#include "tools/load/run/outcome.h"

namespace hydrant::load {

// A completed request with one token at each of these times.
inline Outcome Completed(double intended, std::vector<double> times, int arm = 0) {
  Outcome outcome{.arm = arm,
                  .intended = intended,
                  .sent = intended,
                  .ended = times.back(),
                  .ending = Ending::kCompleted,
                  .status = "OK"};
  outcome.input_tokens = 10;
  for (const double at : times) outcome.messages.push_back({at, 1});
  return outcome;
}

inline Outcome Failed(double intended, double ended, const std::string& reason,
                      const std::string& error = "") {
  Outcome outcome{
      .intended = intended, .sent = intended, .ended = ended, .ending = Ending::kFailed};
  outcome.status = "RESOURCE_EXHAUSTED";
  outcome.reason = reason;
  outcome.error = error;
  return outcome;
}

}  // namespace hydrant::load

#endif  // HYDRANT_TESTS_TOOLS_LOAD_OUTCOMES_H_
