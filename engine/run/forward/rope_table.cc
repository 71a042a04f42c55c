#include "engine/run/forward/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace hydrant {
namespace {

// Llama 3.1's scaling as Hugging Face computes it: frequencies of long wavelengths are divided by
// `factor`, short wavelengths stay, wavelengths in between are blended.
double ScaleLlama3(double frequency, const Llama3RopeScaling& scaling) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const double turns = scaling.original_context / wavelength;  // rotations in the original context
  if (turns > scaling.high_freq_factor) return frequency;
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  const double blend =
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - blend) * frequency / scaling.factor + blend * frequency;
}

// The share of YaRN's factor in the frequency of pair `i`: 0 below pair `low`, 1 above pair `high`,
// linear in between.
double YarnRamp(const Rope& rope, int rotary_dim, int i) {
  const YarnRopeScaling& yarn = rope.yarn;
  // The fractional index of the pair with `turns` full rotations in the original context.
  const auto pair_of = [&](double turns) {
    return rotary_dim * std::log(yarn.original_context / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(rope.theta));
  };
  double low = pair_of(yarn.beta_fast), high = pair_of(yarn.beta_slow);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rotary_dim - 1.0);
  if (low == high) high += 0.001;
  return std::clamp((i - low) / (high - low), 0.0, 1.0);
}

// The divisor of pair `i`'s frequency: the file's own factor times LongRoPE's.
double FrequencyFactor(const Rope& rope, int num_positions, int i) {
  double factor = rope.freq_factors.empty() ? 1.0 : rope.freq_factors[i];
  const LongRopeScaling& scaling = rope.long_rope;
  if (scaling.short_factors.empty()) return factor;
  const bool is_long = num_positions > scaling.original_context;
  return factor * (is_long ? scaling.long_factors : scaling.short_factors)[i];
}

}  // namespace

std::vector<double> RopeFrequencies(const Rope& rope, int rotary_dim, int num_positions) {
  const int pairs = rotary_dim / 2;
  std::vector<double> frequencies(pairs);
  for (int i = 0; i < pairs; ++i) {
    double frequency = std::pow(rope.theta, -2.0 * i / rotary_dim);
    if (rope.llama3.enabled) frequency = ScaleLlama3(frequency, rope.llama3);
    if (rope.yarn.enabled) {
      const double ramp = YarnRamp(rope, rotary_dim, i);
      frequency *= ramp / rope.yarn.factor + (1.0 - ramp);
    }
    frequencies[i] = frequency / FrequencyFactor(rope, num_positions, i) / rope.linear_factor;
  }
  return frequencies;
}

RopeTable MakeRopeTable(const Rope& rope, int rotary_dim, int num_positions) {
  const std::vector<double> frequencies = RopeFrequencies(rope, rotary_dim, num_positions);
  RopeTable table;
  table.cos.reserve(num_positions * frequencies.size());
  table.sin.reserve(num_positions * frequencies.size());
  for (int position = 0; position < num_positions; ++position) {
    for (const double frequency : frequencies) {
      table.cos.push_back(static_cast<float>(std::cos(position * frequency)));
      table.sin.push_back(static_cast<float>(std::sin(position * frequency)));
    }
  }
  return table;
}

}  // namespace hydrant
