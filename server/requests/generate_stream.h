// One call that generates: takes the loop's events for the samples of its requests, one or many,
// and writes what they bring (request_output.h), one write in flight at a time. What comes of a
// sample while a write is pending is merged into its next message, so a client that reads slowly
// gets fewer, longer messages; one that stops reading is cut off when the buffer of all samples is
// full, and harms nobody. Requests that have something to say take turns. When one sample fails the
// others of its request are cancelled, and the call ends when all have ended.
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
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>

#include "hydrant/v1/hydrant.pb.h"
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
    std::chrono::steady_clock::time_point arrived =  // the call
        std::chrono::steady_clock::now();
    size_t max_buffered_bytes = 0;  // text and ids waiting for the client to read
    // Whether gRPC may close the connection with its last stream; null: no. Outlives the stream.
    const std::atomic<bool>* connections_close = nullptr;
    // Asks the loop to end the request of this first handle, which it may not know yet; must not
    // block.
    std::function<void(RequestHandle, absl::Status)> cancel;
    // Of the first request, to its tenant's account; null: it has none.
    std::shared_ptr<TenantAccount::Admission> admission = {};
    // The server's load at the end of a call, as the last of its requests ends with so many
    // samples, serialized; null: it is not told.
    std::function<std::string(grpc::StatusCode, int samples)> load_report = {};
    // Of a request of the call in its trace; null: nothing is traced.
    std::function<std::unique_ptr<RequestSpan>()> new_span = {};
  };
  static std::shared_ptr<GenerateStream> Create(Args args);

  // By which the client speaks.
  GenerateContract& contract() const { return *args_.contract; }
  // What the client asks for was read: so many requests, of which there was one until now. Their
  // samples have handles of a block each, kMaxSamples of them, from `first` on.
  void SetRequests(size_t count, RequestHandle first);
  // Of the tenant's account, of a request that is not the first.
  void SetAdmission(size_t index, std::shared_ptr<TenantAccount::Admission> admission);
  RequestHandle FirstHandle(size_t index) const { return first_handle_ + index * kMaxSamples; }

  // Of a request in its trace; null: it is not traced.
  RequestSpan* span(size_t index) const { return items_[index].output.span(); }

  // A stop is requested when the client has disconnected or cancelled.
  std::stop_token stop_token() const { return gone_source_.get_token(); }

  // No request was read, and none will be.
  void RefuseCall(const Refusal& refusal);
  // Of each request, `index` says which: one of EndIfGone(), Refuse() and Open() ends what others
  // do about it, and the call may be over then.
  //
  // A request may wait before anybody reads it. Where its client has gone meanwhile it is ended
  // here, and nothing else is to be called. Returns whether it was.
  bool EndIfGone(size_t index);
  // The loop or the checks said no; no event follows.
  void Refuse(size_t index, const Refusal& refusal);
  // Stores the request's id, policy, tenant and output options. Call it before submitting.
  void SetRequest(size_t index, const Request& request, const OutputOptions& output);
  // The loop has taken the request: `accepted` goes out first, then what has come meanwhile. A
  // client that went while it was read is made up for here: the loop did not know of it then.
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
  void AddItem(std::shared_ptr<TenantAccount::Admission> admission);

  // REQUIRES: mutex_ held, for all but DeadlineHasPassed().
  void Break();
  void Leave(const absl::Status& why);
  void CutOffSlowReader();
  bool DeadlineHasPassed() const;
  void Cancel(size_t index, const absl::Status& why);
  void Touched(size_t index);
  void Advance();
  bool HasNext();
  bool IsOver() const { return num_over_ == items_.size(); }
  bool SendNext();
  void Write(const grpc::ByteBuffer& bytes);
  void WriteLast(const grpc::ByteBuffer& bytes);
  void AddLoadReport(grpc::StatusCode code);
  void End(const grpc::Status& status);
  void EndWell();
  void EndWith(const RequestFailure& failure);
  std::chrono::microseconds EndGap() const;
  void EndAfter(std::chrono::microseconds gap);

  const Args args_;
  std::shared_ptr<GenerateStream> self_;  // reset in OnDone
  std::stop_source gone_source_;
  RequestHandle first_handle_ = 0;        // 0: no request was read; set before any is submitted

  std::mutex mutex_;
  // Guarded by mutex_.
  std::deque<Item> items_;   // the requests
  std::deque<size_t> line_;  // of them, those that may have something to send, in turn
  size_t num_bytes_ = 0;     // of text and ids of all
  size_t num_over_ = 0;
  size_t last_over_ = 0;
  std::optional<absl::Status> gone_;  // the client is gone or was cut off, and why: all are to end

  grpc::ByteBuffer in_flight_;
  std::shared_ptr<PendingWrites> delivery_;  // of in_flight_, where the loop may wait for it
  bool writing_ = false;                     // a write is in flight
  bool overtaken_ = false;                   // another step has ended since it began
  bool late_ = false;         // the write before was overtaken: nobody shall wait for this client
  bool broken_ = false;       // nothing more can be written
  bool has_written_ = false;  // a message
  std::optional<grpc::Alarm> end_alarm_;  // until the status may follow
  bool done_ = false;                     // Finish() was called
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_REQUESTS_GENERATE_STREAM_H_
