#include "server/apis/hydrant_service.h"

#include "server/requests/generate_contract.h"

namespace hydrant {

grpc::ServerWriteReactor<grpc::ByteBuffer>* HydrantService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) {
  return service_->Generate(context, bytes, NewHydrantContract(&default_cache_.spec));
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* HydrantService::GenerateBatch(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) {
  return service_->Generate(context, bytes, NewBatchContract(&default_cache_.spec));
}

grpc::ServerUnaryReactor* HydrantService::Embed(grpc::CallbackServerContext* context,
                                                const grpc::ByteBuffer* bytes,
                                                grpc::ByteBuffer* response) {
  return service_->Embed(context, bytes, response);
}

grpc::ServerUnaryReactor* HydrantService::CompressContext(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* bytes,
                                                          grpc::ByteBuffer* response) {
  return service_->CompressContext(context, bytes, response);
}

grpc::ServerUnaryReactor* HydrantService::ListContexts(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* bytes,
                                                       grpc::ByteBuffer* response) {
  return service_->ListContexts(context, bytes, response);
}

grpc::ServerUnaryReactor* HydrantService::GetContext(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* bytes,
                                                     grpc::ByteBuffer* response) {
  return service_->GetContext(context, bytes, response);
}

grpc::ServerUnaryReactor* HydrantService::DeleteContext(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* bytes,
                                                        grpc::ByteBuffer* response) {
  return service_->DeleteContext(context, bytes, response);
}

grpc::ServerUnaryReactor* HydrantService::SaveContext(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* bytes,
                                                      grpc::ByteBuffer* response) {
  return service_->SaveContext(context, bytes, response);
}

grpc::ServerUnaryReactor* HydrantService::LoadContext(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* bytes,
                                                      grpc::ByteBuffer* response) {
  return service_->LoadContext(context, bytes, response);
}

grpc::ServerUnaryReactor* HydrantService::Tokenize(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* bytes,
                                                   grpc::ByteBuffer* response) {
  return service_->Tokenize(context, bytes, response);
}

grpc::ServerUnaryReactor* HydrantService::Detokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* bytes,
                                                     grpc::ByteBuffer* response) {
  return service_->Detokenize(context, bytes, response);
}

grpc::ServerUnaryReactor* HydrantService::GetModelInfo(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* bytes,
                                                       grpc::ByteBuffer* response) {
  return service_->GetModelInfo(context, bytes, response);
}

grpc::ServerUnaryReactor* HydrantService::GetServerInfo(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* bytes,
                                                        grpc::ByteBuffer* response) {
  return service_->GetServerInfo(context, bytes, response, default_cache_.text);
}

}  // namespace hydrant
