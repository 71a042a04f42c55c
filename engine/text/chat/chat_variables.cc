#include "engine/text/chat/chat_variables.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/json.h"
#include "engine/text/unicode/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using jinja::Dict;
using jinja::Value;

absl::Status AtField(const std::string& field, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", std::string(what)));
}

Value ListOf(std::vector<Value> items) {
  return Value(std::make_shared<jinja::Sequence>(jinja::Sequence::Kind::kList, std::move(items)));
}

Value ValueOf(Dict dict) { return Value(std::make_shared<const Dict>(std::move(dict))); }

absl::StatusOr<Value> TextOf(const std::string& field, const std::string& text) {
  if (const absl::Status valid = ValidateUtf8(text); !valid.ok())
    return AtField(field, std::string(valid.message()));
  return Value::String(text);
}

// Reads the JSON fields of one conversation, and counts their bytes.
class JsonReader {
 public:
  explicit JsonReader(const jinja::Limits& limits) : limits_(limits) {}

  absl::StatusOr<Value> Read(const std::string& field, const std::string& text) {
    bytes_ += text.size();
    if (bytes_ > kMaxChatJsonBytes) {
      return AtField(field, absl::StrCat("the chat's JSON has more than ", kMaxChatJsonBytes,
                                         " bytes up to here; shorten it"));
    }
    absl::StatusOr<Value> value = jinja::ParseJson(text, limits_);
    if (!value.ok()) return AtField(field, std::string(value.status().message()));
    return value;
  }

  absl::StatusOr<Value> ReadObject(const std::string& field, const std::string& text) {
    HYDRANT_ASSIGN_OR_RETURN(Value value, Read(field, text));
    if (value.AsDict() == nullptr) return AtField(field, "must be a JSON object");
    return value;
  }

  absl::StatusOr<Value> ReadObjects(const std::string& field, const std::string& text) {
    HYDRANT_ASSIGN_OR_RETURN(Value value, Read(field, text));
    if (value.AsSequence() == nullptr) return AtField(field, "must be a JSON array of objects");
    const std::vector<Value>& items = value.AsSequence()->items();
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].AsDict() == nullptr)
        return AtField(absl::StrCat(field, "[", i, "]"), "must be a JSON object");
    }
    return value;
  }

 private:
  const jinja::Limits limits_;
  size_t bytes_ = 0;
};

absl::StatusOr<Value> ToolCallOf(const std::string& field, const ToolCall& call,
                                 JsonReader* reader) {
  Dict function, dict;
  HYDRANT_ASSIGN_OR_RETURN(Value name, TextOf(field + ".name", call.name));
  function.Set("name", std::move(name));
  const std::string& json = call.arguments_json;
  HYDRANT_ASSIGN_OR_RETURN(
      Value arguments, reader->ReadObject(field + ".arguments_json", json.empty() ? "{}" : json));
  function.Set("arguments", std::move(arguments));
  if (!call.id.empty()) {
    HYDRANT_ASSIGN_OR_RETURN(Value id, TextOf(field + ".id", call.id));
    dict.Set("id", std::move(id));
  }
  dict.Set("type", Value::String("function"));
  dict.Set("function", ValueOf(std::move(function)));
  return ValueOf(std::move(dict));
}

absl::Status SetText(const std::string& field, const std::string& key,
                     const std::optional<std::string>& text, Dict* dict) {
  if (!text.has_value()) return absl::OkStatus();
  HYDRANT_ASSIGN_OR_RETURN(Value value, TextOf(absl::StrCat(field, ".", key), *text));
  dict->Set(key, std::move(value));
  return absl::OkStatus();
}

absl::StatusOr<Value> MessageOf(const std::string& field, const ChatMessage& message,
                                JsonReader* reader) {
  Dict dict;
  HYDRANT_RETURN_IF_ERROR(SetText(field, "role", message.role, &dict));
  HYDRANT_RETURN_IF_ERROR(SetText(field, "content", message.content, &dict));
  if (message.reasoning.has_value()) {
    // Under both names, as in transformers: templates differ in the one they read.
    HYDRANT_ASSIGN_OR_RETURN(const Value reasoning,
                             TextOf(field + ".reasoning", *message.reasoning));
    dict.Set("reasoning_content", reasoning);
    dict.Set("thinking", reasoning);
  }
  std::vector<Value> calls;
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    HYDRANT_ASSIGN_OR_RETURN(Value call, ToolCallOf(absl::StrCat(field, ".tool_calls[", i, "]"),
                                                    message.tool_calls[i], reader));
    calls.push_back(std::move(call));
  }
  if (!calls.empty()) dict.Set("tool_calls", ListOf(std::move(calls)));
  HYDRANT_RETURN_IF_ERROR(SetText(field, "tool_call_id", message.tool_call_id, &dict));
  HYDRANT_RETURN_IF_ERROR(SetText(field, "name", message.name, &dict));
  return ValueOf(std::move(dict));
}

absl::Status AddKeywords(const Conversation& conversation, JsonReader* reader, Dict* variables) {
  if (!conversation.template_kwargs_json.has_value()) return absl::OkStatus();
  const std::string field = "template_kwargs_json";
  HYDRANT_ASSIGN_OR_RETURN(const Value keywords,
                           reader->ReadObject(field, *conversation.template_kwargs_json));
  for (const auto& [name, value] : keywords.AsDict()->entries()) {
    for (const char* taken : {"messages", "tools", "add_generation_prompt"}) {
      if (name.AsString() == taken)
        return AtField(field, absl::StrCat("sets ", taken, ", which has a field of its own"));
    }
    variables->Set(name, value);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Dict> ChatVariables(const Conversation& conversation,
                                   const std::map<std::string, std::string>& special_tokens,
                                   const jinja::Limits& limits) {
  JsonReader reader(limits);
  Dict variables;
  for (const auto& [name, text] : special_tokens) variables.Set(name, Value::String(text));
  variables.Set("documents", Value(jinja::None{}));
  HYDRANT_RETURN_IF_ERROR(AddKeywords(conversation, &reader, &variables));
  Value tools(jinja::None{});
  if (conversation.tools_json.has_value()) {
    HYDRANT_ASSIGN_OR_RETURN(tools, reader.ReadObjects("tools_json", *conversation.tools_json));
  }
  variables.Set("tools", std::move(tools));
  std::vector<Value> messages;
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    HYDRANT_ASSIGN_OR_RETURN(Value message, MessageOf(absl::StrCat("messages[", i, "]"),
                                                      conversation.messages[i], &reader));
    messages.push_back(std::move(message));
  }
  variables.Set("messages", ListOf(std::move(messages)));
  variables.Set("add_generation_prompt", Value(conversation.add_generation_prompt));
  return variables;
}

}  // namespace hydrant
