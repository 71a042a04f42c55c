#include "server/apis/vllm_conversion.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/wire/wire_message.h"

namespace hydrant {
namespace {

absl::Status NotServed(const std::string& field, const char* what) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", what, " is not served here; unset it"));
}

// Refuses unsupported fields instead of ignoring them.
absl::Status CheckServed(const vllm::SamplingParams& wire) {
  if (wire.has_structural_tag())
    return NotServed("sampling_params.structural_tag", "a form that begins within the text");
  return absl::OkStatus();
}

absl::Status CheckServed(const vllm::GenerateRequest& wire) {
  if (wire.has_mm_inputs()) return NotServed("mm_inputs", "what is no text");
  if (wire.extra_mm_inputs_size() > 0) return NotServed("extra_mm_inputs", "what is no text");
  if (wire.has_media_refs()) return NotServed("media_refs", "what is no text");
  if (wire.has_kv_transfer_params() || wire.has_kv_transfer_params_json())
    return NotServed("kv_transfer_params", "a prompt that another server reads");
  if (wire.data_parallel_rank() > 0) return NotServed("data_parallel_rank", "a rank other than 0");
  return CheckServed(wire.sampling_params());
}

// The prompt's last tokens, up to truncate_prompt_tokens.
absl::Status ConvertTokens(const vllm::GenerateRequest& wire, int64_t max_model_len,
                           v1::TokenIds* ids) {
  const auto& all = wire.tokenized().input_ids();
  const vllm::SamplingParams& params = wire.sampling_params();
  int64_t most = std::numeric_limits<int64_t>::max();
  if (params.has_truncate_prompt_tokens()) {
    most = params.truncate_prompt_tokens();
    if (most < -1 || most == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampling_params.truncate_prompt_tokens: ", most,
                       " is neither -1, as many as fit, nor above 0"));
    }
    if (most < 0) most = max_model_len - 1;
  }
  const int64_t dropped = std::max<int64_t>(0, all.size() - most);
  ids->mutable_ids()->Add(all.begin() + dropped, all.end());
  return absl::OkStatus();
}

// -1, the whole vocabulary, is refused.
absl::Status ConvertTop(bool is_set, int32_t top, const std::string& field,
                        const std::function<void(uint32_t)>& set) {
  if (!is_set) return absl::OkStatus();
  if (top < 0 || top > kTopLogprobs) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling_params.", field, ": ", top, " is outside [0, ", kTopLogprobs, "]"));
  }
  set(static_cast<uint32_t>(top));
  return absl::OkStatus();
}

absl::Status ConvertTokenParams(const vllm::SamplingParams& wire, v1::Sampling* sampling) {
  HYDRANT_RETURN_IF_ERROR(ConvertTop(wire.has_logprobs(), wire.logprobs(), "logprobs",
                                     [&](uint32_t top) { sampling->set_logprobs(top); }));
  HYDRANT_RETURN_IF_ERROR(ConvertTop(wire.has_prompt_logprobs(), wire.prompt_logprobs(),
                                     "prompt_logprobs",
                                     [&](uint32_t top) { sampling->set_prompt_logprobs(top); }));
  for (const auto& [token, bias] : wire.logit_bias()) {
    if (token < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampling_params.logit_bias: ", token, " is no token"));
    }
    (*sampling->mutable_logit_bias())[static_cast<uint32_t>(token)] = bias;
  }
  return absl::OkStatus();
}

void ConvertForm(const vllm::SamplingParams& wire, v1::GenerateRequest* request) {
  switch (wire.constraint_case()) {
    case vllm::SamplingParams::kJsonSchema:
      request->mutable_structured_output()->set_json_schema(wire.json_schema());
      break;
    case vllm::SamplingParams::kRegex:
      request->mutable_structured_output()->set_regex(wire.regex());
      break;
    case vllm::SamplingParams::kGrammar:
      request->mutable_structured_output()->set_grammar(wire.grammar());
      break;
    case vllm::SamplingParams::kJsonObject:
      if (wire.json_object()) request->mutable_structured_output()->set_json_object(true);
      break;
    case vllm::SamplingParams::kChoice:
      *request->mutable_structured_output()->mutable_choice()->mutable_texts() =
          wire.choice().choices();
      break;
    case vllm::SamplingParams::kStructuralTag:  // refused
    case vllm::SamplingParams::CONSTRAINT_NOT_SET:
      break;
  }
}

// JSON has no infinity; vLLM uses the same bound.
float Bounded(float logprob) { return std::max(logprob, -9999.0f); }

