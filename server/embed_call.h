// One Embed call: waits for the end of its request, and answers. Owned by itself until gRPC is done
// with it (OnDone), and shared with the router until the request has ended.
#ifndef HYDRANT_SERVER_EMBED_CALL_H_
#define HYDRANT_SERVER_EMBED_CALL_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "hydrant/v1/hydrant.pb.h"
#include "scheduler/request.h"
#include "server/event_router.h"
#include "server/request_metrics.h"
#include "server/status_details.h"

namespace hydrant {

class EmbedCall final : public grpc::ServerUnaryReactor, public EventReceiver {
 public:
  struct Args {
    grpc::CallbackServerContext* context = nullptr;  // gRPC's, valid until OnDone
    grpc::ByteBuffer* response = nullptr;            // the same
    RequestMetrics* metrics = nullptr;               // outlives the call's last event
    std::chrono::steady_clock::time_point arrived = std::chrono::steady_clock::now();
    // Asks the loop to end the request, which it may not know yet; must not block.
    std::function<void(absl::Status)> cancel;
  };
  static std::shared_ptr<EmbedCall> Create(Args args);

  // The loop or the checks said no; no event follows.
  void Refuse(const Refusal& refusal);
  // Before it is submitted.
  void SetRequest(v1::EmbedRequest wire, const std::string& request_id);
  // The loop has taken the request. A client that went before is made up for here.
  void Open();

  void OnEvent(Event event) override;
  void OnStepEnd(const std::shared_ptr<Delivery>&) override {}
  void OnCancel() override;
  void OnDone() override;

 private:
  explicit EmbedCall(Args args) : args_(std::move(args)) {}
  void Answer(const Finished& finished);
  void Fail(const Failed& failed);

  const Args args_;
  std::shared_ptr<EmbedCall> self_;  // reset in OnDone

  std::mutex mutex_;
  // Guarded by mutex_.
  v1::EmbedRequest wire_;
  std::string request_id_;
  bool open_ = false;
  bool gone_ = false;  // the client
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_EMBED_CALL_H_
