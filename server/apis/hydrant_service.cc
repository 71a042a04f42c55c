#include "server/apis/hydrant_service.h"

#include <chrono>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/status_macros.h"
#include "server/requests/generate_contract.h"
#include "server/wire/context_conversion.h"
#include "server/wire/model_info.h"
#include "server/wire/request_conversion.h"
#include "server/wire/wire_events.h"
#include "server/wire/wire_message.h"

namespace hydrant {

namespace {

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

absl::StatusOr<Service::UnaryJob> ReadEmbed(const ServedModel& model,
                                            const grpc::ByteBuffer& bytes) {
  v1::EmbedRequest wire;
  HYDRANT_RETURN_IF_ERROR(ParseWire(bytes, &wire));
  HYDRANT_ASSIGN_OR_RETURN(Request request, ConvertEmbedRequest(model, wire));
  const auto answer = [wire, id = request.request_id](const Finished& finished) -> Service::Answer {
    v1::EmbedResponse response;
    const std::vector<float> embedding = ConvertEmbedding(wire, finished.embedding);
    response.mutable_embedding()->Assign(embedding.begin(), embedding.end());
    response.set_request_id(id);
    *response.mutable_usage() = ToWireUsage(finished.usage);
    return ToWire(response);
  };
  return Service::UnaryJob{std::move(request), answer};
}

absl::StatusOr<Service::UnaryJob> ReadCompress(const ServedModel& model,
                                               const grpc::ByteBuffer& bytes) {
  v1::CompressContextRequest wire;
  HYDRANT_RETURN_IF_ERROR(ParseWire(bytes, &wire));
  HYDRANT_ASSIGN_OR_RETURN(Request request, ConvertCompressRequest(model, wire, UnixNow()));
  const auto answer = [&model,
                       id = request.request_id](const Finished& finished) -> Service::Answer {
    if (finished.context == nullptr) {
      return ContextRefusal(absl::ResourceExhaustedError(
          "the context was read, but there is no room for it; delete others, lower its budget, or "
          "raise --context-memory-bytes"));
    }
    v1::CompressContextResponse response;
    response.set_request_id(id);
    *response.mutable_context() =
        ToWireContext(model, {.id = finished.context->id, .context = finished.context});
    *response.mutable_usage() = ToWireUsage(finished.usage);
    return ToWire(response);
  };
  return Service::UnaryJob{std::move(request), answer};
}

// Answers a query: parses a message of type Wire; ask(wire) returns the response, or an error.
template <typename Wire, typename Ask>
Service::Query Querying(Ask ask) {
  return [ask = std::move(ask)](const grpc::ByteBuffer& bytes) -> Service::Answer {
    Wire wire;
    if (const absl::Status parsed = ParseWire(bytes, &wire); !parsed.ok()) return RefusalOf(parsed);
    const auto response = ask(wire);
    if (!response.ok()) return RefusalOf(response.status());
    return ToWire(*response);
  };
}

// A query about the model. ask(model, wire) is called only if there is one.
template <typename Wire, typename Ask>
Service::Query QueryingModel(const Service& service, Ask ask) {
  const ServingState serving = service.Current();
  if (std::optional<Refusal> no = Service::CheckReady(serving))
    return [no = *std::move(no)](const grpc::ByteBuffer&) -> Service::Answer { return no; };
  return Querying<Wire>([ask = std::move(ask), model = serving.model](const Wire& wire) {
    return ask(*model, wire);
  });
}

// Calls about contexts.
struct ContextCall {
  const ServingState& serving;
  const Caller& caller;
  const StoreWait& wait;

