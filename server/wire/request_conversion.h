// Wire requests to what the scheduler takes. Checked here is what only the wire knows (the prompt's
// form and length, names, ids); ranges of sampling, stopping and cache are CheckRequest()'s
// (scheduler/request_check.h). An InvalidArgument reads "field: what it is; what it must be".
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

// The sampling parameters of a request that sets none.
SamplingParams WithDefaults(const SamplingDefaults& defaults);

// NotFound where `name` is set and is not the served model's.
absl::Status CheckModelName(const ServedModel& model, const std::string& name);

// The prompt text of a chat. FailedPrecondition where the model has no template that can be
// rendered.
absl::StatusOr<std::string> RenderChat(const ServedModel& model, const v1::Chat& chat,
                                       const std::string& field);

// The tokens of messages that follow a conversation which is not at hand.
struct ChatTurn {
  std::vector<TokenId> answer_end;  // what comes behind an answer's text, before them
  std::vector<TokenId> messages;
};
// InvalidArgument, too, where the template does not leave what comes before as it is.
absl::StatusOr<ChatTurn> EncodeTurn(const ServedModel& model, const v1::Chat& chat,
                                    const std::string& field);

// The token ids of a rendered chat. Special tokens in it are parsed, also those that a user wrote,
// as Hugging Face does, unless chat.parse_special_tokens is false. No BOS is added, because chat
// templates write their own.
absl::StatusOr<std::vector<TokenId>> EncodeChat(const ServedModel& model, const v1::Chat& chat,
                                                const std::string& rendered);

// Every field but the deadline, which is the call's. An unset seed is drawn here, an unset
// request_id too.
absl::StatusOr<Request> ConvertGenerateRequest(const ServedModel& model,
                                               const v1::GenerateRequest& wire);

// What is unset of a cache that names no policy.
void SetDefaults(const CacheSpec& defaults, v1::Cache* wire);

// The answers that it asks for, 1 to kMaxSamples. REQUIRES: it can be converted
OutputOptions OutputOf(const v1::GenerateRequest& wire);

// The same of an embedding's. Attention reads no page: the cache is an entry a head.
absl::StatusOr<Request> ConvertEmbedRequest(const ServedModel& model, const v1::EmbedRequest& wire);
// What the request makes of the hidden states.
std::vector<float> ConvertEmbedding(const v1::EmbedRequest& wire, std::vector<float> embedding);

absl::StatusOr<v1::TokenizeResponse> Tokenize(const ServedModel& model,
                                              const v1::TokenizeRequest& wire);
absl::StatusOr<v1::DetokenizeResponse> Detokenize(const ServedModel& model,
                                                  const v1::DetokenizeRequest& wire);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_WIRE_REQUEST_CONVERSION_H_
