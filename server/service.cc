#include "server/service.h"

#include <grpcpp/server_context.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/embed_call.h"
#include "server/generate_stream.h"
#include "server/model_info.h"
#include "server/request_conversion.h"
#include "server/wire_message.h"

namespace hydrant {
namespace {

constexpr TimeUs kLoadingRetryUs = 1'000'000;
constexpr TimeUs kDrainingRetryUs = 5'000'000;
constexpr TimeUs kOverloadRetryUs = 1'000'000;

// A shorter request is read where it arrives: that takes about a millisecond, as long as handing
// it to another thread may take on a busy machine.
constexpr size_t kShortRequestBytes = 16 << 10;
// One more than can be kept busy by a single text.
constexpr int kRequestWorkers = 2;

// A stable word for refusals that are made before the scheduler sees the request.
std::string ReasonOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return "UNKNOWN_MODEL";
    case absl::StatusCode::kFailedPrecondition:
      return "NO_CHAT_TEMPLATE";
    case absl::StatusCode::kInvalidArgument:
      return "INVALID";
    default:
      return "INTERNAL";
  }
}

Refusal Refused(const absl::Status& status) { return {status, ReasonOf(status)}; }

// The scheduler's clock is the steady one, gRPC's deadlines are on the system clock.
std::optional<TimeUs> SteadyDeadline(std::chrono::system_clock::time_point deadline) {
  using std::chrono::duration_cast, std::chrono::microseconds;
  if (deadline == std::chrono::system_clock::time_point::max()) return std::nullopt;
  const auto left = duration_cast<microseconds>(deadline - std::chrono::system_clock::now());
  if (left > std::chrono::hours(24 * 365)) return std::nullopt;
  return duration_cast<microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count() +
         left.count();
}

// Finishes a unary call: parses, asks, answers.
template <typename In, typename Ask>
void Answer(grpc::ServerUnaryReactor* reactor, grpc::CallbackServerContext* context,
            const grpc::ByteBuffer& bytes, grpc::ByteBuffer* response, const Ask& ask) {
  if (context->IsCancelled()) return reactor->Finish(grpc::Status::CANCELLED);
  In message;
  if (absl::Status parsed = ParseWire(bytes, &message); !parsed.ok())
    return reactor->Finish(ToGrpcStatus(Refused(parsed)));
  auto answer = ask(message);
  if (!answer.ok()) return reactor->Finish(ToGrpcStatus(Refused(answer.status())));
  *response = ToWire(*answer);
  reactor->Finish(grpc::Status::OK);
}

grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context, const Refusal& refusal) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(refusal));
  return reactor;
}

Refusal Draining() {
  return {absl::UnavailableError("the server is shutting down and takes no new requests"),
          "DRAINING", kDrainingRetryUs};
}

}  // namespace

// Not ready and not able to say anything about the model yet, or any more.
std::optional<Refusal> Service::WhyNoModel(const ServingState& serving) {
  switch (serving.state) {
    case v1::SERVER_STATE_LOADING: {
      const int percent = static_cast<int>(std::floor(serving.load_fraction * 100));
      return Refusal{absl::UnavailableError(absl::StrCat("loading the model, ", percent, " %")),
                     "LOADING", kLoadingRetryUs};
    }
    case v1::SERVER_STATE_ENGINE_LOST:
      return Refusal{serving.lost, "ENGINE_FAULT"};
    default:
      // A server that is stopped while it loads has no model and never will.
      if (serving.model == nullptr) return Draining();
      return std::nullopt;
  }
}

std::optional<Refusal> Service::WhyNoGeneration(const ServingState& serving) {
  if (serving.state == v1::SERVER_STATE_DRAINING && !serving.admits) return Draining();
  return WhyNoModel(serving);
}

Service::Service(ServiceOptions options, EventRouter* router)
    : options_(std::move(options)),
      router_(router),
      connections_close_(options_.connections_age),
      workers_(kRequestWorkers, options_.max_waiting_request_bytes) {}

void Service::SetLoadFraction(double fraction) {
  const std::lock_guard lock(mutex_);
  serving_.load_fraction = std::clamp(fraction, 0.0, 1.0);
}

void Service::SetReady(const ServedModel* model, ServingLoop* loop) {
  const std::lock_guard lock(mutex_);
  serving_.model = model;
  serving_.loop = loop;
  serving_.load_fraction = 1.0;
  if (serving_.state != v1::SERVER_STATE_LOADING) return;
  serving_.state = v1::SERVER_STATE_READY;
  serving_.admits = true;
}

void Service::SetLeaving() {
  const std::lock_guard lock(mutex_);
  serving_.state = v1::SERVER_STATE_DRAINING;
}

