#include "scheduler/step_time_model.h"

#include <algorithm>
#include <cmath>

namespace hydrant {

namespace {

// After this many steps, a step's weight is 1 / e.
constexpr double kMemorySteps = 400.0;
// Beyond this ratio to the prediction, a step's weight falls with the square of the excess.
constexpr double kOutlier = 2.0;
// Weight of the previous coefficients relative to a step; it decides where the steps do not.
constexpr double kInertia = 0.2;
constexpr int kSweeps = 30;
constexpr double kLeastScale = 256;  // the least AttentionScale()

}  // namespace

StepTimeModel::Terms StepTimeModel::TermsOf(const StepWork& work) {
  return {1.0, work.rows, work.pages, work.prompt_tokens, work.prompt_pairs};
}

double StepTimeModel::Predict(const StepWork& work) const {
  return coefficients_[0] + Marginal(work);
}

double StepTimeModel::Marginal(const StepWork& work) const {
  const Terms terms = TermsOf(work);
  double us = 0;
  for (size_t i = 1; i < kTerms; ++i) us += coefficients_[i] * terms[i];
  return us;
}

double StepTimeModel::AttentionScale() const {
  constexpr double kGuess = 4096, kLimit = 1 << 20;
  const double token = coefficients_[3], pair = coefficients_[4];
  if (!HasPromptSamples() || token <= 0 || pair <= 0) return kGuess;
  return std::clamp(token / pair, kLeastScale, kLimit);
}

double StepTimeModel::PromptTokenUs() const {
  const double known = std::max(coefficients_[3], kLeastScale * coefficients_[4]);
  return HasPromptSamples() && known > 0 ? known : last_prompt_token_us_;
}

void StepTimeModel::Observe(const StepWork& work, double us) {
  if (work.Empty() || us <= 0) return;
  double weight = 1.0;
  if (num_steps_ >= kEnough) {
    const double ratio = us / std::max(Predict(work), 1e-3);
    const double error = std::abs(1.0 / ratio - 1.0);
    relative_error_ += (error - relative_error_) * 0.02;
    if (ratio > kOutlier) weight = (kOutlier / ratio) * (kOutlier / ratio);
  }
  ++num_steps_;
  if (work.rows > 0) ++num_decode_;
  if (work.prompt_tokens > 0) {
    ++num_prompt_;
    last_prompt_token_us_ = us / work.prompt_tokens;
  }

  const Terms terms = TermsOf(work);
  const double kept = std::exp(-1.0 / kMemorySteps);
  for (size_t i = 0; i < kTerms; ++i) {
    const double x = terms[i] / us;
    if (x > 0) scale_[i] += (x * x - scale_[i]) * (scale_[i] == 0 ? 1.0 : 0.05);
    for (size_t j = 0; j < kTerms; ++j) {
      products_[i][j] = products_[i][j] * kept + weight * x * terms[j] / us;
    }
    sums_[i] = sums_[i] * kept + weight * x;
  }
  Solve();
}

// Coordinate descent from the previous coefficients.
void StepTimeModel::Solve() {
  const Terms before = coefficients_;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t i = 0; i < kTerms; ++i) {
      const double inertia = kInertia * scale_[i];
      const double weight = products_[i][i] + inertia;
      if (weight <= 0) continue;
      double rest = sums_[i] + inertia * before[i];
      for (size_t j = 0; j < kTerms; ++j) {
        if (j != i) rest -= products_[i][j] * coefficients_[j];
      }
      coefficients_[i] = std::max(0.0, rest / weight);
    }
  }
}

}  // namespace hydrant
