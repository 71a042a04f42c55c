// How one call speaks to its client of what it asks to generate: by hydrant.v1's own messages, or
// by those of another contract, which are translated from and to them; of one request, or of many.
// One object a call; what it is asked comes in the call's order, from one thread at a time.
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

  // Of a request that names no policy.
  const CacheSpec& default_cache() const { return default_cache_; }
  // "service/method", as the client called it.
  virtual std::string_view Method() const = 0;

  // The call's requests, one at least. InvalidArgument names a field of the client's contract. The
  // model outlives the call.
  virtual absl::StatusOr<std::vector<v1::GenerateRequest>> Parse(const ServedModel& model,
                                                                 const grpc::ByteBuffer& bytes) = 0;
  // What the client is sent when this has come of its request of this index; nullopt: nothing. What
  // comes of each begins with `accepted` and ends with `usage`, unless it fails.
  virtual std::optional<grpc::ByteBuffer> Translate(size_t index,
                                                    const v1::GenerateResponse& message) = 0;
  // The same when it has failed; nullopt: that is what the call ends with.
  virtual std::optional<grpc::ByteBuffer> TranslateFailure(size_t /*index*/,
                                                           const RequestFailure& /*failure*/) {
    return std::nullopt;
  }
  // Nothing is ever left out: what follows a message is sent, too.
  virtual bool SaysAll() const = 0;

 private:
  const CacheSpec& default_cache_;
};

inline constexpr int kMaxBatchRequests = 1024;

// hydrant.v1's own: of Generate, and of GenerateBatch.
std::unique_ptr<GenerateContract> NewHydrantContract(const CacheSpec* default_cache);
std::unique_ptr<GenerateContract> NewBatchContract(const CacheSpec* default_cache);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_REQUESTS_GENERATE_CONTRACT_H_
