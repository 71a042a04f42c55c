#include "server/observe/request_span.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "server/observe/request_metrics.h"

namespace hydrant {
namespace {

namespace otlp = opentelemetry::proto::trace::v1;

using Span = RequestSpan::Span;

constexpr uint32_t kSampledFlag = 1;

opentelemetry::proto::common::v1::AnyValue* Add(const char* key, Span* span) {
  auto& attribute = *span->add_attributes();
  attribute.set_key(key);
  return attribute.mutable_value();
}

void AddText(const char* key, std::string_view value, Span* span) {
  Add(key, span)->set_string_value(ToValidUtf8(value));
}
void AddCount(const char* key, int64_t value, Span* span) { Add(key, span)->set_int_value(value); }
void AddNumber(const char* key, double value, Span* span) {
  Add(key, span)->set_double_value(value);
}

double SecondsOf(TimeUs us) { return static_cast<double>(us) * 1e-6; }
double SecondsOf(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

// By OpenTelemetry's conventions a server span has an error status only if the server is at fault.
bool IsServersFault(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

// Names in the first group follow OpenTelemetry's conventions for generative AI, as vLLM uses them.
void AddUsage(const Usage& usage, Span* span) {
  AddCount("gen_ai.usage.prompt_tokens", usage.prompt_tokens, span);
  AddCount("gen_ai.usage.completion_tokens", usage.completion_tokens, span);
  AddNumber("gen_ai.latency.time_in_queue", SecondsOf(usage.queue_us), span);
  AddNumber("gen_ai.latency.time_in_model_prefill", SecondsOf(usage.prefill_us), span);
  AddNumber("gen_ai.latency.time_in_model_decode", SecondsOf(usage.decode_us), span);
  AddNumber("gen_ai.latency.time_in_model_inference", SecondsOf(usage.prefill_us + usage.decode_us),
            span);

  if (!usage.compressed_by.empty())
    AddText("hydrant.cache.compressed_by", usage.compressed_by, span);
  AddCount("hydrant.usage.cached_tokens", usage.cached_tokens, span);
  AddCount("hydrant.usage.recalled_tokens", usage.recalled_tokens, span);
  AddNumber("hydrant.usage.kv_tokens_kept_mean", usage.kv_tokens_kept_mean, span);
  AddNumber("hydrant.usage.kv_tokens_evicted_mean", usage.kv_tokens_evicted_mean, span);
  AddCount("hydrant.usage.kv_bytes", usage.kv_bytes, span);
  AddCount("hydrant.usage.kv_bytes_of_full", usage.kv_bytes_of_full, span);
  AddCount("hydrant.usage.kv_tokens_kept", usage.kv_tokens_kept, span);
  AddCount("hydrant.usage.kv_tokens_evicted", usage.kv_tokens_evicted, span);
  AddCount("hydrant.usage.kv_pages_peak", usage.kv_pages_peak, span);
  AddNumber("hydrant.usage.kv_pages_mean", usage.kv_pages_mean, span);
  AddCount("hydrant.usage.preemptions", usage.preemptions, span);
  AddCount("hydrant.usage.swaps", usage.swaps, span);
  AddCount("hydrant.usage.shrinks", usage.shrinks, span);
  AddNumber("hydrant.usage.time_swapped", SecondsOf(usage.swapped_us), span);
  AddNumber("hydrant.usage.time_preempted", SecondsOf(usage.preempted_us), span);
}

void AddCache(const CacheSpec& cache, Span* span) {
  if (cache.cache_ratio.has_value())
    AddNumber("hydrant.cache.cache_ratio", *cache.cache_ratio, span);
  if (cache.max_cache_tokens.has_value())
    AddCount("hydrant.cache.max_cache_tokens", *cache.max_cache_tokens, span);
}

}  // namespace

RequestSpan::RequestSpan(TraceContext own, std::string parent_span_id, std::string_view method,
                         Sink sink)
    : own_(std::move(own)), parent_span_id_(std::move(parent_span_id)), sink_(std::move(sink)) {
  if (!own_.sampled) return;
  const size_t slash = method.find('/');
  span_.set_name(std::string(method));
  AddText("rpc.system", "grpc", &span_);
  AddText("rpc.service", method.substr(0, slash), &span_);
  AddText("rpc.method", method.substr(slash + 1), &span_);
}

void RequestSpan::SetRequest(const ServedModel& model, const Request& request, size_t samples) {
  if (!own_.sampled) return;
  resumed_tokens_ = request.resume_token_ids.size();
  AddText("gen_ai.request.id", request.request_id, &span_);
  AddText("gen_ai.request.model", model.name, &span_);
  AddText("gen_ai.response.model", model.name, &span_);
  AddCount("gen_ai.request.n", static_cast<int64_t>(samples), &span_);
  AddCount("gen_ai.usage.num_sequences", static_cast<int64_t>(samples), &span_);
  AddNumber("gen_ai.request.temperature", request.sampling.temperature, &span_);
  AddNumber("gen_ai.request.top_p", request.sampling.top_p, &span_);
  if (request.stopping.max_tokens.has_value())
    AddCount("gen_ai.request.max_tokens", *request.stopping.max_tokens, &span_);
  policy_ = request.cache.policy;
  AddCache(request.cache, &span_);
  if (request.priority != 0) AddCount("hydrant.priority", request.priority, &span_);
  if (!request.tenant.empty()) AddText("hydrant.tenant", request.tenant, &span_);
}

void RequestSpan::Refuse(const Refusal& refusal) {
  End(refusal.status.code(), "refused", refusal.reason, nullptr);
}

void RequestSpan::End(const Finished& finished) {
  End(absl::StatusCode::kOk, OutcomeOf(finished), "", &*finished.usage);
}

void RequestSpan::End(const Failed& failed) {
  End(failed.status.code(), OutcomeOf(failed), failed.reason, &*failed.usage);
}

void RequestSpan::End(absl::StatusCode code, std::string_view outcome, std::string_view reason,
                      const Usage* usage) {
  if (!own_.sampled) return;
  Clock::time_point end = Clock::now();
  std::vector<Span> below;
  if (usage != nullptr) {
    const Phases phases = PhasesOf(*usage);
    end = std::max(end, phases.end);
    if (!usage->policy.empty()) policy_ = usage->policy;
    AddUsage(*usage, &span_);
    if (phases.has_token) AddFirstToken(phases.first_token);
    below = Below(phases, *usage);
  }
  span_.set_kind(Span::SPAN_KIND_SERVER);
  if (!policy_.empty()) AddText("hydrant.cache.policy", policy_, &span_);
  AddText("hydrant.outcome", outcome, &span_);
  AddNumber("gen_ai.latency.e2e", SecondsOf(end - arrived_), &span_);
  AddCount("rpc.grpc.status_code", static_cast<int>(code), &span_);
  if (code != absl::StatusCode::kOk)
    AddText("error.type", reason.empty() ? absl::StatusCodeToString(code) : std::string(reason),
            &span_);
  if (IsServersFault(code)) span_.mutable_status()->set_code(otlp::Status::STATUS_CODE_ERROR);
  Place({arrived_, end}, own_.span_id, parent_span_id_, &span_);
  below.push_back(std::move(span_));
  sink_(std::move(below));
}

// The scheduler's clock is the same steady clock.
RequestSpan::Phases RequestSpan::PhasesOf(const Usage& usage) const {
  using std::chrono::microseconds;
  Phases phases;
  phases.begin = std::max(arrived_, Clock::time_point(microseconds(usage.submitted_at)));
  phases.prefill = phases.begin + microseconds(usage.queue_us);
  phases.first_token = phases.prefill + microseconds(usage.prefill_us);
  phases.end = phases.first_token + microseconds(usage.decode_us);
  phases.has_token = std::cmp_greater(usage.completion_tokens, resumed_tokens_);
  return phases;
}

void RequestSpan::AddFirstToken(Clock::time_point at) {
  auto& event = *span_.add_events();
  event.set_name("first_token");
  event.set_time_unix_nano(UnixNanos(at));
  AddNumber("gen_ai.latency.time_to_first_token", SecondsOf(at - arrived_), &span_);
}

// A step in flight may still produce the first token of a sequence that has been preempted; that
// time belongs to no phase.
std::vector<RequestSpan::Span> RequestSpan::Below(const Phases& phases, const Usage& usage) const {
  std::vector<Span> spans;
  const auto add = [&](const char* name, Interval when) {
    Span& span = spans.emplace_back();
    span.set_name(name);
    span.set_kind(Span::SPAN_KIND_INTERNAL);
    Place(when, NewSpanId(), own_.span_id, &span);
  };
  add("queue", {phases.begin, phases.prefill});
  if (phases.has_token || phases.first_token > phases.prefill)
    add("prefill", {phases.prefill, phases.first_token});
  if (phases.has_token) add("decode", {phases.first_token, phases.end});
  for (const PreemptionInterval& interval : usage.preemption_intervals) {
    const auto begin = phases.begin + std::chrono::microseconds(interval.after_us);
    add(interval.swapped ? "swap" : "preempt",
        {begin, begin + std::chrono::microseconds(interval.us)});
  }
  return spans;
}

void RequestSpan::Place(Interval when, const std::string& id, const std::string& parent,
                        Span* span) const {
  span->set_trace_id(own_.trace_id);
  span->set_trace_state(own_.state);
  span->set_span_id(id);
  span->set_parent_span_id(parent);
  span->set_start_time_unix_nano(UnixNanos(when.begin));
  span->set_end_time_unix_nano(UnixNanos(when.end));
  uint32_t flags = kSampledFlag | otlp::SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK;
  if (span == &span_ && !parent.empty()) flags |= otlp::SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK;
  span->set_flags(flags);
}

// Times of a request keep their distances on the steady clock.
uint64_t RequestSpan::UnixNanos(Clock::time_point time) const {
  const auto at = arrived_at_ + (time - arrived_);
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count());
}

}  // namespace hydrant
