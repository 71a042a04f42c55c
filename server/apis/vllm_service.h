// The methods of vllm.grpc.engine.VllmEngine, through which gateways with OpenAI's API reach an
// engine: translated, and passed to the service of hydrant.v1. Thread safe.
#ifndef HYDRANT_SERVER_APIS_VLLM_SERVICE_H_
#define HYDRANT_SERVER_APIS_VLLM_SERVICE_H_

#include <chrono>

#include "server/requests/long_lived_streams.h"
#include "server/requests/service.h"
#include "server/wire/default_cache.h"
#include "vllm/grpc/engine/engine.grpc.pb.h"

namespace hydrant {

using VllmEngine = ::vllm::grpc::engine::VllmEngine;
using RawVllmService =
    VllmEngine::WithRawCallbackMethod_Generate<VllmEngine::WithRawCallbackMethod_Embed<
        VllmEngine::WithRawCallbackMethod_HealthCheck<VllmEngine::WithRawCallbackMethod_FlushCache<
            VllmEngine::WithRawCallbackMethod_Abort<VllmEngine::WithRawCallbackMethod_GetModelInfo<
                VllmEngine::WithRawCallbackMethod_GetServerInfo<
                    VllmEngine::WithRawCallbackMethod_GetLoads<
                        VllmEngine::WithRawCallbackMethod_GetTokenizer<
                            VllmEngine::WithRawCallbackMethod_SubscribeKvEvents<
                                VllmEngine::Service>>>>>>>>>>;

class VllmService final : public RawVllmService {
 public:
  // Borrowed: `service` outlives it.
  VllmService(DefaultCache default_cache, hydrant::Service* service);

  // Ends all subscriptions and refuses new ones.
  void EndSubscriptions() { subscriptions_.EndAll(); }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* bytes) override;
  grpc::ServerUnaryReactor* Embed(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* bytes,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* HealthCheck(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* bytes,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* FlushCache(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* bytes,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* bytes,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* bytes,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* bytes,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetLoads(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* bytes,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GetTokenizer(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* bytes) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* SubscribeKvEvents(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) override;

 private:
  const DefaultCache default_cache_;
  hydrant::Service* const service_;
  LongLivedStreams subscriptions_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_APIS_VLLM_SERVICE_H_