void Service::SetDraining() {
  connections_close_ = true;
  const std::lock_guard lock(mutex_);
  serving_.state = v1::SERVER_STATE_DRAINING;
  serving_.admits = false;
}

void Service::SetEngineLost(const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  serving_.state = v1::SERVER_STATE_ENGINE_LOST;
  serving_.admits = false;
  serving_.lost = why;
}

ServingState Service::Current() const {
  const std::lock_guard lock(mutex_);
  return serving_;
}

std::optional<Refusal> Service::RunWhereItFits(size_t request_bytes, std::function<void()> job) {
  if (request_bytes <= kShortRequestBytes) {
    job();
    return std::nullopt;
  }
  if (workers_.Run(request_bytes, std::move(job))) return std::nullopt;
  return Refusal{absl::ResourceExhaustedError(absl::StrCat(
                     "queue full: this request has ", request_bytes,
                     " bytes, and long requests of up to ", workers_.max_waiting_bytes(),
                     " bytes wait to be tokenized already; send it again later")),
                 "QUEUE_FULL", kOverloadRetryUs};
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* Service::Generate(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer* bytes) {
  const ServingState serving = Current();
  const RequestHandle handle = NextHandle();
  const std::shared_ptr<GenerateStream> stream =
      GenerateStream::Create({.context = context,
                              .metrics = &request_metrics_,
                              .max_buffered_bytes = options_.max_buffered_bytes_per_stream,
                              .connections_close = &connections_close_,
                              .cancel = [loop = serving.loop, handle](const absl::Status& why) {
                                if (loop != nullptr) loop->Cancel(handle, why);
                              }});
  // The connection broke before a message had come: nobody asked for anything wrong.
  if (!bytes->Valid()) {
    request_metrics_.ended.Add("cancelled");
    stream->Refuse({absl::CancelledError("the call ended before its request had come"), ""});
    return stream.get();
  }
  std::optional<Refusal> refusal = WhyNoGeneration(serving);
  // The call, and so its context, its bytes and what `serving` points to, stay until the job has
  // ended the stream or submitted the request.
  if (!refusal.has_value()) {
    refusal = RunWhereItFits(bytes->Length(), [this, context, bytes, stream, handle, serving] {
      if (!stream->EndIfGone()) Read(*bytes, context->deadline(), stream, handle, serving);
    });
  }
  if (refusal.has_value()) RefuseGeneration(stream.get(), *refusal);
  return stream.get();
}

void Service::Read(const grpc::ByteBuffer& bytes, std::chrono::system_clock::time_point deadline,
                   const std::shared_ptr<GenerateStream>& stream, RequestHandle handle,
                   const ServingState& serving) {
  v1::GenerateRequest wire;
  const absl::Status parsed = ParseWire(bytes, &wire);
  absl::StatusOr<Request> request =
      parsed.ok() ? ConvertGenerateRequest(*serving.model, wire) : parsed;
  if (!request.ok()) return RefuseGeneration(stream.get(), Refused(request.status()));
  request->deadline = SteadyDeadline(deadline);
  Submit(stream, handle, serving, *std::move(request));
}

// Counted before the client hears of it.
void Service::RefuseGeneration(GenerateStream* stream, const Refusal& refusal) {
  request_metrics_.Refused(refusal.reason);
  stream->Refuse(refusal);
}

void Service::Submit(const std::shared_ptr<GenerateStream>& stream, RequestHandle handle,
                     const ServingState& serving, Request request) {
  stream->SetRequest(request.request_id, request.cache.policy);
  v1::Accepted accepted;
  accepted.set_request_id(request.request_id);
  router_->Add(handle, stream);
  const auto outcome = serving.loop->Submit(handle, std::move(request));
  if (const auto* failed = std::get_if<Failed>(&outcome)) {
    router_->Remove(handle);
    RefuseGeneration(stream.get(), {failed->status, failed->reason, failed->retry_after_us});
    return;
  }
  const auto& queued = std::get<Queued>(outcome);
  accepted.set_prompt_tokens(static_cast<uint32_t>(queued.prompt_tokens));
  accepted.set_seed(queued.seed);
  if (queued.cache_tokens.has_value())
    accepted.set_cache_tokens(static_cast<uint32_t>(*queued.cache_tokens));
  stream->Open(std::move(accepted));
}

grpc::ServerUnaryReactor* Service::Embed(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* bytes,
                                         grpc::ByteBuffer* response) {
  const ServingState serving = Current();
  const RequestHandle handle = NextHandle();
  const std::shared_ptr<EmbedCall> call =
      EmbedCall::Create({.context = context,
                         .response = response,
                         .metrics = &request_metrics_,
                         .cancel = [loop = serving.loop, handle](const absl::Status& why) {
                           if (loop != nullptr) loop->Cancel(handle, why);
                         }});
  std::optional<Refusal> refusal = WhyNoGeneration(serving);
  if (!refusal.has_value()) {
    refusal = RunWhereItFits(bytes->Length(), [this, context, bytes, call, handle, serving] {
      Read(*bytes, context->deadline(), call, handle, serving);
    });
  }
  if (refusal.has_value()) call->Refuse(*refusal);
  return call.get();
}

void Service::Read(const grpc::ByteBuffer& bytes, std::chrono::system_clock::time_point deadline,
                   const std::shared_ptr<EmbedCall>& call, RequestHandle handle,
                   const ServingState& serving) {
  v1::EmbedRequest wire;
  const absl::Status parsed = ParseWire(bytes, &wire);
  absl::StatusOr<Request> request =
      parsed.ok() ? ConvertEmbedRequest(*serving.model, wire) : parsed;
  if (!request.ok()) return call->Refuse(Refused(request.status()));
  request->deadline = SteadyDeadline(deadline);
  call->SetRequest(std::move(wire), request->request_id);
  router_->Add(handle, call);
  const auto outcome = serving.loop->Submit(handle, *std::move(request));
  if (const auto* failed = std::get_if<Failed>(&outcome)) {
    router_->Remove(handle);
    return call->Refuse({failed->status, failed->reason, failed->retry_after_us});
  }
  call->Open();
}

template <typename In, typename Ask>
grpc::ServerUnaryReactor* Service::Unary(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response,
                                         Ask ask) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const std::optional<Refusal> refusal =
      RunWhereItFits(bytes->Length(), [reactor, context, bytes, response, ask = std::move(ask)] {
        Answer<In>(reactor, context, *bytes, response, ask);
      });
  if (refusal.has_value()) reactor->Finish(ToGrpcStatus(*refusal));
  return reactor;
}