void AppendTo(const v1::TokenLogprobs& token, vllm::TopLogProbs* top) {
  *top->mutable_token_ids() = token.top_token_ids();
  for (const float logprob : token.top_logprobs()) top->add_values(Bounded(logprob));
}

void AppendTo(const v1::TokenLogprobs& token, vllm::OutputLogProbs* output) {
  output->add_token_ids(token.token_id());
  output->add_token_logprobs(Bounded(token.logprob()));
  AppendTo(token, output->add_top_logprobs());
}

void AppendTo(const v1::TokenLogprobs& token, vllm::InputLogProbs* input) {
  input->add_token_ids(token.token_id());
  input->add_token_logprobs()->set_value(Bounded(token.logprob()));
  AppendTo(token, input->add_top_logprobs());
}

void ConvertSampling(const vllm::SamplingParams& wire, v1::Sampling* sampling) {
  if (wire.has_temperature()) sampling->set_temperature(wire.temperature());
  if (wire.top_p() != 0) sampling->set_top_p(wire.top_p());
  // -1 in other contracts (all tokens) arrives as a large unsigned number.
  if (wire.top_k() <= std::numeric_limits<int32_t>::max())
    sampling->set_top_k(static_cast<int32_t>(wire.top_k()));
  sampling->set_min_p(wire.min_p());
  sampling->set_frequency_penalty(wire.frequency_penalty());
  sampling->set_presence_penalty(wire.presence_penalty());
  if (wire.repetition_penalty() != 0) sampling->set_repetition_penalty(wire.repetition_penalty());
  if (wire.has_seed()) sampling->set_seed(static_cast<uint64_t>(int64_t{wire.seed()}));
  if (wire.n() != 0) sampling->set_n(wire.n());
}

void ConvertStopping(const vllm::SamplingParams& wire, v1::Stopping* stopping) {
  if (wire.has_max_tokens()) stopping->set_max_tokens(wire.max_tokens());
  if (wire.min_tokens() != 0) stopping->set_min_tokens(wire.min_tokens());
  *stopping->mutable_stop() = wire.stop();
  *stopping->mutable_stop_token_ids() = wire.stop_token_ids();
  stopping->set_include_stop_str_in_output(wire.include_stop_str_in_output());
  stopping->set_ignore_eos(wire.ignore_eos());
}

// Streams chunks, or collects the output and sends one complete message per sample. A sample's end
// is held until the next message: for the last sample that is the usage, the only message with the
// number of cached prompt tokens.
class VllmContract final : public GenerateContract {
 public:
  using GenerateContract::GenerateContract;

  std::string_view Method() const override { return "vllm.grpc.engine.VllmEngine/Generate"; }
  absl::StatusOr<std::vector<v1::GenerateRequest>> Parse(const ServedModel& model,
                                                         const grpc::ByteBuffer& bytes) override {
    vllm::GenerateRequest wire;
    HYDRANT_RETURN_IF_ERROR(ParseWire(bytes, &wire));
    stream_ = wire.stream();
    own_pair_ = model.tokenizer->eog_ids();
    HYDRANT_ASSIGN_OR_RETURN(v1::GenerateRequest request,
                             ConvertVllmRequest(wire, model.limits.max_model_len));
    if (request.sampling().has_prompt_logprobs() && request.token_ids().ids_size() > 0) {
      // The first token has no logprob but is listed.
      of_prompt_.emplace().add_token_ids(request.token_ids().ids(0));
      of_prompt_->add_token_logprobs();
      of_prompt_->add_top_logprobs();
    }
    return std::vector<v1::GenerateRequest>{std::move(request)};
  }
  bool SendsEveryMessage() const override { return false; }

  std::optional<grpc::ByteBuffer> Translate(size_t, const v1::GenerateResponse& message) override {
    switch (message.event_case()) {
      case v1::GenerateResponse::kAccepted:
        prompt_tokens_ = message.accepted().prompt_tokens();
        return std::nullopt;
      case v1::GenerateResponse::kPromptLogprobs:
        for (const v1::TokenLogprobs& token : message.prompt_logprobs().tokens())
          AppendTo(token, &*of_prompt_);
        return std::nullopt;
      case v1::GenerateResponse::kDelta:
        return Append(message.delta());
      case v1::GenerateResponse::kFinished: {
        std::optional<grpc::ByteBuffer> before = TakeHeldMessage(0);
        Hold(message.finished());
        return before;
      }
      case v1::GenerateResponse::kUsage:
        return TakeHeldMessage(message.usage().cached_tokens());
      default:
        return std::nullopt;
    }
  }

