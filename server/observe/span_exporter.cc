#include "server/observe/span_exporter.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/loopback.h"

namespace hydrant {
namespace {

using opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest;
using opentelemetry::proto::collector::trace::v1::ExportTraceServiceResponse;
using opentelemetry::proto::collector::trace::v1::TraceService;
using std::chrono::milliseconds;

constexpr int kMaxReconnectMs = 5'000;
constexpr int kFailures = 3;          // failed batches in a row that open the circuit
constexpr int kRetryBytes = 4 << 20;  // a larger batch is not retried

// Retries the codes that OTLP declares retryable, within the call's deadline.
constexpr char kServiceConfig[] = R"({"methodConfig": [{
  "name": [{"service": "opentelemetry.proto.collector.trace.v1.TraceService"}],
  "retryPolicy": {
    "maxAttempts": 5, "initialBackoff": "1s", "maxBackoff": "5s", "backoffMultiplier": 2,
    "retryableStatusCodes": ["CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE",
                             "UNAVAILABLE", "DATA_LOSS"]}}]})";

std::unique_ptr<TraceService::Stub> Connect(const SpanExporter::Options& options) {
  grpc::ChannelArguments arguments;
  arguments.SetServiceConfigJSON(kServiceConfig);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
  arguments.SetInt(GRPC_ARG_PER_RPC_RETRY_BUFFER_SIZE, kRetryBytes);
  UseNoProxyOnThisMachine(options.address, &arguments);
  return TraceService::NewStub(
      grpc::CreateCustomChannel(options.address, options.credentials, arguments));
}

void Describe(const char* key, const std::string& value,
              opentelemetry::proto::resource::v1::Resource* resource) {
  auto& attribute = *resource->add_attributes();
  attribute.set_key(key);
  attribute.mutable_value()->set_string_value(value);
}

}  // namespace

SpanExporter::SpanExporter(Options options)
    : options_(std::move(options)),
      stub_(Connect(options_)),
      circuit_(kFailures, options_.on_circuit),
      thread_([this] { Run(); }) {}

void SpanExporter::Add(std::vector<Span> spans) {
  const MutexLock lock(mutex_);
  if (stopping_ || queue_.size() + spans.size() > options_.max_queue_spans) {
    metrics_.dropped += spans.size();
    return;
  }
  std::move(spans.begin(), spans.end(), std::back_inserter(queue_));
  if (queue_.size() >= options_.max_batch_spans) changed_.notify_all();
}

void SpanExporter::Stop(milliseconds grace) {
  {
    MutexLock lock(mutex_);
    if (!stopping_) stop_by_ = Clock::now() + grace;
    stopping_ = true;
    changed_.notify_all();
    const auto is_done = [this]() HYDRANT_REQUIRES(mutex_) { return done_; };
    if (!changed_.wait_until(lock.native(), stop_by_, is_done) && in_flight_ != nullptr)
      in_flight_->TryCancel();
  }
  if (thread_.joinable()) thread_.join();
}

void SpanExporter::Run() {
  MutexLock lock(mutex_);
  while (!done_) {
    changed_.wait_for(lock.native(), options_.interval, [this]() HYDRANT_REQUIRES(mutex_) {
      return stopping_ || queue_.size() >= options_.max_batch_spans;
    });
    const bool out_of_time = stopping_ && Clock::now() >= stop_by_;
    if (out_of_time) metrics_.dropped += std::exchange(queue_, {}).size();
    if (!queue_.empty()) {
      const auto end = queue_.begin() + static_cast<std::ptrdiff_t>(
                                            std::min(queue_.size(), options_.max_batch_spans));
      std::vector<Span> batch(std::make_move_iterator(queue_.begin()),
                              std::make_move_iterator(end));
      queue_.erase(queue_.begin(), end);
      grpc::ClientContext context;
      in_flight_ = &context;
      lock.Unlock();
      Send(std::move(batch), &context);
      lock.Lock();
      in_flight_ = nullptr;
    }
    done_ = stopping_ && queue_.empty();
  }
  changed_.notify_all();
}

void SpanExporter::Send(std::vector<Span> batch, grpc::ClientContext* context) {
  const size_t size = batch.size();
  if (!circuit_.Enter(Clock::now()).ok()) {
    metrics_.dropped += size;
    return;
  }
  ExportTraceServiceRequest request;
  auto& of_resource = *request.add_resource_spans();
  Describe("service.name", options_.service_name, of_resource.mutable_resource());
  Describe("service.version", options_.version, of_resource.mutable_resource());
  auto& of_scope = *of_resource.add_scope_spans();
  of_scope.mutable_scope()->set_name("hydrantd");
  of_scope.mutable_scope()->set_version(options_.version);
  of_scope.mutable_spans()->Assign(std::make_move_iterator(batch.begin()),
                                   std::make_move_iterator(batch.end()));
  for (const auto& [key, value] : options_.headers) context->AddMetadata(key, value);
  context->set_deadline(std::chrono::system_clock::now() + options_.timeout);
  ExportTraceServiceResponse response;
  const grpc::Status status = stub_->Export(context, request, &response);
  const absl::Status taken(static_cast<absl::StatusCode>(status.error_code()),
                           status.error_message());
  if (absl::IsUnavailable(taken) || absl::IsDeadlineExceeded(taken)) {
    circuit_.Failed(taken, Clock::now());
  } else if (!absl::IsCancelled(taken)) {
    circuit_.Succeeded();
  }
  if (!taken.ok()) return Drop(size, taken);
  const auto& refused = response.partial_success();
  const auto rejected = static_cast<size_t>(
      std::clamp<int64_t>(refused.rejected_spans(), 0, static_cast<int64_t>(size)));
  metrics_.exported += size - rejected;
  if (rejected > 0) Drop(rejected, absl::InvalidArgumentError(refused.error_message()));
}

void SpanExporter::Drop(size_t spans, const absl::Status& why) {
  metrics_.dropped += spans;
  options_.on_failure({why.code(), absl::StrCat(spans, " spans are dropped: ", why.message())});
}

}  // namespace hydrant
