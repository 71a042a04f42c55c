// The methods of str, without encode(), maketrans() and translate(): templates have neither bytes
// nor tables.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/attributes.h"
#include "engine/text/jinja/code_points.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/string_format.h"
#include "engine/text/unicode/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

using Result = absl::StatusOr<Value>;

Result Like(Runtime* runtime, const Value& self, std::string_view text) {
  return runtime->budget().NewString(std::string(text), self.AsText().markup);
}

absl::Status NoArguments(const Arguments& arguments) {
  return Bound::Bind("the string's method", arguments, {}, 0).status();
}

// upper() and similar methods: a pure function of the text.
template <std::string (*function)(std::string_view)>
Result Mapped(Runtime* runtime, const Value& self, const Arguments& arguments) {
  HYDRANT_RETURN_IF_ERROR(NoArguments(arguments));
  HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(self));
  return Like(runtime, self, function(self.AsString()));
}

// isdigit() and similar methods: not empty, and the predicate holds for every code point.
template <bool (*predicate)(char32_t)>
Result AllAre(Runtime* runtime, const Value& self, const Arguments& arguments) {
  HYDRANT_RETURN_IF_ERROR(NoArguments(arguments));
  HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(self));
  const std::vector<char32_t> points = CodePoints(self.AsString());
  return Value(!points.empty() && std::all_of(points.begin(), points.end(), predicate));
}

bool IsAlphanumeric(char32_t c) { return IsAlpha(c) || IsDigit(c); }

Result IsAscii(Runtime*, const Value& self, const Arguments& arguments) {
  HYDRANT_RETURN_IF_ERROR(NoArguments(arguments));
  return Value(self.AsText().ascii);
}

Result IsPrintableText(Runtime*, const Value& self, const Arguments& arguments) {
  HYDRANT_RETURN_IF_ERROR(NoArguments(arguments));
  const std::vector<char32_t> points = CodePoints(self.AsString());
  return Value(std::all_of(points.begin(), points.end(), IsPrintable));
}

// islower() or isupper(): some code point is cased, and none has the other case.
template <bool (*is)(char32_t), bool (*is_other)(char32_t)>
Result IsCase(Runtime* runtime, const Value& self, const Arguments& arguments) {
  HYDRANT_RETURN_IF_ERROR(NoArguments(arguments));
  HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(self));
  const std::vector<char32_t> points = CodePoints(self.AsString());
  return Value(std::any_of(points.begin(), points.end(), is) &&
               std::none_of(points.begin(), points.end(), is_other) &&
               std::none_of(points.begin(), points.end(), IsTitle));
}

enum class Side { kLeft, kRight, kBoth };

template <Side side>
Result StripSide(Runtime* runtime, const Value& self, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("strip()", arguments, {"chars"}, 0));
  std::string_view text = self.AsString();
  if (!bound.Has(0) || bound[0].IsNone()) {
    if (side != Side::kRight) text = StripLeft(text);
    if (side != Side::kLeft) text = StripRight(text);
    return Like(runtime, self, text);
  }
  HYDRANT_ASSIGN_OR_RETURN(const std::string characters, bound.String(0, ""));
  HYDRANT_RETURN_IF_ERROR(runtime->budget().Step(
      static_cast<int64_t>(text.size() / 64 * (1 + characters.size() / 64))));
  if (side != Side::kRight) text = StripLeft(text, characters);
  if (side != Side::kLeft) text = StripRight(text, characters);
  return Like(runtime, self, text);
}

// The bytes of text[start:stop] given by the optional arguments `first` and `first + 1` of find(),
// count(), startswith() and similar methods.
struct Window {
  std::string_view text;
  int64_t start = 0;  // in code points
  bool exists = true;
};

absl::StatusOr<Window> WindowOf(const Value& self, const Bound& bound, size_t first) {
  const std::string_view text = self.AsString();
  if (!bound.Has(first) && !bound.Has(first + 1)) return Window{.text = text};
  HYDRANT_ASSIGN_OR_RETURN(const int64_t length, Length(self));
  const auto clamp = [&](int64_t index) {
    return std::clamp<int64_t>(index < 0 ? index + length : index, 0, length);
  };
  int64_t start = 0, stop = length;
  if (!bound[first].IsNone()) {
    HYDRANT_ASSIGN_OR_RETURN(start, bound.Int(first, 0));
  }
  if (!bound[first + 1].IsNone()) {
    HYDRANT_ASSIGN_OR_RETURN(stop, bound.Int(first + 1, length));
  }
  if (start > length) return Window{.text = {}, .exists = false};
  start = clamp(start);
  stop = clamp(stop);
  if (start > stop) return Window{.text = {}, .exists = false};
  const size_t begin = ByteOffset(text, start);
  const std::string_view rest = text.substr(begin);
  return Window{.text = rest.substr(0, ByteOffset(rest, stop - start)), .start = start};
}

