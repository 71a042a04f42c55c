#include "server/apis/inference_service.h"

#include "absl/strings/str_cat.h"
#include "server/wire/unary_answer.h"

namespace hydrant {
namespace {

template <typename Response>
using Answer = std::variant<Response, Refusal>;

constexpr char kOnlyVersion[] = "1";

// NotFound for another model, or another version of it.
absl::Status CheckModel(const ServedModel& model, const std::string& name,
                        const std::string& version) {
  if (name != model.name && (name.empty() || name != model.own_name))
    return absl::NotFoundError(
        absl::StrCat("name: ", name, " is not served here; ", model.name, " is"));
  if (version.empty() || version == kOnlyVersion) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("version: ", version, " is not served here; there is only ", kOnlyVersion));
}

void Describe(const char* name, const char* datatype, int64_t size,
              inference::ModelMetadataResponse::TensorMetadata* tensor) {
  tensor->set_name(name);
  tensor->set_datatype(datatype);
  tensor->add_shape(size);
}

}  // namespace

grpc::ServerUnaryReactor* InferenceService::ServerLive(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* bytes,
                                                       grpc::ByteBuffer* response) {
  return AnswerNow<inference::ServerLiveRequest>(
      context, bytes, response,
      [this](const inference::ServerLiveRequest&) -> Answer<inference::ServerLiveResponse> {
        inference::ServerLiveResponse answer;
        answer.set_live(service_->Current().state != v1::SERVER_STATE_ENGINE_LOST);
        return answer;
      });
}

grpc::ServerUnaryReactor* InferenceService::ServerReady(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* bytes,
                                                        grpc::ByteBuffer* response) {
  return AnswerNow<inference::ServerReadyRequest>(
      context, bytes, response,
      [this](const inference::ServerReadyRequest&) -> Answer<inference::ServerReadyResponse> {
        inference::ServerReadyResponse answer;
        answer.set_ready(service_->Current().state == v1::SERVER_STATE_READY);
        return answer;
      });
}

grpc::ServerUnaryReactor* InferenceService::ModelReady(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* bytes,
                                                       grpc::ByteBuffer* response) {
  return AnswerNow<inference::ModelReadyRequest>(
      context, bytes, response,
      [this](const inference::ModelReadyRequest& wire) -> Answer<inference::ModelReadyResponse> {
        const ServingState serving = service_->Current();
        inference::ModelReadyResponse answer;
        if (serving.model != nullptr) {
          const absl::Status known = CheckModel(*serving.model, wire.name(), wire.version());
          if (!known.ok()) return Refusal{known, "UNKNOWN_MODEL"};
        }
        answer.set_ready(serving.state == v1::SERVER_STATE_READY);
        return answer;
      });
}

grpc::ServerUnaryReactor* InferenceService::ServerMetadata(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* bytes,
                                                           grpc::ByteBuffer* response) {
  return AnswerNow<inference::ServerMetadataRequest>(
      context, bytes, response,
      [this](const inference::ServerMetadataRequest&) -> Answer<inference::ServerMetadataResponse> {
        inference::ServerMetadataResponse answer;
        answer.set_name("hydrant");
        answer.set_version(service_->version());
        return answer;
      });
}

// Text in, text out: informational, the format of Generate.
grpc::ServerUnaryReactor* InferenceService::ModelMetadata(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* bytes,
                                                          grpc::ByteBuffer* response) {
  return AnswerNow<inference::ModelMetadataRequest>(
      context, bytes, response,
      [this](
          const inference::ModelMetadataRequest& wire) -> Answer<inference::ModelMetadataResponse> {
        const ServingState serving = service_->Current();
        if (const auto no = hydrant::Service::CheckReady(serving)) return *no;
        const absl::Status known = CheckModel(*serving.model, wire.name(), wire.version());
        if (!known.ok()) return Refusal{known, "UNKNOWN_MODEL"};
        inference::ModelMetadataResponse answer;
        answer.set_name(serving.model->name);
        answer.add_versions(kOnlyVersion);
        answer.set_platform("hydrant");
        Describe("text", "BYTES", 1, answer.add_inputs());
        Describe("text", "BYTES", -1, answer.add_outputs());
        return answer;
      });
}

}  // namespace hydrant
