// Filters of strings. Other values are converted by str() where Jinja does so.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/attributes.h"
#include "engine/text/jinja/code_points.h"
#include "engine/text/jinja/filter_groups.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/percent_format.h"
#include "engine/text/jinja/python_text.h"
#include "engine/text/jinja/string_format.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

using Result = absl::StatusOr<Value>;

// A filter equal to a string method with the same arguments.
Result ByMethod(std::string_view name, Runtime* runtime, const Value& input,
                const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Value text, ToString(&runtime->budget(), input));
  return FindStringMethod(name)(runtime, text, arguments);
}

Result UpperFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  return ByMethod("upper", runtime, input, arguments);
}

Result LowerFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  return ByMethod("lower", runtime, input, arguments);
}

Result CapitalizeFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  return ByMethod("capitalize", runtime, input, arguments);
}

Result TrimFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  return ByMethod("strip", runtime, input, arguments);
}

Result CenterFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("center", arguments, {"width"}, 0));
  const Value width = bound.Has(0) ? bound[0] : Value(int64_t{80});
  return ByMethod("center", runtime, input, {.positional = {width}, .keywords = {}});
}

// Unlike str.title(), words begin only after white space, hyphens and opening brackets.
Result TitleFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_RETURN_IF_ERROR(Bound::Bind("title", arguments, {}, 0).status());
  HYDRANT_ASSIGN_OR_RETURN(const std::string all, ToText(&runtime->budget(), input));
  const auto is_separator = [](std::string_view character) {
    return std::string_view("-({[<").find(character) != std::string_view::npos ||
           IsSpace(CodePoints(character)[0]);
  };
  std::string out;
  const std::vector<std::string_view> characters = Characters(all);
  for (size_t i = 0; i < characters.size();) {
    if (is_separator(characters[i])) {
      out += characters[i++];
      continue;
    }
    out += Upper(characters[i++]);
    std::string rest;
    while (i < characters.size() && !is_separator(characters[i])) rest += characters[i++];
    out += Lower(rest);
  }
  return runtime->budget().NewString(std::move(out));
}

Result ReplaceFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("replace", arguments, {"old", "new", "count"}, 2));
  HYDRANT_ASSIGN_OR_RETURN(const Value text, ToString(&runtime->budget(), input));
  HYDRANT_ASSIGN_OR_RETURN(const std::string before, ToText(&runtime->budget(), bound[0]));
  HYDRANT_ASSIGN_OR_RETURN(const std::string after, ToText(&runtime->budget(), bound[1]));
  int64_t count = -1;
  if (bound.Has(2) && !bound[2].IsNone()) {
    HYDRANT_ASSIGN_OR_RETURN(count, bound.Int(2, -1));
  }
  return ReplaceText(runtime, text, before, after, count);
}

Result IndentFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("indent", arguments, {"width", "first", "blank"}, 0));
  if (!input.IsString()) return TypeError("the filter indent wants a string");
  std::string indention;
  if (bound.Has(0) && bound[0].IsString()) {
    indention = bound[0].AsString();
  } else {
    HYDRANT_ASSIGN_OR_RETURN(const int64_t width, bound.Int(0, 4));
    HYDRANT_RETURN_IF_ERROR(runtime->budget().Allocate(std::max<int64_t>(width, 0)));
    indention = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  // Jinja appends a newline before splitting: a text that ends in one keeps it.
  const std::string text = input.AsString() + "\n";
  const std::vector<std::string_view> lines = SplitLines(text, /*keep_ends=*/false);
  BoundedText out(&runtime->budget());
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.Append("\n");
    const bool indented = i == 0 ? bound.True(1, false) : bound.True(2, false) || !lines[i].empty();
    if (indented) out.Append(indention);
    out.Append(lines[i]);
  }
  return std::move(out).String(input.AsText().markup);
}

