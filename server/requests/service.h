// What the daemon does for its clients, whichever contract they speak and wherever it listens.
// Knows the states of the daemon (loading, ready, draining, lost) and says no by itself in all but
// `ready`; takes no tensor and waits for nobody. What takes long it does on threads of its own, for
// gRPC's carry everybody's streams. Thread safe.
#ifndef HYDRANT_SERVER_REQUESTS_SERVICE_H_
#define HYDRANT_SERVER_REQUESTS_SERVICE_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "hydrant/v1/hydrant.pb.h"
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
  std::map<std::string, std::string> flags;  // what GetServerInfo reports
  // A client may leave this much unread beyond what gRPC and the kernel buffer (some 256 KiB).
  size_t max_buffered_bytes_per_stream = size_t{1} << 20;
  // Long requests wait for a thread that tokenizes them; beyond this many bytes of them the server
  // refuses more. gRPC takes messages of up to 16 MiB.
  size_t max_waiting_request_bytes = size_t{64} << 20;
  bool connections_age = false;      // gRPC closes those past an age with the last of their streams
  const Tenants* tenants = nullptr;  // outlive the service; null: nobody is asked who calls
  const Tracer* tracer = nullptr;    // outlives the service; null: nothing is traced
  double cpus = 0;                   // that the process may use; 0: unknown
  // The longest that a call waits for the context store, including the wait for a thread.
  std::chrono::milliseconds context_store_timeout{10'000};
};

class GenerateStream;

class Service {
 public:
  // Borrowed: the router outlives the service.
  Service(ServiceOptions options, EventRouter* router);

  // Begins as LOADING. Model, loop and contexts are borrowed until the gRPC server has shut down.
  void SetLoadFraction(double fraction);
  // prefixes: null where prefix blocks are not saved.
  void SetReady(const ServedModel* model, ServingLoop* loop, ContextArchive* contexts,
                PrefixArchive* prefixes = nullptr);
  // Health says draining, and new requests are still taken: balancers get to notice.
  void SetLeaving();
  void SetDraining();
  void SetEngineLost(const absl::Status& why);
  ServingState Current() const;
  const RequestMetrics& request_metrics() const { return request_metrics_; }
  const std::string& version() const { return options_.version; }
  LoadMeter::Report LoadReport() { return load_.Measure(Current(), 0); }

  // For requests from inside the process, too (the warm-up).
  RequestHandle NextHandle() { return NextHandles(1); }

  // Not ready, or not able to say anything about the model yet, or any more.
  static std::optional<Refusal> WhyNoModel(const ServingState& serving);

  // Who makes a call; Unauthenticated. Every call has come by a CallAuthorizer, but its token may
  // have been withdrawn since.
  absl::StatusOr<Caller> CallerOf(const grpc::CallbackServerContext& context) const;

  // For clients of any contract: what they ask becomes a request here.
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* bytes,
                                                       std::unique_ptr<GenerateContract> contract);
  // What takes a while and waits for nobody, on a thread of its own; or says why not now.
  std::optional<Refusal> RunAside(size_t request_bytes, std::function<void()> job);
  // A call that ends with its request.
  struct UnaryJob {
    Request request;
    UnaryCall::Answer answer;
  };
  using ReadUnaryJob =
      std::function<absl::StatusOr<UnaryJob>(const ServedModel& model, const grpc::ByteBuffer&)>;
  // `method`: "service/method", as the client called it.
  grpc::ServerUnaryReactor* RunUnary(std::string_view method, grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response,
                                     ReadUnaryJob read);

  // A call that is answered from facts of the server, without a request: here if it is short, else
  // on a worker.
  using Answer = std::variant<grpc::ByteBuffer, Refusal>;
  using Query = std::function<Answer(const grpc::ByteBuffer& bytes)>;
  grpc::ServerUnaryReactor* RunQuery(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response,
                                     Query query);
  // A call on a thread that may wait for the context store. The wait ends when the client has gone.
  using StoreJob = std::function<Answer(const ServingState& serving, const Caller& caller,
                                        const grpc::ByteBuffer& bytes, const StoreWait& wait)>;
  grpc::ServerUnaryReactor* RunStoreCall(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response,
                                         StoreJob job);
  // `default_cache_policy`: of the caller's port, as it is reported.
  v1::GetServerInfoResponse ServerInfo(const std::string& default_cache_policy) const;

 private:
  // The first of so many that follow each other.
  RequestHandle NextHandles(int count) { return next_handle_.fetch_add(count) + 1; }
  static std::optional<Refusal> WhyNoGeneration(const ServingState& serving);
  // A call for a request that was let in.
  struct Visit {
    ServingState serving;
    Caller caller{};
    std::shared_ptr<TenantAccount::Admission> admission = nullptr;  // null: nobody counts
  };
  // Its place in a trace; null: it has none.
  std::unique_ptr<RequestSpan> Trace(const grpc::CallbackServerContext& context,
                                     std::string_view method) const;
  // Fills in who it is and counts it, or says why not.
  std::optional<Refusal> LetIn(const grpc::CallbackServerContext& context, Visit* visit) const;
  // Counts one more request of the same caller.
  static std::optional<Refusal> Admit(Visit* visit);
  // Makes the request its caller's, or says why it cannot be.
  static std::optional<Refusal> Own(const Visit& visit, Request* request);
  // Here and now where the request is short, else on a worker; or says why not.
  std::optional<Refusal> RunWhereItFits(size_t request_bytes, std::function<void()> job);
  // One of the requests of a call that generates, on its way to the loop.
  struct Entrant {
    std::shared_ptr<GenerateStream> stream;
    size_t index = 0;
    std::chrono::system_clock::time_point deadline;
    Visit visit;
  };
  void RefuseGeneration(const Entrant& entrant, const Refusal& refusal);
  void RefuseCall(GenerateStream* stream, const Refusal& refusal);
  // Parses, renders, tokenizes, checks; then submits. The first of the call's requests has been
  // let in.
  void ReadCall(const grpc::ByteBuffer& bytes, const Entrant& first);
  // Calls go_on when the context that a request names is in memory, if it is anywhere, or says why
  // it cannot be; and when the prefix blocks that are saved of its prompt are. Here and now where
  // that is known, else on a worker. A refusal: there are too many.
  // `stop` is requested when the client has gone: the wait for the stores ends.
  std::optional<Refusal> WithStores(const ServingState& serving,
                                    const std::shared_ptr<Request>& request,
                                    const std::stop_token& stop,
                                    std::function<void(const absl::Status&)> go_on);
  void Read(const grpc::ByteBuffer& bytes, std::chrono::system_clock::time_point deadline,
            const std::shared_ptr<UnaryCall>& call, RequestHandle handle, const Visit& visit,
            const ReadUnaryJob& read);
  // Once it is known what the client asks for.
  void Read(v1::GenerateRequest wire, const Entrant& entrant);
  void Convert(const v1::GenerateRequest& wire, const Entrant& entrant);
  void Submit(const Entrant& entrant, Request request, const OutputOptions& output);

  const ServiceOptions options_;
  EventRouter* const router_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::atomic<RequestHandle> next_handle_{0};
  RequestMetrics request_metrics_;
  LoadMeter load_;
  std::atomic<bool> connections_close_;  // with their last stream: an age is set, or we drain

  mutable std::mutex mutex_;
  ServingState serving_;  // guarded by mutex_

  // Last: their jobs use all of the above.
  RequestWorkers workers_;
  RequestWorkers store_workers_;  // that may wait for the store of contexts
  RequestWorkers fetch_workers_;  // their jobs may wait for the store of prefix blocks
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_REQUESTS_SERVICE_H_
