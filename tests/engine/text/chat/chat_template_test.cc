// Compares conversations rendered with a model's own template with transformers' rendering.
#include "engine/text/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/model/gguf.h"
#include "engine/text/chat/chat_template_files.h"
#include "tests/engine/text/tokenizer/golden_lines.h"

namespace hydrant {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Template(const std::string& name) {
  return testing::ReadTestFile(std::string(testing::kGoldenFolder) + "templates/" + name);
}

std::tm FixedTime() {
  std::tm now = {};
  now.tm_year = 124;
  now.tm_mon = 6;
  now.tm_mday = 26;
  return now;
}

std::unique_ptr<ChatTemplate> Make(const std::map<std::string, std::string>& templates,
                                   const std::map<std::string, std::string>& tokens = {
                                       {"bos_token", "<s>"}, {"eos_token", "</s>"}}) {
  auto made = MakeChatTemplate({templates, tokens}, FixedTime);
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *std::move(made) : nullptr;
}

std::string Render(const std::string& source, const Conversation& conversation) {
  const auto chat = Make({{"default", source}});
  if (chat == nullptr) return "";
  const auto text = chat->Render(conversation);
  return text.ok() ? *text : std::string(text.status().message());
}

TEST(ChatTemplate, RendersAsTransformers) {
  const json cases =
      json::parse(testing::ReadTestFile(std::string(testing::kGoldenFolder) + "chat_goldens.json"));
  int rendered = 0;
  for (const json& item : cases) {
    const auto name = item["template"].get<std::string>();
    const auto chat = Make({{"default", Template(name)}});
    ASSERT_NE(chat, nullptr) << name;
    Conversation conversation{.messages = {}, .add_generation_prompt = item["prompt"].get<bool>()};
    for (const json& message : item["messages"]) {
      conversation.messages.push_back(
          {message["role"].get<std::string>(), message["content"].get<std::string>()});
    }
    const auto text = chat->Render(conversation);
    if (item["text"].is_null()) {  // the template raises an exception
      EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument)
          << name << item["messages"];
      continue;
    }
    ASSERT_TRUE(text.ok()) << name << item["messages"] << text.status();
    EXPECT_EQ(*text, item["text"].get<std::string>()) << name;
    ++rendered;
  }
  EXPECT_GT(rendered, 130);
}

TEST(ChatTemplate, TheWordsOfATemplateThatRefuses) {
  const auto chat = Make({{"default", Template("gemma.jinja")}});
  const auto text = chat->Render({.messages = {{"system", "Be brief."}, {"user", "Hi"}}});
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(text.status().message(),
            "messages: the model's chat template refuses them: System role not supported");
}

TEST(ChatTemplate, ToolsCallsAndResults) {
  const std::string source =
      "{% for tool in tools %}[{{ tool.function.name }}]{% endfor %}"
      "{% for m in messages %}{{ m.role }}:{{ m.content }}"
      "{% if m.reasoning_content %}<{{ m.reasoning_content }}|{{ m.thinking }}>{% endif %}"
      "{% for c in m.tool_calls %}{{ c | tojson }}{% endfor %}"
      "{% if m.tool_call_id is defined %}({{ m.tool_call_id }},{{ m.name }}){% endif %};"
      "{% endfor %}{{ enable_thinking }}";
  Conversation chat;
  chat.messages.push_back({"user", "Hi"});
  chat.messages.push_back({.role = "assistant", .content = std::nullopt, .reasoning = "hm"});
  chat.messages.back().tool_calls = {{"c1", "f", R"({"b": 1.0, "a": ["ü", null]})"}, {"", "g", ""}};
  chat.messages.push_back({"tool", "42"});
  chat.messages.back().tool_call_id = "c1";
  chat.messages.back().name = "f";
  chat.tools_json = R"([{"type": "function", "function": {"name": "f"}}])";
  chat.template_kwargs_json = R"({"enable_thinking": false})";
  EXPECT_EQ(Render(source, chat),
            "[f]user:Hi;assistant:<hm|hm>"
            R"({"id": "c1", "type": "function", "function": {"name": "f", "arguments": )"
            R"({"b": 1.0, "a": ["ü", null]}}})"
            R"({"type": "function", "function": {"name": "g", "arguments": {}}})"
            ";tool:42(c1,f);False");
}

TEST(ChatTemplate, ToolUseIsForConversationsWithTools) {
  const auto chat = Make({{"default", "D"}, {"tool_use", "T{{ tools|length }}"}, {"rag", "R"}});
  EXPECT_EQ(chat->Names(), "default, rag, tool_use");
  Conversation conversation{.messages = {{"user", "Hi"}}};
  EXPECT_EQ(*chat->Render(conversation), "D");
  conversation.tools_json = "[]";
  EXPECT_EQ(*chat->Render(conversation), "T0");
}

