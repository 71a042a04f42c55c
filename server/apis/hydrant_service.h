// hydrant.v1.Hydrant at one address, for clients of the daemon's own contract. Thread safe.
#ifndef HYDRANT_SERVER_APIS_HYDRANT_SERVICE_H_
#define HYDRANT_SERVER_APIS_HYDRANT_SERVICE_H_

#include <utility>

#include "hydrant/v1/hydrant.grpc.pb.h"
#include "server/requests/service.h"
#include "server/wire/default_cache.h"

namespace hydrant {

// Service with each of the methods raw (WithRawCallbackMethod_...).
template <typename Service, template <typename> typename... Methods>
struct WithRawMethods {
  using Type = Service;
};
template <typename Service, template <typename> typename Method,
          template <typename> typename... Methods>
struct WithRawMethods<Service, Method, Methods...> {
  using Type = Method<typename WithRawMethods<Service, Methods...>::Type>;
};

// All methods are raw: messages are parsed in wire_message.h, so that bad ones get a clear error.
using RawService = WithRawMethods<
    v1::Hydrant::Service, v1::Hydrant::WithRawCallbackMethod_Generate,
    v1::Hydrant::WithRawCallbackMethod_GenerateBatch, v1::Hydrant::WithRawCallbackMethod_Embed,
    v1::Hydrant::WithRawCallbackMethod_CompressContext,
    v1::Hydrant::WithRawCallbackMethod_ListContexts, v1::Hydrant::WithRawCallbackMethod_GetContext,
    v1::Hydrant::WithRawCallbackMethod_DeleteContext,
    v1::Hydrant::WithRawCallbackMethod_SaveContext, v1::Hydrant::WithRawCallbackMethod_LoadContext,
    v1::Hydrant::WithRawCallbackMethod_Tokenize, v1::Hydrant::WithRawCallbackMethod_Detokenize,
    v1::Hydrant::WithRawCallbackMethod_GetModelInfo,
    v1::Hydrant::WithRawCallbackMethod_GetServerInfo>::Type;

class HydrantService final : public RawService {
 public:
  // Borrowed: `service` outlives it.
  HydrantService(DefaultCache default_cache, hydrant::Service* service)
      : default_cache_(std::move(default_cache)), service_(service) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* bytes) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateBatch(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* bytes) override;
  grpc::ServerUnaryReactor* Embed(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* bytes,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* CompressContext(grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer* bytes,
                                            grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListContexts(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* bytes,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetContext(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* bytes,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* DeleteContext(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* bytes,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* SaveContext(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* bytes,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* LoadContext(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* bytes,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* bytes,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* bytes,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* bytes,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* bytes,
                                          grpc::ByteBuffer* response) override;

 private:
  const DefaultCache default_cache_;
  hydrant::Service* const service_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_APIS_HYDRANT_SERVICE_H_
