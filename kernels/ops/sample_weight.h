// Sampling arithmetic shared by the backends, so that equal logits give
// equal tokens on all of them.
//
// A candidate's probability is an integer, exp(x) * 2^44 rounded, where x = (logit - highest) /
// temperature <= 0. Integer sums do not depend on order, so a vector unit, several threads and a
// plain loop agree exactly on every cut and draw. 2^18 candidates lose at most 2^-27 of the
// probability, and sums stay below 2^63 for a vocabulary of 2^19.
#ifndef HYDRANT_KERNELS_OPS_SAMPLE_WEIGHT_H_
#define HYDRANT_KERNELS_OPS_SAMPLE_WEIGHT_H_

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/ops/sample.h"

namespace hydrant {

inline constexpr int kWeightBits = 44;
inline constexpr uint64_t kHighestWeight = uint64_t{1} << kWeightBits;

// Constants of SampleWeight; vector versions must perform the same steps.
namespace sample_weight {
inline constexpr double kLowest = -64.0;  // exp(-64) * 2^44 rounds to 0
inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2High = 0.693147180369123816490;    // 33 bits: k * kLn2High is exact
inline constexpr double kLn2Low = 1.90821492927058770002e-10;  // ln 2 - kLn2High
inline constexpr double kRoundShift = 6755399441055744.0;      // 1.5 * 2^52: adding it rounds
inline constexpr double kTwo52 = 4503599627370496.0;
inline constexpr uint64_t kMantissaMask = (uint64_t{1} << 52) - 1;
// Taylor: the first omitted term is below 7e-15 for |r| <= ln2 / 2.
inline constexpr int kDegree = 11;
inline constexpr std::array<double, kDegree + 1> kCoefficients = {
    1.0,       1.0,        1.0 / 2,     1.0 / 6,      1.0 / 24,      1.0 / 120,
    1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800};
}  // namespace sample_weight

// NaN counts as -infinity. REQUIRES: x <= 0 or NaN; the file compiled without contraction into
// fused multiply-add (-ffp-contract=off).
constexpr uint64_t SampleWeight(double x) {
  namespace c = sample_weight;
  constexpr auto kCoefficients = c::kCoefficients;  // a local copy, which device code can read
  if (!(x >= c::kLowest)) x = c::kLowest;
  const double shifted = x * c::kLog2E + c::kRoundShift;
  const double k = shifted - c::kRoundShift;
  const double r = (x - k * c::kLn2High) - k * c::kLn2Low;
  double exp_r = kCoefficients[c::kDegree];
  for (int i = c::kDegree - 1; i >= 0; --i) exp_r = exp_r * r + kCoefficients[i];
  // The low bits of `shifted` hold k as an integer; bits above the exponent field are shifted out.
  const uint64_t exponent = std::bit_cast<uint64_t>(shifted) + (1023 + kWeightBits);
  const double weight = exp_r * std::bit_cast<double>(exponent << 52);
  return std::bit_cast<uint64_t>(weight + c::kTwo52) & c::kMantissaMask;
}

// A logit in sampling: NaN becomes -infinity, which is never a candidate; +infinity becomes
// the largest finite number.
constexpr float CandidateLogit(float logit) {
  if (logit != logit) return -std::numeric_limits<float>::infinity();
  return logit > std::numeric_limits<float>::max() ? std::numeric_limits<float>::max() : logit;
}

// REQUIRES: 0 <= x < 2^63
constexpr uint64_t CeilToInteger(double x) {
  const auto whole = static_cast<uint64_t>(x);
  return whole + (static_cast<double>(whole) < x ? 1 : 0);
}

// The smallest weight that passes min_p: probability >= min_p * the highest.
constexpr uint64_t MinPWeight(float min_p) {
  return CeilToInteger(static_cast<double>(min_p) * kHighestWeight);
}

// The sum of weights that the kept set must reach for top_p, given the `total` of
// all candidates. At least 1.
constexpr uint64_t TopPWeight(float top_p, uint64_t total) {
  const double need = static_cast<double>(top_p) * static_cast<double>(total);
  if (need >= static_cast<double>(total)) return total;
  const uint64_t whole = CeilToInteger(need);
  return whole < 1 ? 1 : whole < total ? whole : total;
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_SAMPLE_WEIGHT_H_
