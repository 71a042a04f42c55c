// What targets for latencies allow: how much of prompts a step may read, how many sequences may
// run, and until when a prompt is worth reading. Plain arithmetic over a model of steps' times;
// owned by the scheduler, which says what is there.
//
// A target for the time per output token (TPOT) bounds every step, less what answers have been late
// by. What decoding leaves of it goes to prompts, and a sequence is let in while a step can bear
// its row, its entries and, spread over the tokens it will generate, its prompt. So those who are
// let in keep the target, and prompts are read as fast as they come. A target for the time to the
// first token (TTFT) bounds the wait: who can no longer be in time is refused while others still
// can.
#ifndef HYDRANT_SCHEDULER_PACER_H_
#define HYDRANT_SCHEDULER_PACER_H_

#include <optional>

#include "scheduler/options.h"
#include "scheduler/request.h"
#include "scheduler/step_time_model.h"

namespace hydrant {

// What a step of all that runs comes to.
struct RunningLoad {
  StepWork decode;
  double prompt_us = 0;  // of reading their prompts, as much as falls to each of their steps
  std::optional<TimeUs> tpot{};  // the tightest target of any of them; unset: none has one
};

// When a request's first token must have come, and what says so: a field of the request, or an
// option of the server.
struct FirstTokenBound {
  TimeUs by = 0;
  const char* what = "";
};
// Unset: any time will do. The server's target gives a prompt that takes `reading_us` by itself
// twice that time, so that long ones are not refused for ever; a request's own does not.
std::optional<FirstTokenBound> BoundFirstToken(const SchedulerOptions& options, const Slo& slo,
                                               std::optional<TimeUs> deadline, TimeUs submitted_at,
                                               double reading_us);

class Pacer {
 public:
  // `prompt_tokens`: what a step reads beside those that decode, where no target says less.
  Pacer(const SchedulerOptions& options, double prompt_tokens)
      : options_(options), prompt_tokens_(prompt_tokens) {}

  StepTimeModel& step_time() { return step_time_; }
  const StepTimeModel& step_time() const { return step_time_; }

  // A request's targets, its own or the server's.
  std::optional<TimeUs> Tpot(const Slo& slo) const {
    return slo.tpot_us.has_value() ? slo.tpot_us : options_.target_tpot_us;
  }
  // Prompt tokens that a step may read beside this decoding: what the options or a target leave,
  // and no more than take about half a second.
  double PromptTokens(const RunningLoad& load) const;
  // Whether all of these may run.
  bool KeepsTpot(const RunningLoad& load) const;
  // How long it takes to read so much of prompts, alone or beside what runs; 0: not known.
  double ReadingUs(const StepWork& prompts) const;
  double ReadingUs(const StepWork& prompts, const RunningLoad& load) const;

  // A first token was expected `expected_us` after its prompt was admitted, and came after `us`; so
  // long it might have taken from when the request came.
  void ObserveFirstToken(double expected_us, double us, double allowed_us);
  // Of what is expected, what nineteen of twenty first tokens take at most.
  double first_token_margin() const { return first_token_margin_; }
  // An answer that was to take `target_us` a token took `us`, beside `batch` that ran at its end.
  void ObserveTpot(double us, double target_us, double batch);
  // The share of a target that steps are aimed at, so that nineteen of twenty answers keep it.
  double tpot_aim() const { return tpot_aim_; }

 private:
  double TargetPromptTokens(const RunningLoad& load) const;
  double MostPromptTokens(const RunningLoad& load) const;

  static constexpr double kMostTpotAim = 0.9;  // half of all steps take longer than predicted

  const SchedulerOptions options_;
  const double prompt_tokens_;
  StepTimeModel step_time_;
  double first_token_margin_ = 1.0;
  double tpot_aim_ = kMostTpotAim;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_PACER_H_
