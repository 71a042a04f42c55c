// The wire format of one Generate call: hydrant.v1's own messages, or those of another contract,
// translated from and to hydrant.v1; for one request, or many. One object a call; its methods are
// called in the call's order, from one thread at a time.
#ifndef HYDRANT_SERVER_REQUESTS_GENERATE_CONTRACT_H_
#define HYDRANT_SERVER_REQUESTS_GENERATE_CONTRACT_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/cache_spec.h"
#include "hydrant/v1/hydrant.pb.h"
#include "server/requests/request_output.h"
#include "server/wire/served_model.h"

namespace hydrant {

class GenerateContract {
 public:
  // `default_cache` outlives the call.
  explicit GenerateContract(const CacheSpec* default_cache) : default_cache_(*default_cache) {}
  virtual ~GenerateContract() = default;
  GenerateContract(const GenerateContract&) = delete;
  GenerateContract& operator=(const GenerateContract&) = delete;

  // Used by requests that name no policy.
  const CacheSpec& default_cache() const { return default_cache_; }
  // "service/method", as called by the client.
  virtual std::string_view Method() const = 0;

  // The call's requests, at least one. InvalidArgument names a field of the client's contract. The
  // model outlives the call.
  virtual absl::StatusOr<std::vector<v1::GenerateRequest>> Parse(const ServedModel& model,
                                                                 const grpc::ByteBuffer& bytes) = 0;
  // The bytes sent for a message of request `index`; nullopt: nothing. Each request's messages
  // begin with `accepted` and end with `usage`, unless the request fails.
  virtual std::optional<grpc::ByteBuffer> Translate(size_t index,
                                                    const v1::GenerateResponse& message) = 0;
  // The same for a failed request; nullopt: the failure ends the call.
  virtual std::optional<grpc::ByteBuffer> TranslateFailure(size_t /*index*/,
                                                           const RequestFailure& /*failure*/) {
    return std::nullopt;
  }
  // True if Translate() never returns nullopt, so that every message is sent.
  virtual bool SendsEveryMessage() const = 0;

 private:
  const CacheSpec& default_cache_;
};

inline constexpr int kMaxBatchRequests = 1024;

// hydrant.v1's own contracts: Generate, and GenerateBatch.
std::unique_ptr<GenerateContract> NewHydrantContract(const CacheSpec* default_cache);
std::unique_ptr<GenerateContract> NewBatchContract(const CacheSpec* default_cache);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_REQUESTS_GENERATE_CONTRACT_H_