 private:
  using Ids = google::protobuf::RepeatedField<uint32_t>;
  struct Sample {
    uint32_t tokens = 0;
    Ids gathered;  // collected when not streaming, like logprobs
    vllm::OutputLogProbs logprobs;
  };

  Sample& SampleOf(uint32_t index) {
    if (index >= samples_.size()) samples_.resize(index + 1);
    return samples_[index];
  }

  std::optional<grpc::ByteBuffer> Append(const v1::Delta& delta) {
    if (delta.token_ids_size() == 0) return std::nullopt;  // the gateway detokenizes
    Sample& sample = SampleOf(delta.index());
    sample.tokens += static_cast<uint32_t>(delta.token_ids_size());
    if (!stream_) {
      sample.gathered.MergeFrom(delta.token_ids());
      for (const v1::TokenLogprobs& token : delta.logprobs()) AppendTo(token, &sample.logprobs);
      return std::nullopt;
    }
    vllm::GenerateResponse response;
    vllm::GenerateStreamChunk& chunk = *response.mutable_chunk();
    *chunk.mutable_token_ids() = delta.token_ids();
    chunk.set_prompt_tokens(prompt_tokens_);
    chunk.set_completion_tokens(sample.tokens);
    chunk.set_index(delta.index());
    for (const v1::TokenLogprobs& token : delta.logprobs())
      AppendTo(token, chunk.mutable_output_logprobs());
    if (of_prompt_.has_value())
      *chunk.mutable_input_logprobs() = *std::exchange(of_prompt_, std::nullopt);
    return ToWire(response);
  }

  void Hold(const v1::Finished& finished) {
    Sample& sample = SampleOf(finished.index());
    vllm::GenerateComplete complete;
    complete.mutable_output_ids()->Swap(&sample.gathered);
    if (sample.logprobs.token_ids_size() > 0)
      complete.mutable_output_logprobs()->Swap(&sample.logprobs);
    if (of_prompt_.has_value())
      *complete.mutable_input_logprobs() = *std::exchange(of_prompt_, std::nullopt);
    complete.set_finish_reason(finished.reason() == v1::FINISH_REASON_LENGTH ? "length" : "stop");
    complete.set_prompt_tokens(prompt_tokens_);
    complete.set_index(finished.index());
    // The id of an end-of-generation token is not reported because the client did not ask for it.
    // It counts as generated, but is not delivered.
    if (finished.has_matched_token_id()) {
      ++sample.tokens;
      if (std::ranges::find(own_pair_, finished.matched_token_id()) == own_pair_.end())
        complete.set_matched_token_id(finished.matched_token_id());
    } else if (finished.has_matched_stop()) {
      complete.set_matched_stop_str(finished.matched_stop());
    }
    complete.set_completion_tokens(sample.tokens);
    held_ = std::move(complete);
  }

  std::optional<grpc::ByteBuffer> TakeHeldMessage(uint32_t cached_tokens) {
    if (!held_.has_value()) return std::nullopt;
    vllm::GenerateResponse response;
    *response.mutable_complete() = *std::exchange(held_, std::nullopt);
    response.mutable_complete()->set_cached_tokens(cached_tokens);
    return ToWire(response);
  }

  std::span<const TokenId> own_pair_;  // the model's end-of-generation tokens
  bool stream_ = false;
  uint32_t prompt_tokens_ = 0;
  std::vector<Sample> samples_;
  std::optional<vllm::InputLogProbs> of_prompt_;  // until it is sent
  std::optional<vllm::GenerateComplete> held_;
};

int32_t WireCount(int64_t value) {
  return static_cast<int32_t>(std::clamp<int64_t>(value, 0, std::numeric_limits<int32_t>::max()));
}

}  // namespace

