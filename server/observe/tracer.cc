#include "server/observe/tracer.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hydrant {
namespace {

std::vector<std::string_view> HeadersOf(const grpc::CallbackServerContext& context,
                                        const char* name) {
  const auto [begin, end] = context.client_metadata().equal_range(name);
  std::vector<std::string_view> values;
  for (auto header = begin; header != end; ++header)
    values.emplace_back(header->second.data(), header->second.size());
  return values;
}

// The caller's span; nullopt: none. By the standard, two headers count as an invalid one.
std::optional<TraceContext> ParentOf(const grpc::CallbackServerContext& context) {
  const std::vector<std::string_view> headers = HeadersOf(context, "traceparent");
  if (headers.size() != 1) return std::nullopt;
  std::optional<TraceContext> parent = ParseTraceparent(headers.front());
  if (parent.has_value()) parent->state = JoinTracestate(HeadersOf(context, "tracestate"));
  return parent;
}

}  // namespace

Tracer::Tracer(double sample_ratio, RequestSpan::Sink sink)
    : sample_ratio_(sample_ratio), sink_(std::move(sink)) {}

std::unique_ptr<RequestSpan> Tracer::Begin(const grpc::CallbackServerContext& context,
                                           std::string_view method) const {
  std::string parent_span_id;
  std::optional<TraceContext> own = ParentOf(context);
  if (own.has_value()) {
    parent_span_id = std::exchange(own->span_id, NewSpanId());
  } else {
    own = TraceContext{
        .trace_id = NewTraceId(), .span_id = NewSpanId(), .sampled = true, .state = {}};
    if (!IsAmong(sample_ratio_, own->trace_id)) return nullptr;
  }
  return std::make_unique<RequestSpan>(*std::move(own), std::move(parent_span_id), method, sink_);
}

}  // namespace hydrant
