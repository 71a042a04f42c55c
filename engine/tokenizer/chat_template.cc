#include "engine/tokenizer/chat_template.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "engine/tokenizer/chat_families.h"
#include "engine/tokenizer/jinja_canonical.h"
#include "engine/tokenizer/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr std::string_view kSystem = "@SYSTEM@", kTools = "@TOOLS@";
constexpr size_t kMaxTemplateBytes = 1 << 20;

size_t Count(std::string_view text, std::string_view word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1))
    ++count;
  return count;
}

// A tools part may hold anything that opens and closes its own blocks.
bool IsBalanced(std::string_view part) {
  const std::string open(1, kTagOpen);
  return Count(part, open + "if") == Count(part, open + "endif") &&
         Count(part, open + "for") == Count(part, open + "endfor");
}

// Matches canonical forms; `*system` receives what stands for @SYSTEM@.
bool MatchesFamily(std::string_view text, std::string_view pattern, std::string* system) {
  const size_t at_system = pattern.find(kSystem), at_tools = pattern.find(kTools);
  const size_t at = std::min(at_system, at_tools);
  if (at == std::string_view::npos) return text == pattern;
  if (text.substr(0, at) != pattern.substr(0, at)) return false;
  text.remove_prefix(at);
  const bool is_system = at == at_system;
  const std::string_view rest = pattern.substr(at + (is_system ? kSystem : kTools).size());
  for (size_t length = 0; length <= text.size(); ++length) {
    if (is_system && length > 0 && text[length - 1] == kTagOpen) return false;  // plain text only
    if (!is_system && !IsBalanced(text.substr(0, length))) continue;
    // The next literal character decides quickly in almost every case.
    if (!rest.empty() && (length >= text.size() || text[length] != rest[0])) continue;
    if (!MatchesFamily(text.substr(length), rest, system)) continue;
    if (is_system) *system = std::string(text.substr(0, length));
    return true;
  }
  return false;
}

class FamilyTemplate final : public ChatTemplate {
 public:
  FamilyTemplate(const ChatFamily& family, ChatContext context)
      : family_(family), context_(std::move(context)) {}

  std::string_view Family() const override { return family_.name; }

  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages,
                                     bool add_generation_prompt) const override {
    HYDRANT_RETURN_IF_ERROR(Check(messages));
    return family_.render(context_, messages, add_generation_prompt);
  }

 private:
  absl::Status Check(const std::vector<ChatMessage>& messages) const {
    if (messages.empty()) return absl::InvalidArgumentError("messages: there are none");
    const size_t skip =
        family_.alternates && family_.takes_system && messages[0].role == "system" ? 1 : 0;
    if (skip == messages.size())
      return absl::InvalidArgumentError("messages: a user message is missing");
    for (size_t i = 0; i < messages.size(); ++i) {
      const std::string& role = messages[i].role;
      const auto fail = [&](const std::string& what) {
        return absl::InvalidArgumentError(absl::StrCat("messages[", i, "]: ", what));
      };
      if (role != "system" && role != "user" && role != "assistant") {
        return fail(absl::StrCat("role \"", role, "\" is not system, user or assistant"));
      }
      if (role == "system" && !family_.takes_system) {
        return fail(
            absl::StrCat("the ", std::string(family_.name), " template takes no system message"));
      }
      if (family_.alternates && i >= skip && role != ((i - skip) % 2 == 0 ? "user" : "assistant")) {
        return fail(absl::StrCat("role \"", role, "\"; the ", std::string(family_.name),
                                 " template wants user and assistant by turns"));
      }
      if (const absl::Status status = ValidateUtf8(messages[i].content); !status.ok()) {
        return fail(absl::StrCat("content: ", status.message()));
      }
    }
    return absl::OkStatus();
  }

  const ChatFamily& family_;  // one of a constant table
  const ChatContext context_;
};

std::string Beginning(std::string_view source) {
  std::string quoted;
  for (const char c : source.substr(0, 160)) quoted += static_cast<uint8_t>(c) < 0x20 ? ' ' : c;
  std::string clean;
  DrainUtf8(/*at_end=*/true, &quoted, &clean);
  return clean;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> RecogniseChatTemplate(std::string_view source,
                                                                    std::string_view bos,
                                                                    std::string_view eos) {
  const absl::Status unknown = absl::UnimplementedError(absl::StrCat(
      "the chat template is of no known family; it begins \"", Beginning(source), "\""));
  if (source.size() > kMaxTemplateBytes || source.find(kTagOpen) != std::string_view::npos)
    return unknown;
  auto canonical = CanonicalJinja(source);
  if (!canonical.ok()) return unknown;
  for (const ChatFamily& family : KnownChatFamilies()) {
    HYDRANT_ASSIGN_OR_RETURN(auto pattern, CanonicalJinja(family.source));
    ChatContext context{std::string(bos), std::string(eos), ""};
    if (MatchesFamily(*canonical, pattern, &context.default_system)) {
      return std::make_unique<FamilyTemplate>(family, std::move(context));
    }
  }
  return unknown;
}

}  // namespace hydrant