// -1 if it is not found.
absl::StatusOr<int64_t> Position(Runtime* runtime, const Value& self, const Arguments& arguments,
                                 bool last) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("find()", arguments, {"sub", "start", "end"}, 1));
  HYDRANT_ASSIGN_OR_RETURN(const std::string part, bound.String(0, ""));
  HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(self));
  HYDRANT_ASSIGN_OR_RETURN(const Window window, WindowOf(self, bound, 1));
  if (!window.exists) return -1;
  const size_t at = last ? window.text.rfind(part) : window.text.find(part);
  if (at == std::string_view::npos) return -1;
  return window.start + CountCodePoints(window.text.substr(0, at));
}

template <bool last>
Result FindPart(Runtime* runtime, const Value& self, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const int64_t at, Position(runtime, self, arguments, last));
  return Value(at);
}

template <bool last>
Result IndexOfPart(Runtime* runtime, const Value& self, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const int64_t at, Position(runtime, self, arguments, last));
  if (at < 0) return absl::InvalidArgumentError("substring not found");
  return Value(at);
}

Result CountParts(Runtime* runtime, const Value& self, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("count()", arguments, {"sub", "start", "end"}, 1));
  HYDRANT_ASSIGN_OR_RETURN(const std::string part, bound.String(0, ""));
  HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(self));
  HYDRANT_ASSIGN_OR_RETURN(const Window window, WindowOf(self, bound, 1));
  if (!window.exists) return Value(int64_t{0});
  if (part.empty()) return Value(CountCodePoints(window.text) + 1);
  int64_t count = 0;
  for (size_t at = window.text.find(part); at != std::string_view::npos;
       at = window.text.find(part, at + part.size()))
    ++count;
  return Value(count);
}

template <bool at_end>
Result HasAffix(Runtime*, const Value& self, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound, Bound::Bind(at_end ? "endswith()" : "startswith()",
                                                          arguments, {"affix", "start", "end"}, 1));
  const Sequence* several = bound[0].AsSequence();
  if (several != nullptr && several->kind() != Sequence::Kind::kTuple) several = nullptr;
  HYDRANT_ASSIGN_OR_RETURN(const Window window, WindowOf(self, bound, 1));
  const std::vector<Value> affixes =
      several == nullptr ? std::vector<Value>{bound[0]} : several->items();
  bool found = false;
  for (const Value& affix : affixes) {
    if (affix.IsUndefined()) return UndefinedError(affix);
    if (!affix.IsString()) {
      return TypeError(absl::StrCat(at_end ? "endswith" : "startswith",
                                    " first arg must be str or a tuple of str, not ",
                                    affix.TypeName()));
    }
    found = found || (window.exists && (at_end ? window.text.ends_with(affix.AsString())
                                               : window.text.starts_with(affix.AsString())));
  }
  return Value(found);
}

template <bool at_end>
Result RemoveAffix(Runtime* runtime, const Value& self, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("removeprefix()", arguments, {"affix"}, 1));
  HYDRANT_ASSIGN_OR_RETURN(const std::string affix, bound.String(0, ""));
  std::string_view text = self.AsString();
  if (at_end ? text.ends_with(affix) : text.starts_with(affix))
    text = at_end ? text.substr(0, text.size() - affix.size()) : text.substr(affix.size());
  return Like(runtime, self, text);
}

// At most `most` cuts, unless negative. The rest keeps its trailing white space, as in Python.
std::vector<std::string_view> SplitAtSpace(std::string_view text, int64_t most) {
  std::vector<std::string_view> parts;
  for (text = StripLeft(text); !text.empty(); text = StripLeft(text)) {
    size_t end = 0;
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) end = text.size();
    while (end < text.size()) {
      const Utf8Front front = ReadUtf8(text.substr(end));
      if (IsSpace(front.code_point)) break;
      end += static_cast<size_t>(front.length);
    }
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return parts;
}

