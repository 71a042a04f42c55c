#include "engine/tokenizer/chat_families.h"

#include <array>

#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/utf8.h"

namespace hydrant {
namespace {

using Messages = std::span<const ChatMessage>;

// Python's str.strip(): White_Space and the four information separators. REQUIRES: valid UTF-8.
std::string Strip(std::string_view text) {
  const auto is_space = [](char32_t c) { return IsWhiteSpace(c) || (c >= 0x1C && c <= 0x1F); };
  while (!text.empty()) {
    const Utf8Front front = ReadUtf8(text);
    if (!is_space(front.code_point)) break;
    text.remove_prefix(front.length);
  }
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && (static_cast<uint8_t>(text[last]) & 0xC0) == 0x80) --last;
    if (!is_space(ReadUtf8(text.substr(last)).code_point)) break;
    text = text.substr(0, last);
  }
  return std::string(text);
}

std::string ChatmlTurn(const std::string& role, const std::string& content) {
  return "<|im_start|>" + role + "\n" + content + "<|im_end|>\n";
}

std::string Chatml(const ChatContext&, Messages messages, bool add_generation_prompt) {
  std::string text;
  for (const ChatMessage& message : messages) text += ChatmlTurn(message.role, message.content);
  return add_generation_prompt ? text + "<|im_start|>assistant\n" : text;
}

std::string ChatmlWithDefault(const ChatContext& context, Messages messages,
                              bool add_generation_prompt) {
  std::string text;
  if (messages[0].role != "system") text = ChatmlTurn("system", context.default_system);
  return text + Chatml(context, messages, add_generation_prompt);
}

std::string Llama2(const ChatContext& context, Messages messages, bool) {
  std::string system, text;
  if (messages[0].role == "system") {
    system = "<<SYS>>\n" + messages[0].content + "\n<</SYS>>\n\n";
    messages = messages.subspan(1);
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string content = Strip((i == 0 ? system : "") + messages[i].content);
    text += messages[i].role == "user" ? context.bos + "[INST] " + content + " [/INST]"
                                       : " " + content + " " + context.eos;
  }
  return text;
}

std::string Llama3(const ChatContext& context, Messages messages, bool add_generation_prompt) {
  std::string text = context.bos;
  for (const ChatMessage& message : messages) {
    text += "<|start_header_id|>" + message.role + "<|end_header_id|>\n\n" +
            Strip(message.content) + "<|eot_id|>";
  }
  return add_generation_prompt ? text + "<|start_header_id|>assistant<|end_header_id|>\n\n" : text;
}

std::string MistralWith(const ChatContext& context, Messages messages, const char* after_answer) {
  std::string text = context.bos;
  for (const ChatMessage& message : messages) {
    text += message.role == "user" ? "[INST] " + message.content + " [/INST]"
                                   : message.content + context.eos + after_answer;
  }
  return text;
}

std::string Mistral(const ChatContext& context, Messages messages, bool) {
  return MistralWith(context, messages, "");
}

std::string MistralFirst(const ChatContext& context, Messages messages, bool) {
  return MistralWith(context, messages, " ");
}

std::string Zephyr(const ChatContext& context, Messages messages, bool add_generation_prompt) {
  std::string text;
  for (const ChatMessage& message : messages) {
    text += "<|" + message.role + "|>\n" + message.content + context.eos + "\n";
  }
  return add_generation_prompt ? text + "<|assistant|>\n" : text;
}

std::string Gemma(const ChatContext& context, Messages messages, bool add_generation_prompt) {
  std::string text = context.bos;
  for (const ChatMessage& message : messages) {
    const std::string role = message.role == "assistant" ? "model" : message.role;
    text += "<start_of_turn>" + role + "\n" + Strip(message.content) + "<end_of_turn>\n";
  }
  return add_generation_prompt ? text + "<start_of_turn>model\n" : text;
}

std::string Phi3First(const ChatContext& context, Messages messages, bool) {
  std::string text = context.bos;
  for (const ChatMessage& message : messages) {
    text += message.role == "user" ? "<|user|>\n" + message.content + "<|end|>\n<|assistant|>\n"
                                   : message.content + "<|end|>\n";
  }
  return text;
}

std::string Phi3(const ChatContext& context, Messages messages, bool add_generation_prompt) {
  std::string text;
  for (const ChatMessage& message : messages)
    text += "<|" + message.role + "|>\n" + message.content + "<|end|>\n";
  return text + (add_generation_prompt ? "<|assistant|>\n" : context.eos);
}

constexpr std::string_view kChatml =
    R"({% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";

// SmolLM2, Qwen2.
constexpr std::string_view kChatmlWithDefault =
    R"({% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n@SYSTEM@<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";

constexpr std::string_view kQwen25 = R"({%- if tools %}@TOOLS@{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\n@SYSTEM@<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}@TOOLS@{%- elif message.role == "tool" %}@TOOLS@{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %})";

constexpr std::string_view kLlama2 =
    R"({% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %})";

constexpr std::string_view kLlama3 =
    R"({% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %})";

constexpr std::string_view kMistral =
    R"({{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %})";

constexpr std::string_view kMistralFirst =
    R"({{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %})";

constexpr std::string_view kZephyr = R"({% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %})";

constexpr std::string_view kGemma =
    R"({{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %})";

constexpr std::string_view kPhi3First =
    R"({{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') %}{{'<|user|>' + '\n' + message['content'] + '<|end|>' + '\n' + '<|assistant|>' + '\n'}}{% elif (message['role'] == 'assistant') %}{{message['content'] + '<|end|>' + '\n'}}{% endif %}{% endfor %})";

constexpr std::string_view kPhi3 =
    R"({% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %})";

constexpr std::array<ChatFamily, 11> kFamilies = {{
    {"chatml", kChatml, false, true, Chatml},
    {"chatml", kChatmlWithDefault, false, true, ChatmlWithDefault},
    {"chatml", kQwen25, false, true, ChatmlWithDefault},
    {"llama2", kLlama2, true, true, Llama2},
    {"llama3", kLlama3, false, true, Llama3},
    {"mistral", kMistral, true, false, Mistral},
    {"mistral", kMistralFirst, true, false, MistralFirst},
    {"zephyr", kZephyr, false, true, Zephyr},
    {"gemma", kGemma, true, false, Gemma},
    {"phi3", kPhi3First, false, false, Phi3First},
    {"phi3", kPhi3, false, true, Phi3},
}};

}  // namespace

std::span<const ChatFamily> KnownChatFamilies() { return kFamilies; }

}  // namespace hydrant
