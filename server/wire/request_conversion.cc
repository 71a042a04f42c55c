#include "server/wire/request_conversion.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "engine/text/grammar/grammar_compiler.h"
#include "kernels/status_macros.h"
#include "scheduler/request_check.h"
#include "server/wire/status_details.h"

namespace hydrant {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;
constexpr uint32_t kMaxStreamInterval = 4096;  // tokens

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

// Puts "field: " in front of a message that does not name its field.
absl::Status AtField(const std::string& field, const absl::Status& status) {
  return {status.code(), absl::StrCat(field, ": ", status.message())};
}

uint64_t Draw64() {
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seeds{device(), device(), device(), device()};
    return std::mt19937_64(seeds);
  }();
  return generator();
}

absl::Status CheckTokenIds(const ServedModel& model,
                           const google::protobuf::RepeatedField<uint32_t>& ids,
                           const std::string& field) {
  const TokenId vocab = model.tokenizer->VocabSize();
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] >= vocab) {
      return Invalid(absl::StrCat(field, "[", i, "]: is ", ids[i],
                                  "; the model's vocabulary has the ids 0 to ", vocab - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSamples(const v1::GenerateRequest& wire) {
  if (!wire.sampling().has_n()) return absl::OkStatus();
  const uint32_t n = wire.sampling().n();
  if (n < 1 || n > kMaxSamples)
    return Invalid(absl::StrCat("sampling.n: ", n, " is outside [1, ", kMaxSamples, "]"));
  if (n == 1) return absl::OkStatus();
  if (wire.resume_token_ids_size() > 0) {
    return Invalid(absl::StrCat("sampling.n: ", n,
                                " samples cannot be resumed; with resume_token_ids at most 1"));
  }
  if (wire.scheduling().on_pressure() == v1::ON_PRESSURE_EVICT) {
    return Invalid(
        absl::StrCat("sampling.n: ", n, " samples share pages; with ON_PRESSURE_EVICT at most 1"));
  }
  if (wire.keep()) {
    return Invalid(absl::StrCat("sampling.n: ", n,
                                " samples leave no cache that could be kept; with keep at most 1"));
  }
  return absl::OkStatus();
}

// Returns whether logprobs were requested.
absl::StatusOr<bool> ConvertTop(bool is_set, uint32_t top, const char* field) {
  if (is_set && top > kTopLogprobs)
    return Invalid(absl::StrCat(field, ": ", top, " is outside [0, ", kTopLogprobs, "]"));
  return is_set;
}

// Tokens of each word, both at the beginning of a text and after a space.
absl::StatusOr<std::vector<std::vector<TokenId>>> ConvertBadWords(const ServedModel& model,
                                                                  const v1::Sampling& wire) {
  constexpr int kLimit = kMaxBadWords / 2;
  std::vector<std::vector<TokenId>> words;
  if (wire.bad_words_size() > kLimit) {
    return Invalid(absl::StrCat("sampling.bad_words: ", wire.bad_words_size(),
                                " words exceed the limit of ", kLimit));
  }
  for (int i = 0; i < wire.bad_words_size(); ++i) {
    const std::string field = absl::StrCat("sampling.bad_words[", i, "]");
    const std::string word(absl::StripLeadingAsciiWhitespace(wire.bad_words(i)));
    if (word.empty() || word.size() > kMaxStopStringBytes) {
      return Invalid(absl::StrCat(field, ": has ", word.size(), " bytes; [1, ", kMaxStopStringBytes,
                                  "] are allowed"));
    }
    for (const char* prefix : {"", " "}) {
      absl::StatusOr<std::vector<TokenId>> ids = model.tokenizer->Encode(
          absl::StrCat(prefix, word), {.add_special_tokens = false, .parse_special_tokens = false});
      if (!ids.ok()) return AtField(field, ids.status());
      if (words.empty() || words.back() != *ids) words.push_back(*std::move(ids));
    }
  }
  return words;
}

absl::StatusOr<SamplingParams> ConvertSampling(const ServedModel& model, const v1::Sampling& wire) {
  SamplingParams params = WithDefaults(model.sampling);
  if (wire.has_temperature()) params.temperature = wire.temperature();
  if (wire.has_top_p()) params.top_p = wire.top_p();
  if (wire.has_min_p()) params.min_p = wire.min_p();
  if (wire.has_top_k()) params.top_k = wire.top_k();
  if (wire.has_repetition_penalty()) params.repetition_penalty = wire.repetition_penalty();
  if (wire.has_presence_penalty()) params.presence_penalty = wire.presence_penalty();
  if (wire.has_frequency_penalty()) params.frequency_penalty = wire.frequency_penalty();
  if (wire.has_seed()) params.seed = wire.seed();
  HYDRANT_ASSIGN_OR_RETURN(params.logprobs,
                           ConvertTop(wire.has_logprobs(), wire.logprobs(), "sampling.logprobs"));
  HYDRANT_ASSIGN_OR_RETURN(
      params.prompt_logprobs,
      ConvertTop(wire.has_prompt_logprobs(), wire.prompt_logprobs(), "sampling.prompt_logprobs"));
  params.logit_bias.insert(wire.logit_bias().begin(), wire.logit_bias().end());
  HYDRANT_RETURN_IF_ERROR(
      CheckTokenIds(model, wire.allowed_token_ids(), "sampling.allowed_token_ids"));
  params.allowed_token_ids.assign(wire.allowed_token_ids().begin(), wire.allowed_token_ids().end());
  HYDRANT_ASSIGN_OR_RETURN(params.bad_words, ConvertBadWords(model, wire));
  return params;
}

// max_whitespace is valid for JSON only.
absl::StatusOr<int> ConvertMaxWhitespace(const v1::StructuredOutput& wire) {
  constexpr uint32_t kLimit = 1000;
  if (!wire.has_max_whitespace()) return kDefaultMaxWhitespace;
  if (!wire.has_json_schema() && !wire.has_json_object())
    return Invalid(
        "structured_output.max_whitespace: is of JSON; leave it unset beside another form");
  if (wire.max_whitespace() > kLimit)
    return Invalid(absl::StrCat("structured_output.max_whitespace: ", wire.max_whitespace(),
                                " is above ", kLimit));
  return static_cast<int>(wire.max_whitespace());
}

absl::StatusOr<StructuredOutput> ConvertForm(const v1::StructuredOutput& wire) {
  HYDRANT_ASSIGN_OR_RETURN(const int max_whitespace, ConvertMaxWhitespace(wire));
  switch (wire.form_case()) {
    case v1::StructuredOutput::kJsonSchema:
      return JsonSchema{wire.json_schema(), max_whitespace};
    case v1::StructuredOutput::kJsonObject:
      if (wire.json_object()) return AnyJsonObject{max_whitespace};
      return Invalid("structured_output.json_object: is false; leave structured_output unset");
    case v1::StructuredOutput::kRegex:
      return RegexPattern{wire.regex()};
    case v1::StructuredOutput::kChoice:
      return Choice{{wire.choice().texts().begin(), wire.choice().texts().end()}};
    case v1::StructuredOutput::kGrammar:
      return EbnfGrammar{wire.grammar()};
    case v1::StructuredOutput::FORM_NOT_SET:
      break;
  }
  return Invalid(
      "structured_output: is empty; give one of json_schema, json_object, regex, choice, grammar");
}

absl::StatusOr<std::shared_ptr<const CompiledGrammar>> CompileGrammar(
    const ServedModel& model, const v1::StructuredOutput& wire) {
  HYDRANT_ASSIGN_OR_RETURN(const StructuredOutput output, ConvertForm(wire));
  if (model.grammars == nullptr) {
    return absl::UnimplementedError(absl::StrCat("structured_output: ", model.no_grammar_reason));
  }
  absl::StatusOr<std::shared_ptr<const CompiledGrammar>> grammar = model.grammars->Compile(output);
  if (grammar.ok()) return grammar;
  return absl::Status(grammar.status().code(),
                      absl::StrCat("structured_output.", grammar.status().message()));
}

StoppingParams ConvertStopping(const v1::Stopping& wire) {
  StoppingParams params;
  if (wire.has_max_tokens()) params.max_tokens = wire.max_tokens();
  if (wire.has_min_tokens()) params.min_tokens = wire.min_tokens();
  params.stop.assign(wire.stop().begin(), wire.stop().end());
  params.stop_token_ids.assign(wire.stop_token_ids().begin(), wire.stop_token_ids().end());
  params.include_stop_str_in_output = wire.include_stop_str_in_output();
  params.ignore_eos = wire.ignore_eos();
  return params;
}

CacheSpec ConvertCache(const v1::Cache& wire) {
  CacheSpec spec;
  if (wire.has_cache_policy()) spec.policy = wire.cache_policy();
  if (wire.has_max_cache_tokens()) spec.max_cache_tokens = wire.max_cache_tokens();
  if (wire.has_cache_ratio()) spec.cache_ratio = wire.cache_ratio();
  if (wire.has_min_cache_tokens()) spec.min_cache_tokens = wire.min_cache_tokens();
  if (wire.has_sink_tokens()) spec.sink_tokens = wire.sink_tokens();
  if (wire.has_protected_window_size()) spec.protected_window_size = wire.protected_window_size();
  if (wire.has_min_retained_mass()) spec.min_retained_mass = wire.min_retained_mass();
  spec.params.insert(wire.params().begin(), wire.params().end());
  return spec;
}

absl::Status ConvertReuse(const v1::Cache& wire, Request* request) {
  if (!v1::Reuse_IsValid(wire.reuse())) {
    return Invalid(absl::StrCat("cache.reuse: ", wire.reuse(),
                                " is unknown; one of REUSE_OFF, REUSE_EXACT, REUSE_COMPRESSED"));
  }
  request->prefix_caching = wire.reuse() != v1::REUSE_OFF;
  request->find_context = wire.reuse() == v1::REUSE_COMPRESSED;
  request->cache_salt = wire.cache_salt();
  // A request with a salt asks for isolation, so its prompt is not published.
  request->publish_kv_events = wire.cache_salt().empty();
  return absl::OkStatus();
}

absl::StatusOr<std::optional<TimeUs>> ConvertTarget(bool is_set, uint64_t us, const char* field) {
  constexpr uint64_t kMaxUs = 86'400'000'000;  // a day
  if (!is_set) return std::nullopt;
  if (us < 1 || us > kMaxUs)
    return Invalid(absl::StrCat(field, ": ", us, " is outside [1, ", kMaxUs, "]"));
  return static_cast<TimeUs>(us);
}

absl::Status ConvertScheduling(const v1::Scheduling& wire, Request* request) {
  const int32_t priority = wire.priority();
  if (priority < -kMaxPriority || priority > kMaxPriority) {
    return Invalid(absl::StrCat("scheduling.priority: ", priority, " is outside [", -kMaxPriority,
                                ", ", kMaxPriority, "]"));
  }
  request->priority = priority;
  if (wire.tenant().size() > kMaxTenantBytes) {
    return Invalid(absl::StrCat("scheduling.tenant: has ", wire.tenant().size(), " bytes; at most ",
                                kMaxTenantBytes, " are allowed"));
  }
  request->tenant = wire.tenant();
  if (!v1::OnPressure_IsValid(wire.on_pressure())) {
    return Invalid(absl::StrCat("scheduling.on_pressure: ", wire.on_pressure(),
                                " is unknown; one of ON_PRESSURE_PREEMPT, ON_PRESSURE_EVICT, "
                                "ON_PRESSURE_NEVER"));
  }
  if (wire.on_pressure() == v1::ON_PRESSURE_EVICT) request->on_pressure = OnPressure::kEvict;
  if (wire.on_pressure() == v1::ON_PRESSURE_NEVER) request->on_pressure = OnPressure::kNever;
  const v1::Slo& slo = wire.slo();
  HYDRANT_ASSIGN_OR_RETURN(request->slo.ttft_us, ConvertTarget(slo.has_ttft_us(), slo.ttft_us(),
                                                               "scheduling.slo.ttft_us"));
  HYDRANT_ASSIGN_OR_RETURN(request->slo.tpot_us, ConvertTarget(slo.has_tpot_us(), slo.tpot_us(),
                                                               "scheduling.slo.tpot_us"));
  return absl::OkStatus();
}

absl::Status CheckPromptLength(const ServedModel& model, size_t tokens, const std::string& field) {
  const size_t limit = static_cast<size_t>(model.limits.max_model_len);
  if (tokens == 0) return Invalid(field + ": is empty; a prompt needs at least one token");
  if (tokens < limit) return absl::OkStatus();
  return Invalid(absl::StrCat(field, ": has ", tokens, " tokens; at most ", limit - 1,
                              " are allowed (max_model_len is ", limit,
                              ", and the answer needs one)"));
}

// Rejects a text that cannot fit before it is tokenized, which takes a second for 10 MB.
absl::Status CheckPromptBytes(const ServedModel& model, const std::string& text,
                              const std::string& field) {
  const std::optional<int64_t> longest = model.tokenizer->MaxBytesPerToken();
  if (!longest.has_value()) return absl::OkStatus();
  const int64_t tokens = model.limits.max_model_len - 1;
  const int64_t limit = tokens * *longest;
  if (static_cast<int64_t>(text.size()) <= limit) return absl::OkStatus();
  return Invalid(absl::StrCat(field, ": has ", text.size(), " bytes; more than ", limit,
                              " cannot fit into ", tokens, " tokens (max_model_len is ",
                              model.limits.max_model_len, "); shorten it"));
}

absl::StatusOr<std::vector<TokenId>> EncodeText(const ServedModel& model,
                                                const v1::GenerateRequest& wire) {
  const std::string& text = wire.text();
  if (text.empty()) return Invalid("text: is empty; a prompt needs at least one token");
  if (!wire.has_truncate_prompt_tokens())
    HYDRANT_RETURN_IF_ERROR(CheckPromptBytes(model, text, "text"));
  EncodeOptions options{.add_special_tokens = !wire.has_context()};  // no BOS after a context
  if (wire.has_parse_special_tokens()) options.parse_special_tokens = wire.parse_special_tokens();
  absl::StatusOr<std::vector<TokenId>> ids = model.tokenizer->Encode(text, options);
  if (!ids.ok()) return AtField("text", ids.status());
  return ids;
}

// Keeps the last truncate_prompt_tokens tokens.
absl::Status Truncate(const ServedModel& model, const v1::GenerateRequest& wire,
                      std::vector<TokenId>* prompt) {
  if (!wire.has_truncate_prompt_tokens()) return absl::OkStatus();
  const std::string field = "truncate_prompt_tokens: ";
  const uint32_t most = wire.truncate_prompt_tokens();
  const auto limit = static_cast<uint32_t>(model.limits.max_model_len - 1);
  if (most < 1 || most > limit)
    return Invalid(absl::StrCat(field, most, " is outside [1, ", limit, "]"));
  if (wire.has_context()) return Invalid(field + "does not go with a context, which comes before");
  if (wire.cache().question_agnostic())
    return Invalid(field + "does not go with cache.question_agnostic; set question_tokens");
  if (prompt->size() > most) prompt->erase(prompt->begin(), prompt->end() - most);
  return absl::OkStatus();
}

// The prompt before truncation.
absl::StatusOr<std::vector<TokenId>> EncodeWhole(const ServedModel& model,
                                                 const v1::GenerateRequest& wire) {
  const bool truncates = wire.has_truncate_prompt_tokens();
  switch (wire.prompt_case()) {
    case v1::GenerateRequest::kText:
      return EncodeText(model, wire);
    case v1::GenerateRequest::kTokenIds: {
      const auto& ids = wire.token_ids().ids();
      if (!truncates) HYDRANT_RETURN_IF_ERROR(CheckPromptLength(model, ids.size(), "token_ids"));
      HYDRANT_RETURN_IF_ERROR(CheckTokenIds(model, ids, "token_ids.ids"));
      return std::vector<TokenId>(ids.begin(), ids.end());
    }
    case v1::GenerateRequest::kChat: {
      HYDRANT_ASSIGN_OR_RETURN(const std::string rendered, RenderChat(model, wire.chat(), "chat"));
      if (!truncates) HYDRANT_RETURN_IF_ERROR(CheckPromptBytes(model, rendered, "chat"));
      absl::StatusOr<std::vector<TokenId>> ids = EncodeChat(model, wire.chat(), rendered);
      if (!ids.ok()) return AtField("chat", ids.status());
      return ids;
    }
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return Invalid("prompt: is not set; give one of text, token_ids and chat");
}

absl::StatusOr<std::vector<TokenId>> EncodePrompt(const ServedModel& model,
                                                  const v1::GenerateRequest& wire) {
  HYDRANT_ASSIGN_OR_RETURN(std::vector<TokenId> prompt, EncodeWhole(model, wire));
  HYDRANT_RETURN_IF_ERROR(Truncate(model, wire, &prompt));
  const bool is_chat = wire.prompt_case() == v1::GenerateRequest::kChat;
  const bool is_text = wire.prompt_case() == v1::GenerateRequest::kText;
  HYDRANT_RETURN_IF_ERROR(CheckPromptLength(model, prompt.size(),
                                            is_chat   ? "chat"
                                            : is_text ? "text"
                                                      : "token_ids"));
  return prompt;
}

// Number of the chat's tokens after the prefix it shares with the same chat without its
// last message.
absl::StatusOr<int64_t> QuestionOfChat(const ServedModel& model, const v1::GenerateRequest& wire,
                                       const std::vector<TokenId>& prompt) {
  if (wire.prompt_case() != v1::GenerateRequest::kChat) {
    return Invalid(
        "cache.question_agnostic: is for chats; of other prompts question_tokens says "
        "where the question begins");
  }
  if (wire.cache().has_question_tokens()) {
    return Invalid(absl::StrCat("cache.question_tokens: ", wire.cache().question_tokens(),
                                " given, but question_agnostic says where the question begins; "
                                "set one of them"));
  }
  v1::Chat context = wire.chat();
  if (context.messages_size() < 2) {
    return Invalid(
        "cache.question_agnostic: the chat has 1 message; at least 2 are needed, for what comes "
        "before the last one is its context");
  }
  context.mutable_messages()->RemoveLast();
  context.set_add_generation_prompt(false);
  const absl::StatusOr<std::string> rendered = RenderChat(model, context, "chat");
  // Some templates require a user message, and the last message may have been the only one.
  if (!rendered.ok()) {
    return Invalid(absl::StrCat("cache.question_agnostic: without its last message, ",
                                rendered.status().message()));
  }
  const absl::StatusOr<std::vector<TokenId>> ids = EncodeChat(model, context, *rendered);
  if (!ids.ok()) return AtField("chat", ids.status());
  const auto shared = std::mismatch(prompt.begin(), prompt.end(), ids->begin(), ids->end()).first;
  return prompt.end() - shared;
}

absl::StatusOr<int64_t> QuestionTokens(const ServedModel& model, const v1::GenerateRequest& wire,
                                       const std::vector<TokenId>& prompt) {
  if (wire.cache().question_agnostic()) return QuestionOfChat(model, wire, prompt);
  return wire.cache().question_tokens();
}

bool IsLiteral(const v1::Chat& chat) {
  return chat.has_parse_special_tokens() && !chat.parse_special_tokens();
}

// Marks the user's text so that Encode() parses no special tokens in it.
void MakeLiteral(const Tokenizer& tokenizer, ChatMessage* message) {
  if (message->content.has_value()) message->content = tokenizer.Literal(*message->content);
  if (message->reasoning.has_value()) message->reasoning = tokenizer.Literal(*message->reasoning);
  for (ToolCall& call : message->tool_calls)
    call.arguments_json = tokenizer.Literal(call.arguments_json);
}

ChatMessage ConvertMessage(const v1::ChatMessage& wire) {
  ChatMessage message{.role = wire.role(), .content = wire.content()};
  // An assistant message with tool calls may have no content.
  if (!wire.has_content() && wire.tool_calls_size() > 0) message.content.reset();
  if (wire.has_reasoning()) message.reasoning = wire.reasoning();
  for (const v1::ToolCall& call : wire.tool_calls())
    message.tool_calls.push_back({call.id(), call.name(), call.arguments_json()});
  if (wire.has_tool_call_id()) message.tool_call_id = wire.tool_call_id();
  if (wire.has_name()) message.name = wire.name();
  return message;
}

absl::Status CheckRequestId(const std::string& id) {
  if (id.empty()) return Invalid("request_id: is empty; leave it unset to have one drawn");
  if (id.size() > kMaxRequestIdBytes) {
    return Invalid(absl::StrCat("request_id: has ", id.size(), " bytes; at most ",
                                kMaxRequestIdBytes, " are allowed"));
  }
  for (const char c : id) {
    if (c < 0x20 || c == 0x7F)
      return Invalid("request_id: holds a control or non-ASCII character; use printable ASCII");
  }
  return absl::OkStatus();
}

}  // namespace

SamplingParams WithDefaults(const SamplingDefaults& defaults) {
  SamplingParams params;
  params.temperature = defaults.temperature.value_or(params.temperature);
  params.top_p = defaults.top_p.value_or(params.top_p);
  params.top_k = defaults.top_k.value_or(params.top_k);
  params.min_p = defaults.min_p.value_or(params.min_p);
  params.repetition_penalty = defaults.repetition_penalty.value_or(params.repetition_penalty);
  return params;
}

absl::Status CheckModelName(const ServedModel& model, const std::string& name) {
  if (name.empty() || name == model.name || name == model.own_name) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("model: this server serves \"", model.name, "\", not \"", name, "\""));
}

absl::StatusOr<std::string> RenderChat(const ServedModel& model, const v1::Chat& chat,
                                       const std::string& field) {
  if (model.chat_template == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("chat prompts are not available: ", model.no_chat_reason,
                     "; send the prompt as text or token_ids"));
  }
  if (chat.messages_size() == 0)
    return Invalid(field + ".messages: is empty; a chat needs at least one message");
  if (chat.continues_context())
    return Invalid(field + ".continues_context: is for Generate with a context");
  Conversation conversation;
  for (int i = 0; i < chat.messages_size(); ++i) {
    if (chat.messages(i).role().empty())
      return Invalid(absl::StrCat(field, ".messages[", i, "].role: is not set"));
    conversation.messages.push_back(ConvertMessage(chat.messages(i)));
    if (!IsLiteral(chat)) continue;
    if (chat.messages(i).content().find(kLiteralMark) != std::string::npos)
      return Invalid(absl::StrCat(field, ".messages[", i, "].content: holds U+FDD0, which is no ",
                                  "character of a text; leave it out"));
    MakeLiteral(*model.tokenizer, &conversation.messages.back());
  }
  if (chat.has_add_generation_prompt())
    conversation.add_generation_prompt = chat.add_generation_prompt();
  if (chat.has_tools_json()) conversation.tools_json = chat.tools_json();
  if (chat.has_template_kwargs_json())
    conversation.template_kwargs_json = chat.template_kwargs_json();
  absl::StatusOr<std::string> text = model.chat_template->Render(conversation);
  if (!text.ok())
    return absl::Status(text.status().code(), absl::StrCat(field, ".", text.status().message()));
  return text;
}

namespace {

// The tokens of `text` after its first `first` bytes. Where byte `first` lies within a token, the
// rest is tokenized alone.
absl::StatusOr<std::vector<TokenId>> EncodeFrom(const ServedModel& model, const v1::Chat& chat,
                                                const std::string& text, size_t first) {
  HYDRANT_ASSIGN_OR_RETURN(const std::vector<TokenId> all, EncodeChat(model, chat, text));
  HYDRANT_ASSIGN_OR_RETURN(const std::vector<TokenId> head,
                           EncodeChat(model, chat, text.substr(0, first)));
  if (head.size() > all.size() || !std::equal(head.begin(), head.end(), all.begin()))
    return EncodeChat(model, chat, text.substr(first));
  return std::vector<TokenId>(all.begin() + static_cast<int64_t>(head.size()), all.end());
}

}  // namespace

// The messages are rendered after two placeholder messages. The template writes the same end of the
// answer whether or not more messages follow, so answer_end is the common prefix of both.
absl::StatusOr<ChatTurn> EncodeTurn(const ServedModel& model, const v1::Chat& chat,
                                    const std::string& field) {
  constexpr std::string_view kQuestion = "What is 1 + 1?", kAnswer = "That makes 2.";
  v1::Chat before = chat;
  before.clear_messages();
  before.clear_continues_context();
  const auto add = [&](const char* role, std::string_view content) {
    v1::ChatMessage* message = before.add_messages();
    message->set_role(role);
    message->set_content(std::string(content));
  };
  add("user", kQuestion);
  add("assistant", kAnswer);
  v1::Chat whole = before;
  whole.mutable_messages()->MergeFrom(chat.messages());
  if (chat.messages_size() == 0)
    return Invalid(field + ".messages: is empty; a chat needs at least one message");
  before.set_add_generation_prompt(false);
  HYDRANT_ASSIGN_OR_RETURN(const std::string ended, RenderChat(model, before, field));
  HYDRANT_ASSIGN_OR_RETURN(const std::string goes_on, RenderChat(model, whole, field));
  const size_t answer = ended.rfind(kAnswer);
  const size_t end = answer + kAnswer.size();
  if (answer == std::string::npos || !goes_on.starts_with(ended.substr(0, end))) {
    return Invalid(field +
                   ".continues_context: this model's chat template writes earlier messages anew "
                   "when others follow; send the whole conversation");
  }
  HYDRANT_RETURN_IF_ERROR(CheckPromptBytes(model, goes_on, field));
  const absl::StatusOr<std::vector<TokenId>> last = EncodeFrom(model, chat, ended, end);
  const absl::StatusOr<std::vector<TokenId>> rest = EncodeFrom(model, chat, goes_on, end);
  if (!last.ok()) return AtField(field, last.status());
  if (!rest.ok()) return AtField(field, rest.status());
  HYDRANT_RETURN_IF_ERROR(CheckPromptLength(model, rest->size(), field));
  const auto messages = std::mismatch(rest->begin(), rest->end(), last->begin(), last->end()).first;
  return ChatTurn{.answer_end = {rest->begin(), messages}, .messages = {messages, rest->end()}};
}

namespace {

// The text of the turn's last message: the template's tokens around it stay alike under two other
// texts, which begin and end differently. Unset if the template refuses these.
std::optional<AskedTokens> AskedOf(const ServedModel& model, v1::Chat chat,
                                   const std::vector<TokenId>& messages) {
  AskedTokens asked = {.begin = 0, .end = std::ssize(messages)};
  for (const char* text : {"1", "A"}) {
    chat.mutable_messages(chat.messages_size() - 1)->set_content(text);
    const absl::StatusOr<ChatTurn> turn = EncodeTurn(model, chat, "chat");
    if (!turn.ok()) return std::nullopt;
    const std::vector<TokenId>& other = turn->messages;
    const auto begin =
        std::mismatch(messages.begin(), messages.end(), other.begin(), other.end()).first;
    const auto end =
        std::mismatch(messages.rbegin(), messages.rend(), other.rbegin(), other.rend()).first;
    asked.begin = std::max<int64_t>(asked.begin, messages.end() - begin);
    asked.end = std::min<int64_t>(asked.end, end - messages.rbegin());
  }
  asked.end = std::min(asked.end, asked.begin);
  return asked;
}

}  // namespace

absl::StatusOr<std::vector<TokenId>> EncodeChat(const ServedModel& model, const v1::Chat& chat,
                                                const std::string& rendered) {
  return model.tokenizer->Encode(
      rendered,
      {.add_special_tokens = false, .parse_special_tokens = true, .has_literals = IsLiteral(chat)});
}

void SetDefaults(const CacheSpec& defaults, v1::Cache* wire) {
  v1::Cache set;
  set.set_cache_policy(defaults.policy);
  if (defaults.max_cache_tokens)
    set.set_max_cache_tokens(static_cast<uint32_t>(*defaults.max_cache_tokens));
  if (defaults.cache_ratio) set.set_cache_ratio(*defaults.cache_ratio);
  if (defaults.min_cache_tokens)
    set.set_min_cache_tokens(static_cast<uint32_t>(*defaults.min_cache_tokens));
  if (defaults.sink_tokens) set.set_sink_tokens(static_cast<uint32_t>(*defaults.sink_tokens));
  if (defaults.protected_window_size)
    set.set_protected_window_size(static_cast<uint32_t>(*defaults.protected_window_size));
  if (defaults.min_retained_mass) set.set_min_retained_mass(*defaults.min_retained_mass);
  set.mutable_params()->insert(defaults.params.begin(), defaults.params.end());
  set.MergeFrom(*wire);
  *wire = std::move(set);
}

OutputOptions OutputOf(const v1::GenerateRequest& wire) {
  OutputOptions output = {.top_logprobs = wire.sampling().logprobs(),
                          .top_prompt_logprobs = wire.sampling().prompt_logprobs()};
  if (wire.sampling().has_n()) output.num_samples = wire.sampling().n();
  if (wire.output().has_stream_interval()) output.stream_interval = wire.output().stream_interval();
  return output;
}

absl::StatusOr<Request> ConvertGenerateRequest(const ServedModel& model,
                                               const v1::GenerateRequest& wire) {
  HYDRANT_RETURN_IF_ERROR(CheckModelName(model, wire.model()));
  HYDRANT_RETURN_IF_ERROR(CheckSamples(wire));
  Request request;
  if (wire.has_request_id()) {
    HYDRANT_RETURN_IF_ERROR(CheckRequestId(wire.request_id()));
    request.request_id = wire.request_id();
  } else {
    request.request_id = absl::StrCat("r-", absl::Hex(Draw64(), absl::kZeroPad16));
  }
  if (wire.chat().continues_context()) {
    if (!wire.has_context())
      return Invalid("chat.continues_context: needs a context, which the messages follow");
    HYDRANT_ASSIGN_OR_RETURN(ChatTurn turn, EncodeTurn(model, wire.chat(), "chat"));
    if (wire.recall_tokens() > 0) request.asked = AskedOf(model, wire.chat(), turn.messages);
    request.prompt = std::move(turn.messages);
    HYDRANT_RETURN_IF_ERROR(Truncate(model, wire, &request.prompt));
    request.answer_end = std::move(turn.answer_end);
  } else {
    HYDRANT_ASSIGN_OR_RETURN(request.prompt, EncodePrompt(model, wire));
    request.whole_conversation = wire.prompt_case() == v1::GenerateRequest::kChat;
  }
  HYDRANT_ASSIGN_OR_RETURN(request.question_tokens, QuestionTokens(model, wire, request.prompt));
  request.resume_token_ids.assign(wire.resume_token_ids().begin(), wire.resume_token_ids().end());
  HYDRANT_ASSIGN_OR_RETURN(request.sampling, ConvertSampling(model, wire.sampling()));
  if (wire.has_structured_output()) {
    HYDRANT_ASSIGN_OR_RETURN(request.sampling.grammar,
                             CompileGrammar(model, wire.structured_output()));
  }
  request.stopping = ConvertStopping(wire.stopping());
  request.cache = ConvertCache(wire.cache());
  HYDRANT_RETURN_IF_ERROR(ConvertReuse(wire.cache(), &request));
  HYDRANT_RETURN_IF_ERROR(ConvertScheduling(wire.scheduling(), &request));
  request.context = wire.context();
  request.recall_tokens = wire.recall_tokens();
  if (wire.keep()) {
    request.keep_as.created_at = absl::ToUnixSeconds(absl::Now());
    request.keep_as.handle = absl::StrCat("ctx-", absl::Hex(Draw64(), absl::kZeroPad16),
                                          absl::Hex(Draw64(), absl::kZeroPad16));
  }
  if (const uint32_t interval = wire.output().stream_interval();
      wire.output().has_stream_interval() && (interval < 1 || interval > kMaxStreamInterval)) {
    return Invalid(absl::StrCat("output.stream_interval: ", interval, " is outside [1, ",
                                kMaxStreamInterval, "]"));
  }
  request.skip_special_tokens =
      !wire.output().has_skip_special_tokens() || wire.output().skip_special_tokens();
  request.report_kept_entries = wire.output().kept_entries();
  return request;
}

namespace {

absl::StatusOr<EmbeddingPooling> ConvertPooling(const v1::EmbedRequest& wire) {
  switch (wire.pooling()) {
    case v1::POOLING_UNSPECIFIED:
    case v1::POOLING_LAST:
      return EmbeddingPooling::kLast;
    case v1::POOLING_MEAN:
      return EmbeddingPooling::kMean;
    default:
      return Invalid(absl::StrCat("pooling: ", wire.pooling(),
                                  " is unknown; one of POOLING_LAST, POOLING_MEAN"));
  }
}

}  // namespace

absl::StatusOr<Request> ConvertEmbedRequest(const ServedModel& model,
                                            const v1::EmbedRequest& wire) {
  HYDRANT_ASSIGN_OR_RETURN(const EmbeddingPooling pooling, ConvertPooling(wire));
  const auto width = static_cast<uint32_t>(model.config.hidden_size);
  if (wire.has_dimensions() && (wire.dimensions() < 1 || wire.dimensions() > width)) {
    return Invalid(absl::StrCat("dimensions: ", wire.dimensions(), " is outside [1, ", width, "]"));
  }
  v1::GenerateRequest prompt;
  if (wire.has_request_id()) prompt.set_request_id(wire.request_id());
  if (wire.has_model()) prompt.set_model(wire.model());
  switch (wire.input_case()) {
    case v1::EmbedRequest::kText:
      prompt.set_text(wire.text());
      if (wire.has_parse_special_tokens())
        prompt.set_parse_special_tokens(wire.parse_special_tokens());
      break;
    case v1::EmbedRequest::kTokenIds:
      *prompt.mutable_token_ids() = wire.token_ids();
      break;
    case v1::EmbedRequest::INPUT_NOT_SET:
      return Invalid("input: is not set; give one of text and token_ids");
  }
  HYDRANT_ASSIGN_OR_RETURN(Request request, ConvertGenerateRequest(model, prompt));
  request.pooling = pooling;
  request.stopping.max_tokens = 1;
  request.cache.policy = "local";
  request.cache.max_cache_tokens = 1;
  return request;
}

std::vector<float> ConvertEmbedding(const v1::EmbedRequest& wire, std::vector<float> embedding) {
  if (wire.has_dimensions()) embedding.resize(wire.dimensions());
  if (wire.has_normalize() && !wire.normalize()) return embedding;
  double squares = 0.0;
  for (const float value : embedding) squares += double{value} * value;
  const double length = std::sqrt(squares);
  for (float& value : embedding) value = length > 0.0 ? static_cast<float>(value / length) : 0.0f;
  return embedding;
}

absl::StatusOr<v1::TokenizeResponse> Tokenize(const ServedModel& model,
                                              const v1::TokenizeRequest& wire) {
  HYDRANT_RETURN_IF_ERROR(CheckModelName(model, wire.model()));
  v1::TokenizeResponse response;
  absl::StatusOr<std::vector<TokenId>> ids;
  switch (wire.input_case()) {
    case v1::TokenizeRequest::kText: {
      EncodeOptions options;
      if (wire.has_add_special_tokens()) options.add_special_tokens = wire.add_special_tokens();
      if (wire.has_parse_special_tokens())
        options.parse_special_tokens = wire.parse_special_tokens();
      ids = model.tokenizer->Encode(wire.text(), options);
      if (!ids.ok()) return AtField("text", ids.status());
      break;
    }
    case v1::TokenizeRequest::kChat: {
      HYDRANT_ASSIGN_OR_RETURN(std::string rendered, RenderChat(model, wire.chat(), "chat"));
      ids = EncodeChat(model, wire.chat(), rendered);
      if (!ids.ok()) return AtField("chat", ids.status());
      if (IsLiteral(wire.chat()))
        rendered = absl::StrReplaceAll(rendered, {{std::string(kLiteralMark), ""}});
      response.set_rendered_chat(rendered);
      break;
    }
    case v1::TokenizeRequest::INPUT_NOT_SET:
      return Invalid("input: is not set; give one of text and chat");
  }
  response.mutable_token_ids()->Assign(ids->begin(), ids->end());
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> Detokenize(const ServedModel& model,
                                                  const v1::DetokenizeRequest& wire) {
  HYDRANT_RETURN_IF_ERROR(CheckModelName(model, wire.model()));
  HYDRANT_RETURN_IF_ERROR(CheckTokenIds(model, wire.token_ids(), "token_ids"));
  const bool skip_special = !wire.has_skip_special_tokens() || wire.skip_special_tokens();
  v1::DetokenizeResponse response;
  response.set_text(
      Decode(*model.tokenizer, {wire.token_ids().begin(), wire.token_ids().end()}, skip_special));
  return response;
}

}  // namespace hydrant