std::vector<std::string_view> SplitAtSpaceFromRight(std::string_view text, int64_t most) {
  std::vector<std::string_view> parts;
  for (text = StripRight(text); !text.empty(); text = StripRight(text)) {
    size_t begin = text.size();
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) begin = 0;
    while (begin > 0) {
      const size_t last = LastCharacter(text.substr(0, begin));
      if (IsSpace(ReadUtf8(text.substr(last)).code_point)) break;
      begin = last;
    }
    parts.push_back(text.substr(begin));
    text = text.substr(0, begin);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> SplitAt(std::string_view text, std::string_view separator,
                                      int64_t most, bool from_right) {
  std::vector<std::string_view> parts;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t at = from_right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    const std::string_view before = text.substr(0, at), after = text.substr(at + separator.size());
    parts.push_back(from_right ? after : before);
    text = from_right ? before : after;
  }
  parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

Result ToList(Runtime* runtime, const Value& self, const std::vector<std::string_view>& parts,
              Sequence::Kind kind = Sequence::Kind::kList) {
  HYDRANT_RETURN_IF_ERROR(runtime->budget().AllocateItems(parts.size()));
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts)
    items.push_back(Value::String(std::string(part), self.AsText().markup));
  HYDRANT_RETURN_IF_ERROR(runtime->budget().Allocate(static_cast<int64_t>(self.AsString().size())));
  return runtime->budget().NewSequence(kind, std::move(items));
}

template <bool from_right>
Result Split(Runtime* runtime, const Value& self, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("split()", arguments, {"sep", "maxsplit"}, 0));
  HYDRANT_ASSIGN_OR_RETURN(const int64_t most, bound.Int(1, -1));
  HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(self));
  const std::string_view text = self.AsString();
  if (!bound.Has(0) || bound[0].IsNone()) {
    return ToList(runtime, self,
                  from_right ? SplitAtSpaceFromRight(text, most) : SplitAtSpace(text, most));
  }
  HYDRANT_ASSIGN_OR_RETURN(const std::string separator, bound.String(0, ""));
  if (separator.empty()) return absl::InvalidArgumentError("empty separator");
  return ToList(runtime, self, SplitAt(text, separator, most, from_right));
}

Result SplitIntoLines(Runtime* runtime, const Value& self, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("splitlines()", arguments, {"keepends"}, 0));
  HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(self));
  return ToList(runtime, self, SplitLines(self.AsString(), bound.True(0, false)));
}

template <bool from_right>
Result Partition(Runtime* runtime, const Value& self, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("partition()", arguments, {"sep"}, 1));
  HYDRANT_ASSIGN_OR_RETURN(const std::string separator, bound.String(0, ""));
  if (separator.empty()) return absl::InvalidArgumentError("empty separator");
  HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(self));
  const std::string_view text = self.AsString();
  const size_t at = from_right ? text.rfind(separator) : text.find(separator);
  std::vector<std::string_view> parts = {text.substr(0, at), separator, ""};
  if (at != std::string_view::npos) {
    parts[2] = text.substr(at + separator.size());
  } else {
    parts = from_right ? std::vector<std::string_view>{"", "", text}
                       : std::vector<std::string_view>{text, "", ""};
  }
  return ToList(runtime, self, parts, Sequence::Kind::kTuple);
}

Result Replace(Runtime* runtime, const Value& self, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("replace()", arguments, {"old", "new", "count"}, 2));
  HYDRANT_ASSIGN_OR_RETURN(const std::string before, bound.String(0, ""));
  HYDRANT_ASSIGN_OR_RETURN(const std::string after, bound.String(1, ""));
  HYDRANT_ASSIGN_OR_RETURN(const int64_t count, bound.Int(2, -1));
  return ReplaceText(runtime, self, before, after, count);
}

Result Join(Runtime* runtime, const Value& self, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("join()", arguments, {"iterable"}, 1));
  HYDRANT_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(&runtime->budget(), bound[0]));
  BoundedText text(&runtime->budget());
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].IsString()) {
      return TypeError(absl::StrCat("sequence item ", i, ": expected str instance, ",
                                    items[i].TypeName(), " found"));
    }
    if (i > 0) text.Append(self.AsString());
    text.Append(items[i].AsString());
  }
  return std::move(text).String(self.AsText().markup);
}

