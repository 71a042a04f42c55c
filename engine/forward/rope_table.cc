#include "engine/forward/rope_table.h"

#include <cmath>
#include <numbers>

namespace hydrant {
namespace {

// Llama 3.1's scaling as Hugging Face computes it: long wavelengths are slowed by `factor`, short
// ones stay, and those in between are blended.
double ScaleLlama3(double frequency, const Llama3RopeScaling& scaling) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const double turns = scaling.original_context / wavelength;  // within the original context
  if (turns > scaling.high_freq_factor) return frequency;
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  const double blend =
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - blend) * frequency / scaling.factor + blend * frequency;
}

}  // namespace

std::vector<double> RopeFrequencies(const ModelConfig& config) {
  const int pairs = config.RotaryDim() / 2;
  std::vector<double> frequencies(pairs);
  for (int i = 0; i < pairs; ++i) {
    double frequency = std::pow(config.rope_theta, -2.0 * i / config.RotaryDim());
    if (config.llama3.enabled) frequency = ScaleLlama3(frequency, config.llama3);
    if (!config.rope_freq_factors.empty()) frequency /= config.rope_freq_factors[i];
    frequencies[i] = frequency / config.rope_linear_factor;
  }
  return frequencies;
}

RopeTable MakeRopeTable(const ModelConfig& config, int num_positions) {
  const std::vector<double> frequencies = RopeFrequencies(config);
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