  template <typename Wire>
  ContextId IdOf(const Wire& wire) const {
    return {.salt = caller.ScopedSalt(wire.cache_salt()), .handle = wire.handle()};
  }
  absl::StatusOr<v1::Context> Describe(const ContextId& id) const {
    HYDRANT_ASSIGN_OR_RETURN(const ContextArchive::Entry entry, serving.contexts->Get(id, wait));
    return ToWireContext(*serving.model, entry);
  }
};

// Runs a call about contexts with a message of type Wire. ask(call, wire) returns the response, or
// an error.
template <typename Wire, typename Ask>
Service::StoreJob AskingStore(Ask ask) {
  return [ask = std::move(ask)](const ServingState& serving, const Caller& caller,
                                const grpc::ByteBuffer& bytes,
                                const StoreWait& wait) -> Service::Answer {
    Wire wire;
    absl::Status status = ParseWire(bytes, &wire);
    if (status.ok()) status = CheckModelName(*serving.model, wire.model());
    if constexpr (!std::is_same_v<Wire, v1::ListContextsRequest>) {
      if (status.ok()) status = CheckHandle(wire.handle());
    }
    if (!status.ok()) return RefusalOf(status);
    const auto response = ask(ContextCall{serving, caller, wait}, wire);
    if (!response.ok()) return ContextRefusal(response.status());
    return ToWire(*response);
  };
}

absl::StatusOr<v1::ListContextsResponse> List(const ContextCall& call,
                                              const v1::ListContextsRequest& wire) {
  HYDRANT_ASSIGN_OR_RETURN(
      const std::vector<ContextArchive::Entry> entries,
      call.serving.contexts->List(call.caller.ScopedSalt(wire.cache_salt()), call.wait));
  v1::ListContextsResponse list;
  for (const ContextArchive::Entry& entry : entries)
    *list.add_contexts() = ToWireContext(*call.serving.model, entry);
  return list;
}

absl::StatusOr<v1::Context> Get(const ContextCall& call, const v1::GetContextRequest& wire) {
  return call.Describe(call.IdOf(wire));
}

absl::StatusOr<v1::DeleteContextResponse> Delete(const ContextCall& call,
                                                 const v1::DeleteContextRequest& wire) {
  HYDRANT_RETURN_IF_ERROR(call.serving.contexts->Delete(call.IdOf(wire), call.wait));
  return v1::DeleteContextResponse();
}

absl::StatusOr<v1::Context> Save(const ContextCall& call, const v1::SaveContextRequest& wire) {
  HYDRANT_RETURN_IF_ERROR(call.serving.contexts->Save(call.IdOf(wire), call.wait));
  return call.Describe(call.IdOf(wire));
}

absl::StatusOr<v1::Context> Load(const ContextCall& call, const v1::LoadContextRequest& wire) {
  HYDRANT_RETURN_IF_ERROR(call.serving.contexts->Load(call.IdOf(wire), call.wait));
  return call.Describe(call.IdOf(wire));
}

absl::StatusOr<v1::GetModelInfoResponse> ModelInfo(const ServedModel& model,
                                                   const v1::GetModelInfoRequest& wire) {
  HYDRANT_RETURN_IF_ERROR(CheckModelName(model, wire.model()));
  return DescribeModel(model);
}

}  // namespace

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
  return service_->RunUnary("hydrant.v1.Hydrant/Embed", context, bytes, response, ReadEmbed);
}

grpc::ServerUnaryReactor* HydrantService::CompressContext(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* bytes,
                                                          grpc::ByteBuffer* response) {
  return service_->RunUnary("hydrant.v1.Hydrant/CompressContext", context, bytes, response,
                            ReadCompress);
}

grpc::ServerUnaryReactor* HydrantService::ListContexts(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* bytes,
                                                       grpc::ByteBuffer* response) {
  return service_->RunStoreCall(context, bytes, response,
                                AskingStore<v1::ListContextsRequest>(List));
}

grpc::ServerUnaryReactor* HydrantService::GetContext(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* bytes,
                                                     grpc::ByteBuffer* response) {
  return service_->RunStoreCall(context, bytes, response, AskingStore<v1::GetContextRequest>(Get));
}

grpc::ServerUnaryReactor* HydrantService::DeleteContext(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* bytes,
                                                        grpc::ByteBuffer* response) {
  return service_->RunStoreCall(context, bytes, response,
                                AskingStore<v1::DeleteContextRequest>(Delete));
}

grpc::ServerUnaryReactor* HydrantService::SaveContext(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* bytes,
                                                      grpc::ByteBuffer* response) {
  return service_->RunStoreCall(context, bytes, response,
                                AskingStore<v1::SaveContextRequest>(Save));
}

grpc::ServerUnaryReactor* HydrantService::LoadContext(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* bytes,
                                                      grpc::ByteBuffer* response) {
  return service_->RunStoreCall(context, bytes, response,
                                AskingStore<v1::LoadContextRequest>(Load));
}

grpc::ServerUnaryReactor* HydrantService::Tokenize(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* bytes,
                                                   grpc::ByteBuffer* response) {
  return service_->RunQuery(context, bytes, response,
                            QueryingModel<v1::TokenizeRequest>(*service_, hydrant::Tokenize));
}

grpc::ServerUnaryReactor* HydrantService::Detokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* bytes,
                                                     grpc::ByteBuffer* response) {
  return service_->RunQuery(context, bytes, response,
                            QueryingModel<v1::DetokenizeRequest>(*service_, hydrant::Detokenize));
}

grpc::ServerUnaryReactor* HydrantService::GetModelInfo(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* bytes,
                                                       grpc::ByteBuffer* response) {
  return service_->RunQuery(context, bytes, response,
                            QueryingModel<v1::GetModelInfoRequest>(*service_, ModelInfo));
}

grpc::ServerUnaryReactor* HydrantService::GetServerInfo(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* bytes,
                                                        grpc::ByteBuffer* response) {
  return service_->RunQuery(
      context, bytes, response,
      Querying<v1::GetServerInfoRequest>(
          [this](const v1::GetServerInfoRequest&) -> absl::StatusOr<v1::GetServerInfoResponse> {
            return service_->ServerInfo(default_cache_.text);
          }));
}

}  // namespace hydrant
