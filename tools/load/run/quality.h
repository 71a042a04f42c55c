// What a cache policy changes in the answers: prompts of a load are replayed greedily under `full`
// and under each policy, and the answers compared token by token.
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

// How far the answers of an arm agree with those of `full`. A pair of answers has as many positions
// as the longer one has tokens; beyond the end of the shorter one nothing is equal.
struct Agreement {
  std::string arm;
  int64_t prompts = 0;
  int64_t identical = 0;  // pairs of answers that are equal to the end
  int64_t positions = 0;
  int64_t before_difference = 0;  // positions before the first at which a pair differs
  int64_t matched = 0;            // positions at which it is equal, wherever

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
  int64_t concurrency = 8;                // requests in flight at most
  std::function<bool()> go_on = nullptr;  // asked now and then; false breaks it off
};

// Sends every prompt once under each arm of the target's mix, of which arm 0 is `full`, and
// compares arms 1, 2, ... with it; `arms` names them all. Only the prompts and max_tokens of
// `prompts` count, faults do not. The target decodes greedily and tells token ids. A prompt that is
// not answered under every arm is left out of all, so that they are compared over the same prompts.
// Unavailable where none is left; it says why.
absl::StatusOr<std::vector<Agreement>> CheckQuality(std::span<const PlannedRequest> prompts,
                                                    std::span<const std::string> arms,
                                                    const QualityOptions& options, Target* target);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_QUALITY_H_
