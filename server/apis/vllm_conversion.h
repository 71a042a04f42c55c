// Converts messages of vllm.grpc.engine from and to hydrant.v1. Stateless, except a call's
// contract; any thread may call.
#ifndef HYDRANT_SERVER_APIS_VLLM_CONVERSION_H_
#define HYDRANT_SERVER_APIS_VLLM_CONVERSION_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "hydrant/v1/hydrant.pb.h"
#include "scheduler/serving_loop.h"
#include "server/requests/generate_contract.h"
#include "server/wire/served_model.h"
#include "vllm/grpc/engine/engine.pb.h"

namespace hydrant {

namespace vllm = ::vllm::grpc::engine;

// InvalidArgument names the field, including fields that are not supported here.
absl::StatusOr<v1::GenerateRequest> ConvertVllmRequest(const vllm::GenerateRequest& wire,
                                                       int64_t max_model_len);
absl::StatusOr<v1::EmbedRequest> ConvertVllmEmbed(const vllm::EmbedRequest& wire);

// For one call.
std::unique_ptr<GenerateContract> NewVllmContract(const CacheSpec* default_cache);

vllm::GetModelInfoResponse DescribeVllmModel(const ServedModel& model);
vllm::GetServerInfoResponse DescribeVllmServer(const ServedModel& model,
                                               const ServingStats& snapshot, absl::Duration uptime);
vllm::GetLoadsResponse DescribeVllmLoads(const ServedModel& model, const ServingStats& snapshot,
                                         const std::string& version, absl::Time now);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_APIS_VLLM_CONVERSION_H_
