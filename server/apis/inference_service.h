// inference.GRPCInferenceService, the Open Inference Protocol: readiness of server and model for
// generic tools. Thread safe.
#ifndef HYDRANT_SERVER_APIS_INFERENCE_SERVICE_H_
#define HYDRANT_SERVER_APIS_INFERENCE_SERVICE_H_

#include "inference/inference.grpc.pb.h"
#include "server/requests/service.h"

namespace hydrant {

using RawInferenceService = inference::GRPCInferenceService::WithRawCallbackMethod_ServerLive<
    inference::GRPCInferenceService::WithRawCallbackMethod_ServerReady<
        inference::GRPCInferenceService::WithRawCallbackMethod_ModelReady<
            inference::GRPCInferenceService::WithRawCallbackMethod_ServerMetadata<
                inference::GRPCInferenceService::WithRawCallbackMethod_ModelMetadata<
                    inference::GRPCInferenceService::Service>>>>>;

class InferenceService final : public RawInferenceService {
 public:
  // Borrowed: `service` outlives it.
  explicit InferenceService(const hydrant::Service* service) : service_(service) {}

  grpc::ServerUnaryReactor* ServerLive(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* bytes,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ServerReady(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* bytes,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ModelReady(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* bytes,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ServerMetadata(grpc::CallbackServerContext* context,
                                           const grpc::ByteBuffer* bytes,
                                           grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ModelMetadata(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* bytes,
                                          grpc::ByteBuffer* response) override;

 private:
  const hydrant::Service* const service_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_APIS_INFERENCE_SERVICE_H_
