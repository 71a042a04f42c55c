#include "scheduler/pacer.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hydrant {

namespace {

// An answer counts as late from this share of its target on; the step and the lower bound of
// tpot_aim_. The step is for a whole batch, because its answers share their steps.
constexpr double kLateFrom = 0.98;
constexpr double kAimStep = 0.1;
constexpr double kLeastTpotAim = 0.6;
// Allowed share of late first tokens or answers, and the step of the margin for one first token.
constexpr double kLateShare = 0.05;
constexpr double kMarginStep = 0.1;
constexpr double kMaxMargin = 3.0;
// Prompts get this share of a step even if decoding alone takes as long as the target.
constexpr double kLeastPromptShare = 0.1;
// At admission, prompts count for at most this share; otherwise a few long prompts with short
// answers would keep all others out.
constexpr double kMaxPromptShare = 0.5;
// Factor for prompt tokens while no sequence decodes. Bounded, so that cancellations take effect.
constexpr double kIdleFactor = 4.0;
// The longest step with prefill; the number of prompt tokens is limited to it. Clients get progress
// between steps, and cancels, deadlines and new requests take effect there. Prompts get half of
// this time even if decoding alone takes all of it.
constexpr double kLongestStepUs = 500e3;

}  // namespace

std::optional<FirstTokenBound> BoundFirstToken(const SchedulerOptions& options, const Slo& slo,
                                               std::optional<TimeUs> deadline, TimeUs submitted_at,
                                               double reading_us) {
  std::optional<FirstTokenBound> bound;
  if (slo.ttft_us.has_value()) {
    bound = {submitted_at + *slo.ttft_us, "scheduling.slo.ttft_us"};
  } else if (options.target_ttft_us.has_value()) {
    const auto least = static_cast<TimeUs>(2 * reading_us);
    bound = {submitted_at + std::max(*options.target_ttft_us, least), "the server's target_ttft"};
  }
  if (deadline.has_value() && (!bound.has_value() || *deadline < bound->by))
    bound = {*deadline, "deadline"};
  return bound;
}

double Pacer::PromptTokens(const RunningLoad& load) const {
  return std::min(TargetPromptTokens(load), MaxPromptTokens(load));
}

// Prompt tokens that fit into kLongestStepUs, for any machine and model.
double Pacer::MaxPromptTokens(const RunningLoad& load) const {
  const double token_us = step_time_.PromptTokenUs();
  if (token_us <= 0) return std::numeric_limits<double>::infinity();
  const double left_us = kLongestStepUs - step_time_.Predict(load.decode);
  return std::max(1.0, std::max(left_us, kLongestStepUs / 2) / token_us);
}

double Pacer::TargetPromptTokens(const RunningLoad& load) const {
  if (load.decode.rows <= 0) return kIdleFactor * prompt_tokens_;
  if (!load.tpot.has_value() || !step_time_.HasPromptSamples()) return prompt_tokens_;
  const auto tpot = static_cast<double>(*load.tpot);
  const double left =
      std::max(tpot_aim_ * tpot - step_time_.Predict(load.decode), kLeastPromptShare * tpot);
  const double token = step_time_.Marginal({.prompt_tokens = 1});
  return std::clamp(left / std::max(token, 1e-3), 1.0, kIdleFactor * prompt_tokens_);
}

bool Pacer::KeepsTpot(const RunningLoad& load) const {
  if (!load.tpot.has_value() || !step_time_.HasDecodeSamples()) return true;
  const double aim = tpot_aim_ * static_cast<double>(*load.tpot);
  return step_time_.Predict(load.decode) + std::min(load.prompt_us, kMaxPromptShare * aim) <= aim;
}

double Pacer::ReadingUs(const StepWork& prompts) const {
  return step_time_.HasPromptSamples() ? step_time_.Marginal(prompts) : 0;
}

double Pacer::ReadingUs(const StepWork& prompts, const RunningLoad& load) const {
  const double alone = ReadingUs(prompts);
  if (load.decode.rows <= 0) return alone;
  // Prompts get only a share of every step.
  const double of_step = ReadingUs({.prompt_tokens = PromptTokens(load)});
  if (of_step <= 0) return alone;
  return alone * (step_time_.Predict(load.decode) + of_step) / of_step;
}

// Moves towards the 1 - kLateShare quantile (stochastic approximation). Tokens that are expected
// soon may come much later and still be in time, so they count less.
void Pacer::ObserveFirstToken(double expected_us, double us, double allowed_us) {
  if (expected_us <= 0) return;
  const double weight = std::min(1.0, 2 * expected_us / std::max(1.0, allowed_us));
  const double by = us > first_token_margin_ * expected_us ? 1 - kLateShare : -kLateShare;
  first_token_margin_ *= std::exp(kMarginStep * weight * by);
  first_token_margin_ = std::clamp(first_token_margin_, 1.0, kMaxMargin);
}

// As ObserveFirstToken(). Answers that take less than half of the target are ignored.
void Pacer::ObserveTpot(double us, double target_us, double batch) {
  const double weight = std::clamp(2 * us / std::max(1.0, target_us) - 1, 0.0, 1.0);
  const double by = us > kLateFrom * target_us ? kLateShare - 1 : kLateShare;
  tpot_aim_ *= std::exp(kAimStep * weight * by / std::max(1.0, batch));
  tpot_aim_ = std::clamp(tpot_aim_, kLeastTpotAim, kMaxTpotAim);
}

}  // namespace hydrant
