#include "server/wire_events.h"

#include <algorithm>

#include "server/status_details.h"

namespace hydrant {
namespace {

uint32_t Count(int32_t value) { return static_cast<uint32_t>(std::max(value, 0)); }
uint64_t Count64(int64_t value) { return static_cast<uint64_t>(std::max<int64_t>(value, 0)); }

}  // namespace

v1::Usage ToWireUsage(const Usage& usage) {
  v1::Usage wire;
  wire.set_prompt_tokens(Count(usage.prompt_tokens));
  wire.set_completion_tokens(Count(usage.completion_tokens));
  wire.set_kv_tokens_kept(Count(usage.kv_tokens_kept));
  wire.set_kv_tokens_evicted(Count(usage.kv_tokens_evicted));
  wire.set_kv_pages_peak(Count64(usage.kv_pages_peak));
  wire.set_preemptions(Count(usage.preemptions));
  wire.set_queue_us(Count64(usage.queue_us));
  wire.set_prefill_us(Count64(usage.prefill_us));
  wire.set_decode_us(Count64(usage.decode_us));
  wire.set_probe_tokens(Count(usage.probe_tokens));
  wire.set_kv_entries_of_prompt(Count64(usage.kv_entries_of_prompt));
  wire.set_kv_pages_of_prompt(Count64(usage.kv_pages_of_prompt));
  wire.set_heads_kept_whole(Count(usage.heads_kept_whole));
  if (usage.tuning.has_value()) {
    v1::SelfTuning* tuning = wire.mutable_self_tuning();
    tuning->set_alpha(static_cast<float>(usage.tuning->alpha));
    tuning->set_rho(static_cast<float>(usage.tuning->rho));
    tuning->set_measurement_steps(Count(usage.tuning->steps));
    tuning->set_retained_mass(static_cast<float>(usage.tuning->retained));
    tuning->set_attainable_mass(static_cast<float>(usage.tuning->attainable));
  }
  if (!usage.choice.policy.empty()) {
    wire.mutable_auto_choice()->set_policy(usage.choice.policy);
    wire.mutable_auto_choice()->set_why(usage.choice.why);
  }
  if (usage.retained_mass.has_value()) {
    v1::RetainedMass* mass = wire.mutable_retained_mass();
    mass->set_mean(usage.retained_mass->mean);
    mass->set_minimum(usage.retained_mass->minimum);
    mass->set_p10(usage.retained_mass->p10);
  }
  return wire;
}

v1::Progress ToWireProgress(const Progress& progress) {
  v1::Progress wire;
  wire.set_queue_position(Count(progress.queue_position));
  wire.set_prompt_tokens_done(Count(progress.prompt_tokens_done));
  wire.set_prompt_tokens(Count(progress.prompt_tokens));
  return wire;
}

v1::Finished ToWireFinished(const Finished& finished) {
  v1::Finished wire;
  wire.set_index(0);
  wire.set_reason(finished.reason == FinishReason::kStop ? v1::FINISH_REASON_STOP
                                                         : v1::FINISH_REASON_LENGTH);
  if (!finished.matched_stop.empty()) {
    wire.set_matched_stop(ToValidUtf8(finished.matched_stop));
  } else if (finished.matched_token_id.has_value()) {
    wire.set_matched_token_id(*finished.matched_token_id);
  }
  return wire;
}

}  // namespace hydrant
