// A unary call answered when its request has ended: an embedding, a context. Owned by itself until
// gRPC is done with it (OnDone), and shared with the router until the request has ended.
#ifndef HYDRANT_SERVER_REQUESTS_UNARY_CALL_H_
#define HYDRANT_SERVER_REQUESTS_UNARY_CALL_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "kernels/mutex.h"
#include "scheduler/request.h"
#include "server/auth/tenant_account.h"
#include "server/observe/request_metrics.h"
#include "server/observe/request_span.h"
#include "server/requests/event_router.h"
#include "server/wire/status_details.h"

namespace hydrant {

class UnaryCall final : public grpc::ServerUnaryReactor, public EventReceiver {
 public:
  struct Args {
    grpc::CallbackServerContext* context = nullptr;  // gRPC's, valid until OnDone
    grpc::ByteBuffer* response = nullptr;            // gRPC's, valid until OnDone
    RequestMetrics* metrics = nullptr;               // outlives the call's last event
    std::chrono::steady_clock::time_point arrived = std::chrono::steady_clock::now();
    // Asks the loop to end the request, which may not be submitted yet; must not block.
    std::function<void(absl::Status)> cancel;
    // Admission to the tenant's account; null: no tenant.
    std::shared_ptr<TenantAccount::Admission> admission = {};
    // The call's trace span; null: it is not traced.
    std::unique_ptr<RequestSpan> span = {};
  };
  static std::shared_ptr<UnaryCall> Create(Args args);

  RequestSpan* span() const { return args_.span.get(); }
  // The loop or the checks refused the request; no event follows.
  void Refuse(const Refusal& refusal);
  // Makes the response of a finished request, or a refusal.
  using Answer = std::function<std::variant<grpc::ByteBuffer, Refusal>(const Finished& finished)>;
  // Stores the request's id, policy and tenant. Call it before submitting.
  void SetRequest(const Request& request, Answer answer);
  // The loop accepted the request. If the client left before, this cancels it.
  void Open();

  void OnEvent(Event event) override;
  void OnStepEnd(const std::shared_ptr<PendingWrites>&) override {}
  void OnCancel() override;
  void OnDone() override;

 private:
  explicit UnaryCall(Args args) : args_(std::move(args)) {}
  void End(const Finished& finished);
  void Fail(const Failed& failed);

  const Args args_;
  std::shared_ptr<UnaryCall> self_;  // reset in OnDone

  Mutex mutex_;
  std::string request_id_ HYDRANT_GUARDED_BY(mutex_);
  std::string policy_ HYDRANT_GUARDED_BY(mutex_);  // named by the request
  std::string tenant_ HYDRANT_GUARDED_BY(mutex_);  // "": no tenant
  Answer answer_ HYDRANT_GUARDED_BY(mutex_);
  bool open_ HYDRANT_GUARDED_BY(mutex_) = false;
  bool gone_ HYDRANT_GUARDED_BY(mutex_) = false;  // the client has gone
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_REQUESTS_UNARY_CALL_H_
