#include "server/requests/service.h"

#include <grpcpp/server_context.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/status_macros.h"
#include "server/requests/generate_stream.h"
#include "server/requests/unary_call.h"
#include "server/wire/context_conversion.h"
#include "server/wire/model_info.h"
#include "server/wire/request_conversion.h"
#include "server/wire/wire_events.h"
#include "server/wire/wire_message.h"

namespace hydrant {
namespace {

constexpr TimeUs kLoadingRetryUs = 1'000'000;
constexpr TimeUs kDrainingRetryUs = 5'000'000;
constexpr TimeUs kOverloadRetryUs = 1'000'000;

// A shorter request is parsed on the calling thread: that takes about a millisecond, as long as a
// handover to another thread may take on a busy machine.
constexpr size_t kShortRequestBytes = 16 << 10;
// One more than a single long text keeps busy.
constexpr int kRequestWorkers = 2;
// Attempts to load a context for a request while others evict it each time.
constexpr int kLoads = 3;
// Many, because their jobs mostly wait.
constexpr int kStoreWorkers = 8;
constexpr int kFetchWorkers = 8;

// The scheduler's clock is the steady one, gRPC's deadlines are on the system clock.
std::optional<TimeUs> SteadyDeadline(std::chrono::system_clock::time_point deadline) {
  using std::chrono::duration_cast, std::chrono::microseconds;
  if (deadline == std::chrono::system_clock::time_point::max()) return std::nullopt;
  const auto left = duration_cast<microseconds>(deadline - std::chrono::system_clock::now());
  if (left > std::chrono::hours(24 * 365)) return std::nullopt;
  return duration_cast<microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count() +
         left.count();
}

TimeUs SteadyNow() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Finish(const Service::Answer& answer, grpc::ServerUnaryReactor* reactor,
            grpc::ByteBuffer* response) {
  if (const auto* refusal = std::get_if<Refusal>(&answer))
    return reactor->Finish(ToGrpcStatus(*refusal));
  *response = std::get<grpc::ByteBuffer>(answer);
  reactor->Finish(grpc::Status::OK);
}

Refusal StoreIsBusy() {
  return {absl::ResourceExhaustedError(
              "queue full: too many requests wait for the store of contexts; send it again later"),
          "QUEUE_FULL", kOverloadRetryUs};
}

// Refuses a request id used twice in a call; `ids`: earlier ids with their indices.
std::optional<Refusal> CheckUniqueId(const v1::GenerateRequest& wire, size_t index,
                                     std::map<std::string, size_t>* ids) {
  if (!wire.has_request_id()) return std::nullopt;
  const auto [same, is_new] = ids->emplace(wire.request_id(), index);
  if (is_new) return std::nullopt;
  return RefusalOf(absl::InvalidArgumentError(absl::StrCat(
      "request_id: ", wire.request_id(), " is that of requests[", same->second, "], too")));
}

Refusal Draining() {
  return {absl::UnavailableError("the server is shutting down and takes no new requests"),
          "DRAINING", kDrainingRetryUs};
}

}  // namespace

std::optional<Refusal> Service::CheckReady(const ServingState& serving) {
  switch (serving.state) {
    case v1::SERVER_STATE_LOADING: {
      const int percent = static_cast<int>(std::floor(serving.load_fraction * 100));
      return Refusal{absl::UnavailableError(absl::StrCat("loading the model, ", percent, " %")),
                     "LOADING", kLoadingRetryUs};
    }
    case v1::SERVER_STATE_ENGINE_LOST:
      return Refusal{serving.lost, "ENGINE_FAULT"};
    default:
      // A server that is stopped while it loads has no model and never gets one.
      if (serving.model == nullptr) return Draining();
      return std::nullopt;
  }
}

std::optional<Refusal> Service::CheckCanGenerate(const ServingState& serving) {
  if (serving.state == v1::SERVER_STATE_DRAINING && !serving.admits) return Draining();
  return CheckReady(serving);
}

Service::Service(ServiceOptions options, EventRouter* router)
    : options_(std::move(options)),
      router_(router),
      load_(options_.cpus),
      connections_close_(options_.connections_age),
      workers_(kRequestWorkers, options_.max_waiting_request_bytes),
      store_workers_(kStoreWorkers, options_.max_waiting_request_bytes),
      fetch_workers_(kFetchWorkers, 0) {}

void Service::SetLoadFraction(double fraction) {
  const MutexLock lock(mutex_);
  serving_.load_fraction = std::clamp(fraction, 0.0, 1.0);
}

void Service::SetReady(const ServedModel* model, ServingLoop* loop, ContextArchive* contexts,
                       PrefixArchive* prefixes) {
  const MutexLock lock(mutex_);
  serving_.model = model;
  serving_.loop = loop;
  serving_.contexts = contexts;
  serving_.prefixes = prefixes;
  serving_.load_fraction = 1.0;
  if (serving_.state != v1::SERVER_STATE_LOADING) return;
  serving_.state = v1::SERVER_STATE_READY;
  serving_.admits = true;
}

void Service::AnnounceDrain() {
  const MutexLock lock(mutex_);
  serving_.state = v1::SERVER_STATE_DRAINING;
}

void Service::SetDraining() {
  connections_close_ = true;
  const MutexLock lock(mutex_);
  serving_.state = v1::SERVER_STATE_DRAINING;
  serving_.admits = false;
}

void Service::SetEngineLost(const absl::Status& why) {
  const MutexLock lock(mutex_);
  serving_.state = v1::SERVER_STATE_ENGINE_LOST;
  serving_.admits = false;
  serving_.lost = why;
}

ServingState Service::Current() const {
  const MutexLock lock(mutex_);
  return serving_;
}

std::optional<Refusal> Service::RunInlineOrOnWorker(size_t request_bytes,
                                                    std::function<void()> job) {
  if (request_bytes <= kShortRequestBytes) {
    job();
    return std::nullopt;
  }
  return RunOnWorker(request_bytes, std::move(job));
}

std::optional<Refusal> Service::RunOnWorker(size_t request_bytes, std::function<void()> job) {
  if (workers_.Run(request_bytes, std::move(job))) return std::nullopt;
  return Refusal{absl::ResourceExhaustedError(absl::StrCat(
                     "queue full: this request has ", request_bytes,
                     " bytes, and long requests of up to ", workers_.max_waiting_bytes(),
                     " bytes wait to be tokenized already; send it again later")),
                 "QUEUE_FULL", kOverloadRetryUs};
}

absl::StatusOr<Caller> Service::CallerOf(const grpc::CallbackServerContext& context) const {
  if (options_.tenants == nullptr) return Caller();
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("authorization");
  if (found == metadata.end()) return options_.tenants->Identify(std::nullopt, absl::Now());
  return options_.tenants->Identify(std::string_view(found->second.data(), found->second.size()),
                                    absl::Now());
}

std::unique_ptr<RequestSpan> Service::Trace(const grpc::CallbackServerContext& context,
                                            std::string_view method) const {
  return options_.tracer == nullptr ? nullptr : options_.tracer->Begin(context, method);
}

std::optional<Refusal> Service::AdmitCall(const grpc::CallbackServerContext& context,
                                          CallContext* call_context) const {
  if (auto no = CheckCanGenerate(call_context->serving)) return no;
  absl::StatusOr<Caller> caller = CallerOf(context);
  if (!caller.ok()) return RefusalOf(caller.status());
  call_context->caller = *std::move(caller);
  return AdmitRequest(call_context);
}

std::optional<Refusal> Service::AdmitRequest(CallContext* call_context) {
  if (call_context->caller.account() == nullptr) return std::nullopt;
  auto admitted = call_context->caller.account()->Admit(SteadyNow());
  if (auto* no = std::get_if<Refusal>(&admitted)) return std::move(*no);
  call_context->admission = std::get<0>(std::move(admitted));
  return std::nullopt;
}

std::optional<Refusal> Service::ScopeToTenant(const CallContext& call_context, Request* request) {
  if (const absl::Status owned = call_context.caller.ScopeToTenant(request); !owned.ok())
    return RefusalOf(owned);
  if (call_context.admission == nullptr || request->keep_as.handle.empty()) return std::nullopt;
  return call_context.admission->Keep(
      call_context.serving.loop->contexts().CountOfSalts(call_context.caller.SaltPrefix()));
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* Service::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    std::unique_ptr<GenerateContract> contract) {
  CallContext call_context{.serving = Current()};
  std::optional<Refusal> refusal = AdmitCall(*context, &call_context);
  const auto cancel = [loop = call_context.serving.loop](RequestHandle handle,
                                                         const absl::Status& why) {
    if (loop != nullptr) loop->Cancel(handle, why);
  };
  const auto new_span = [this, context, method = contract->Method()] {
    return Trace(*context, method);
  };
  const std::shared_ptr<GenerateStream> stream =
      GenerateStream::Create({.context = context,
                              .contract = std::move(contract),
                              .metrics = &request_metrics_,
                              .max_buffered_bytes = options_.max_buffered_bytes_per_stream,
                              .connections_close = &connections_close_,
                              .cancel = cancel,
                              .admission = call_context.admission,
                              .load_report =
                                  [this](grpc::StatusCode code, int samples) {
                                    load_.CountCall(code);
                                    return load_.Measure(Current(), samples).SerializeAsString();
                                  },
                              .new_span = new_span});
  // The connection broke before a message arrived; the client made no error.
  if (!bytes->Valid()) {
    request_metrics_.ended.Add("cancelled");
    stream->RefuseCall({absl::CancelledError("the call ended before its request had come"), ""});
    return stream.get();
  }
  // The call, and with it `context`, `bytes` and the pointers in `call_context`, lives until the
  // job has ended the stream or submitted its requests.
  if (!refusal.has_value()) {
    const PendingRequest first = {
        .stream = stream, .deadline = context->deadline(), .call_context = call_context};
    refusal = RunInlineOrOnWorker(bytes->Length(), [this, bytes, first] {
      if (!first.stream->EndIfGone(0)) ReadCall(*bytes, first);
    });
  }
  if (refusal.has_value()) RefuseCall(stream.get(), *refusal);
  return stream.get();
}

std::optional<Refusal> Service::WithStores(const ServingState& serving,
                                           const std::shared_ptr<Request>& request,
                                           const std::stop_token& stop,
                                           std::function<void(const absl::Status&)> go_on) {
  const ContextId id = {.salt = request->cache_salt, .handle = request->context};
  const size_t bytes = request->prompt.size() * sizeof(TokenId);
  if (serving.prefixes != nullptr && serving.prefixes->MayFetch(*request)) {
    // If all threads wait for the store, the store is slow: prefilling the prompt is faster.
    const bool fetched = fetch_workers_.RunNow([serving, request, stop, go_on] {
      serving.prefixes->Fetch(*request, stop);
      go_on(absl::OkStatus());
    });
    if (fetched) return std::nullopt;
  }
  // The context may be evicted again before the request is submitted.
  const auto see = [serving, id, request] {
    request->seen_context = serving.loop->contexts().Find(id, absl::ToUnixSeconds(absl::Now()));
    return request->seen_context != nullptr;
  };
  if (id.handle.empty() || !serving.contexts->HasStore() || see()) {
    go_on(absl::OkStatus());
    return std::nullopt;
  }
  const StoreWait wait = StoreWait::For(options_.context_store_timeout, stop);
  const bool taken = store_workers_.Run(bytes, [serving, id, see, wait, go_on = std::move(go_on)] {
    absl::Status loaded;
    for (int i = 0; !see() && i < kLoads && loaded.ok(); ++i)
      loaded = serving.contexts->Load(id, wait);
    go_on(loaded);
  });
  return taken ? std::nullopt : std::optional(StoreIsBusy());
}

void Service::ReadCall(const grpc::ByteBuffer& bytes, const PendingRequest& first) {
  const ServingState& serving = first.call_context.serving;
  GenerateStream& stream = *first.stream;
  absl::StatusOr<std::vector<v1::GenerateRequest>> wires =
      stream.contract().Parse(*serving.model, bytes);
  if (!wires.ok()) return RefuseCall(&stream, RefusalOf(wires.status()));
  stream.SetRequests(wires->size(), NextHandles(static_cast<int>(wires->size()) * kMaxSamples));
  std::map<std::string, size_t> ids;
  for (size_t index = 0; index < wires->size(); ++index) {
    PendingRequest pending = first;
    pending.index = index;
    v1::GenerateRequest& wire = (*wires)[index];
    if (stream.EndIfGone(index)) continue;
    if (index > 0) {
      if (const auto no = AdmitRequest(&pending.call_context)) {
        RefuseGeneration(pending, *no);
        continue;
      }
      stream.SetAdmission(index, pending.call_context.admission);
    }
    if (const auto no = CheckUniqueId(wire, index, &ids)) {
      RefuseGeneration(pending, *no);
      continue;
    }
    Read(std::move(wire), pending);
  }
}

void Service::Read(v1::GenerateRequest wire, const PendingRequest& pending) {
  // A context has its own policy.
  if (!wire.cache().has_cache_policy() && !wire.has_context())
    SetDefaults(pending.stream->contract().default_cache(), wire.mutable_cache());
  // Compiling a grammar takes long, so it runs on a worker.
  if (!wire.has_structured_output()) return Convert(wire, pending);
  const size_t bytes = wire.ByteSizeLong();
  const auto shared = std::make_shared<v1::GenerateRequest>(std::move(wire));
  const std::optional<Refusal> refusal = RunOnWorker(bytes, [this, shared, pending] {
    if (!pending.stream->EndIfGone(pending.index)) Convert(*shared, pending);
  });
  if (refusal.has_value()) RefuseGeneration(pending, *refusal);
}

void Service::Convert(const v1::GenerateRequest& wire, const PendingRequest& pending) {
  const ServingState& serving = pending.call_context.serving;
  absl::StatusOr<Request> request = ConvertGenerateRequest(*serving.model, wire);
  if (!request.ok()) return RefuseGeneration(pending, RefusalOf(request.status()));
  if (const auto no = ScopeToTenant(pending.call_context, &*request))
    return RefuseGeneration(pending, *no);
  request->deadline = SteadyDeadline(pending.deadline);
  const auto shared = std::make_shared<Request>(*std::move(request));
  const OutputOptions output = OutputOf(wire);
  const std::optional<Refusal> refusal =
      WithStores(serving, shared, pending.stream->stop_token(),
                 [this, pending, shared, output](const absl::Status& is_here) {
                   if (pending.stream->EndIfGone(pending.index)) return;
                   if (!is_here.ok()) return RefuseGeneration(pending, ContextRefusal(is_here));
                   Submit(pending, std::move(*shared), output);
                 });
  if (refusal.has_value()) RefuseGeneration(pending, *refusal);
}

// Counted before the client receives the refusal.
void Service::RefuseGeneration(const PendingRequest& pending, const Refusal& refusal) {
  request_metrics_.Refused(refusal.reason);
  pending.stream->Refuse(pending.index, refusal);
}

void Service::RefuseCall(GenerateStream* stream, const Refusal& refusal) {
  request_metrics_.Refused(refusal.reason);
  stream->RefuseCall(refusal);
}

void Service::Submit(const PendingRequest& pending, Request request, const OutputOptions& output) {
  const auto& [stream, index, deadline, call_context] = pending;
  std::vector<RequestHandle> handles(output.num_samples);
  std::iota(handles.begin(), handles.end(), stream->FirstHandle(index));
  stream->SetRequest(index, request, output);
  if (RequestSpan* span = stream->span(index))
    span->SetRequest(*call_context.serving.model, request, output.num_samples);
  v1::Accepted accepted;
  accepted.set_request_id(request.request_id);
  for (const RequestHandle handle : handles) router_->Add(handle, stream);
  const auto outcome = call_context.serving.loop->Submit(handles, std::move(request));
  if (const auto* failed = std::get_if<Failed>(&outcome)) {
    for (const RequestHandle handle : handles) router_->Remove(handle);
    RefuseGeneration(pending, {failed->status, failed->reason, failed->retry_after_us});
    return;
  }
  const auto& queued = std::get<Queued>(outcome);
  accepted.set_prompt_tokens(static_cast<uint32_t>(queued.prompt_tokens));
  accepted.set_seed(queued.seed);
  if (queued.cache_tokens.has_value())
    accepted.set_cache_tokens(static_cast<uint32_t>(*queued.cache_tokens));
  if (!queued.policy_under_pressure.empty())
    accepted.set_policy_under_pressure(queued.policy_under_pressure);
  stream->Open(index, std::move(accepted));
}

grpc::ServerUnaryReactor* Service::RunUnary(std::string_view method,
                                            grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer* bytes,
                                            grpc::ByteBuffer* response, ReadUnaryJob read) {
  CallContext call_context{.serving = Current()};
  std::optional<Refusal> refusal = AdmitCall(*context, &call_context);
  const RequestHandle handle = NextHandle();
  const std::shared_ptr<UnaryCall> call =
      UnaryCall::Create({.context = context,
                         .response = response,
                         .metrics = &request_metrics_,
                         .cancel =
                             [loop = call_context.serving.loop, handle](const absl::Status& why) {
                               if (loop != nullptr) loop->Cancel(handle, why);
                             },
                         .admission = call_context.admission,
                         .span = Trace(*context, method)});
  if (!refusal.has_value()) {
    refusal = RunInlineOrOnWorker(bytes->Length(), [this, context, bytes, call, handle,
                                                    call_context, read = std::move(read)] {
      Read(*bytes, context->deadline(), call, handle, call_context, read);
    });
  }
  if (refusal.has_value()) call->Refuse(*refusal);
  return call.get();
}

void Service::Read(const grpc::ByteBuffer& bytes, std::chrono::system_clock::time_point deadline,
                   const std::shared_ptr<UnaryCall>& call, RequestHandle handle,
                   const CallContext& call_context, const ReadUnaryJob& read) {
  const ServingState& serving = call_context.serving;
  absl::StatusOr<UnaryJob> job = read(*serving.model, bytes);
  if (!job.ok()) return call->Refuse(RefusalOf(job.status()));
  if (const auto no = ScopeToTenant(call_context, &job->request)) return call->Refuse(*no);
  job->request.deadline = SteadyDeadline(deadline);
  call->SetRequest(job->request, std::move(job->answer));
  if (call->span() != nullptr) call->span()->SetRequest(*serving.model, job->request, 1);
  router_->Add(handle, call);
  const auto outcome = serving.loop->Submit(handle, std::move(job->request));
  if (const auto* failed = std::get_if<Failed>(&outcome)) {
    router_->Remove(handle);
    return call->Refuse({failed->status, failed->reason, failed->retry_after_us});
  }
  call->Open();
}

namespace {

// A call that may wait for a store. The wait ends when the client has gone. Deletes itself when
// gRPC is done with it.
class WaitingCall final : public grpc::ServerUnaryReactor {
 public:
  std::stop_token stop_token() const { return gone_.get_token(); }
  void OnCancel() override { gone_.request_stop(); }
  void OnDone() override { delete this; }

