// Chat templates against transformers' rendering of the same Jinja texts.
#include "engine/tokenizer/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/engine/tokenizer/golden_lines.h"

namespace hydrant {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string Template(const std::string& name) {
  return testing::ReadTestFile(std::string(testing::kGoldenFolder) + "templates/" + name);
}

TEST(ChatTemplate, RendersAsTransformers) {
  const json cases =
      json::parse(testing::ReadTestFile(std::string(testing::kGoldenFolder) + "chat_goldens.json"));
  int rendered = 0;
  for (const json& item : cases) {
    const auto name = item["template"].get<std::string>();
    auto chat = RecogniseChatTemplate(Template(name), "<s>", "</s>");
    ASSERT_TRUE(chat.ok()) << name << ": " << chat.status();
    std::vector<ChatMessage> messages;
    for (const json& message : item["messages"])
      messages.push_back({message["role"], message["content"]});
    auto text = (*chat)->Render(messages, item["prompt"].get<bool>());
    if (item["text"].is_null()) {  // the template raises an exception
      EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument)
          << name << item["messages"];
    } else if (text.ok()) {
      EXPECT_EQ(*text, item["text"].get<std::string>()) << name;
      ++rendered;
    } else {
      // Refused though the template accepts it: a system message that it would drop, or that stands
      // in an assistant's place.
      const bool late_system = messages.size() > 1 && messages[1].role == "system";
      EXPECT_TRUE(name == "phi3_first.jinja" ||
                  ((name == "gemma.jinja" || name == "llama2.jinja") && late_system))
          << name << ": " << text.status() << item["messages"];
    }
  }
  EXPECT_GT(rendered, 100);
}

TEST(ChatTemplate, SpellingDoesNotMatter) {
  const std::string spelled =
      "{%- for message in messages -%}\n  {{- \"<|im_start|>\" + message.role + \"\\n\" + "
      "message.content +"
      " '<|im_end|>\\n' -}}\n{%- endfor -%}\n{%- if add_generation_prompt -%}\n {{- "
      "'<|im_start|>assistant\\n' -}}\n"
      "{%- endif -%}";
  auto chat = RecogniseChatTemplate(spelled, "", "");
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ((*chat)->Family(), "chatml");
  EXPECT_EQ(*(*chat)->Render({{"user", "Hi"}}, true),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, AnyChangeOfMeaningIsRefused) {
  for (const char* name :
       {"chatml.jinja", "smollm2.jinja", "llama3.jinja", "zephyr.jinja", "qwen2_5.jinja"}) {
    const std::string source = Template(name);
    for (const std::string& changed :
         {source + "{{ eos_token }}", "{{ bos_token }}" + source, source + " ", "x" + source,
          source.substr(0, source.size() / 2)}) {
      EXPECT_EQ(RecogniseChatTemplate(changed, "", "").status().code(),
                absl::StatusCode::kUnimplemented)
          << name;
    }
  }
}

TEST(ChatTemplate, UnknownIsQuoted) {
  const auto chat = RecogniseChatTemplate("{{ secret_sauce(messages) }}", "", "");
  EXPECT_EQ(chat.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(chat.status().message()), HasSubstr("secret_sauce"));
}

TEST(ChatTemplate, BadMessagesAreNamed) {
  auto chat = RecogniseChatTemplate(Template("gemma.jinja"), "<bos>", "<eos>");
  ASSERT_TRUE(chat.ok());
  const auto message = [&](const std::vector<ChatMessage>& messages) {
    return std::string((*chat)->Render(messages, true).status().message());
  };
  EXPECT_THAT(message({}), HasSubstr("messages"));
  EXPECT_THAT(message({{"user", "a"}, {"tool", "b"}}), HasSubstr("messages[1]"));
  EXPECT_THAT(message({{"system", "a"}}), HasSubstr("takes no system message"));
  EXPECT_THAT(message({{"user", "a"}, {"user", "b"}}), HasSubstr("by turns"));
  EXPECT_THAT(message({{"user", "\xFF"}}), HasSubstr("byte 0"));
}

}  // namespace
}  // namespace hydrant