TEST(ChatTemplate, VariablesOfATemplate) {
  const Conversation chat{.messages = {{"user", "Hi"}}};
  EXPECT_EQ(Render("{{ bos_token }}{{ pad_token is defined }}{{ tools is none }}"
                   "{{ documents is none }}{{ add_generation_prompt }}"
                   "{{ strftime_now('%d %b %Y') }}",
                   chat),
            "<s>FalseTrueTrueTrue26 Jul 2024");
}

TEST(ChatTemplate, WrongFieldsAreNamed) {
  const auto error = [](const Conversation& chat) { return Render("{{ messages }}", chat); };
  EXPECT_THAT(error({}), StartsWith("messages: is empty"));
  Conversation chat{.messages = {{"user", "a"}, {"user", "\xFF"}}};
  EXPECT_THAT(error(chat), StartsWith("messages[1].content: "));
  chat.messages[1] = {"assistant", "b"};
  chat.messages[1].tool_calls = {{"", "f", "{}"}, {"", "g", "[1]"}};
  EXPECT_THAT(error(chat), StartsWith("messages[1].tool_calls[1].arguments_json: must be a JSON"));
  chat.messages[1].tool_calls[1].arguments_json = "{\"a\": }";
  EXPECT_THAT(error(chat), StartsWith("messages[1].tool_calls[1].arguments_json: is not JSON at "));
  chat.messages[1].tool_calls.clear();
  chat.tools_json = "{}";
  EXPECT_THAT(error(chat), StartsWith("tools_json: must be a JSON array"));
  chat.tools_json = "[{}, 1]";
  EXPECT_THAT(error(chat), StartsWith("tools_json[1]: must be a JSON object"));
  chat.tools_json = std::string(60, '[') + std::string(60, ']');
  EXPECT_THAT(error(chat), StartsWith("tools_json: has nesting deeper than 50"));
  chat.tools_json = "[" + std::string(5 << 20, ' ') + "]";
  EXPECT_THAT(error(chat), HasSubstr("tools_json: the chat's JSON has more than 4194304 bytes"));
  chat.tools_json.reset();
  chat.template_kwargs_json = R"({"messages": []})";
  EXPECT_THAT(error(chat), StartsWith("template_kwargs_json: sets messages"));
}

TEST(ChatTemplate, AWrongTemplateIsRefusedByNameAndLine) {
  const auto message = [](const std::map<std::string, std::string>& templates) {
    return std::string(MakeChatTemplate({templates, {}}).status().message());
  };
  EXPECT_EQ(message({{"default", "a\n{{ secret_sauce(messages) }}"}}),
            "the chat template 'default': line 2: no function named 'secret_sauce'");
  EXPECT_EQ(message({{"default", ""}, {"tool_use", "{{ x|wobble }}"}}),
            "the chat template 'tool_use': line 1: no filter named 'wobble'");
  EXPECT_THAT(message({{"rag", ""}}), HasSubstr("none is named \"default\""));
}

class ChatTemplateFolder : public ::testing::Test {
 protected:
  ChatTemplateFolder() {
    std::filesystem::create_directories(folder_ + "/additional_chat_templates");
  }
  ~ChatTemplateFolder() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
  }

  const std::string folder_ = ::testing::TempDir() + "/chat_template_test." +
                              ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(ChatTemplateFolder, HasNone) {
  EXPECT_EQ(ReadChatTemplates(folder_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ChatTemplateFolder, NamesSeveralInItsConfiguration) {
  Write("tokenizer_config.json", R"({"bos_token": {"content": "<b>"}, "eos_token": "<e>",
      "unk_token": null, "chat_template": [{"name": "default", "template": "D"},
      {"name": "tool_use", "template": "T"}]})");
  Write("special_tokens_map.json", R"({"eos_token": "<other>", "pad_token": "<p>"})");
  const auto source = ReadChatTemplates(folder_);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->templates,
            (std::map<std::string, std::string>{{"default", "D"}, {"tool_use", "T"}}));
  EXPECT_EQ(source->special_tokens,
            (std::map<std::string, std::string>{
                {"bos_token", "<b>"}, {"eos_token", "<e>"}, {"pad_token", "<p>"}}));
}

TEST_F(ChatTemplateFolder, FilesComeFirst) {
  Write("tokenizer_config.json", R"({"chat_template": "old"})");
  Write("chat_template.jinja", "new");
  Write("additional_chat_templates/tool_use.jinja", "T");
  const auto source = ReadChatTemplates(folder_);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->templates,
            (std::map<std::string, std::string>{{"default", "new"}, {"tool_use", "T"}}));
}

}  // namespace
}  // namespace hydrant
