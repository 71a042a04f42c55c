// Converts wire requests to scheduler requests. It checks only facts that the wire message holds
// (prompt form and length, names, ids); CheckRequest() (scheduler/request_check.h) checks the
// ranges of sampling, stopping and cache. An InvalidArgument reads "field: problem; remedy".
// Stateless; any thread may call.
#ifndef HYDRANT_SERVER_WIRE_REQUEST_CONVERSION_H_
#define HYDRANT_SERVER_WIRE_REQUEST_CONVERSION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "hydrant/v1/hydrant.pb.h"
#include "scheduler/request.h"
#include "server/wire/output_options.h"
#include "server/wire/served_model.h"

namespace hydrant {

// The sampling parameters of a request without any.
SamplingParams WithDefaults(const SamplingDefaults& defaults);

// NotFound where `name` is set and is not the served model's.
absl::Status CheckModelName(const ServedModel& model, const std::string& name);

// The prompt text of a chat. FailedPrecondition where the model has no template that can be
// rendered.
absl::StatusOr<std::string> RenderChat(const ServedModel& model, const v1::Chat& chat,
                                       const std::string& field);

// The tokens of messages appended to a conversation that is only in a cache.
struct ChatTurn {
  std::vector<TokenId> answer_end;  // closes the previous answer, before `messages`
  std::vector<TokenId> messages;
};
// InvalidArgument, too, where the template changes earlier messages when others follow.
absl::StatusOr<ChatTurn> EncodeTurn(const ServedModel& model, const v1::Chat& chat,
                                    const std::string& field);

// The token ids of a rendered chat. Special tokens in it are parsed, including those in a user's
// text, as Hugging Face does, unless chat.parse_special_tokens is false. No BOS is added, because
// chat templates write their own.
absl::StatusOr<std::vector<TokenId>> EncodeChat(const ServedModel& model, const v1::Chat& chat,
                                                const std::string& rendered);

// Converts every field except the deadline, which belongs to the call. Draws an unset seed and an
// unset request_id.
absl::StatusOr<Request> ConvertGenerateRequest(const ServedModel& model,
                                               const v1::GenerateRequest& wire);

// Fills unset fields of a cache that names no policy.
void SetDefaults(const CacheSpec& defaults, v1::Cache* wire);

// Number of samples (1 to kMaxSamples) and output options. REQUIRES: ConvertGenerateRequest()
// accepts `wire`
OutputOptions OutputOf(const v1::GenerateRequest& wire);

// As ConvertGenerateRequest(), for an embedding. Attention reads no page, so the cache has one
// entry per head.
absl::StatusOr<Request> ConvertEmbedRequest(const ServedModel& model, const v1::EmbedRequest& wire);
// Applies the request's dimensions and normalization to the pooled hidden state.
std::vector<float> ConvertEmbedding(const v1::EmbedRequest& wire, std::vector<float> embedding);

absl::StatusOr<v1::TokenizeResponse> Tokenize(const ServedModel& model,
                                              const v1::TokenizeRequest& wire);
absl::StatusOr<v1::DetokenizeResponse> Detokenize(const ServedModel& model,
                                                  const v1::DetokenizeRequest& wire);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_WIRE_REQUEST_CONVERSION_H_
