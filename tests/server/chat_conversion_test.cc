// A chat on the wire to the text that the model's template makes of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/request_conversion.h"

namespace hydrant {
namespace {

using ::testing::StartsWith;

constexpr char kTemplate[] =
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'critic' %}{{ raise_exception('no critics') }}"
    "{% endif %}{{ m | tojson }}\n{% endfor %}"
    "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"
    "{% if add_generation_prompt %}>{% endif %}";

class ChatConversion : public ::testing::Test {
 protected:
  ChatConversion() {
    template_ = *MakeChatTemplate({{{"default", kTemplate}}, {}});
    model_.chat_template = template_.get();
  }
  v1::ChatMessage* Add(const std::string& role) {
    v1::ChatMessage* message = chat_.add_messages();
    message->set_role(role);
    return message;
  }
  std::string Text() {
    const auto text = RenderChat(model_, chat_, "chat");
    EXPECT_TRUE(text.ok()) << text.status();
    return text.value_or("");
  }
  std::string Error() {
    const absl::Status status = RenderChat(model_, chat_, "chat").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  std::unique_ptr<ChatTemplate> template_;
  ServedModel model_;
  v1::Chat chat_;
};

TEST_F(ChatConversion, EveryField) {
  chat_.set_tools_json(R"([{"type": "function"}])");
  chat_.set_template_kwargs_json(R"({"enable_thinking": true})");
  Add("user")->set_content("Hi");
  v1::ChatMessage* call = Add("assistant");
  call->set_reasoning("hm");
  v1::ToolCall* tool_call = call->add_tool_calls();
  tool_call->set_id("c1");
  tool_call->set_name("f");
  tool_call->set_arguments_json(R"({"a": 1})");
  v1::ChatMessage* result = Add("tool");
  result->set_content("42");
  result->set_tool_call_id("c1");
  result->set_name("f");
  EXPECT_EQ(Text(),
            "[{\"type\": \"function\"}]\n"
            "{\"role\": \"user\", \"content\": \"Hi\"}\n"
            "{\"role\": \"assistant\", \"reasoning_content\": \"hm\", \"thinking\": \"hm\", "
            "\"tool_calls\": [{\"id\": \"c1\", \"type\": \"function\", \"function\": {\"name\": "
            "\"f\", \"arguments\": {\"a\": 1}}}]}\n"
            "{\"role\": \"tool\", \"content\": \"42\", \"tool_call_id\": \"c1\", \"name\": "
            "\"f\"}\nTrue>");
}

TEST_F(ChatConversion, WhatIsUnset) {
  Add("user");
  chat_.set_add_generation_prompt(false);
  EXPECT_EQ(Text(), "{\"role\": \"user\", \"content\": \"\"}\n");
}

TEST_F(ChatConversion, ErrorsBeginWithTheField) {
  Add("user")->set_content("Hi");
  chat_.set_tools_json("[1]");
  EXPECT_EQ(Error(), "chat.tools_json[0]: must be a JSON object");
  chat_.set_tools_json("[");
  EXPECT_THAT(Error(), StartsWith("chat.tools_json: is not JSON at byte "));
  chat_.clear_tools_json();
  chat_.set_template_kwargs_json("[]");
  EXPECT_EQ(Error(), "chat.template_kwargs_json: must be a JSON object");
  chat_.clear_template_kwargs_json();
  Add("assistant")->add_tool_calls()->set_arguments_json("3");
  EXPECT_EQ(Error(), "chat.messages[1].tool_calls[0].arguments_json: must be a JSON object");
  chat_.mutable_messages()->RemoveLast();
  Add("critic");
  EXPECT_EQ(Error(), "chat.messages: the model's chat template refuses them: no critics");
}

}  // namespace
}  // namespace hydrant
