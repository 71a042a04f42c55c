#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/code_points.h"
#include "engine/text/jinja/json.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/python_text.h"
#include "engine/text/unicode/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

std::string Escaped(char32_t c) {
  std::array<char, 16> text;
  if (c < 0x10000) {
    std::snprintf(text.data(), text.size(), "\\u%04x", static_cast<unsigned>(c));
  } else {  // a surrogate pair
    const unsigned rest = static_cast<unsigned>(c) - 0x10000;
    std::snprintf(text.data(), text.size(), "\\u%04x\\u%04x", 0xD800 | (rest >> 10),
                  0xDC00 | (rest & 0x3FF));
  }
  return text.data();
}

std::string Quote(std::string_view text, bool ensure_ascii) {
  std::string out = "\"";
  for (const char32_t c : CodePoints(text)) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\b':
        out += "\\b";
        break;
      default:
        if (c < 0x20 || (ensure_ascii && c > 0x7E)) {
          out += Escaped(c);
        } else {
          AppendUtf8(c, &out);
        }
    }
  }
  return out + '"';
}

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return FloatRepr(value);
}

class JsonTextWriter {
 public:
  JsonTextWriter(Budget* budget, const JsonStyle& style)
      : budget_(budget), style_(style), out_(budget) {}

  absl::Status Write(const Value& value) {
    HYDRANT_RETURN_IF_ERROR(budget_->Step());
    if (value.IsString()) {
      out_.Append(Quote(value.AsString(), style_.ensure_ascii));
    } else if (value.IsNone()) {
      out_.Append("null");
    } else if (value.IsBool()) {
      out_.Append(value.AsBool() ? "true" : "false");
    } else if (value.IsInt()) {
      out_.Append(absl::StrCat(value.AsInt()));
    } else if (value.IsFloat()) {
      out_.Append(Number(value.AsDouble()));
    } else if (const Dict* dict = value.AsDict()) {
      return WriteDict(*dict);
    } else if (const Sequence* sequence = value.AsSequence();
               sequence != nullptr && sequence->kind() <= Sequence::Kind::kTuple) {
      return WriteList(*sequence);
    } else {
      return TypeError(
          absl::StrCat("Object of type ", value.TypeName(), " is not JSON serializable"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Value> Result() && { return std::move(out_).String(); }

 private:
  void NewLine() {
    if (!style_.indented) return;
    out_.Append("\n");
    out_.AppendTimes(style_.indent, nesting_);
  }

  absl::Status WriteList(const Sequence& sequence) {
    out_.Append("[");
    ++nesting_;
    for (size_t i = 0; i < sequence.items().size(); ++i) {
      if (i > 0) out_.Append(style_.item_separator);
      NewLine();
      HYDRANT_RETURN_IF_ERROR(Write(sequence.items()[i]));
    }
    --nesting_;
    if (!sequence.items().empty()) NewLine();
    out_.Append("]");
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<Dict::Entry>> SortedEntries(const Dict& dict) {
    std::vector<Dict::Entry> entries = dict.entries();
    if (!style_.sort_keys) return entries;
    absl::Status status;
    std::stable_sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) {
      const absl::StatusOr<bool> less = Compare(Comparator::kLess, a.first, b.first);
      status.Update(less.status());
      return less.ok() && *less;
    });
    HYDRANT_RETURN_IF_ERROR(status);
    return entries;
  }

  absl::StatusOr<std::string> Key(const Value& key) {
    if (key.IsString()) return key.AsString();
    if (key.IsNone()) return "null";
    if (key.IsBool()) return key.AsBool() ? "true" : "false";
    if (key.IsInt()) return absl::StrCat(key.AsInt());
    if (key.IsFloat()) return Number(key.AsDouble());
    return TypeError(
        absl::StrCat("keys must be str, int, float, bool or None, not ", key.TypeName()));
  }

  absl::Status WriteDict(const Dict& dict) {
    HYDRANT_ASSIGN_OR_RETURN(const auto entries, SortedEntries(dict));
    out_.Append("{");
    ++nesting_;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_.Append(style_.item_separator);
      NewLine();
      HYDRANT_ASSIGN_OR_RETURN(const std::string key, Key(entries[i].first));
      out_.Append(Quote(key, style_.ensure_ascii));
      out_.Append(style_.key_separator);
      HYDRANT_RETURN_IF_ERROR(Write(entries[i].second));
    }
    --nesting_;
    if (!entries.empty()) NewLine();
    out_.Append("}");
    return absl::OkStatus();
  }

  Budget* const budget_;
  const JsonStyle style_;
  BoundedText out_;
  int nesting_ = 0;
};

}  // namespace

absl::StatusOr<Value> WriteJson(Budget* budget, const Value& value, const JsonStyle& style) {
  JsonTextWriter writer(budget, style);
  HYDRANT_RETURN_IF_ERROR(writer.Write(value));
  return std::move(writer).Result();
}

}  // namespace hydrant::jinja
