#include "engine/text/grammar/pattern_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/text/unicode/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using Kind = Pattern::Kind;

Pattern AnyText() {
  Pattern text{.kind = Kind::kRepeat, .repetition = {0, -1}};
  text.parts.push_back({.kind = Kind::kCharacter, .set = {{0, kLastCodePoint}}});
  return text;
}

bool Has(const Pattern& pattern, Kind anchor) {
  return pattern.kind == anchor ||
         std::ranges::any_of(pattern.parts, [&](const Pattern& part) { return Has(part, anchor); });
}

// Removes the anchors at one edge of the pattern. An alternative without an anchor at that edge may
// begin or end with any text.
void OpenEdge(Kind anchor, Pattern* pattern) {
  if (pattern->kind == Kind::kEither) {
    for (Pattern& part : pattern->parts) OpenEdge(anchor, &part);
    return;
  }
  if (pattern->kind != Kind::kSequence) {
    Pattern sequence;
    sequence.parts.push_back(std::move(*pattern));
    *pattern = std::move(sequence);
  }
  std::vector<Pattern>& parts = pattern->parts;
  const auto at_edge = [&] { return anchor == Kind::kBegin ? parts.begin() : parts.end() - 1; };
  if (!parts.empty() && at_edge()->kind == anchor) {
    while (!parts.empty() && at_edge()->kind == anchor) parts.erase(at_edge());
    return;
  }
  const bool opens = !parts.empty() && Has(*at_edge(), anchor) &&
                     (at_edge()->kind == Kind::kEither || at_edge()->kind == Kind::kSequence);
  if (opens) return OpenEdge(anchor, &*at_edge());
  parts.insert(anchor == Kind::kBegin ? parts.begin() : parts.end(), AnyText());
}

// Removes the anchors at one edge if the whole text has to match: they have no effect there.
void DropAtEdge(Kind anchor, Pattern* pattern) {
  std::vector<Pattern>& parts = pattern->parts;
  if (pattern->kind == Kind::kEither) {
    for (Pattern& part : parts) DropAtEdge(anchor, &part);
  } else if (pattern->kind == Kind::kSequence) {
    const auto at_edge = [&] { return anchor == Kind::kBegin ? parts.begin() : parts.end() - 1; };
    while (!parts.empty() && at_edge()->kind == anchor) parts.erase(at_edge());
    if (!parts.empty()) DropAtEdge(anchor, &*at_edge());
  }
}

absl::Status CheckNoAnchor(const Pattern& pattern) {
  if (pattern.kind == Kind::kBegin || pattern.kind == Kind::kEnd) {
    const bool begins = pattern.kind == Kind::kBegin;
    return absl::InvalidArgumentError(absl::StrCat("character ", pattern.at, ": '",
                                                   begins ? "^" : "$", "' is supported at the ",
                                                   begins ? "beginning" : "end", " alone"));
  }
  for (const Pattern& part : pattern.parts) HYDRANT_RETURN_IF_ERROR(CheckNoAnchor(part));
  return absl::OkStatus();
}

std::string JoinOf(const Pattern& pattern, std::string (*write)(const Pattern&),
                   const std::string& separator) {
  std::string out;
  for (const Pattern& part : pattern.parts) {
    if (&part != &pattern.parts.front()) absl::StrAppend(&out, separator);
    absl::StrAppend(&out, write(part));
  }
  return out;
}

// A character in a regular expression, valid within and outside brackets.
std::string RegexCharacter(char32_t c) {
  if (c >= 0x7F) return absl::StrFormat("\\u{%x}", static_cast<uint32_t>(c));
  if (c < 0x20) return absl::StrFormat("\\x%02x", static_cast<uint32_t>(c));
  const char ascii = static_cast<char>(c);
  return absl::ascii_isalnum(static_cast<unsigned char>(ascii)) ? std::string(1, ascii)
                                                                : std::string{'\\', ascii};
}

bool IsOne(const CodePointSet& set) { return set.size() == 1 && set[0].first == set[0].last; }

std::string RegexClass(const CodePointSet& set) {
  if (IsOne(set)) return RegexCharacter(set[0].first);
  std::string out = "[";
  for (const auto& [first, last] : set) {
    absl::StrAppend(&out, RegexCharacter(first));
    if (last > first) absl::StrAppend(&out, "-", RegexCharacter(last));
  }
  return out + "]";
}

std::string EbnfCharacter(const CodePointSet& set) {
  if (!IsOne(set)) return EbnfClass(set);
  std::string text;
  AppendUtf8(set[0].first, &text);
  return EbnfString(text);
}

}  // namespace

absl::Status ResolveAnchors(PatternMatch match, Pattern* pattern) {
  for (const Kind anchor : {Kind::kBegin, Kind::kEnd}) {
    match == PatternMatch::kPart ? OpenEdge(anchor, pattern) : DropAtEdge(anchor, pattern);
  }
  return CheckNoAnchor(*pattern);
}

bool Restrict(const CodePointSet& to, Pattern* pattern) {
  std::vector<Pattern>& parts = pattern->parts;
  const auto is_left = [&](Pattern& part) { return Restrict(to, &part); };
  switch (pattern->kind) {
    case Kind::kCharacter:
      pattern->set = Intersection(pattern->set, to);
      return !pattern->set.empty();
    case Kind::kSequence:
      return std::ranges::all_of(parts, is_left);
    case Kind::kEither:
      std::erase_if(parts, [&](Pattern& part) { return !Restrict(to, &part); });
      return !parts.empty();
    case Kind::kRepeat:
      if (is_left(parts.front())) return true;
      if (pattern->repetition.least > 0) return false;
      *pattern = Pattern();  // only zero repetitions are left
      return true;
    default:
      return true;
  }
}

std::string EbnfOf(const Pattern& pattern) {
  switch (pattern.kind) {
    case Kind::kCharacter:
      return EbnfCharacter(pattern.set);
    case Kind::kSequence:
      return pattern.parts.empty() ? "\"\"" : JoinOf(pattern, EbnfOf, " ");
    case Kind::kEither:
      return absl::StrCat("(", JoinOf(pattern, EbnfOf, " | "), ")");
    default:
      break;
  }
  if (pattern.repetition.most == 0) return "\"\"";
  const Pattern& part = pattern.parts.front();
  const std::string repeated = EbnfOf(part);
  const std::string times = EbnfRepetition(pattern.repetition);
  return part.kind == Kind::kCharacter ? repeated + times : absl::StrCat("(", repeated, ")", times);
}

std::string RegexOf(const Pattern& pattern) {
  switch (pattern.kind) {
    case Kind::kCharacter:
      return RegexClass(pattern.set);
    case Kind::kSequence:
      return JoinOf(pattern, RegexOf, "");
    case Kind::kEither:
      return absl::StrCat("(", JoinOf(pattern, RegexOf, "|"), ")");
    default:
      break;
  }
  if (pattern.repetition.most == 0) return "";
  return absl::StrCat("(", RegexOf(pattern.parts.front()), ")", EbnfRepetition(pattern.repetition));
}

}  // namespace hydrant
