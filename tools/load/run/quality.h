// Measures how a cache policy changes answers: replays prompts of a load greedily under `full` and
// under each policy, and compares the answers token by token.
#ifndef HYDRANT_TOOLS_LOAD_RUN_QUALITY_H_
#define HYDRANT_TOOLS_LOAD_RUN_QUALITY_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/load/run/planned_request.h"
#include "tools/load/run/target.h"

namespace hydrant::load {

// Agreement of an arm's answers with those of `full`. A pair of answers has as many positions as
// its longer answer; positions beyond the shorter one differ.
struct Agreement {
  std::string arm;
  int64_t prompts = 0;
  int64_t identical = 0;  // pairs of identical answers
  int64_t positions = 0;
  int64_t before_difference = 0;  // positions before the first difference of a pair
  int64_t matched = 0;            // equal positions anywhere

  double IdenticalShare() const { return Share(identical, prompts); }
  double BeforeDifferenceShare() const { return Share(before_difference, positions); }
  double MatchedShare() const { return Share(matched, positions); }

 private:
  static double Share(int64_t part, int64_t whole) {
    return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
  }
};

void AddPair(std::span<const uint32_t> full, std::span<const uint32_t> answer,
             Agreement* agreement);

struct QualityOptions {
  int64_t concurrency = 8;                // maximum requests in flight
  std::function<bool()> go_on = nullptr;  // called periodically; false aborts
};

// Sends every prompt once under each arm of the target's mix, where arm 0 is `full`, and compares
// arms 1, 2, ... with it; `arms` names them all. Uses only the prompts and max_tokens of `prompts`,
// not faults. The target decodes greedily and reports token ids. A prompt without an answer under
// some arm is excluded from all, so that arms are compared over the same prompts. Unavailable, with
// the reason, if none is left.
absl::StatusOr<std::vector<Agreement>> CheckQuality(std::span<const PlannedRequest> prompts,
                                                    std::span<const std::string> arms,
                                                    const QualityOptions& options, Target* target);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_QUALITY_H_
