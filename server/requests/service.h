// The daemon's methods, for every contract and listening address. Knows the states of the daemon
// (loading, ready, draining, lost) and refuses requests in all but `ready`. It does not touch the
// model and never blocks: long work runs on its own threads, because gRPC's threads serve all
// streams. Thread safe.
#ifndef HYDRANT_SERVER_REQUESTS_SERVICE_H_
#define HYDRANT_SERVER_REQUESTS_SERVICE_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "hydrant/v1/hydrant.pb.h"
#include "kernels/mutex.h"
#include "scheduler/serving_loop.h"
#include "server/auth/tenants.h"
#include "server/observe/load_meter.h"
#include "server/observe/request_metrics.h"
#include "server/observe/serving_state.h"
#include "server/observe/tracer.h"
#include "server/requests/event_router.h"
#include "server/requests/generate_contract.h"
#include "server/requests/request_workers.h"
#include "server/requests/sample_outputs.h"
#include "server/requests/unary_call.h"
#include "server/wire/served_model.h"
#include "server/wire/status_details.h"

namespace hydrant {

struct ServiceOptions {
  std::string version;
  std::map<std::string, std::string> flags;  // reported by GetServerInfo
  // Bytes that a client may leave unread beyond the buffers of gRPC and the kernel (some 256 KiB).
  size_t max_buffered_bytes_per_stream = size_t{1} << 20;
  // Long requests wait for a thread that tokenizes them; beyond this many bytes of them the server
  // refuses more. gRPC takes messages of up to 16 MiB.
  size_t max_waiting_request_bytes = size_t{64} << 20;
  bool connections_age = false;      // gRPC closes connections past an age with their last stream
  const Tenants* tenants = nullptr;  // outlives the service; null: callers are not authenticated
  const Tracer* tracer = nullptr;    // outlives the service; null: tracing is off
  double cpus = 0;                   // available to the process; 0: unknown
  // The longest that a call waits for the context store, including the wait for a thread.
  std::chrono::milliseconds context_store_timeout{10'000};
};

class GenerateStream;

class Service {
 public:
  // Borrowed: the router outlives the service.
  Service(ServiceOptions options, EventRouter* router);

  // The initial state is LOADING. Model, loop and contexts are borrowed until the gRPC server has
  // shut down.
  void SetLoadFraction(double fraction);
  // prefixes: null where prefix blocks are not saved.
  void SetReady(const ServedModel* model, ServingLoop* loop, ContextArchive* contexts,
                PrefixArchive* prefixes = nullptr);
  // Health reports draining while new requests are still accepted, so that load balancers
  // can react.
  void AnnounceDrain();
  void SetDraining();
  void SetEngineLost(const absl::Status& why);
  ServingState Current() const;
  const RequestMetrics& request_metrics() const { return request_metrics_; }
  const std::string& version() const { return options_.version; }
  LoadMeter::Report LoadReport() { return load_.Measure(Current(), 0); }

  // Also for requests from inside the process (the warm-up).
  RequestHandle NextHandle() { return NextHandles(1); }

  // Refuses while there is no model to query: it is loading, was never loaded, or is lost.
  static std::optional<Refusal> CheckReady(const ServingState& serving);

  // The caller's identity; Unauthenticated. Every call has passed a CallAuthorizer, but its token
  // may have been revoked since.
  absl::StatusOr<Caller> CallerOf(const grpc::CallbackServerContext& context) const;

  // For clients of any contract: converts and submits their requests.
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* bytes,
                                                       std::unique_ptr<GenerateContract> contract);
  // Runs `job`, which may take long but must not block, on a worker thread; or refuses.
  std::optional<Refusal> RunOnWorker(size_t request_bytes, std::function<void()> job);
  // The request of a unary call, and its answer.
  struct UnaryJob {
    Request request;
    UnaryCall::Answer answer;
  };
  using ReadUnaryJob =
      std::function<absl::StatusOr<UnaryJob>(const ServedModel& model, const grpc::ByteBuffer&)>;
  // `method`: "service/method", as called by the client.
  grpc::ServerUnaryReactor* RunUnary(std::string_view method, grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response,
                                     ReadUnaryJob read);

