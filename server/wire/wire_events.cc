#include "server/wire/wire_events.h"

#include <algorithm>

#include "google/protobuf/descriptor.h"
#include "kernels/check.h"
#include "scheduler/context.h"
#include "server/wire/status_details.h"

namespace hydrant {
namespace {

uint32_t Count(int32_t value) { return static_cast<uint32_t>(std::max(value, 0)); }
uint64_t Count64(int64_t value) { return static_cast<uint64_t>(std::max<int64_t>(value, 0)); }

void SetValue(const std::variant<double, std::string>& value,
              const google::protobuf::FieldDescriptor& field, google::protobuf::Message* block) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *block->GetReflection();
  if (const std::string* text = std::get_if<std::string>(&value)) {
    reflection.SetString(block, &field, *text);
  } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
    reflection.SetUInt32(block, &field, static_cast<uint32_t>(std::get<double>(value)));
  } else {
    reflection.SetFloat(block, &field, static_cast<float>(std::get<double>(value)));
  }
}

// A policy's report is the wire message of the same name; its values are that message's fields. A
// new value needs a change of the contract and of the policy's file only.
void SetPolicyReport(const PolicyReport& report, v1::Usage* wire) {
  if (report.name.empty()) return;
  const auto* field = v1::Usage::descriptor()->FindFieldByName(report.name);
  HYDRANT_CHECK(field != nullptr && field->message_type() != nullptr);
  google::protobuf::Message* block = wire->GetReflection()->MutableMessage(wire, field);
  for (const auto& [name, value] : report.values) {
    const auto* of_block = field->message_type()->FindFieldByName(name);
    HYDRANT_CHECK(of_block != nullptr);
    SetValue(value, *of_block, block);
  }
}

}  // namespace

v1::Usage ToWireUsage(const Usage& usage) {
  v1::Usage wire;
  wire.set_prompt_tokens(Count(usage.prompt_tokens));
  wire.set_completion_tokens(Count(usage.completion_tokens));
  wire.set_kv_tokens_kept(Count(usage.kv_tokens_kept));
  wire.set_kv_tokens_evicted(Count(usage.kv_tokens_evicted));
  wire.set_kv_tokens_kept_mean(usage.kv_tokens_kept_mean);
  wire.set_kv_tokens_evicted_mean(usage.kv_tokens_evicted_mean);
  wire.set_kv_bytes(Count64(usage.kv_bytes));
  wire.set_kv_bytes_of_full(Count64(usage.kv_bytes_of_full));
  wire.set_kv_pages_peak(Count64(usage.kv_pages_peak));
  wire.set_kv_pages_mean(usage.kv_pages_mean);
  wire.set_preemptions(Count(usage.preemptions));
  wire.set_swaps(Count(usage.swaps));
  wire.set_shrinks(Count(usage.shrinks));
  wire.set_queue_us(Count64(usage.queue_us));
  wire.set_prefill_us(Count64(usage.prefill_us));
  wire.set_decode_us(Count64(usage.decode_us));
  wire.set_swapped_us(Count64(usage.swapped_us));
  wire.set_preempted_us(Count64(usage.preempted_us));
  wire.set_cached_tokens(Count(usage.cached_tokens));
  wire.set_reread_tokens(Count(usage.reread_tokens));
  wire.set_recalled_tokens(Count(usage.recalled_tokens));
  wire.set_probe_tokens(Count(usage.probe_tokens));
  wire.set_kv_entries_of_prompt(Count64(usage.kv_entries_of_prompt));
  if (usage.kv_window_entries_of_prompt > 0)
    wire.set_kv_window_entries_of_prompt(Count64(usage.kv_window_entries_of_prompt));
  wire.set_kv_pages_of_prompt(Count64(usage.kv_pages_of_prompt));
  wire.set_heads_kept_whole(Count(usage.heads_kept_whole));
  SetPolicyReport(usage.policy_report, &wire);
  if (!usage.compressed_by.empty()) wire.set_compressed_by(usage.compressed_by);
  if (usage.retained_mass.has_value())
    *wire.mutable_retained_mass() = ToWireMass(*usage.retained_mass);
  return wire;
}

v1::RetainedMass ToWireMass(const RetainedMass& mass) {
  v1::RetainedMass wire;
  wire.set_mean(mass.mean);
  wire.set_minimum(mass.minimum);
  wire.set_p10(mass.p10);
  return wire;
}

v1::TokenLogprobs ToWireLogprobs(const TokenLogprobs& logprobs, uint32_t top) {
  v1::TokenLogprobs wire;
  wire.set_token_id(logprobs.token);
  wire.set_logprob(logprobs.logprob);
  wire.set_rank(Count(logprobs.rank));
  for (uint32_t i = 0; i < top && logprobs.top_tokens[i] != kNoToken; ++i) {
    wire.add_top_token_ids(logprobs.top_tokens[i]);
    wire.add_top_logprobs(logprobs.top_logprobs[i]);
  }
  return wire;
}

v1::Progress ToWireProgress(const Progress& progress) {
  v1::Progress wire;
  wire.set_queue_position(Count(progress.queue_position));
  wire.set_prompt_tokens_done(Count(progress.prompt_tokens_done));
  wire.set_prompt_tokens(Count(progress.prompt_tokens));
  if (!progress.compressed_by.empty()) wire.set_compressed_by(progress.compressed_by);
  return wire;
}

v1::Finished ToWireFinished(const Finished& finished, uint32_t index) {
  v1::Finished wire;
  wire.set_index(index);
  wire.set_reason(finished.reason == FinishReason::kStop ? v1::FINISH_REASON_STOP
                                                         : v1::FINISH_REASON_LENGTH);
  if (!finished.matched_stop.empty()) {
    wire.set_matched_stop(ToValidUtf8(finished.matched_stop));
  } else if (finished.matched_token_id.has_value()) {
    wire.set_matched_token_id(*finished.matched_token_id);
  }
  if (finished.context != nullptr) wire.set_context(finished.context->id.handle);
  return wire;
}

}  // namespace hydrant
