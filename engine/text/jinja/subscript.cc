// value[index] and value[start:stop:step] of operators.h.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/code_points.h"
#include "engine/text/jinja/operators.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

Value CharacterAt(const Text& text, int64_t index) {
  const size_t begin = text.ascii ? static_cast<size_t>(index) : ByteOffset(text.utf8, index);
  const std::string_view rest = std::string_view(text.utf8).substr(begin);
  return Value::String(std::string(rest.substr(0, ByteOffset(rest, 1))), text.markup);
}

absl::StatusOr<int64_t> SlicePart(const Value& part, int64_t otherwise) {
  if (part.IsNone()) return otherwise;
  if (part.IsUndefined()) return UndefinedError(part);
  if (part.IsIntegral()) return part.AsInt();
  return TypeError("slice indices must be integers or None or have an __index__ method");
}

// The indices of a slice over `length` items, as Python's slice.indices().
struct SliceIndices {
  int64_t start, stop, step;

  template <typename Function>
  void ForEach(const Function& function) const {
    for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) function(i);
  }
};

absl::StatusOr<SliceIndices> Indices(int64_t length, const Value& start, const Value& stop,
                                     const Value& step) {
  SliceIndices indices;
  HYDRANT_ASSIGN_OR_RETURN(indices.step, SlicePart(step, 1));
  if (indices.step == 0) return absl::InvalidArgumentError("slice step cannot be zero");
  indices.step = std::clamp<int64_t>(indices.step, -length - 1, length + 1);
  if (indices.step == 0) indices.step = 1;  // the slice is empty
  const bool forward = indices.step > 0;
  const int64_t lowest = forward ? 0 : -1, highest = forward ? length : length - 1;
  const auto clamp = [&](int64_t index) {
    return std::clamp(index < 0 ? index + length : index, lowest, highest);
  };
  HYDRANT_ASSIGN_OR_RETURN(const int64_t first, SlicePart(start, forward ? 0 : INT64_MAX));
  indices.start = clamp(first);
  indices.stop = forward ? length : -1;
  if (!stop.IsNone()) {
    HYDRANT_ASSIGN_OR_RETURN(const int64_t last, SlicePart(stop, 0));
    indices.stop = clamp(last);
  }
  return indices;
}

absl::StatusOr<Value> SliceText(Budget* budget, const Text& text, const SliceIndices& indices) {
  BoundedText out(budget);
  if (indices.step == 1) {
    if (indices.start >= indices.stop) return std::move(out).String(text.markup);
    const std::string_view all(text.utf8);
    const size_t begin =
        text.ascii ? static_cast<size_t>(indices.start) : ByteOffset(all, indices.start);
    const std::string_view rest = all.substr(begin);
    const int64_t count = indices.stop - indices.start;
    out.Append(rest.substr(0, text.ascii ? static_cast<size_t>(count) : ByteOffset(rest, count)));
    return std::move(out).String(text.markup);
  }
  const std::vector<std::string_view> characters = Characters(text.utf8);
  indices.ForEach([&](int64_t i) { out.Append(characters[static_cast<size_t>(i)]); });
  return std::move(out).String(text.markup);
}

}  // namespace

absl::StatusOr<std::optional<Value>> Index(Budget* budget, const Value& value, const Value& index) {
  if (value.IsUndefined()) return UndefinedError(value);
  if (const Dict* dict = value.AsDict()) {
    HYDRANT_RETURN_IF_ERROR(budget->Walk(index));
    if (!CheckHashable(index).ok()) return std::optional<Value>();
    const Value* found = dict->Find(index);
    return found == nullptr ? std::optional<Value>() : *found;
  }
  const Sequence* sequence = value.AsSequence();
  const bool has_index = value.IsString() || (sequence != nullptr && sequence->HasIndex());
  if (!has_index || !index.IsIntegral()) return std::optional<Value>();
  HYDRANT_ASSIGN_OR_RETURN(const int64_t length, Length(value));
  int64_t at = index.AsInt();
  if (at < 0) at += length;
  if (at < 0 || at >= length) return std::optional<Value>();
  if (sequence != nullptr) return std::optional<Value>(sequence->items()[static_cast<size_t>(at)]);
  if (!value.AsText().ascii) HYDRANT_RETURN_IF_ERROR(budget->Walk(value));
  return std::optional<Value>(CharacterAt(value.AsText(), at));
}

absl::StatusOr<Value> Slice(Budget* budget, const Value& value, const Value& start,
                            const Value& stop, const Value& step) {
  if (value.IsUndefined()) return UndefinedError(value);
  const Sequence* sequence = value.AsSequence();
  if (!value.IsString() && (sequence == nullptr || !sequence->HasIndex())) {
    return TypeError(absl::StrCat("'", value.TypeName(), "' object cannot be sliced"));
  }
  HYDRANT_ASSIGN_OR_RETURN(const int64_t length, Length(value));
  const absl::StatusOr<SliceIndices> indices = Indices(length, start, stop, step);
  if (!indices.ok()) return indices.status();
  if (value.IsString()) {
    HYDRANT_RETURN_IF_ERROR(budget->Walk(value));
    return SliceText(budget, value.AsText(), *indices);
  }
  std::vector<Value> items;
  indices->ForEach([&](int64_t i) { items.push_back(sequence->items()[static_cast<size_t>(i)]); });
  return budget->NewSequence(sequence->kind(), std::move(items));
}

}  // namespace hydrant::jinja
