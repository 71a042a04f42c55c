// The output of one request to its client, from `accepted` to its end. The end is counted,
// charged and logged before the client receives it, so a client that reads the counters
// afterwards finds it.
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

// A request that ended with an error.
struct RequestFailure {
  Refusal refusal;
  std::optional<v1::Usage> usage{};  // set if the request had started
};

class RequestOutput {
 public:
  struct Args {
    RequestMetrics* metrics = nullptr;                // outlives this object
    std::chrono::steady_clock::time_point arrived{};  // arrival of its call
    // Admission to its tenant's account; null: no tenant.
    std::shared_ptr<TenantAccount::Admission> admission = {};
    // The request's trace span; null: it is not traced.
    std::unique_ptr<RequestSpan> span = {};
  };
  explicit RequestOutput(Args args) : args_(std::move(args)) {}

  // Call it first if the admission was not among the arguments.
  void SetAdmission(std::shared_ptr<TenantAccount::Admission> admission) {
    args_.admission = std::move(admission);
  }
  // Stores the request's id, policy, tenant and output options. Call it before submitting.
  void SetRequest(const Request& request, const OutputOptions& output);
  // The loop accepted the request: `accepted` is sent first, then output that arrived meanwhile.
  void Open(v1::Accepted accepted);
  // The loop or the checks refused the request; no event follows.
  void Refuse(const Refusal& refusal);
  // Its call is over, and the request is not submitted.
  void Abandon(const absl::Status& why);
  // `sample`: index of the sample.
  void OnEvent(size_t sample, const Event& event);
  // Nothing more can be sent; further events are only counted.
  void Drop();

  // "" and 0 until SetRequest().
  const std::string& request_id() const { return request_id_; }
  size_t num_samples() const { return num_samples_; }
  RequestSpan* span() const { return args_.span.get(); }
  // A sample has failed while others still run.
  bool HasFailedInPart() const { return outputs_.HasFailed() && !HasEnd(); }
  // No event follows; HasNext() and TakeFailure() may still have output.
  bool IsOver() const { return open_ && (failure_.has_value() || HasEnd()); }

  size_t num_bytes() const { return outputs_.num_bytes(); }  // text and ids not sent yet
  bool HasNext() const {
    return HasMessage() || (open_ && failure_.has_value() && !reported_failure_);
  }
  // The next message: accepted, the samples' output, progress while they wait, then usage. False:
  // nothing to send yet, or only a failure remains.
  bool TakeNext(v1::GenerateResponse* message);
  // The failure, once everything else is sent. Returned once.
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
  std::string policy_;  // named by the request
  std::string tenant_;  // "": no tenant
  size_t num_samples_ = 0;
  bool open_ = false;  // accepted or refused: output may be sent
  bool dropped_ = false;
  // Output not sent yet, in the order of sending:
  std::optional<v1::Accepted> accepted_;
  SampleOutputs outputs_{OutputOptions()};
  std::optional<v1::Progress> progress_;
  std::optional<v1::Usage> usage_;         // set if the request finished
  std::optional<RequestFailure> failure_;  // set if the request failed
  bool reported_failure_ = false;

  SampleOutputs::Ending end_;  // set once all samples have ended
  bool had_token_ = false;     // any sample
  std::vector<std::optional<std::chrono::steady_clock::time_point>> last_token_at_;  // by sample
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_REQUESTS_REQUEST_OUTPUT_H_
