// One Generate call: receives the loop's events for the samples of its requests, one or many, and
// writes their output (request_output.h), one write in flight at a time. Output that arrives during
// a write is merged into the sample's next message, so a slow client gets fewer, longer messages; a
// client that stops reading is cut off when the buffer of all samples is full, without effect on
// others. Requests with output are served round-robin. When one sample fails, the others of its
// request are cancelled, and the call ends when all have ended.
//
// Owned by itself until gRPC is done with it (OnDone), and shared with the router until the
// requests have ended.
#ifndef HYDRANT_SERVER_REQUESTS_GENERATE_STREAM_H_
#define HYDRANT_SERVER_REQUESTS_GENERATE_STREAM_H_

#include <grpcpp/alarm.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "hydrant/v1/hydrant.pb.h"
#include "kernels/mutex.h"
#include "scheduler/request.h"
#include "server/auth/tenant_account.h"
#include "server/observe/request_metrics.h"
#include "server/observe/request_span.h"
#include "server/requests/event_router.h"
#include "server/requests/generate_contract.h"
#include "server/requests/request_output.h"
#include "server/requests/sample_outputs.h"
#include "server/wire/status_details.h"

namespace hydrant {

class GenerateStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                             public EventReceiver,
                             public std::enable_shared_from_this<GenerateStream> {
 public:
  struct Args {
    grpc::CallbackServerContext* context = nullptr;  // gRPC's, valid until OnDone
    std::unique_ptr<GenerateContract> contract = {};
    RequestMetrics* metrics = nullptr;               // outlives the stream's last event
    std::chrono::steady_clock::time_point arrived =  // when the call arrived
        std::chrono::steady_clock::now();
    size_t max_buffered_bytes = 0;  // text and ids not yet read by the client
    // Whether gRPC may close the connection with its last stream; null: no. Outlives the stream.
    const std::atomic<bool>* connections_close = nullptr;
    // Asks the loop to end the request with this first handle, which may not be submitted yet; must
    // not block.
    std::function<void(RequestHandle, absl::Status)> cancel;
    // The first request's admission to its tenant's account; null: no tenant.
    std::shared_ptr<TenantAccount::Admission> admission = {};
    // The server's load at the end of the call, serialized; `samples`: of the last request to end.
    // null: no load report is sent.
    std::function<std::string(grpc::StatusCode, int samples)> load_report = {};
    // Makes the trace span of a request of the call; null: tracing is off.
    std::function<std::unique_ptr<RequestSpan>()> new_span = {};
  };
  static std::shared_ptr<GenerateStream> Create(Args args);

  // The client's wire format.
  GenerateContract& contract() const { return *args_.contract; }
  // Called once the call's message is parsed: it has `count` requests (1 was assumed). Each request
  // has a block of kMaxSamples handles for its samples; the first block begins at `first`.
  void SetRequests(size_t count, RequestHandle first);
  // Sets the tenant admission of a request other than the first.
  void SetAdmission(size_t index, std::shared_ptr<TenantAccount::Admission> admission);
  RequestHandle FirstHandle(size_t index) const { return first_handle_ + index * kMaxSamples; }

  // The request's trace span; null: it is not traced.
  RequestSpan* span(size_t index) const {
    const MutexLock lock(mutex_);
    return items_[index].output.span();
  }

  // A stop is requested when the client has disconnected or cancelled.
  std::stop_token stop_token() const { return gone_source_.get_token(); }

  // Ends the call before any request was parsed.
  void RefuseCall(const Refusal& refusal);
  // For each request (`index`), one of EndIfGone(), Refuse() and Open() is the caller's last
  // action; the call may be over afterwards.
  //
  // A request may wait before it is parsed. If its client has gone meanwhile, this ends the request
  // and returns true; then nothing else is to be called.
  bool EndIfGone(size_t index);
  // The loop or the checks refused the request; no event follows.
  void Refuse(size_t index, const Refusal& refusal);
  // Stores the request's id, policy, tenant and output options. Call it before submitting.
  void SetRequest(size_t index, const Request& request, const OutputOptions& output);
  // The loop accepted the request: `accepted` is sent first, then output that arrived meanwhile. If
  // the client left while the request was being parsed, this cancels it.
  void Open(size_t index, v1::Accepted accepted);

  void OnEvent(Event event) override;
  void OnStepEnd(const std::shared_ptr<PendingWrites>& delivery) override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  struct Item {
    RequestOutput output;
    bool in_line = false;  // in line_
    bool over = false;     // counted in num_over_
  };

  explicit GenerateStream(Args args);
  void AddItem(std::shared_ptr<TenantAccount::Admission> admission) HYDRANT_REQUIRES(mutex_);

  void Break() HYDRANT_REQUIRES(mutex_);
  void Disconnect(const absl::Status& why) HYDRANT_REQUIRES(mutex_);
  void DisconnectSlowReader() HYDRANT_REQUIRES(mutex_);
  bool DeadlineHasPassed() const;
  void Cancel(size_t index, const absl::Status& why) HYDRANT_REQUIRES(mutex_);
  void MarkDirty(size_t index) HYDRANT_REQUIRES(mutex_);
  void Advance() HYDRANT_REQUIRES(mutex_);
  bool HasNext() HYDRANT_REQUIRES(mutex_);
  bool IsOver() const HYDRANT_REQUIRES(mutex_) { return num_over_ == items_.size(); }
  bool SendNext() HYDRANT_REQUIRES(mutex_);
  void Write(const grpc::ByteBuffer& bytes) HYDRANT_REQUIRES(mutex_);
  void WriteLast(const grpc::ByteBuffer& bytes) HYDRANT_REQUIRES(mutex_);
  void AddLoadReport(grpc::StatusCode code) HYDRANT_REQUIRES(mutex_);
  void End(const grpc::Status& status) HYDRANT_REQUIRES(mutex_);
  void EndOk() HYDRANT_REQUIRES(mutex_);
  void EndWith(const RequestFailure& failure) HYDRANT_REQUIRES(mutex_);
  std::chrono::microseconds EndGap() const;
  void EndAfter(std::chrono::microseconds gap) HYDRANT_REQUIRES(mutex_);

  const Args args_;
  std::shared_ptr<GenerateStream> self_;  // reset in OnDone
  std::stop_source gone_source_;
  RequestHandle first_handle_ = 0;  // 0: no request was read; set before any is submitted

  mutable Mutex mutex_;
  std::deque<Item> items_ HYDRANT_GUARDED_BY(mutex_);  // the requests
  // Requests that may have output, in round-robin order.
  std::deque<size_t> line_ HYDRANT_GUARDED_BY(mutex_);
  size_t num_bytes_ HYDRANT_GUARDED_BY(mutex_) = 0;  // text and ids of all requests
  size_t num_over_ HYDRANT_GUARDED_BY(mutex_) = 0;
  size_t last_over_ HYDRANT_GUARDED_BY(mutex_) = 0;
  // Set: the client left or was cut off, and why; all requests are being cancelled.
  std::optional<absl::Status> gone_ HYDRANT_GUARDED_BY(mutex_);

  grpc::ByteBuffer in_flight_ HYDRANT_GUARDED_BY(mutex_);
  // Held for in_flight_ where the loop may wait for it.
  std::shared_ptr<PendingWrites> delivery_ HYDRANT_GUARDED_BY(mutex_);
  bool writing_ HYDRANT_GUARDED_BY(mutex_) = false;  // a write is in flight
  // Another step has ended since the write began.
  bool overtaken_ HYDRANT_GUARDED_BY(mutex_) = false;
  // The previous write was overtaken: the loop does not wait for this client.
  bool late_ HYDRANT_GUARDED_BY(mutex_) = false;
  bool broken_ HYDRANT_GUARDED_BY(mutex_) = false;       // the stream cannot be written any more
  bool has_written_ HYDRANT_GUARDED_BY(mutex_) = false;  // at least one message
  // Delays the status after the last message.
  std::optional<grpc::Alarm> end_alarm_ HYDRANT_GUARDED_BY(mutex_);
  bool done_ HYDRANT_GUARDED_BY(mutex_) = false;  // Finish() was called
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_REQUESTS_GENERATE_STREAM_H_
