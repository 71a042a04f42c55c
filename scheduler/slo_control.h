// Latency targets: whether a sequence may run beside the live ones, when it must begin, and the
// observations of steps, first tokens, outputs and admissions behind these decisions. Also charges
// tenants for the time that they take. Owned by the scheduler's thread.
#ifndef HYDRANT_SCHEDULER_SLO_CONTROL_H_
#define HYDRANT_SCHEDULER_SLO_CONTROL_H_

#include <cstdint>
#include <optional>

#include "engine/cache/kv_cache_manager.h"
#include "scheduler/options.h"
#include "scheduler/output_history.h"
#include "scheduler/pacer.h"
#include "scheduler/prompt_reuse.h"
#include "scheduler/queue_forecast.h"
#include "scheduler/sequence.h"
#include "scheduler/sequence_table.h"
#include "scheduler/step_ledger.h"

namespace hydrant {

class SloControl {
 public:
  // Borrows all; they outlive it.
  SloControl(const EngineLimits& limits, const SchedulerOptions& options, SequenceTable* table,
             const KvCacheManager* kv_cache, const PromptReuse* reuse);

  const Pacer& pacer() const { return pacer_; }
  const OutputHistory& outputs() const { return outputs_; }
  // The step whose result returned last.
  const StepTaken& last_step() const { return last_step_; }

  // The work that is left of reading a prompt, as far as it is known which tokens are skipped.
  StepWork WorkOfPrompt(const Sequence& sequence) const;
  // Sequences that decode in the step that is being scheduled.
  RunningLoad DecodingLoad() const;

  // Time per output token: whether the live sequences and the newcomer, or `count` like it with
  // this plan, keep their targets. An idle server always admits.
  bool KeepsTpot(const Sequence& newcomer) const;
  bool KeepsTpot(const Sequence& newcomer, const CachePlan& plan, int64_t count) const;

  // Time to first token: sets SequenceLatency::begin_by of a new sequence.
  void SetBeginBy(Sequence* sequence);
  // A sequence that waits past its begin_by. How long reading takes changes with what runs, so
  // begin_by is computed again when it is due. Null: none is late.
  Sequence* NextLate(TimeUs now);
  // Whether its first token would be late if it began behind the prompts that are being read.
  bool IsLate(const Sequence& sequence, const RunningLoad& load, TimeUs now) const;
  // While it is not known how long prompts take, prompts with a target are read one after another:
  // else a daemon that starts under load would admit more than it can read.
  bool MustLearnFirst(const Sequence& sequence) const;
  // Why a late sequence is refused, and when the client should retry.
  Failed Refusal(const Sequence& sequence, TimeUs now) const;
  // How long a request that arrived now would wait.
  QueueForecast Forecast() const;

  // A sequence is about to go live: notes its work and expects its first token.
  void Admitted(Sequence* sequence, TimeUs now);
  void ObserveFirstToken(Sequence* sequence, TimeUs now);
  void ObserveEnd(const Sequence& sequence, TimeUs now);
  // After each Schedule(). `waits_for_room`: the queue's head was not admitted for want of room.
  void ObserveAdmissions(TimeUs now, bool waits_for_room);
  void ObserveStep(const StepRecord& step, TimeUs now);
  // No step is in flight: none delays the next work.
  void Idle() { applied_at_.reset(); }

 private:
  double OutputTokensOf(const Sequence& sequence) const;
  void AddTo(RunningLoad* load, const Sequence& sequence, double pages, double count = 1) const;
  StepWork WorkAhead() const;
  std::optional<FirstTokenBound> BoundOf(const Sequence& sequence, const StepWork& prompt) const;
  std::optional<TimeUs> BeginBy(const Sequence& sequence, const RunningLoad& load) const;
  double FirstTokenMargin() const;
  void ExpectFirstToken(Sequence* sequence, TimeUs now) const;
  void ObserveTpot(const Sequence& sequence, TimeUs now);
  void ChargeTenants(TimeUs took);

  const EngineLimits& limits_;
  const SchedulerOptions& options_;
  SequenceTable& table_;
  const KvCacheManager& kv_cache_;
  const PromptReuse& reuse_;

  Pacer pacer_;
  OutputHistory outputs_;
  StepTaken last_step_;
  std::optional<TimeUs> applied_at_;  // when the last result came, if steps have followed since

  AdmissionRate admission_rate_;
  bool waits_for_room_ = false;  // when the last step was scheduled
  int admitted_ = 0;             // for the first time, in this step
  int64_t admitted_tokens_ = 0;
};

// The work of reading tokens `first` to `tokens`, which attend to `past` tokens and to those before
// them.
StepWork ReadingWork(double first, double tokens, double past);

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_SLO_CONTROL_H_
