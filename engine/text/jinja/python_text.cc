#include "engine/text/jinja/python_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/code_points.h"
#include "engine/text/unicode/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

// Appends str() or repr() of a value, recursively. A namespace may contain itself, so depth is
// limited.
class PythonWriter {
 public:
  explicit PythonWriter(Budget* budget) : budget_(budget), out_(budget) {}

  absl::Status Write(const Value& value, bool quoted) {
    HYDRANT_RETURN_IF_ERROR(budget_->Step());
    if (++nesting_ > budget_->limits().max_nesting) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the template prints a value that nests deeper than ", budget_->limits().max_nesting));
    }
    HYDRANT_RETURN_IF_ERROR(WriteAny(value, quoted));
    --nesting_;
    return out_.ok() ? absl::OkStatus() : std::move(out_).Text().status();
  }

  absl::StatusOr<std::string> Text() && { return std::move(out_).Text(); }

 private:
  absl::Status WriteAny(const Value& value, bool quoted) {
    if (value.IsUndefined()) {
      out_.Append(quoted ? "Undefined" : "");
    } else if (value.IsNone()) {
      out_.Append("None");
    } else if (value.IsBool()) {
      out_.Append(value.AsBool() ? "True" : "False");
    } else if (value.IsInt()) {
      out_.Append(absl::StrCat(value.AsInt()));
    } else if (value.IsFloat()) {
      out_.Append(FloatRepr(value.AsDouble()));
    } else if (value.IsString()) {
      WriteString(value.AsText(), quoted);
    } else if (const Sequence* sequence = value.AsSequence()) {
      return WriteSequence(*sequence);
    } else if (const Dict* dict = value.AsDict()) {
      return WriteDict(*dict);
    } else {
      return WriteObject(value);
    }
    return absl::OkStatus();
  }

  void WriteString(const jinja::Text& text, bool quoted) {
    if (!quoted) {
      out_.Append(text.utf8);
    } else if (text.markup) {
      out_.Append(absl::StrCat("Markup(", QuotedRepr(text.utf8), ")"));
    } else {
      out_.Append(QuotedRepr(text.utf8));
    }
  }

  absl::Status WriteItems(const std::vector<Value>& items) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.Append(", ");
      HYDRANT_RETURN_IF_ERROR(Write(items[i], /*quoted=*/true));
    }
    return absl::OkStatus();
  }

  absl::Status WriteSequence(const Sequence& sequence) {
    const std::vector<Value>& items = sequence.items();
    switch (sequence.kind()) {
      case Sequence::Kind::kList:
        out_.Append("[");
        HYDRANT_RETURN_IF_ERROR(WriteItems(items));
        out_.Append("]");
        break;
      case Sequence::Kind::kTuple:
        out_.Append("(");
        HYDRANT_RETURN_IF_ERROR(WriteItems(items));
        out_.Append(items.size() == 1 ? ",)" : ")");
        break;
      case Sequence::Kind::kRange:
        WriteRange(sequence);
        break;
      case Sequence::Kind::kKeys:
      case Sequence::Kind::kValues:
      case Sequence::Kind::kItems:
        out_.Append(absl::StrCat(std::string(sequence.TypeName()), "(["));
        HYDRANT_RETURN_IF_ERROR(WriteItems(items));
        out_.Append("])");
        break;
      case Sequence::Kind::kIterator:
        return absl::InvalidArgumentError(
            "the template prints an iterator; a list filter is missing");
    }
    return absl::OkStatus();
  }

  void WriteRange(const Sequence& range) {
    const std::vector<Value>& items = range.items();
    if (!range.range_text().empty()) return out_.Append(range.range_text());
    // A slice of a range: bounds recovered from its items.
    const int64_t start = items.empty() ? 0 : items.front().AsInt();
    const int64_t step = items.size() < 2 ? 1 : items[1].AsInt() - start;
    const int64_t stop = items.empty() ? 0 : items.back().AsInt() + step;
    out_.Append(absl::StrCat("range(", start, ", ", stop));
    out_.Append(step == 1 ? ")" : absl::StrCat(", ", step, ")"));
  }

  absl::Status WriteDict(const Dict& dict) {
    out_.Append("{");
    for (size_t i = 0; i < dict.size(); ++i) {
      if (i > 0) out_.Append(", ");
      HYDRANT_RETURN_IF_ERROR(Write(dict.entries()[i].first, /*quoted=*/true));
      out_.Append(": ");
      HYDRANT_RETURN_IF_ERROR(Write(dict.entries()[i].second, /*quoted=*/true));
    }
    out_.Append("}");
    return absl::OkStatus();
  }

  absl::Status WriteObject(const Value& value) {
    const auto* space = dynamic_cast<const Namespace*>(value.AsObject());
    if (space == nullptr) {
      out_.Append(value.AsObject()->Repr());
      return absl::OkStatus();
    }
    out_.Append("<Namespace ");
    HYDRANT_RETURN_IF_ERROR(WriteDict(space->values()));
    out_.Append(">");
    return absl::OkStatus();
  }

  Budget* const budget_;
  BoundedText out_;
  int nesting_ = 0;
};

}  // namespace

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 40> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific)
                       .ptr;
  const std::string scientific(buffer.data(), end);
  const int exponent = std::stoi(scientific.substr(scientific.find('e') + 1));
  if (exponent < -4 || exponent >= 16) return scientific;  // "1e-05", "1.5e+16", as in Python
  const auto fixed_end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed)
          .ptr;
  std::string fixed(buffer.data(), fixed_end);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

std::string QuotedRepr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  std::array<char, 16> escape;
  for (const char32_t c : CodePoints(text)) {
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (IsPrintable(c)) {
      AppendUtf8(c, &out);
    } else {
      const char* format = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
      std::snprintf(escape.data(), escape.size(), format, static_cast<unsigned>(c));
      out += escape.data();
    }
  }
  return out + quote;
}

absl::StatusOr<std::string> ToText(Budget* budget, const Value& value) {
  if (value.IsString()) return value.AsString();
  PythonWriter writer(budget);
  HYDRANT_RETURN_IF_ERROR(writer.Write(value, /*quoted=*/false));
  return std::move(writer).Text();
}

absl::StatusOr<std::string> Repr(Budget* budget, const Value& value) {
  PythonWriter writer(budget);
  HYDRANT_RETURN_IF_ERROR(writer.Write(value, /*quoted=*/true));
  return std::move(writer).Text();
}

absl::StatusOr<Value> ToString(Budget* budget, const Value& value) {
  if (value.IsString()) return value;
  HYDRANT_ASSIGN_OR_RETURN(std::string text, ToText(budget, value));
  return Value::String(std::move(text));
}

}  // namespace hydrant::jinja
