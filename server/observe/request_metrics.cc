#include "server/observe/request_metrics.h"

#include <algorithm>
#include <cmath>

#include "engine/cache/cache_plan.h"

namespace hydrant {
namespace {

std::vector<std::string> Outcomes() {
  return {"stop",        "length",     "cancelled", "deadline",
          "slow_reader", "overloaded", "draining",  "error"};
}

std::vector<std::string> Reasons() {
  return {"QUEUE_FULL",
          "OVERLOADED",
          "NEVER_FITS",
          "INVALID",
          "UNKNOWN_MODEL",
          "NO_CHAT_TEMPLATE",
          "DUPLICATE_REQUEST_ID",
          "UNKNOWN_CONTEXT",
          "CONTEXT_MISMATCH",
          "CONTEXT_DAMAGED",
          "NO_CONTEXTS",
          "NO_ROOM",
          "STORE_UNAVAILABLE",
          "QUOTA",
          "OTHER_TENANT",
          "UNAUTHENTICATED",
          "LOADING",
          "DRAINING",
          "ENGINE_FAULT",
          "INTERNAL"};
}

std::vector<std::string> PolicyNames() {
  std::vector<std::string> names;
  for (const PolicyInfo& policy : ListPolicies()) names.push_back(policy.name);
  return names;
}

Histogram WaitingTimes() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
          2.5,   5,      10,    25,   50,    100,  250, 500,  1000};
}

uint64_t AtLeastZero(int64_t value) { return static_cast<uint64_t>(std::max<int64_t>(value, 0)); }
double Seconds(TimeUs us) { return static_cast<double>(us) * 1e-6; }

}  // namespace

std::string_view OutcomeOf(const Finished& finished) {
  return finished.reason == FinishReason::kStop ? "stop" : "length";
}

std::string_view OutcomeOf(const Failed& failed) {
  if (failed.reason == "DRAINING") return "draining";
  if (failed.reason == "DEADLINE" || absl::IsDeadlineExceeded(failed.status)) return "deadline";
  if (absl::IsCancelled(failed.status)) return "cancelled";
  if (failed.reason == "OVERLOADED") return "overloaded";
  if (absl::IsResourceExhausted(failed.status)) return "slow_reader";
  return "error";
}

RequestMetrics::RequestMetrics()
    : refused(Reasons()),
      ended(Outcomes()),
      prompt_tokens(Outcomes()),
      generation_tokens(Outcomes()),
      evicted(PolicyNames()),
      kept(PolicyNames()),
      time_to_first_token(WaitingTimes()),
      inter_token_latency{0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075,
                          0.1,    0.15,  0.2,   0.3,   0.5,  1,     2.5,  5,    10},
      end_to_end(WaitingTimes()),
      queue_time(WaitingTimes()),
      prefill_time(WaitingTimes()),
      decode_time(WaitingTimes()) {}

void RequestMetrics::CountUsage(std::string_view policy, std::string_view outcome,
                                const Usage& usage) {
  ended.Add(outcome);
  prompt_tokens.Add(outcome, AtLeastZero(usage.prompt_tokens));
  generation_tokens.Add(outcome, AtLeastZero(usage.completion_tokens));
  if (!usage.policy.empty()) policy = usage.policy;
  if (!usage.compressed_by.empty()) policy = usage.compressed_by;
  kept.Add(policy, AtLeastZero(std::llround(usage.kv_tokens_kept_mean)));
  evicted.Add(policy, AtLeastZero(std::llround(usage.kv_tokens_evicted_mean)));
  recalled_tokens += AtLeastZero(usage.recalled_tokens);
}

void RequestMetrics::Ended(std::string_view policy, const Finished& finished) {
  CountUsage(policy, OutcomeOf(finished), finished.usage);
  queue_time.Observe(Seconds(finished.usage->queue_us));
  prefill_time.Observe(Seconds(finished.usage->prefill_us));
  decode_time.Observe(Seconds(finished.usage->decode_us));
}

void RequestMetrics::Ended(std::string_view policy, const Failed& failed) {
  CountUsage(policy, OutcomeOf(failed), failed.usage);
}

}  // namespace hydrant
