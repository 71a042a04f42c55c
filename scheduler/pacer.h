// Enforces latency targets: limits the prompt tokens of a step, the number of running sequences,
// and the time until which a prompt may still be admitted. Plain arithmetic over a model of step
// times; owned by the scheduler, which provides the load.
//
// A target for the time per output token (TPOT) bounds every step, lowered by recent lateness. The
// time left after decoding goes to prompts, and a sequence is admitted while a step can bear its
// row, its entries and its prompt, spread over the tokens it will generate. So admitted sequences
// keep the target, and prompts are prefilled as fast as they arrive. A target for the time to the
// first token (TTFT) bounds the wait: a request that can no longer be in time is refused while
// others still can.
#ifndef HYDRANT_SCHEDULER_PACER_H_
#define HYDRANT_SCHEDULER_PACER_H_

#include <optional>

#include "scheduler/options.h"
#include "scheduler/request.h"
#include "scheduler/step_time_model.h"

namespace hydrant {

// The load of a step of all running sequences.
struct RunningLoad {
  StepWork decode;
  double prompt_us = 0;          // prefill time of their prompts, per decode step
  std::optional<TimeUs> tpot{};  // the tightest target among them; unset: none
};

// The deadline of a request's first token, and its source: a field of the request, or an option of
// the server.
struct FirstTokenBound {
  TimeUs by = 0;
  const char* what = "";
};
// nullopt: no bound. The server's target is raised to twice the prompt's own prefill time
// `reading_us`, so that long prompts are not always refused; a request's own target is not.
std::optional<FirstTokenBound> BoundFirstToken(const SchedulerOptions& options, const Slo& slo,
                                               std::optional<TimeUs> deadline, TimeUs submitted_at,
                                               double reading_us);

class Pacer {
 public:
  // `prompt_tokens`: prefill tokens of a step with decodes, unless a target lowers it.
  Pacer(const SchedulerOptions& options, double prompt_tokens)
      : options_(options), prompt_tokens_(prompt_tokens) {}

  StepTimeModel& step_time() { return step_time_; }
  const StepTimeModel& step_time() const { return step_time_; }

  // The request's target, or the server's.
  std::optional<TimeUs> Tpot(const Slo& slo) const {
    return slo.tpot_us.has_value() ? slo.tpot_us : options_.target_tpot_us;
  }
  // Prompt tokens that a step may prefill beside this decoding: limited by the options, by a
  // target, and to about half a second.
  double PromptTokens(const RunningLoad& load) const;
  // Whether all of these may run.
  bool KeepsTpot(const RunningLoad& load) const;
  // Time to prefill these prompts, alone or beside the running load; 0: unknown.
  double ReadingUs(const StepWork& prompts) const;
  double ReadingUs(const StepWork& prompts, const RunningLoad& load) const;

  // Records that a first token expected `expected_us` after admission of its prompt came after
  // `us`; `allowed_us`: the target, from the arrival.
  void ObserveFirstToken(double expected_us, double us, double allowed_us);
  // Factor on the expected time that nineteen of twenty first tokens keep.
  double first_token_margin() const { return first_token_margin_; }
  // Records that an answer with the target `target_us` per token took `us`, with `batch` sequences
  // running at its end.
  void ObserveTpot(double us, double target_us, double batch);
  // The share of a target at which steps aim, so that nineteen of twenty answers keep it.
  double tpot_aim() const { return tpot_aim_; }

 private:
  double TargetPromptTokens(const RunningLoad& load) const;
  double MaxPromptTokens(const RunningLoad& load) const;

  static constexpr double kMaxTpotAim = 0.9;  // half of all steps take longer than predicted

  const SchedulerOptions options_;
  const double prompt_tokens_;
  StepTimeModel step_time_;
  double first_token_margin_ = 1.0;
  double tpot_aim_ = kMaxTpotAim;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_PACER_H_