 private:
  std::stop_source gone_;
};

}  // namespace

grpc::ServerUnaryReactor* Service::RunStoreCall(grpc::CallbackServerContext* context,
                                                const grpc::ByteBuffer* bytes,
                                                grpc::ByteBuffer* response, StoreJob job) {
  auto* call = new WaitingCall;
  const ServingState serving = Current();
  if (auto no = CheckReady(serving)) {
    Finish(*no, call, response);
    return call;
  }
  const absl::StatusOr<Caller> caller = CallerOf(*context);
  if (!caller.ok()) {
    Finish(RefusalOf(caller.status()), call, response);
    return call;
  }
  const StoreWait wait = StoreWait::For(options_.context_store_timeout, call->stop_token());
  const bool taken = store_workers_.Run(bytes->Length(), [call, bytes, response, serving, wait,
                                                          caller = *caller, job = std::move(job)] {
    if (wait.stop.stop_requested()) return call->Finish(grpc::Status::CANCELLED);
    Finish(job(serving, caller, *bytes, wait), call, response);
  });
  if (!taken) Finish(StoreIsBusy(), call, response);
  return call;
}

grpc::ServerUnaryReactor* Service::RunQuery(grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer* bytes,
                                            grpc::ByteBuffer* response, Query query) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const std::optional<Refusal> refusal = RunInlineOrOnWorker(
      bytes->Length(), [reactor, context, bytes, response, query = std::move(query)] {
        if (context->IsCancelled()) return reactor->Finish(grpc::Status::CANCELLED);
        Finish(query(*bytes), reactor, response);
      });
  if (refusal.has_value()) Finish(*refusal, reactor, response);
  return reactor;
}

v1::GetServerInfoResponse Service::ServerInfo(const std::string& default_cache_policy) const {
  const ServingState serving = Current();
  v1::GetServerInfoResponse info;
  const auto uptime = std::chrono::steady_clock::now() - start_;
  info.set_version(options_.version);
  info.set_state(serving.state);
  info.set_load_fraction(serving.load_fraction);
  info.set_uptime_us(std::chrono::duration_cast<std::chrono::microseconds>(uptime).count());
  info.mutable_options()->insert(options_.flags.begin(), options_.flags.end());
  (*info.mutable_options())["default-cache-policy"] = default_cache_policy;
  DescribePolicies(info.mutable_policies());
  if (serving.model != nullptr) {
    info.set_engine(serving.model->engine_description);
    const ServingStats snapshot = serving.loop->Stats();
    *info.mutable_pool() = DescribePool(*serving.model, snapshot);
    *info.mutable_load() = DescribeLoad(snapshot);
  }
  return info;
}

}  // namespace hydrant
