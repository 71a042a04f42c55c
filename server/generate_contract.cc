#include "server/generate_contract.h"

#include "kernels/status_macros.h"
#include "server/wire_message.h"

namespace hydrant {
namespace {

class HydrantContract final : public GenerateContract {
 public:
  using GenerateContract::GenerateContract;

  std::string_view Method() const override { return "hydrant.v1.Hydrant/Generate"; }
  absl::StatusOr<v1::GenerateRequest> Parse(const ServedModel&,
                                            const grpc::ByteBuffer& bytes) override {
    v1::GenerateRequest request;
    HYDRANT_RETURN_IF_ERROR(ParseWire(bytes, &request));
    return request;
  }
  std::optional<grpc::ByteBuffer> Translate(const v1::GenerateResponse& message) override {
    return ToWire(message);
  }
  bool SaysAll() const override { return true; }
};

}  // namespace

std::unique_ptr<GenerateContract> NewHydrantContract(const CacheSpec* default_cache) {
  return std::make_unique<HydrantContract>(default_cache);
}

}  // namespace hydrant
