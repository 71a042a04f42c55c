#include "server/requests/generate_contract.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/wire/wire_message.h"

namespace hydrant {
namespace {

// `prefix`: path of the request within the call's message.
v1::RequestFailure ToWireFailure(const RequestFailure& failure, const std::string& prefix) {
  const Refusal& refusal = failure.refusal;
  v1::RequestFailure wire;
  wire.set_code(static_cast<int32_t>(refusal.status.code()));
  std::string message =
      BoundedMessage({refusal.status.message().data(), refusal.status.message().size()});
  const std::string field(FieldOf(message));
  if (absl::IsInvalidArgument(refusal.status) && !field.empty()) {
    wire.set_field(prefix + field);
    message.insert(0, prefix);
  }
  wire.set_message(message);
  if (!refusal.reason.empty()) wire.set_reason(refusal.reason);
  if (refusal.retry_after_us > 0)
    wire.set_retry_after_us(static_cast<uint64_t>(refusal.retry_after_us));
  if (failure.usage.has_value()) *wire.mutable_usage() = *failure.usage;
  return wire;
}

class HydrantContract final : public GenerateContract {
 public:
  using GenerateContract::GenerateContract;

  std::string_view Method() const override { return "hydrant.v1.Hydrant/Generate"; }
  absl::StatusOr<std::vector<v1::GenerateRequest>> Parse(const ServedModel&,
                                                         const grpc::ByteBuffer& bytes) override {
    std::vector<v1::GenerateRequest> requests(1);
    HYDRANT_RETURN_IF_ERROR(ParseWire(bytes, &requests.front()));
    return requests;
  }
  std::optional<grpc::ByteBuffer> Translate(size_t, const v1::GenerateResponse& message) override {
    return ToWire(message);
  }
  bool SendsEveryMessage() const override { return true; }
};

class BatchContract final : public GenerateContract {
 public:
  using GenerateContract::GenerateContract;

  std::string_view Method() const override { return "hydrant.v1.Hydrant/GenerateBatch"; }
  absl::StatusOr<std::vector<v1::GenerateRequest>> Parse(const ServedModel&,
                                                         const grpc::ByteBuffer& bytes) override {
    v1::GenerateBatchRequest batch;
    HYDRANT_RETURN_IF_ERROR(ParseWire(bytes, &batch));
    if (batch.requests().empty())
      return absl::InvalidArgumentError("requests: is empty; a batch has one at least");
    if (batch.requests_size() > kMaxBatchRequests) {
      return absl::InvalidArgumentError(
          absl::StrCat("requests: are ", batch.requests_size(), "; at most ", kMaxBatchRequests));
    }
    return std::vector<v1::GenerateRequest>(
        std::make_move_iterator(batch.mutable_requests()->begin()),
        std::make_move_iterator(batch.mutable_requests()->end()));
  }
  std::optional<grpc::ByteBuffer> Translate(size_t index,
                                            const v1::GenerateResponse& message) override {
    v1::GenerateBatchResponse response;
    response.set_index(static_cast<uint32_t>(index));
    *response.mutable_response() = message;
    return ToWire(response);
  }
  std::optional<grpc::ByteBuffer> TranslateFailure(size_t index,
                                                   const RequestFailure& failure) override {
    v1::GenerateBatchResponse response;
    response.set_index(static_cast<uint32_t>(index));
    *response.mutable_failure() = ToWireFailure(failure, absl::StrCat("requests[", index, "]."));
    return ToWire(response);
  }
  bool SendsEveryMessage() const override { return true; }
};

}  // namespace

std::unique_ptr<GenerateContract> NewHydrantContract(const CacheSpec* default_cache) {
  return std::make_unique<HydrantContract>(default_cache);
}

std::unique_ptr<GenerateContract> NewBatchContract(const CacheSpec* default_cache) {
  return std::make_unique<BatchContract>(default_cache);
}

}  // namespace hydrant