Result TruncateFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("truncate", arguments, {"length", "killwords", "end", "leeway"}, 0));
  HYDRANT_ASSIGN_OR_RETURN(const int64_t length, bound.Int(0, 255));
  HYDRANT_ASSIGN_OR_RETURN(const std::string end, bound.String(2, "..."));
  int64_t leeway = 5;
  if (bound.Has(3) && !bound[3].IsNone()) {
    HYDRANT_ASSIGN_OR_RETURN(leeway, bound.Int(3, leeway));
  }
  const int64_t end_length = CountCodePoints(end);
  if (length < end_length || leeway < 0)
    return absl::InvalidArgumentError("truncate: length or leeway is too small");
  HYDRANT_ASSIGN_OR_RETURN(const int64_t size, Length(input));
  if (size <= length || size - length <= leeway) return input;
  if (!input.IsString()) return TypeError("the filter truncate wants a string");
  std::string_view kept = input.AsString();
  kept = kept.substr(0, ByteOffset(kept, length - end_length));
  if (!bound.True(1, false)) kept = kept.substr(0, kept.rfind(' '));
  return runtime->budget().NewString(absl::StrCat(std::string(kept), end));
}

Result WordCountFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_RETURN_IF_ERROR(Bound::Bind("wordcount", arguments, {}, 0).status());
  HYDRANT_ASSIGN_OR_RETURN(const std::string text, ToText(&runtime->budget(), input));
  int64_t count = 0;
  bool inside = false;
  for (const char32_t c : CodePoints(text)) {
    const bool word = IsWord(c);
    count += word && !inside ? 1 : 0;
    inside = word;
  }
  return Value(count);
}

Result FormatFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const std::string format, ToText(&runtime->budget(), input));
  if (!arguments.positional.empty() && !arguments.keywords.empty()) {
    return absl::InvalidArgumentError(
        "can't handle positional and keyword arguments at the same time");
  }
  if (!arguments.keywords.empty()) {
    Dict dict;
    for (const auto& [name, value] : arguments.keywords) dict.Set(name, value);
    HYDRANT_ASSIGN_OR_RETURN(const Value values, runtime->budget().NewDict(std::move(dict)));
    return PercentFormat(&runtime->budget(), format, values);
  }
  HYDRANT_ASSIGN_OR_RETURN(const Value values, runtime->budget().NewSequence(Sequence::Kind::kTuple,
                                                                             arguments.positional));
  return PercentFormat(&runtime->budget(), format, values);
}

Result EscapeFilter(Runtime* runtime, const Value& input, const Arguments&) {
  if (input.IsString() && input.AsText().markup) return input;
  HYDRANT_ASSIGN_OR_RETURN(const std::string text, ToText(&runtime->budget(), input));
  return EscapeHtml(&runtime->budget(), text);
}

Result SafeFilter(Runtime* runtime, const Value& input, const Arguments&) {
  HYDRANT_ASSIGN_OR_RETURN(std::string text, ToText(&runtime->budget(), input));
  return runtime->budget().NewString(std::move(text), /*markup=*/true);
}

Result StringFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_RETURN_IF_ERROR(Bound::Bind("string", arguments, {}, 0).status());
  return ToString(&runtime->budget(), input);
}

constexpr NamedFilter kTextFilters[] = {
    {"capitalize", CapitalizeFilter}, {"center", CenterFilter},   {"e", EscapeFilter},
    {"escape", EscapeFilter},         {"format", FormatFilter},   {"indent", IndentFilter},
    {"lower", LowerFilter},           {"replace", ReplaceFilter}, {"safe", SafeFilter},
    {"string", StringFilter},         {"title", TitleFilter},     {"trim", TrimFilter},
    {"truncate", TruncateFilter},     {"upper", UpperFilter},     {"wordcount", WordCountFilter}};

}  // namespace

std::span<const NamedFilter> TextFilters() { return kTextFilters; }

}  // namespace hydrant::jinja
