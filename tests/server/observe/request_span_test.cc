// The spans of a call: from a server over a fake engine, and from made-up times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "server/observe/tracer.h"
#include "tests/server/log_watch.h"
#include "tests/server/test_server.h"
#include "vllm/grpc/engine/engine.grpc.pb.h"

namespace hydrant {
namespace {

using Span = RequestSpan::Span;
using testing::HasSubstr;
using testing::Not;

constexpr char kTraceId[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kParentId[] = "00f067aa0ba902b7";

std::string Traceparent(const char* flags) {
  return std::string("00-") + kTraceId + "-" + kParentId + "-" + flags;
}

// Stores the spans of calls, one batch per call.
class Spans {
 public:
  RequestSpan::Sink Sink() {
    return [this](std::vector<Span> spans) {
      const std::lock_guard lock(mutex_);
      calls_.push_back(std::move(spans));
    };
  }
  std::vector<std::vector<Span>> calls() {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  // The spans of the only call, once it has ended.
  std::vector<Span> OfTheCall() {
    EXPECT_TRUE(WaitFor([this] { return !calls().empty(); }));
    EXPECT_EQ(calls().size(), 1u);
    return calls().empty() ? std::vector<Span>() : calls().front();
  }

 private:
  std::mutex mutex_;
  std::vector<std::vector<Span>> calls_;
};

std::vector<Span> Named(const std::vector<Span>& spans, const std::string& name) {
  std::vector<Span> named;
  std::copy_if(spans.begin(), spans.end(), std::back_inserter(named),
               [&](const Span& span) { return span.name() == name; });
  return named;
}

Span TheOne(const std::vector<Span>& spans, const std::string& name) {
  const std::vector<Span> named = Named(spans, name);
  EXPECT_EQ(named.size(), 1u) << name;
  return named.empty() ? Span() : named.front();
}

Span ServerSpan(const std::vector<Span>& spans) {
  const auto found = std::find_if(spans.begin(), spans.end(), [](const Span& span) {
    return span.kind() == Span::SPAN_KIND_SERVER;
  });
  EXPECT_NE(found, spans.end());
  return found == spans.end() ? Span() : *found;
}

// Values as text, prefixed with a letter for the type.
std::map<std::string, std::string> AttributesOf(const Span& span) {
  std::map<std::string, std::string> attributes;
  for (const auto& attribute : span.attributes()) {
    const auto& value = attribute.value();
    EXPECT_FALSE(attributes.contains(attribute.key())) << attribute.key();
    attributes[attribute.key()] = value.has_string_value() ? "s:" + value.string_value()
                                  : value.has_int_value()
                                      ? "i:" + std::to_string(value.int_value())
                                      : "d:" + std::to_string(value.double_value());
  }
  return attributes;
}

std::string Count(uint64_t count) { return "i:" + std::to_string(count); }
std::string Seconds(uint64_t us) { return "d:" + std::to_string(static_cast<double>(us) * 1e-6); }

uint64_t Lasts(const Span& span) { return span.end_time_unix_nano() - span.start_time_unix_nano(); }

void ExpectWithin(const Span& inner, const Span& outer) {
  EXPECT_EQ(inner.trace_id(), outer.trace_id());
  EXPECT_EQ(inner.parent_span_id(), outer.span_id()) << inner.name() << " in " << outer.name();
  EXPECT_NE(inner.span_id(), outer.span_id());
  EXPECT_GE(inner.start_time_unix_nano(), outer.start_time_unix_nano()) << inner.name();
  EXPECT_LE(inner.start_time_unix_nano(), inner.end_time_unix_nano()) << inner.name();
  EXPECT_LE(inner.end_time_unix_nano(), outer.end_time_unix_nano()) << inner.name();
}

TEST(Trace, DescribesTheRequest) {
  Spans spans;
  const Tracer tracer(/*sample_ratio=*/0, spans.Sink());
  TestServerOptions options;
  options.tracer = &tracer;
  TestServer server(options);
  grpc::ClientContext context;
  context.AddMetadata("traceparent", Traceparent("01"));
  context.AddMetadata("tracestate", "rojo=1");
  context.AddMetadata("tracestate", "congo=2");
  auto request = TextRequest("a secret", 5);
  request.set_request_id("the id");
  request.mutable_cache()->set_cache_policy("local");
  request.mutable_cache()->set_max_cache_tokens(64);
  request.mutable_sampling()->set_temperature(0.5);
  request.mutable_sampling()->set_top_p(0.25);
  const auto before = std::chrono::system_clock::now().time_since_epoch();
  const StreamResult result = RunToEnd(server.stub(), request, &context);
  const auto after = std::chrono::system_clock::now().time_since_epoch();
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  ASSERT_TRUE(result.usage.has_value());
  const v1::Usage& usage = *result.usage;

  const std::vector<Span> all = spans.OfTheCall();
  EXPECT_EQ(all.size(), 4u);
  const Span call = TheOne(all, "hydrant.v1.Hydrant/Generate");
  EXPECT_EQ(call.kind(), Span::SPAN_KIND_SERVER);
  EXPECT_EQ(ToHex(call.trace_id()), kTraceId);
  EXPECT_EQ(ToHex(call.parent_span_id()), kParentId);
  EXPECT_EQ(call.span_id().size(), 8u);
  EXPECT_EQ(call.trace_state(), "rojo=1,congo=2");
  EXPECT_EQ(call.flags(), 0x301u);  // sampled, with a remote parent
  EXPECT_EQ(call.status().code(), opentelemetry::proto::trace::v1::Status::STATUS_CODE_UNSET);
  using std::chrono::nanoseconds;
  EXPECT_GE(nanoseconds(call.start_time_unix_nano()), before);
  EXPECT_LE(nanoseconds(call.end_time_unix_nano()), after);

  const Span queue = TheOne(all, "queue");
  const Span prefill = TheOne(all, "prefill");
  const Span decode = TheOne(all, "decode");
  for (const Span& phase : {queue, prefill, decode}) {
    ExpectWithin(phase, call);
    EXPECT_EQ(phase.kind(), Span::SPAN_KIND_INTERNAL);
    EXPECT_EQ(phase.trace_state(), "rojo=1,congo=2");
    EXPECT_EQ(phase.flags(), 0x101u);
  }
  EXPECT_EQ(Lasts(queue), usage.queue_us() * 1000);
  EXPECT_EQ(Lasts(prefill), usage.prefill_us() * 1000);
  EXPECT_EQ(Lasts(decode), usage.decode_us() * 1000);
  EXPECT_EQ(prefill.start_time_unix_nano(), queue.end_time_unix_nano());
  EXPECT_EQ(decode.start_time_unix_nano(), prefill.end_time_unix_nano());
  ASSERT_EQ(call.events_size(), 1);
  EXPECT_EQ(call.events(0).name(), "first_token");
  EXPECT_EQ(call.events(0).time_unix_nano(), decode.start_time_unix_nano());

  auto attributes = AttributesOf(call);
  const double ttft =
      static_cast<double>(decode.start_time_unix_nano() - call.start_time_unix_nano()) * 1e-9;
  EXPECT_EQ(attributes.at("gen_ai.latency.time_to_first_token"), "d:" + std::to_string(ttft));
  EXPECT_EQ(attributes.at("gen_ai.latency.e2e"),
            "d:" + std::to_string(static_cast<double>(Lasts(call)) * 1e-9));
  attributes.erase("gen_ai.latency.time_to_first_token");
  attributes.erase("gen_ai.latency.e2e");
  const std::map<std::string, std::string> expected = {
      {"rpc.system", "s:grpc"},
      {"rpc.service", "s:hydrant.v1.Hydrant"},
      {"rpc.method", "s:Generate"},
      {"rpc.grpc.status_code", "i:0"},
      {"gen_ai.request.id", "s:the id"},
      {"gen_ai.request.model", "s:test-model"},
      {"gen_ai.response.model", "s:test-model"},
      {"gen_ai.request.n", "i:1"},
      {"gen_ai.request.temperature", "d:0.500000"},
      {"gen_ai.request.top_p", "d:0.250000"},
      {"gen_ai.request.max_tokens", "i:5"},
      {"gen_ai.usage.num_sequences", "i:1"},
      {"gen_ai.usage.prompt_tokens", Count(usage.prompt_tokens())},
      {"gen_ai.usage.completion_tokens", Count(usage.completion_tokens())},
      {"gen_ai.latency.time_in_queue", Seconds(usage.queue_us())},
      {"gen_ai.latency.time_in_model_prefill", Seconds(usage.prefill_us())},
      {"gen_ai.latency.time_in_model_decode", Seconds(usage.decode_us())},
      {"gen_ai.latency.time_in_model_inference", Seconds(usage.prefill_us() + usage.decode_us())},
      {"hydrant.outcome", "s:length"},
      {"hydrant.cache.policy", "s:local"},
      {"hydrant.cache.max_cache_tokens", "i:64"},
      {"hydrant.usage.cached_tokens", Count(usage.cached_tokens())},
      {"hydrant.usage.recalled_tokens", "i:0"},
      {"hydrant.usage.kv_tokens_kept_mean", "d:" + std::to_string(usage.kv_tokens_kept_mean())},
      {"hydrant.usage.kv_tokens_evicted_mean",
       "d:" + std::to_string(usage.kv_tokens_evicted_mean())},
      {"hydrant.usage.kv_bytes", Count(usage.kv_bytes())},
      {"hydrant.usage.kv_bytes_of_full", Count(usage.kv_bytes_of_full())},
      {"hydrant.usage.kv_tokens_kept", Count(usage.kv_tokens_kept())},
      {"hydrant.usage.kv_tokens_evicted", Count(usage.kv_tokens_evicted())},
      {"hydrant.usage.kv_pages_peak", Count(usage.kv_pages_peak())},
      {"hydrant.usage.kv_pages_mean", "d:" + std::to_string(usage.kv_pages_mean())},
      {"hydrant.usage.preemptions", "i:0"},
      {"hydrant.usage.swaps", "i:0"},
      {"hydrant.usage.shrinks", "i:0"},
      {"hydrant.usage.time_swapped", "d:0.000000"},
      {"hydrant.usage.time_preempted", "d:0.000000"},
  };
  EXPECT_EQ(attributes, expected);
  for (const Span& span : all) {
    EXPECT_THAT(span.DebugString(), Not(HasSubstr("secret")));
    EXPECT_THAT(span.DebugString(), Not(HasSubstr(result.text)));
  }
}

TEST(Trace, HasItsSpansWhicheverContractACallSpeaks) {
  Spans spans;
  const Tracer tracer(0, spans.Sink());
  TestServerOptions options;
  options.tracer = &tracer;
  TestServer server(options);
  const auto stub = ::vllm::grpc::engine::VllmEngine::NewStub(server.NewChannel());
  ::vllm::grpc::engine::GenerateRequest theirs;
  theirs.mutable_tokenized()->add_input_ids(65);
  theirs.mutable_sampling_params()->set_max_tokens(3);
  theirs.mutable_sampling_params()->set_n(2);
  grpc::ClientContext context;
  context.AddMetadata("traceparent", Traceparent("01"));
  const auto reader = stub->Generate(&context, theirs);
  for (::vllm::grpc::engine::GenerateResponse message; reader->Read(&message);) {
  }
  ASSERT_TRUE(reader->Finish().ok());
  const std::vector<Span> all = spans.OfTheCall();
  const Span call = TheOne(all, "vllm.grpc.engine.VllmEngine/Generate");
  EXPECT_EQ(ToHex(call.parent_span_id()), kParentId);
  for (const char* phase : {"queue", "prefill", "decode"}) ExpectWithin(TheOne(all, phase), call);
  const auto attributes = AttributesOf(call);
  EXPECT_EQ(attributes.at("rpc.service"), "s:vllm.grpc.engine.VllmEngine");
  EXPECT_EQ(attributes.at("rpc.method"), "s:Generate");
  EXPECT_EQ(attributes.at("gen_ai.request.n"), "i:2");
  EXPECT_EQ(attributes.at("gen_ai.usage.completion_tokens"), "i:6");
}

// Each request of a batch has its own span, below the same parent; refused ones, too.
TEST(Trace, OfABatchHasASpanOfEachRequest) {
  Spans spans;
  const Tracer tracer(/*sample_ratio=*/0, spans.Sink());
  TestServerOptions options;
  options.tracer = &tracer;
  TestServer server(options);
  v1::GenerateBatchRequest batch;
  *batch.add_requests() = TextRequest("first", 3);
  *batch.add_requests() = TextRequest("second", 4);
  batch.mutable_requests(1)->mutable_cache()->set_cache_policy("no such");
  *batch.add_requests() = TextRequest("third", 5);
  for (int i = 0; i < batch.requests_size(); ++i)
    batch.mutable_requests(i)->set_request_id(std::to_string(i));
  grpc::ClientContext context;
  context.AddMetadata("traceparent", Traceparent("01"));
  const auto reader = server.stub().GenerateBatch(&context, batch);
  for (v1::GenerateBatchResponse message; reader->Read(&message);) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  ASSERT_TRUE(WaitFor([&] { return spans.calls().size() == 3; }));

  std::map<std::string, std::string> tokens;  // by request id
  for (const std::vector<Span>& of_request : spans.calls()) {
    const Span span = ServerSpan(of_request);
    EXPECT_EQ(span.name(), "hydrant.v1.Hydrant/GenerateBatch");
    EXPECT_EQ(ToHex(span.trace_id()), kTraceId);
    EXPECT_EQ(ToHex(span.parent_span_id()), kParentId);
    auto attributes = AttributesOf(span);
    tokens[attributes["gen_ai.request.id"]] = attributes["gen_ai.usage.completion_tokens"];
    if (attributes["hydrant.outcome"] == "s:refused") {
      EXPECT_EQ(of_request.size(), 1u);
      continue;
    }
    for (const Span& below : of_request) {
      if (&below != &of_request.back()) ExpectWithin(below, span);
    }
  }
  EXPECT_EQ(tokens, (std::map<std::string, std::string>{
                        {"s:0", Count(3)}, {"s:1", ""}, {"s:2", Count(5)}}));
}

TEST(Trace, OfAnEmbeddingHasNoDecode) {
  Spans spans;
  const Tracer tracer(1, spans.Sink());
  TestServerOptions options;
  options.tracer = &tracer;
  TestServer server(options);
  v1::EmbedRequest request;
  request.set_text("abc");
  v1::EmbedResponse response;
  grpc::ClientContext context;
  const grpc::Status status = server.stub().Embed(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const std::vector<Span> all = spans.OfTheCall();
  const Span call = TheOne(all, "hydrant.v1.Hydrant/Embed");
  EXPECT_EQ(call.parent_span_id(), "");
  EXPECT_EQ(call.flags(), 0x101u);
  EXPECT_EQ(call.events_size(), 0);
  ExpectWithin(TheOne(all, "queue"), call);
  ExpectWithin(TheOne(all, "prefill"), call);
  EXPECT_EQ(all.size(), 3u);
  const auto attributes = AttributesOf(call);
  EXPECT_EQ(attributes.at("gen_ai.usage.prompt_tokens"), Count(response.usage().prompt_tokens()));
  EXPECT_FALSE(attributes.contains("gen_ai.latency.time_to_first_token"));
}

TEST(Trace, OfARefusedRequestIsOneSpanThatSaysWhy) {
  Spans spans;
  const Tracer tracer(1, spans.Sink());
  TestServerOptions options;
  options.tracer = &tracer;
  TestServer server(options);
  auto request = TextRequest("abc", 8);
  request.mutable_sampling()->set_top_p(2);
  ASSERT_EQ(RunToEnd(server.stub(), request).status.error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  const std::vector<Span> all = spans.OfTheCall();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].name(), "hydrant.v1.Hydrant/Generate");
  // By the conventions it is the client's error, not the server's.
  EXPECT_EQ(all[0].status().code(), opentelemetry::proto::trace::v1::Status::STATUS_CODE_UNSET);
  EXPECT_EQ(all[0].events_size(), 0);
  const auto attributes = AttributesOf(all[0]);
  EXPECT_EQ(attributes.at("rpc.grpc.status_code"), "i:3");
  EXPECT_EQ(attributes.at("error.type"), "s:INVALID");
  EXPECT_EQ(attributes.at("hydrant.outcome"), "s:refused");
  EXPECT_FALSE(attributes.contains("gen_ai.usage.prompt_tokens"));
}

TEST(Trace, OfAServerThatDrainsIsAnError) {
  Spans spans;
  const Tracer tracer(1, spans.Sink());
  TestServerOptions options;
  options.tracer = &tracer;
  TestServer server(options);
  server.service->SetDraining();
  ASSERT_EQ(RunToEnd(server.stub(), TextRequest("abc", 8)).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  const Span call = ServerSpan(spans.OfTheCall());
  EXPECT_EQ(call.status().code(), opentelemetry::proto::trace::v1::Status::STATUS_CODE_ERROR);
  EXPECT_EQ(AttributesOf(call).at("error.type"), "s:DRAINING");
}

TEST(Trace, OfARequestThatIsCancelledEndsThere) {
  Spans spans;
  const Tracer tracer(1, spans.Sink());
  TestServerOptions options;
  options.tracer = &tracer;
  TestServer server(options);
  server.engine.Pause();
  grpc::ClientContext context;
  const auto reader = server.stub().Generate(&context, TextRequest("abc", 2000));
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  server.engine.AllowSteps(3);
  while (!response.has_delta()) ASSERT_TRUE(reader->Read(&response));
  context.TryCancel();
  ASSERT_TRUE(WaitFor([&] {
    server.engine.AllowSteps(1);
    return !spans.calls().empty();
  }));
  const std::vector<Span> all = spans.OfTheCall();
  const Span call = ServerSpan(all);
  const auto attributes = AttributesOf(call);
  EXPECT_EQ(attributes.at("hydrant.outcome"), "s:cancelled");
  EXPECT_EQ(attributes.at("rpc.grpc.status_code"), "i:1");
  EXPECT_EQ(attributes.at("error.type"), "s:CANCELLED");
  EXPECT_EQ(call.status().code(), opentelemetry::proto::trace::v1::Status::STATUS_CODE_UNSET);
  for (const char* phase : {"queue", "prefill", "decode"}) ExpectWithin(TheOne(all, phase), call);
}

TEST(Trace, IsSampledAsItsParentSaysElseByTheRatio) {
  Spans spans;
  const Tracer none(0, spans.Sink()), every(1, spans.Sink());
  TestServerOptions options;
  options.tracer = &none;
  TestServer off(options);
  options.tracer = &every;
  TestServer on(options);
  const auto call = [](TestServer& server, const std::vector<std::string>& traceparents) {
    grpc::ClientContext context;
    for (const std::string& header : traceparents) context.AddMetadata("traceparent", header);
    ASSERT_TRUE(RunToEnd(server.stub(), TextRequest("abc", 2), &context).status.ok());
  };
  // The sink has a request's spans before its client receives the end.
  call(off, {});
  call(off, {Traceparent("00")});
  call(on, {Traceparent("00")});
  call(off, {"00-no trace at all"});
  call(off, {Traceparent("01"), Traceparent("01")});
  EXPECT_TRUE(spans.calls().empty());
  call(off, {Traceparent("01")});
  ASSERT_EQ(spans.calls().size(), 1u);
  EXPECT_EQ(ToHex(ServerSpan(spans.calls()[0]).trace_id()), kTraceId);
  // A bad header counts as none, and two as a bad one: new traces.
  call(on, {});
  call(on, {"00-no trace at all"});
  call(on, {Traceparent("01"), Traceparent("01")});
  ASSERT_EQ(spans.calls().size(), 4u);
  for (int i = 1; i < 4; ++i) {
    const Span span = ServerSpan(spans.calls()[i]);
    EXPECT_EQ(span.trace_id().size(), 16u);
    EXPECT_NE(ToHex(span.trace_id()), kTraceId);
    EXPECT_EQ(span.parent_span_id(), "");
    EXPECT_EQ(span.trace_state(), "");
  }
}

TEST(Trace, IsNamedInTheLogSampledOrNot) {
  LogWatch log;
  Spans spans;
  const Tracer tracer(0, spans.Sink());
  TestServerOptions options;
  options.tracer = &tracer;
  options.log_level = spdlog::level::info;
  TestServer server(options);
  const auto call = [&](const std::string& id, const char* traceparent) {
    auto request = TextRequest("abc", 2);
    request.set_request_id(id);
    grpc::ClientContext context;
    if (traceparent != nullptr) context.AddMetadata("traceparent", traceparent);
    ASSERT_TRUE(RunToEnd(server.stub(), request, &context).status.ok());
  };
  call("sampled", Traceparent("01").c_str());
  call("not-sampled", Traceparent("00").c_str());
  call("without", nullptr);
  EXPECT_TRUE(log.WaitForLine("request sampled ", std::string(", trace ") + kTraceId));
  EXPECT_TRUE(log.WaitForLine("request not-sampled ", std::string(", trace ") + kTraceId));
  EXPECT_TRUE(log.WaitForLine("request without ", "0 ms preempted"));
  EXPECT_FALSE(log.HasLine("request without ", "trace"));
}

// Each preemption and swap has its own span.
TEST(RequestSpan, TellsEachTimeAway) {
  Spans spans;
  RequestSpan span({.trace_id = NewTraceId(), .span_id = NewSpanId(), .sampled = true, .state = {}},
                   "", "a.b.C/D", spans.Sink());
  ServedModel model;
  model.name = "not UTF-8: \xFF";
  Request request;
  request.cache.policy = "h2o";
  request.cache.cache_ratio = 0.25;
  request.resume_token_ids = {1, 2};
  request.tenant = "someone";
  request.priority = -3;
  span.SetRequest(model, request, 1);
  Finished finished;
  finished.usage->completion_tokens = 5;
  finished.usage->queue_us = 100;
  finished.usage->prefill_us = 1000;
  finished.usage->decode_us = 10'000;
  finished.usage->policy = "tova";  // of the context that it continues
  finished.usage->compressed_by = "local";
  finished.usage->swaps = 2;
  finished.usage->preemptions = 1;
  finished.usage->swapped_us = 60;
  finished.usage->preempted_us = 70;
  finished.usage->preemption_intervals = {{.after_us = 200, .us = 70, .swapped = false},
                                          {.after_us = 1200, .us = 20, .swapped = true},
                                          {.after_us = 11'060, .us = 40, .swapped = true}};
  span.End(finished);

  const std::vector<Span> all = spans.OfTheCall();
  EXPECT_EQ(all.size(), 7u);
  const Span call = TheOne(all, "a.b.C/D");
  const Span prefill = TheOne(all, "prefill"), decode = TheOne(all, "decode");
  const Span preempt = TheOne(all, "preempt");
  const uint64_t begin = TheOne(all, "queue").start_time_unix_nano();
  ExpectWithin(prefill, call);
  ExpectWithin(decode, call);
  ExpectWithin(preempt, call);
  EXPECT_EQ(preempt.start_time_unix_nano(), begin + 200'000);
  EXPECT_EQ(Lasts(preempt), 70'000u);
  const std::vector<Span> swaps = Named(all, "swap");
  ASSERT_EQ(swaps.size(), 2u);
  for (const Span& swap : swaps) ExpectWithin(swap, call);
  EXPECT_EQ(swaps[0].start_time_unix_nano(), begin + 1'200'000);
  EXPECT_EQ(Lasts(swaps[0]), 20'000u);
  EXPECT_EQ(swaps[1].end_time_unix_nano(), decode.end_time_unix_nano());
  const auto attributes = AttributesOf(call);
  EXPECT_EQ(attributes.at("gen_ai.request.model"), "s:not UTF-8: \xEF\xBF\xBD");
  EXPECT_EQ(attributes.at("hydrant.cache.policy"), "s:tova");
  EXPECT_EQ(attributes.at("hydrant.cache.cache_ratio"), "d:0.250000");
  EXPECT_EQ(attributes.at("hydrant.cache.compressed_by"), "s:local");
  EXPECT_EQ(attributes.at("hydrant.usage.swaps"), "i:2");
  EXPECT_EQ(attributes.at("hydrant.usage.preemptions"), "i:1");
  EXPECT_EQ(attributes.at("hydrant.usage.time_swapped"), "d:0.000060");
  EXPECT_EQ(attributes.at("hydrant.usage.time_preempted"), "d:0.000070");
  EXPECT_EQ(attributes.at("hydrant.tenant"), "s:someone");
  EXPECT_EQ(attributes.at("hydrant.priority"), "i:-3");
}

TEST(RequestSpan, HasNoFirstTokenIfItFailsBefore) {
  for (const bool began : {false, true}) {
    Spans spans;
    RequestSpan span(
        {.trace_id = NewTraceId(), .span_id = NewSpanId(), .sampled = true, .state = {}}, "",
        "a.b.C/D", spans.Sink());
    Request request;
    request.resume_token_ids = {1, 2};
    span.SetRequest(ServedModel(), request, 1);
    Failed failed{.status = absl::DeadlineExceededError("too late, \"a secret\""),
                  .reason = "DEADLINE"};
    failed.usage->completion_tokens = 2;  // generated before the failure
    failed.usage->queue_us = 100;
    failed.usage->prefill_us = began ? 50 : 0;
    span.End(failed);
    const std::vector<Span> all = spans.OfTheCall();
    EXPECT_EQ(Named(all, "queue").size(), 1u);
    EXPECT_EQ(Named(all, "prefill").size(), began ? 1u : 0u);
    EXPECT_EQ(Named(all, "decode").size(), 0u);
    const Span call = ServerSpan(all);
    EXPECT_EQ(call.events_size(), 0);
    EXPECT_EQ(call.status().code(), opentelemetry::proto::trace::v1::Status::STATUS_CODE_ERROR);
    const auto attributes = AttributesOf(call);
    EXPECT_EQ(attributes.at("error.type"), "s:DEADLINE");
    EXPECT_EQ(attributes.at("hydrant.outcome"), "s:deadline");
    EXPECT_FALSE(attributes.contains("gen_ai.latency.time_to_first_token"));
    EXPECT_THAT(call.DebugString(), Not(HasSubstr("secret")));
  }
}

}  // namespace
}  // namespace hydrant
