#include "engine/text/grammar/gbnf.h"

#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/text.h"
#include "engine/text/grammar/ebnf_text.h"
#include "engine/text/grammar/gbnf_lexer.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using Kind = GbnfToken::Kind;

// The library's parser recurses as deeply as groups are nested.
constexpr size_t kMaxGroups = 500;

// Writes the tokens of a grammar as EBNF, one after another.
class Writer {
 public:
  explicit Writer(const std::vector<GbnfToken>& tokens) : tokens_(tokens) {}

  absl::StatusOr<std::string> Write() {
    HYDRANT_RETURN_IF_ERROR(NameRules());
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const GbnfToken& token = tokens_[i];
      const bool begins_rule = token.kind == Kind::kName && Defines(i + 1);
      if (begins_rule || token.kind == Kind::kEnd) HYDRANT_RETURN_IF_ERROR(EndRule());
      if (begins_rule) {
        BeginRule(names_.at(token.text));
        ++i;
      } else {
        HYDRANT_RETURN_IF_ERROR(Put(token));
      }
    }
    return std::move(out_);
  }

 private:
  // Alternatives being written, of a rule or of a group.
  struct Alternatives {
    const GbnfToken* begin = nullptr;  // the '(' of a group; null: a rule
    bool is_empty = true;              // the current alternative has no element yet
    std::optional<size_t> element{};   // offset of its last element in out_
    bool is_repeated = false;          // that element has a repetition
  };

  static absl::Status Error(const GbnfToken& token, const std::string& what) {
    return GbnfError(token.line, token.column, what);
  }
  bool Defines(size_t i) const { return i < tokens_.size() && tokens_[i].kind == Kind::kDefines; }

  absl::Status NameRules() {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const GbnfToken& token = tokens_[i];
      if (token.kind != Kind::kName || !Defines(i + 1)) continue;
      if (!token.begins_line) return Error(token, "a rule begins in a line of its own");
      const std::string name = token.text == "root" ? token.text : absl::StrCat("r", names_.size());
      if (names_.emplace(token.text, name).second) continue;
      return Error(token, absl::StrCat("the rule ", Quoted(token.text), " is there twice"));
    }
    if (names_.contains("root")) return absl::OkStatus();
    return absl::InvalidArgumentError("has no rule 'root', with which the text begins");
  }

  void BeginRule(const std::string& name) {
    absl::StrAppend(&out_, name, " ::= ");
    open_.emplace_back();
  }

  absl::Status EndRule() {
    if (open_.empty()) return absl::OkStatus();
    if (open_.size() > 1) return Error(*open_.back().begin, "'(' has no ')'");
    EndAlternative();
    open_.clear();
    out_.push_back('\n');
    return absl::OkStatus();
  }

  void EndAlternative() {
    if (open_.back().is_empty) out_ += "\"\" ";
  }

  absl::Status Put(const GbnfToken& token) {
    if (token.kind == Kind::kEnd) return absl::OkStatus();
    if (open_.empty()) return Error(token, "a rule begins with its name and '::='");
    switch (token.kind) {
      case Kind::kText:
        PutElement(EbnfString(token.text));
        return absl::OkStatus();
      case Kind::kClass:
        PutElement(EbnfClass(token.set));
        return absl::OkStatus();
      case Kind::kName:
        return PutName(token);
      case Kind::kRepetition:
        return PutRepetition(token);
      case Kind::kOpen:
        return Open(token);
      case Kind::kClose:
        return Close(token);
      case Kind::kOr:
        EndAlternative();
        out_ += "| ";
        open_.back() = {.begin = open_.back().begin};
        return absl::OkStatus();
      default:
        return Error(token, "'::=' stands behind no name");
    }
  }

  void PutElement(const std::string& text) {
    Alternatives& alternatives = open_.back();
    alternatives.is_empty = alternatives.is_repeated = false;
    alternatives.element = out_.size();
    absl::StrAppend(&out_, text, " ");
  }

  absl::Status PutName(const GbnfToken& token) {
    const auto name = names_.find(token.text);
    if (name == names_.end()) {
      return Error(token, absl::StrCat("there is no rule ", Quoted(token.text)));
    }
    PutElement(name->second);
    return absl::OkStatus();
  }

  absl::Status PutRepetition(const GbnfToken& token) {
    Alternatives& alternatives = open_.back();
    if (!alternatives.element.has_value()) return Error(token, "there is nothing to repeat");
    if (std::exchange(alternatives.is_repeated, true)) {
      return Error(token, "what is repeated is repeated again; put it in parentheses");
    }
    const size_t element = *alternatives.element;
    if (token.repetition.most == 0) {
      out_.replace(element, out_.npos, "\"\" ");
    } else {
      absl::StrAppend(&out_, EbnfRepetition(token.repetition), " ");
    }
    return absl::OkStatus();
  }

  absl::Status Open(const GbnfToken& token) {
    if (open_.size() > kMaxGroups) {
      return Error(token, absl::StrCat("more than ", kMaxGroups, " groups in each other"));
    }
    PutElement("(");
    open_.push_back({.begin = &token});
    return absl::OkStatus();
  }

  absl::Status Close(const GbnfToken& token) {
    if (open_.size() < 2) return Error(token, "')' has no '('");
    EndAlternative();
    open_.pop_back();
    out_ += ") ";
    return absl::OkStatus();
  }

  const std::vector<GbnfToken>& tokens_;
  std::unordered_map<std::string, std::string> names_;  // a rule's name -> its name in the EBNF
  std::vector<Alternatives> open_;                      // of the rule, then of each open group
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> EbnfOfGbnf(std::string_view text) {
  HYDRANT_ASSIGN_OR_RETURN(const std::vector<GbnfToken> tokens, LexGbnf(text));
  return Writer(tokens).Write();
}

}  // namespace hydrant
