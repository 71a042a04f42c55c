// What one request brings its client, from `accepted` to its end. Where it ends it is counted,
// charged and logged, before the client can hear of it: who has read the end finds it counted.
//
// No gRPC, no lock: a stream keeps it under its own mutex.
#ifndef HYDRANT_SERVER_REQUESTS_REQUEST_OUTPUT_H_
#define HYDRANT_SERVER_REQUESTS_REQUEST_OUTPUT_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "hydrant/v1/hydrant.pb.h"
#include "scheduler/request.h"
#include "server/auth/tenant_account.h"
#include "server/observe/request_metrics.h"
#include "server/observe/request_span.h"
#include "server/requests/sample_outputs.h"
#include "server/wire/status_details.h"

namespace hydrant {

// A request that has not ended well.
struct RequestFailure {
  Refusal refusal;
  std::optional<v1::Usage> usage{};  // of one that had begun
};

class RequestOutput {
 public:
  struct Args {
    RequestMetrics* metrics = nullptr;                // outlives it
    std::chrono::steady_clock::time_point arrived{};  // its call
    // Of its tenant's account; null: it has none.
    std::shared_ptr<TenantAccount::Admission> admission = {};
    // Of the request in its trace; null: it is not traced.
    std::unique_ptr<RequestSpan> span = {};
  };
  explicit RequestOutput(Args args) : args_(std::move(args)) {}

  // Before anything else, where it is not among the arguments.
  void SetAdmission(std::shared_ptr<TenantAccount::Admission> admission) {
    args_.admission = std::move(admission);
  }
  // Stores the request's id, policy, tenant and output options. Call it before submitting.
  void SetRequest(const Request& request, const OutputOptions& output);
  // The loop has taken it: `accepted` goes out first, then what has come meanwhile.
  void Open(v1::Accepted accepted);
  // The loop or the checks said no; no event follows.
  void Refuse(const Refusal& refusal);
  // Its call is over, and it is not submitted.
  void Abandon(const absl::Status& why);
  // Of one of its samples, by its place.
  void OnEvent(size_t sample, const Event& event);
  // Nothing is to be sent any more; what comes is only counted.
  void Drop();

  // "" until SetRequest(), and 0.
  const std::string& request_id() const { return request_id_; }
  size_t num_samples() const { return num_samples_; }
  RequestSpan* span() const { return args_.span.get(); }
  // A sample has failed, and others are still at work.
  bool HasFailedInPart() const { return outputs_.HasFailed() && !HasEnd(); }
  // Nothing of it follows but what HasNext() and TakeFailure() bring.
  bool IsOver() const { return open_ && (failure_.has_value() || HasEnd()); }

  size_t num_bytes() const { return outputs_.num_bytes(); }  // text and ids that wait to be sent
  bool HasNext() const { return HasMessage() || (open_ && failure_.has_value() && !told_failure_); }
  // The next message to be sent: accepted, what the samples bring, progress while they wait, usage
  // as the last. False: nothing is to be sent yet, or a failure is all that follows.
  bool TakeNext(v1::GenerateResponse* message);
  // How it has failed, when all else is sent. Once.
  std::optional<RequestFailure> TakeFailure();

 private:
  bool HasEnd() const { return !std::holds_alternative<std::monostate>(end_); }
  bool HasMessage() const;
  void ObserveTokens(size_t sample);
  void EndIfAllHave();
  void Log(std::string_view outcome, std::string_view reason, const Usage& usage) const;
  void EndUnread(const Refusal& refusal);

  Args args_;
  std::string request_id_;
  std::string policy_;  // of its cache, as the request named it
  std::string tenant_;  // "": no tenant
  size_t num_samples_ = 0;
  bool open_ = false;  // taken or refused: what it has may be sent
  bool dropped_ = false;
  // What waits to be sent, in the order in which it goes out:
  std::optional<v1::Accepted> accepted_;
  SampleOutputs outputs_{OutputOptions()};
  std::optional<v1::Progress> progress_;
  std::optional<v1::Usage> usage_;         // of a request that has finished
  std::optional<RequestFailure> failure_;  // it has failed
  bool told_failure_ = false;

  SampleOutputs::Ending end_;  // once all samples have ended
  bool had_token_ = false;     // of any sample
  std::vector<std::optional<std::chrono::steady_clock::time_point>> last_token_at_;  // by sample
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_REQUESTS_REQUEST_OUTPUT_H_
