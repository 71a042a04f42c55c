// Send times of an open loop, drawn from the rate alone, regardless of earlier requests'
// completion. Gaps have mean one (constant, or Gamma distributed: shape 1 is a Poisson process,
// smaller shapes are bursty) on a clock that runs at the rate.
#ifndef HYDRANT_TOOLS_LOAD_RUN_ARRIVALS_H_
#define HYDRANT_TOOLS_LOAD_RUN_ARRIVALS_H_

#include <cstdint>
#include <limits>
#include <random>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace hydrant::load {

// Requests per second over time: linear pieces; the last rate never ends.
class RateProfile {
 public:
  struct Piece {
    double seconds = 0.0;
    double from = 0.0;
    double to = 0.0;
  };

  static RateProfile Constant(double rate) { return RateProfile({{0.0, rate, rate}}); }
  // "5": constant. "2x30,8x30,2x30": steps of a rate and its seconds. "1-10x60": from 1 to 10
  // within 60 s. "inf": all at once. InvalidArgument names the invalid part.
  static absl::StatusOr<RateProfile> Parse(std::string_view text);

  // The time at which this number of requests is due, in seconds from the start; infinity if the
  // rates never add up to it.
  double TimeOf(double requests) const;
  double SecondsOfPieces() const;
  bool IsUnlimited() const { return pieces_.back().to == std::numeric_limits<double>::infinity(); }

 private:
  explicit RateProfile(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {}

  std::vector<Piece> pieces_;  // at least one
};

class Arrivals {
 public:
  // `burstiness`: the shape of the Gamma distribution of the gaps, above 0; infinity: constant
  // gaps.
  Arrivals(RateProfile profile, double burstiness, uint64_t seed);

  // Due time of the next request, in seconds from the start; never decreases.
  double Next();

 private:
  RateProfile profile_;
  bool even_;
  std::gamma_distribution<double> gaps_;
  std::mt19937_64 random_;
  double due_ = 0.0;  // requests, in gaps of mean one
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_ARRIVALS_H_
