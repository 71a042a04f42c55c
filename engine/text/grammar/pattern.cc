#include "engine/text/grammar/pattern.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/text/unicode/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using Kind = Pattern::Kind;

// The reader recurses as deeply as groups are nested.
constexpr int kMaxGroups = 200;

const CodePointSet kDigits = {{'0', '9'}};
const CodePointSet kWordCharacters = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
// ECMAScript's white space and line terminators.
const CodePointSet kWhiteSpace = {
    {0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
    {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};

CodePointSet Just(char32_t c) { return {{c, c}}; }

bool IsDigit(char32_t c) { return c >= '0' && c <= '9'; }
bool IsLetter(char32_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

// The class of an escape such as \d; nullopt if `c` names no class.
std::optional<CodePointSet> ClassEscape(char32_t c) {
  switch (c) {
    case 'd':
      return kDigits;
    case 'D':
      return Complement(kDigits);
    case 'w':
      return kWordCharacters;
    case 'W':
      return Complement(kWordCharacters);
    case 's':
      return kWhiteSpace;
    case 'S':
      return Complement(kWhiteSpace);
    default:
      return std::nullopt;
  }
}

class Reader {
 public:
  explicit Reader(std::string_view text) {
    while (!text.empty()) {
      const Utf8Front front = ReadUtf8(text);
      text_.push_back(front.code_point);
      text.remove_prefix(front.length);
    }
  }

  absl::StatusOr<Pattern> ReadAll() {
    HYDRANT_ASSIGN_OR_RETURN(Pattern pattern, ReadEither());
    if (!AtEnd()) return Error("')' has no '('");
    return pattern;
  }

 private:
  bool AtEnd() const { return at_ == text_.size(); }
  char32_t Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : 0;
  }
  bool Take(char32_t c) {
    if (AtEnd() || Peek() != c) return false;
    ++at_;
    return true;
  }
  int Position() const { return static_cast<int>(at_) + 1; }
  absl::Status Error(const std::string& what) const { return ErrorAt(Position(), what); }
  static absl::Status ErrorAt(int position, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("character ", position, ": ", what));
  }

  // Reads alternatives up to the end or to a ')'.
  absl::StatusOr<Pattern> ReadEither() {
    Pattern either{.kind = Kind::kEither};
    do {
      HYDRANT_ASSIGN_OR_RETURN(Pattern sequence, ReadSequence());
      either.parts.push_back(std::move(sequence));
    } while (Take('|'));
    if (either.parts.size() > 1) return either;
    return std::move(either.parts.front());
  }

  absl::StatusOr<Pattern> ReadSequence() {
    Pattern sequence;
    while (!AtEnd() && Peek() != '|' && Peek() != ')') {
      HYDRANT_ASSIGN_OR_RETURN(Pattern atom, ReadAtom());
      HYDRANT_ASSIGN_OR_RETURN(atom, ReadRepetitions(std::move(atom)));
      sequence.parts.push_back(std::move(atom));
    }
    return sequence;
  }

  absl::StatusOr<Pattern> ReadAtom() {
    const char32_t c = Peek();
    const int position = Position();
    if (c == '(') return ReadGroup();
    if (c == '\\') return ReadEscape();
    if (c == '*' || c == '+' || c == '?' || c == '{') {
      return Error("there is nothing to repeat; write a backslash before the character itself");
    }
    ++at_;
    if (c == '^') return Pattern{.kind = Kind::kBegin, .at = position};
    if (c == '$') return Pattern{.kind = Kind::kEnd, .at = position};
    if (c == '[') return ReadClass(position);
    const CodePointSet any = {{0, kLastCodePoint}};
    return Pattern{.kind = Kind::kCharacter, .set = c == '.' ? any : Just(c)};
  }

  absl::StatusOr<Pattern> ReadGroup() {
    const int begin = Position();
    if (++num_groups_ > kMaxGroups) {
      return Error(absl::StrCat("more than ", kMaxGroups, " groups in each other"));
    }
    ++at_;
    if (Take('?')) HYDRANT_RETURN_IF_ERROR(ReadModifier(begin));
    HYDRANT_ASSIGN_OR_RETURN(Pattern group, ReadEither());
    if (!Take(')')) return ErrorAt(begin, "'(' has no ')'");
    --num_groups_;
    return group;
  }

  // Reads the part of a group that follows "(?".
  absl::Status ReadModifier(int begin) {
    if (Take(':')) return absl::OkStatus();
    const bool looks_behind = Peek() == '<' && (Peek(1) == '=' || Peek(1) == '!');
    if (looks_behind || Peek() == '=' || Peek() == '!') {
      return ErrorAt(begin, "look-around is not supported");
    }
    if (!Take('<')) return ErrorAt(begin, "'(?' begins no group that is supported, as '(?:' does");
    const size_t name = at_;
    while (IsLetter(Peek()) || Peek() == '_' || (at_ > name && IsDigit(Peek()))) ++at_;
    if (at_ > name && Take('>')) return absl::OkStatus();
    return ErrorAt(begin, "the group's name is not of letters, digits and '_', up to a '>'");
  }

  absl::StatusOr<Pattern> ReadEscape() {
    if (const std::optional<CodePointSet> of_class = ClassEscape(Peek(1)); of_class.has_value()) {
      at_ += 2;
      return Pattern{.kind = Kind::kCharacter, .set = *of_class};
    }
    if (Peek(1) == 'b' || Peek(1) == 'B') return Error("word boundaries are not supported");
    if (Peek(1) == 'k' || (Peek(1) >= '1' && Peek(1) <= '9')) {
      return Error("references to groups are not supported");
    }
    if (Peek(1) == 'p' || Peek(1) == 'P') {
      return Error("properties of Unicode are not supported; list the characters");
    }
    HYDRANT_ASSIGN_OR_RETURN(const char32_t c, ReadEscapedCharacter());
    return Pattern{.kind = Kind::kCharacter, .set = Just(c)};
  }

  absl::StatusOr<char32_t> ReadEscapedCharacter() {
    constexpr std::pair<char32_t, char32_t> kNamed[] = {
        {'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'f', '\f'}, {'v', '\v'}};
    if (at_ + 1 == text_.size()) return Error("nothing follows the backslash");
    const char32_t kind = Peek(1);
    if (kind == 'x') return ReadHexadecimal(2, 2);
    if (kind == 'u') return ReadUnicode();
    if (kind == 'c' && IsLetter(Peek(2))) {
      at_ += 3;
      return text_[at_ - 1] % 32;
    }
    for (const auto& [name, meaning] : kNamed) {
      if (name != kind) continue;
      at_ += 2;
      return meaning;
    }
    const bool is_null = kind == '0' && !IsDigit(Peek(2));
    if (!is_null && (IsLetter(kind) || IsDigit(kind))) {
      return Error("the backslash stands before nothing that it goes with");
    }
    at_ += 2;
    return is_null ? 0 : kind;
  }

  // Reads an escape at a backslash; its digits begin `begin` characters after the backslash.
  absl::StatusOr<char32_t> ReadHexadecimal(size_t begin, int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const std::optional<int> digit = HexDigit(Peek(begin + i));
      if (!digit.has_value()) {
        return Error(absl::StrCat("the escape is not of ", digits, " hexadecimal digits"));
      }
      value = value * 16 + *digit;
    }
    at_ += begin + digits;
    return value;
  }

  // Reads \u00e9, \ud83d\ude00 or \u{1f600}.
  absl::StatusOr<char32_t> ReadUnicode() {
    const int position = Position();
    char32_t value = 0;
    if (Peek(2) == '{') {
      int digits = 0;
      while (digits < 6 && HexDigit(Peek(3 + digits)).has_value()) ++digits;
      if (digits == 0 || Peek(3 + digits) != '}') {
        return Error("the escape is not of one to six hexadecimal digits in braces");
      }
      HYDRANT_ASSIGN_OR_RETURN(value, ReadHexadecimal(3, digits));
      ++at_;
    } else {
      HYDRANT_ASSIGN_OR_RETURN(value, ReadHexadecimal(2, 4));
      const bool is_first_half = value >= 0xD800 && value < 0xDC00;
      if (is_first_half && Peek() == '\\' && Peek(1) == 'u' && Peek(2) != '{') {
        HYDRANT_ASSIGN_OR_RETURN(const char32_t half, ReadHexadecimal(2, 4));
        if (half >= 0xDC00 && half < 0xE000)
          return 0x10000 + ((value - 0xD800) << 10) + (half - 0xDC00);
      }
    }
    if (value <= kLastCodePoint && (value < 0xD800 || value > 0xDFFF)) return value;
    return ErrorAt(position, "the escape is no character of Unicode");
  }

  // Reads a class; its '[' at character `begin` has been read.
  absl::StatusOr<Pattern> ReadClass(int begin) {
    const bool negated = Take('^');
    std::vector<CodePointRange> ranges;
    while (!Take(']')) {
      if (AtEnd()) return ErrorAt(begin, "'[' has no ']'");
      HYDRANT_RETURN_IF_ERROR(ReadMembers(&ranges));
    }
    CodePointSet set = ToCodePointSet(std::move(ranges));
    if (negated) set = Complement(set);
    if (set.empty()) return ErrorAt(begin, "the class has no character");
    return Pattern{.kind = Kind::kCharacter, .set = std::move(set)};
  }

  // Reads one character, a range, or the class of an escape. A '-' beside such a class is literal.
  absl::Status ReadMembers(std::vector<CodePointRange>* ranges) {
    const int position = Position();
    HYDRANT_ASSIGN_OR_RETURN(const CodePointSet first, ReadMember());
    ranges->insert(ranges->end(), first.begin(), first.end());
    if (Peek() != '-' || Peek(1) == ']' || at_ + 1 >= text_.size()) return absl::OkStatus();
    ++at_;
    HYDRANT_ASSIGN_OR_RETURN(const CodePointSet last, ReadMember());
    const auto is_one = [](const CodePointSet& set) {
      return set.size() == 1 && set[0].first == set[0].last;
    };
    if (!is_one(first) || !is_one(last)) {
      ranges->push_back({'-', '-'});
      ranges->insert(ranges->end(), last.begin(), last.end());
      return absl::OkStatus();
    }
    if (last[0].first < first[0].first) {
      return ErrorAt(position, "the range ends before it begins");
    }
    ranges->push_back({first[0].first, last[0].first});
    return absl::OkStatus();
  }

  absl::StatusOr<CodePointSet> ReadMember() {
    if (Peek() != '\\') return Just(text_[at_++]);
    if (const std::optional<CodePointSet> of_class = ClassEscape(Peek(1)); of_class.has_value()) {
      at_ += 2;
      return *of_class;
    }
    if (Peek(1) == 'b') {
      at_ += 2;
      return Just('\b');
    }
    HYDRANT_ASSIGN_OR_RETURN(const char32_t c, ReadEscapedCharacter());
    return Just(c);
  }

  // Wraps `atom` in the repetition that follows it, if there is one.
  absl::StatusOr<Pattern> ReadRepetitions(Pattern atom) {
    const int position = Position();
    HYDRANT_ASSIGN_OR_RETURN(const std::optional<Repetition> repetition, ReadRepetition());
    if (!repetition.has_value()) return atom;
    if (atom.kind == Kind::kBegin || atom.kind == Kind::kEnd) {
      return ErrorAt(position, "'^' and '$' cannot be repeated");
    }
    Take('?');  // a lazy repetition matches the same texts
    if (!AtEnd() && std::u32string_view(U"*+?{").find(Peek()) != std::u32string_view::npos) {
      return Error("what is repeated is repeated again; put it in parentheses");
    }
    Pattern repeat{.kind = Kind::kRepeat, .repetition = *repetition};
    repeat.parts.push_back(std::move(atom));
    return repeat;
  }

  absl::StatusOr<std::optional<Repetition>> ReadRepetition() {
    const int position = Position();
    if (Take('*')) return Repetition{0, -1};
    if (Take('+')) return Repetition{1, -1};
    if (Take('?')) return Repetition{0, 1};
    if (!Take('{')) return std::nullopt;
    Repetition repetition;
    HYDRANT_ASSIGN_OR_RETURN(repetition.least, ReadCount(position));
    repetition.most = repetition.least;
    if (Take(',')) {
      repetition.most = -1;
      if (Peek() != '}') {
        HYDRANT_ASSIGN_OR_RETURN(repetition.most, ReadCount(position));
      }
    }
    if (!Take('}')) return NoRepetition(position);
    if (repetition.most < 0 || repetition.most >= repetition.least) return repetition;
    return ErrorAt(position, "the repetition ends before it begins");
  }

  static absl::Status NoRepetition(int position) {
    return ErrorAt(position, "a repetition is {2}, {2,} or {2,3}; write \\{ for the character");
  }

  absl::StatusOr<int32_t> ReadCount(int begin) {
    if (!IsDigit(Peek())) return NoRepetition(begin);
    int64_t count = 0;
    for (; IsDigit(Peek()); ++at_) {
      count = count * 10 + (Peek() - '0');
      if (count > kMaxRepetitions)
        return ErrorAt(begin, absl::StrCat("more than ", kMaxRepetitions, " repetitions"));
    }
    return static_cast<int32_t>(count);
  }

  std::u32string text_;
  size_t at_ = 0;
  int num_groups_ = 0;  // open groups
};

}  // namespace

absl::StatusOr<Pattern> ParsePattern(std::string_view text) { return Reader(text).ReadAll(); }

}  // namespace hydrant
