// Translates patterns from Oniguruma to PCRE2: \d, \s and the general categories become explicit
// classes that agree on every code point; constructs that cannot agree are refused.
#include "absl/strings/str_cat.h"
#include "engine/text/tokenizer/regex.h"
#include "engine/text/tokenizer/unicode_additions.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// Members of a general category missing in PCRE2's tables.
std::string_view AdditionsTo(std::string_view category) {
  if (category == "L" || category == "Letter") return kNewLetters;
  if (category == "Lu") return kNewCapitals;
  if (category == "Ll") return kNewSmallLetters;
  if (category == "Lm") return kNewModifierLetters;
  if (category == "Lo") return kNewOtherLetters;
  if (category == "M") return kNewMarks;
  if (category == "N" || category == "Number") return kNewNumbers;
  if (category == "Nd") return kNewDigits;
  if (category == "P") return kNewPunctuation;
  if (category == "S") return kNewSymbols;
  return "";
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : rest_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (!rest_.empty()) {
      HYDRANT_RETURN_IF_ERROR(Step());
    }
    return out_;
  }

 private:
  absl::Status Step() {
    const char c = rest_[0];
    if (c == '\\') return Escape();
    if (in_class_ && c == '[') {
      // Oniguruma reads a bare '[' in a class as a nested set.
      return Refuse(rest_.substr(0, 2) == "[:" ? "a POSIX class" : "a nested class");
    }
    if (in_class_ && rest_.substr(0, 2) == "&&") return Refuse("'&&' in a class");
    if (!in_class_ && rest_.substr(0, 2) == "}+") return Refuse("'+' after '{...}'");
    if (!in_class_ && rest_.substr(0, 2) == "{,") return Refuse("'{,'");
    if (!in_class_ && rest_.substr(0, 2) == "(?" && rest_.size() > 2) {
      // (?m) means "dot matches newline" to Oniguruma and multi-line to PCRE2; (?x) changes the
      // syntax.
      for (const char option : rest_.substr(2)) {
        if (option == ':' || option == ')' || option == '=' || option == '!' || option == '<')
          break;
        if (option != 'i' && option != '-' && option != '>')
          return Refuse("an option other than (?i");
      }
    }
    if (c == '[' && !in_class_) {
      in_class_ = true;
      Copy(1);
      if (!rest_.empty() && rest_[0] == '^') Copy(1);
      if (!rest_.empty() && rest_[0] == ']') return Refuse("']' at the start of a class");
      return absl::OkStatus();
    }
    if (c == ']') in_class_ = false;
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status Escape() {
    if (rest_.size() < 2) return absl::InvalidArgumentError("regular expression ends in '\\'");
    switch (rest_[1]) {
      case 's':
        Members(kWhiteSpace, /*negative=*/false);
        rest_.remove_prefix(2);
        return absl::OkStatus();
      case 'S':
        if (in_class_) {
          absl::StrAppend(&out_, "\\S\\x{180E}");
        } else {
          Members(kWhiteSpace, /*negative=*/true);
        }
        rest_.remove_prefix(2);
        return absl::OkStatus();
      case 'p':
      case 'P':
        return Property();
      case 'd':
      case 'D':
        return Digit(/*negative=*/rest_[1] == 'D');
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'x':
        Copy(2);
        return absl::OkStatus();
      default:
        break;
    }
    const char c = rest_[1];
    const bool alphanumeric =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (alphanumeric || static_cast<unsigned char>(c) >= 0x80) {
      return Refuse(absl::StrCat("'\\", std::string(1, c), "'"));
    }
    Copy(2);
    return absl::OkStatus();
  }

  absl::Status Digit(bool negative) {
    if (negative && in_class_) {
      Copy(2);  // inexact, as \P{...} in a class
      return absl::OkStatus();
    }
    Members(absl::StrCat("\\p{Nd}", std::string(kNewDigits)), negative);
    rest_.remove_prefix(2);
    return absl::OkStatus();
  }

  absl::Status Property() {
    const size_t close = rest_.find('}');
    if (rest_.size() < 3 || rest_[2] != '{' || close == std::string_view::npos) {
      return absl::InvalidArgumentError("regular expression has \\p without a {name}");
    }
    std::string_view name = rest_.substr(3, close - 3);
    bool negative = rest_[1] == 'P';
    if (!name.empty() && name[0] == '^') {
      negative = !negative;
      name.remove_prefix(1);
    }
    const std::string property =
        absl::StrCat(negative && in_class_ ? "\\P{" : "\\p{", std::string(name), "}");
    if (negative && in_class_) {
      // A class cannot contain a negated class; for letters newer than PCRE2 this form stays
      // inexact.
      out_ += property;
    } else {
      Members(absl::StrCat(property, std::string(AdditionsTo(name))), negative);
    }
    rest_.remove_prefix(close + 1);
    return absl::OkStatus();
  }

  void Members(std::string_view members, bool negative) {
    if (!in_class_) out_ += negative ? "[^" : "[";
    out_ += members;
    if (!in_class_) out_ += "]";
  }

  void Copy(size_t count) {
    out_ += rest_.substr(0, count);
    rest_.remove_prefix(count);
  }

  absl::Status Refuse(const std::string& what) {
    return absl::UnimplementedError(
        absl::StrCat("regular expression uses ", what, ", which is not supported"));
  }

  std::string_view rest_;
  std::string out_;
  bool in_class_ = false;
};

}  // namespace

absl::StatusOr<std::string> TranslateRegex(std::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace hydrant
