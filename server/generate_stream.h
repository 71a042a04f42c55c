// One Generate call: takes the loop's events for a request's samples and writes them, one write in
// flight at a time. What comes of a sample while a write is pending is merged into its next
// message, so a client that reads slowly gets fewer, longer messages; one that stops reading is cut
// off when the buffer of all samples is full, and harms nobody. When one sample fails the others
// are cancelled, and the call ends when all have ended.
//
// Owned by itself until gRPC is done with it (OnDone), and shared with the router until the request
// has ended.
#ifndef HYDRANT_SERVER_GENERATE_STREAM_H_
#define HYDRANT_SERVER_GENERATE_STREAM_H_

#include <grpcpp/alarm.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "hydrant/v1/hydrant.pb.h"
#include "scheduler/request.h"
#include "server/event_router.h"
#include "server/generate_contract.h"
#include "server/request_metrics.h"
#include "server/request_span.h"
#include "server/sample_outputs.h"
#include "server/status_details.h"
#include "server/tenant_account.h"

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
    // Of its tenant's account; null: it has none.
    std::shared_ptr<TenantAccount::Admission> admission = {};
    // The server's load at the end of a call of so many samples, serialized; null: it is not told.
    std::function<std::string(grpc::StatusCode, int samples)> load_report = {};
    // Of the call in its trace; null: it is not traced.
    std::unique_ptr<RequestSpan> span = {};
  };
  static std::shared_ptr<GenerateStream> Create(Args args);

  // By which the client speaks.
  GenerateContract& contract() const { return *args_.contract; }
  RequestSpan* span() const { return args_.span.get(); }
  // A request may wait before anybody reads it. Where its client has gone meanwhile the stream is
  // ended here, and nothing else is to be called. Returns whether it was.
  bool EndIfGone();
  // The loop or the checks said no; no event follows.
  void Refuse(const Refusal& refusal);
  // What the request is, before it is submitted. `policy`: of its cache, as the request named it.
  // Its samples have the handles from `first` on.
  void SetRequest(const std::string& request_id, const std::string& policy, RequestHandle first,
                  const OutputOptions& output);
  // The loop has taken the request: `accepted` goes out first, then what has come meanwhile. A
  // client that went while it was read is made up for here: the loop did not know of it then.
  void Open(v1::Accepted accepted);

  void OnEvent(Event event) override;
  void OnStepEnd(const std::shared_ptr<Delivery>& delivery) override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  explicit GenerateStream(Args args);

  // REQUIRES: mutex_ held, for all but DeadlineHasPassed().
  void EndUnread(const Refusal& refusal);
  void ObserveTokens(size_t index);
  void Append(size_t index, const Delta& delta);
  void EndRequest();
  void Charge(const Usage& usage);
  void CutOffSlowReader();
  bool DeadlineHasPassed() const;
  void Cancel(const absl::Status& why);
  void Advance();
  bool TakeNextMessage(v1::GenerateResponse* message);
  bool Translate(const v1::GenerateResponse& message);
  grpc::WriteOptions HowToWrite() const;
  void AddLoadReport(grpc::StatusCode code);
  void End(const grpc::Status& status);
  void FinishWithUsage(const Finished& finished);
  void FinishWithFailure(const Failed& failed);
  std::chrono::microseconds EndGap() const;
  void FinishAfter(std::chrono::microseconds gap);

  const Args args_;
  std::shared_ptr<GenerateStream> self_;  // reset in OnDone

  std::mutex mutex_;
  // Guarded by mutex_.
  std::string request_id_;
  std::string policy_;
  RequestHandle first_handle_ = 0;    // 0: SetRequest() was not called
  std::optional<absl::Status> gone_;  // the client, and why
  // What waits to be sent, in the order in which it goes out:
  std::optional<v1::Accepted> accepted_;
  SampleOutputs outputs_{OutputOptions()};
  std::optional<v1::Progress> progress_;
  SampleOutputs::Ending end_;  // once all samples have ended

  grpc::ByteBuffer in_flight_;
  std::shared_ptr<Delivery> delivery_;  // of in_flight_, where the loop may wait for it
  bool open_ = false;                   // Open() was called
  bool writing_ = false;                // a write is in flight
  bool overtaken_ = false;              // another step has ended since it began
  bool late_ = false;         // the write before was overtaken: nobody shall wait for this client
  bool broken_ = false;       // the client is gone or was cut off: nothing more can be written
  bool has_written_ = false;  // a message
  bool usage_sent_ = false;   // only the status is left
  std::optional<grpc::Alarm> end_alarm_;  // until the status may follow
  bool done_ = false;                     // Finish() was called
  bool had_token_ = false;                // of any sample
  std::vector<std::optional<std::chrono::steady_clock::time_point>> last_token_at_;  // by sample
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_GENERATE_STREAM_H_