  // Answers a call from the server's state, without a request to the scheduler: on the calling
  // thread if it is short, else on a worker.
  using Answer = std::variant<grpc::ByteBuffer, Refusal>;
  using Query = std::function<Answer(const grpc::ByteBuffer& bytes)>;
  grpc::ServerUnaryReactor* RunQuery(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response,
                                     Query query);
  // Runs a call on a thread that may wait for the context store. The wait ends when the client
  // has gone.
  using StoreJob = std::function<Answer(const ServingState& serving, const Caller& caller,
                                        const grpc::ByteBuffer& bytes, const StoreWait& wait)>;
  grpc::ServerUnaryReactor* RunStoreCall(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response,
                                         StoreJob job);
  // `default_cache_policy`: of the caller's port, reported as it is.
  v1::GetServerInfoResponse ServerInfo(const std::string& default_cache_policy) const;

 private:
  // The first of `count` consecutive handles.
  RequestHandle NextHandles(int count) { return next_handle_.fetch_add(count) + 1; }
  static std::optional<Refusal> CheckCanGenerate(const ServingState& serving);
  // An admitted call.
  struct CallContext {
    ServingState serving;
    Caller caller{};
    std::shared_ptr<TenantAccount::Admission> admission = nullptr;  // null: no tenant account
  };
  // A trace span for the call; null: tracing is off.
  std::unique_ptr<RequestSpan> Trace(const grpc::CallbackServerContext& context,
                                     std::string_view method) const;
  // Identifies the caller and counts the request, or refuses.
  std::optional<Refusal> AdmitCall(const grpc::CallbackServerContext& context,
                                   CallContext* call_context) const;
  // Counts one more request of the same caller.
  static std::optional<Refusal> AdmitRequest(CallContext* call_context);
  // Moves the request into the caller's namespace, or refuses.
  static std::optional<Refusal> ScopeToTenant(const CallContext& call_context, Request* request);
  // Runs a short request on the calling thread, a long one on a worker; or refuses.
  std::optional<Refusal> RunInlineOrOnWorker(size_t request_bytes, std::function<void()> job);
  // One request of a Generate call, before it is submitted.
  struct PendingRequest {
    std::shared_ptr<GenerateStream> stream;
    size_t index = 0;
    std::chrono::system_clock::time_point deadline;
    CallContext call_context;
  };
  void RefuseGeneration(const PendingRequest& pending, const Refusal& refusal);
  void RefuseCall(GenerateStream* stream, const Refusal& refusal);
  // Parses, renders, tokenizes, checks; then submits. The call's first request is already admitted.
  void ReadCall(const grpc::ByteBuffer& bytes, const PendingRequest& first);
  // Calls go_on once the named context is in memory, if it exists, and the saved prefix blocks of
  // the prompt are; or with the reason why the context cannot be loaded. Calls it directly if that
  // is known, else on a worker. Refuses if too many requests wait. `stop` is requested when the
  // client has gone: the wait for the stores ends.
  std::optional<Refusal> WithStores(const ServingState& serving,
                                    const std::shared_ptr<Request>& request,
                                    const std::stop_token& stop,
                                    std::function<void(const absl::Status&)> go_on);
  void Read(const grpc::ByteBuffer& bytes, std::chrono::system_clock::time_point deadline,
            const std::shared_ptr<UnaryCall>& call, RequestHandle handle,
            const CallContext& call_context, const ReadUnaryJob& read);
  // After the call's message has been parsed.
  void Read(v1::GenerateRequest wire, const PendingRequest& pending);
  void Convert(const v1::GenerateRequest& wire, const PendingRequest& pending);
  void Submit(const PendingRequest& pending, Request request, const OutputOptions& output);

  const ServiceOptions options_;
  EventRouter* const router_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::atomic<RequestHandle> next_handle_{0};
  RequestMetrics request_metrics_;
  LoadMeter load_;
  // with their last stream: an age is set, or the server drains
  std::atomic<bool> connections_close_;

  mutable Mutex mutex_;
  ServingState serving_ HYDRANT_GUARDED_BY(mutex_);

  // Last: their jobs use all members above.
  RequestWorkers workers_;
  RequestWorkers store_workers_;  // their jobs may wait for the context store
  RequestWorkers fetch_workers_;  // their jobs may wait for the prefix block store
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_REQUESTS_SERVICE_H_