absl::StatusOr<v1::GenerateRequest> ConvertVllmRequest(const vllm::GenerateRequest& wire,
                                                       int64_t max_model_len) {
  HYDRANT_RETURN_IF_ERROR(CheckServed(wire));
  v1::GenerateRequest request;
  if (!wire.request_id().empty()) request.set_request_id(wire.request_id());
  switch (wire.input_case()) {
    case vllm::GenerateRequest::kTokenized:
      HYDRANT_RETURN_IF_ERROR(ConvertTokens(wire, max_model_len, request.mutable_token_ids()));
      break;
    case vllm::GenerateRequest::kText:
      if (wire.sampling_params().has_truncate_prompt_tokens())
        return NotServed("sampling_params.truncate_prompt_tokens", "a part of a text");
      if (wire.sampling_params().has_prompt_logprobs())
        return NotServed("sampling_params.prompt_logprobs", "what a text was tokenized to");
      request.set_text(wire.text());
      break;
    case vllm::GenerateRequest::INPUT_NOT_SET:
      return absl::InvalidArgumentError("input: is not set; give one of tokenized and text");
  }
  ConvertSampling(wire.sampling_params(), request.mutable_sampling());
  HYDRANT_RETURN_IF_ERROR(ConvertTokenParams(wire.sampling_params(), request.mutable_sampling()));
  ConvertForm(wire.sampling_params(), &request);
  ConvertStopping(wire.sampling_params(), request.mutable_stopping());
  return request;
}

absl::StatusOr<v1::EmbedRequest> ConvertVllmEmbed(const vllm::EmbedRequest& wire) {
  if (!wire.has_tokenized())
    return absl::InvalidArgumentError("tokenized: is not set; an embedding needs its input_ids");
  v1::EmbedRequest request;
  if (!wire.request_id().empty()) request.set_request_id(wire.request_id());
  *request.mutable_token_ids()->mutable_ids() = wire.tokenized().input_ids();
  return request;
}

std::unique_ptr<GenerateContract> NewVllmContract(const CacheSpec* default_cache) {
  return std::make_unique<VllmContract>(default_cache);
}

vllm::GetModelInfoResponse DescribeVllmModel(const ServedModel& model) {
  vllm::GetModelInfoResponse info;
  info.set_model_path(model.path);
  info.set_tokenizer_path(model.tokenizer_folder.empty() ? model.path : model.tokenizer_folder);
  info.set_is_generation(true);
  info.set_max_context_length(static_cast<uint32_t>(model.limits.max_model_len));
  info.set_max_req_input_len(WireCount(model.limits.max_model_len - 1));
  info.set_vocab_size(static_cast<uint32_t>(model.config.vocab_size));
  info.set_served_model_name(model.name);
  info.set_model_type(model.config.architecture);
  info.add_architectures(model.config.architecture);
  for (const TokenId id : model.tokenizer->eog_ids())
    info.add_eos_token_ids(static_cast<int32_t>(id));
  info.set_bos_token_id(WireCount(model.tokenizer->bos_id()));
  return info;
}

vllm::GetServerInfoResponse DescribeVllmServer(const ServedModel& model,
                                               const ServingStats& snapshot,
                                               absl::Duration uptime) {
  vllm::GetServerInfoResponse info;
  info.set_active_requests(
      static_cast<uint32_t>(snapshot.running + snapshot.prefilling + snapshot.waiting));
  info.set_uptime_seconds(absl::ToDoubleSeconds(uptime));
  info.set_server_type("vllm-grpc");
  info.set_data_parallel_size(1);
  info.set_block_size(model.limits.block_size);
  info.set_max_num_seqs(model.limits.max_num_seqs);
  return info;
}

vllm::GetLoadsResponse DescribeVllmLoads(const ServedModel& model, const ServingStats& snapshot,
                                         const std::string& version, absl::Time now) {
  vllm::GetLoadsResponse response;
  response.set_timestamp(absl::FormatTime(absl::RFC3339_sec, now, absl::UTCTimeZone()));
  response.set_version(version);
  response.set_dp_rank_count(1);
  vllm::SchedulerLoad& load = *response.add_loads();
  load.set_num_running_reqs(snapshot.running + snapshot.prefilling);
  load.set_num_waiting_reqs(snapshot.waiting);
  load.set_num_total_reqs(load.num_running_reqs() + load.num_waiting_reqs());
  const int64_t heads = int64_t{model.limits.num_layers} * model.limits.num_kv_heads;
  const auto tokens = [&](int64_t pages) {
    return WireCount(pages * model.limits.block_size / heads);
  };
  const int64_t held = snapshot.pages_total - snapshot.pages_free;
  load.set_num_used_tokens(tokens(held));
  load.set_max_total_num_tokens(tokens(snapshot.pages_total));
  if (snapshot.pages_total > 0)
    load.set_token_usage(static_cast<double>(held) / static_cast<double>(snapshot.pages_total));
  load.set_max_running_requests(model.limits.max_num_seqs);
  load.set_num_waiting_uncached_tokens(WireCount(snapshot.queued_tokens));
  return response;
}

}  // namespace hydrant