grpc::ServerUnaryReactor* Service::Tokenize(grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer* bytes,
                                            grpc::ByteBuffer* response) {
  const ServingState serving = Current();
  if (auto no = WhyNoModel(serving)) return Refuse(context, *no);
  return Unary<v1::TokenizeRequest>(context, bytes, response,
                                    [model = serving.model](const v1::TokenizeRequest& wire) {
                                      return hydrant::Tokenize(*model, wire);
                                    });
}

grpc::ServerUnaryReactor* Service::Detokenize(grpc::CallbackServerContext* context,
                                              const grpc::ByteBuffer* bytes,
                                              grpc::ByteBuffer* response) {
  const ServingState serving = Current();
  if (auto no = WhyNoModel(serving)) return Refuse(context, *no);
  return Unary<v1::DetokenizeRequest>(context, bytes, response,
                                      [model = serving.model](const v1::DetokenizeRequest& wire) {
                                        return hydrant::Detokenize(*model, wire);
                                      });
}

grpc::ServerUnaryReactor* Service::GetModelInfo(grpc::CallbackServerContext* context,
                                                const grpc::ByteBuffer* bytes,
                                                grpc::ByteBuffer* response) {
  const ServingState serving = Current();
  if (auto no = WhyNoModel(serving)) return Refuse(context, *no);
  return Unary<v1::GetModelInfoRequest>(
      context, bytes, response,
      [model = serving.model](
          const v1::GetModelInfoRequest& wire) -> absl::StatusOr<v1::GetModelInfoResponse> {
        HYDRANT_RETURN_IF_ERROR(CheckModelName(*model, wire.model()));
        return DescribeModel(*model);
      });
}

grpc::ServerUnaryReactor* Service::GetServerInfo(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* bytes,
                                                 grpc::ByteBuffer* response) {
  return Unary<v1::GetServerInfoRequest>(
      context, bytes, response,
      [this](const v1::GetServerInfoRequest&) -> absl::StatusOr<v1::GetServerInfoResponse> {
        return ServerInfo(Current());
      });
}

v1::GetServerInfoResponse Service::ServerInfo(const ServingState& serving) const {
  v1::GetServerInfoResponse info;
  const auto uptime = std::chrono::steady_clock::now() - start_;
  info.set_version(options_.version);
  info.set_state(serving.state);
  info.set_load_fraction(serving.load_fraction);
  info.set_uptime_us(std::chrono::duration_cast<std::chrono::microseconds>(uptime).count());
  info.mutable_options()->insert(options_.flags.begin(), options_.flags.end());
  DescribePolicies(info.mutable_policies());
  if (serving.model != nullptr) {
    info.set_engine(serving.model->engine_description);
    const LoopSnapshot snapshot = serving.loop->Snapshot();
    *info.mutable_pool() = DescribePool(*serving.model, snapshot);
    *info.mutable_load() = DescribeLoad(snapshot);
  }
  return info;
}

}  // namespace hydrant