template <Side side>
Result Justify(Runtime* runtime, const Value& self, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("center()", arguments, {"width", "fillchar"}, 1));
  HYDRANT_ASSIGN_OR_RETURN(const int64_t width, bound.Int(0, 0));
  HYDRANT_ASSIGN_OR_RETURN(const std::string fill, bound.String(1, " "));
  if (CountCodePoints(fill) != 1)
    return TypeError("The fill character must be exactly one character long");
  HYDRANT_ASSIGN_OR_RETURN(const int64_t length, Length(self));
  const int64_t padding = std::max<int64_t>(width - length, 0);
  // As in CPython: an odd column goes to the left if the width is odd.
  const int64_t left = side == Side::kLeft    ? 0
                       : side == Side::kRight ? padding
                                              : padding / 2 + (padding & width & 1);
  BoundedText text(&runtime->budget());
  text.AppendTimes(fill, left);
  text.Append(self.AsString());
  text.AppendTimes(fill, padding - left);
  return std::move(text).String(self.AsText().markup);
}

Result ZeroFill(Runtime* runtime, const Value& self, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("zfill()", arguments, {"width"}, 1));
  HYDRANT_ASSIGN_OR_RETURN(const int64_t width, bound.Int(0, 0));
  HYDRANT_ASSIGN_OR_RETURN(const int64_t length, Length(self));
  std::string_view rest = self.AsString();
  BoundedText text(&runtime->budget());
  if (rest.starts_with("-") || rest.starts_with("+")) {
    text.Append(rest.substr(0, 1));
    rest.remove_prefix(1);
  }
  text.AppendTimes("0", width - length);
  text.Append(rest);
  return std::move(text).String(self.AsText().markup);
}

Result ExpandTabs(Runtime* runtime, const Value& self, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("expandtabs()", arguments, {"tabsize"}, 0));
  HYDRANT_ASSIGN_OR_RETURN(const int64_t size, bound.Int(0, 8));
  HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(self));
  BoundedText text(&runtime->budget());
  int64_t column = 0;
  for (const std::string_view character : Characters(self.AsString())) {
    if (character == "\t") {
      const int64_t spaces = size > 0 ? size - column % size : 0;
      text.AppendTimes(" ", spaces);
      column += spaces;
      continue;
    }
    text.Append(character);
    column = character == "\n" || character == "\r" ? 0 : column + 1;
  }
  return std::move(text).String(self.AsText().markup);
}

constexpr NamedMethod kMethods[] = {
    {"capitalize", Mapped<Capitalize>},
    {"center", Justify<Side::kBoth>},
    {"count", CountParts},
    {"endswith", HasAffix<true>},
    {"expandtabs", ExpandTabs},
    {"find", FindPart<false>},
    {"format", FormatString},
    {"index", IndexOfPart<false>},
    {"isalnum", AllAre<IsAlphanumeric>},
    {"isalpha", AllAre<IsAlpha>},
    {"isascii", IsAscii},
    {"isdecimal", AllAre<IsDecimal>},
    {"isdigit", AllAre<IsDigit>},
    {"islower", IsCase<IsLower, IsUpper>},
    {"isprintable", IsPrintableText},
    {"isspace", AllAre<IsSpace>},
    {"isupper", IsCase<IsUpper, IsLower>},
    {"join", Join},
    {"ljust", Justify<Side::kLeft>},
    {"lower", Mapped<Lower>},
    {"lstrip", StripSide<Side::kLeft>},
    {"partition", Partition<false>},
    {"removeprefix", RemoveAffix<false>},
    {"removesuffix", RemoveAffix<true>},
    {"replace", Replace},
    {"rfind", FindPart<true>},
    {"rindex", IndexOfPart<true>},
    {"rjust", Justify<Side::kRight>},
    {"rpartition", Partition<true>},
    {"rsplit", Split<true>},
    {"rstrip", StripSide<Side::kRight>},
    {"split", Split<false>},
    {"splitlines", SplitIntoLines},
    {"startswith", HasAffix<false>},
    {"strip", StripSide<Side::kBoth>},
    {"swapcase", Mapped<SwapCase>},
    {"title", Mapped<Title>},
    {"upper", Mapped<Upper>},
    {"zfill", ZeroFill},
};

}  // namespace

Method FindStringMethod(std::string_view name) {
  const auto* found = std::lower_bound(
      std::begin(kMethods), std::end(kMethods), name,
      [](const NamedMethod& one, std::string_view wanted) { return one.name < wanted; });
  return found != std::end(kMethods) && found->name == name ? found->method : nullptr;
}

}  // namespace hydrant::jinja
