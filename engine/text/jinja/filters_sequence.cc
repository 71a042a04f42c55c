// Filters of iterables. If Jinja returns a generator, the result is an iterator with its items
// already computed.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/attribute_path.h"
#include "engine/text/jinja/code_points.h"
#include "engine/text/jinja/filter_groups.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/python_text.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

using Result = absl::StatusOr<Value>;
using Items = std::vector<Value>;

Result JoinFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("join", arguments, {"d", "attribute"}, 0));
  Budget* budget = &runtime->budget();
  std::string between;
  if (bound.Has(0)) {
    HYDRANT_ASSIGN_OR_RETURN(between, ToText(budget, bound[0]));
  }
  HYDRANT_ASSIGN_OR_RETURN(const Items items, Iterate(budget, input));
  const AttributePath path(bound[1]);
  BoundedText text(budget);
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text.Append(between);
    HYDRANT_ASSIGN_OR_RETURN(const Value item, path.Of(runtime, items[i]));
    HYDRANT_ASSIGN_OR_RETURN(const std::string part, ToText(budget, item));
    text.Append(part);
  }
  return std::move(text).String();
}

Result FirstFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_RETURN_IF_ERROR(Bound::Bind("first", arguments, {}, 0).status());
  const Value* item = nullptr;
  Items items;
  if (Sequence* sequence = input.AsSequence()) {
    item = sequence->TakeFirst();
  } else {
    HYDRANT_ASSIGN_OR_RETURN(items, Iterate(&runtime->budget(), input));
    if (!items.empty()) item = items.data();
  }
  return item != nullptr ? *item : Value::UndefinedBecause("No first item, sequence was empty.");
}

Result LastFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_RETURN_IF_ERROR(Bound::Bind("last", arguments, {}, 0).status());
  const Sequence* sequence = input.AsSequence();
  if (sequence != nullptr && sequence->IsIterator())
    return TypeError("'generator' object is not reversible");
  if (input.IsUndefined()) return Value::UndefinedBecause("No last item, sequence was empty.");
  HYDRANT_ASSIGN_OR_RETURN(const Items items, Iterate(&runtime->budget(), input));
  return !items.empty() ? items.back()
                        : Value::UndefinedBecause("No last item, sequence was empty.");
}

Result ListFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_RETURN_IF_ERROR(Bound::Bind("list", arguments, {}, 0).status());
  HYDRANT_ASSIGN_OR_RETURN(Items items, Iterate(&runtime->budget(), input));
  return runtime->budget().NewList(std::move(items));
}

Result ReverseFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_RETURN_IF_ERROR(Bound::Bind("reverse", arguments, {}, 0).status());
  if (input.IsString()) {
    const std::vector<std::string_view> characters = Characters(input.AsString());
    std::string text;
    std::for_each(characters.rbegin(), characters.rend(),
                  [&](std::string_view character) { text += character; });
    return runtime->budget().NewString(std::move(text), input.AsText().markup);
  }
  if (!IsIterable(input)) return absl::InvalidArgumentError("argument must be iterable");
  // Values that cannot be reversed in place become a list.
  const Sequence* sequence = input.AsSequence();
  const bool was_iterator = sequence != nullptr && sequence->IsIterator();
  HYDRANT_ASSIGN_OR_RETURN(Items items, Iterate(&runtime->budget(), input));
  std::reverse(items.begin(), items.end());
  return runtime->budget().NewSequence(
      was_iterator ? Sequence::Kind::kList : Sequence::Kind::kIterator, std::move(items));
}

struct Keyed {
  Items keys;
  Value value;
};

// Stable sort by the keys, the first key first.
absl::Status SortByKeys(Runtime* runtime, bool reverse, std::vector<Keyed>* entries) {
  absl::Status status;
  const auto before = [&](const Keyed& a, const Keyed& b) {
    for (size_t i = 0; i < a.keys.size() && status.ok(); ++i) {
      status.Update(runtime->budget().Step());
      status.Update(runtime->budget().Walk(a.keys[i]));
      if (Equal(a.keys[i], b.keys[i])) continue;
      const absl::StatusOr<bool> less = Compare(Comparator::kLess, a.keys[i], b.keys[i]);
      status.Update(less.status());
      return less.ok() && *less;
    }
    return false;
  };
  std::stable_sort(entries->begin(), entries->end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? before(b, a) : before(a, b);
  });
  return status;
}

Items ValuesOf(const std::vector<Keyed>& entries) {
  Items items;
  for (const Keyed& entry : entries) items.push_back(entry.value);
  return items;
}

// "a,b" sorts by a, then by b.
std::vector<AttributePath> SortPaths(const Value& attribute) {
  std::vector<AttributePath> paths;
  if (!attribute.IsString()) return {AttributePath(attribute)};
  std::string_view rest = attribute.AsString();
  while (true) {
    const size_t comma = rest.find(',');
    paths.emplace_back(Value::String(std::string(rest.substr(0, comma))));
    if (comma == std::string_view::npos) return paths;
    rest.remove_prefix(comma + 1);
  }
}

Result SortFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("sort", arguments, {"reverse", "case_sensitive", "attribute"}, 0));
  HYDRANT_ASSIGN_OR_RETURN(Items items, Iterate(&runtime->budget(), input));
  const std::vector<AttributePath> paths = SortPaths(bound[2]);
  std::vector<Keyed> entries;
  for (Value& item : items) {
    Keyed entry;
    for (const AttributePath& path : paths) {
      HYDRANT_ASSIGN_OR_RETURN(Value key, SortKey(runtime, path, item, !bound.True(1, false)));
      entry.keys.push_back(std::move(key));
    }
    entry.value = std::move(item);
    entries.push_back(std::move(entry));
  }
  HYDRANT_RETURN_IF_ERROR(SortByKeys(runtime, bound.True(0, false), &entries));
  return runtime->budget().NewList(ValuesOf(entries));
}

Result DictSortFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("dictsort", arguments,
                                                          {"case_sensitive", "by", "reverse"}, 0));
  HYDRANT_ASSIGN_OR_RETURN(const std::string by, bound.String(1, "key"));
  if (by != "key" && by != "value")
    return absl::InvalidArgumentError("You can only sort by either \"key\" or \"value\"");
  if (input.IsUndefined()) return UndefinedError(input);
  const Dict* dict = input.AsDict();
  if (dict == nullptr)
    return TypeError(
        absl::StrCat("the filter dictsort wants a dict, not '", input.TypeName(), "'"));
  std::vector<Keyed> entries;
  for (const auto& [name, value] : dict->entries()) {
    Keyed entry;
    HYDRANT_ASSIGN_OR_RETURN(Value key, SortKey(runtime, AttributePath(),
                                                by == "key" ? name : value, !bound.True(0, false)));
    entry.keys.push_back(std::move(key));
    HYDRANT_ASSIGN_OR_RETURN(entry.value,
                             runtime->budget().NewSequence(Sequence::Kind::kTuple, {name, value}));
    entries.push_back(std::move(entry));
  }
  HYDRANT_RETURN_IF_ERROR(SortByKeys(runtime, bound.True(2, false), &entries));
  return runtime->budget().NewList(ValuesOf(entries));
}

Result UniqueFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("unique", arguments, {"case_sensitive", "attribute"}, 0));
  HYDRANT_ASSIGN_OR_RETURN(Items items, Iterate(&runtime->budget(), input));
  const AttributePath path(bound[1]);
  Dict seen;
  Items kept;
  for (Value& item : items) {
    HYDRANT_ASSIGN_OR_RETURN(const Value key, SortKey(runtime, path, item, !bound.True(0, false)));
    HYDRANT_RETURN_IF_ERROR(CheckHashable(key));
    HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(key));
    if (seen.Find(key) != nullptr) continue;
    seen.Set(key, Value(None{}));
    kept.push_back(std::move(item));
  }
  return runtime->budget().NewSequence(Sequence::Kind::kIterator, std::move(kept));
}

Result Extreme(Runtime* runtime, const Value& input, const Arguments& arguments,
               Comparator better) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("min", arguments, {"case_sensitive", "attribute"}, 0));
  HYDRANT_ASSIGN_OR_RETURN(const Items items, Iterate(&runtime->budget(), input));
  if (items.empty()) return Value::UndefinedBecause("No aggregated item, sequence was empty.");
  const AttributePath path(bound[1]);
  size_t best = 0;
  Value best_key;
  for (size_t i = 0; i < items.size(); ++i) {
    HYDRANT_ASSIGN_OR_RETURN(Value key, SortKey(runtime, path, items[i], !bound.True(0, false)));
    HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(key));
    bool is_better = i == 0;
    if (!is_better) {
      HYDRANT_ASSIGN_OR_RETURN(is_better, Compare(better, key, best_key));
    }
    if (!is_better) continue;
    best = i;
    best_key = std::move(key);
  }
  return items[best];
}

Result MinFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  return Extreme(runtime, input, arguments, Comparator::kLess);
}

Result MaxFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  return Extreme(runtime, input, arguments, Comparator::kGreater);
}

Result SumFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("sum", arguments, {"attribute", "start"}, 0));
  HYDRANT_ASSIGN_OR_RETURN(const Items items, Iterate(&runtime->budget(), input));
  const AttributePath path(bound[0]);
  Value sum = bound.Has(1) ? bound[1] : Value(int64_t{0});
  if (sum.IsString()) return TypeError("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : items) {
    HYDRANT_ASSIGN_OR_RETURN(const Value one, path.Of(runtime, item));
    HYDRANT_ASSIGN_OR_RETURN(sum, Apply(&runtime->budget(), Operator::kAdd, sum, one));
  }
  return sum;
}

Result BatchFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("batch", arguments, {"linecount", "fill_with"}, 1));
  HYDRANT_ASSIGN_OR_RETURN(const int64_t size, bound.Int(0, 1));
  if (size < 1) return absl::InvalidArgumentError("batch: linecount is below 1");
  HYDRANT_ASSIGN_OR_RETURN(const Items items, Iterate(&runtime->budget(), input));
  Items batches;
  for (size_t begin = 0; begin < items.size(); begin += static_cast<size_t>(size)) {
    const size_t end = begin + std::min(static_cast<size_t>(size), items.size() - begin);
    Items batch(items.begin() + static_cast<std::ptrdiff_t>(begin),
                items.begin() + static_cast<std::ptrdiff_t>(end));
    if (bound.Has(1) && !bound[1].IsNone() && static_cast<int64_t>(batch.size()) < size) {
      HYDRANT_RETURN_IF_ERROR(runtime->budget().CheckItems(static_cast<size_t>(size)));
      batch.resize(static_cast<size_t>(size), bound[1]);
    }
    HYDRANT_ASSIGN_OR_RETURN(Value list, runtime->budget().NewList(std::move(batch)));
    batches.push_back(std::move(list));
  }
  return runtime->budget().NewSequence(Sequence::Kind::kIterator, std::move(batches));
}

Result SliceFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("slice", arguments, {"slices", "fill_with"}, 1));
  HYDRANT_ASSIGN_OR_RETURN(const int64_t count, bound.Int(0, 1));
  if (count < 1) return absl::InvalidArgumentError("slice: slices is below 1");
  HYDRANT_RETURN_IF_ERROR(runtime->budget().CheckItems(static_cast<size_t>(count)));
  HYDRANT_ASSIGN_OR_RETURN(const Items items, Iterate(&runtime->budget(), input));
  const auto length = static_cast<int64_t>(items.size());
  const int64_t with_extra = length % count;
  Items slices;
  auto next = items.begin();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t size = length / count + (i < with_extra ? 1 : 0);
    Items slice(next, next + size);
    next += size;
    if (bound.Has(1) && !bound[1].IsNone() && i >= with_extra) slice.push_back(bound[1]);
    HYDRANT_ASSIGN_OR_RETURN(Value list, runtime->budget().NewList(std::move(slice)));
    slices.push_back(std::move(list));
  }
  return runtime->budget().NewSequence(Sequence::Kind::kIterator, std::move(slices));
}

Result ItemsFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_RETURN_IF_ERROR(Bound::Bind("items", arguments, {}, 0).status());
  Items pairs;
  if (const Dict* dict = input.AsDict()) {
    for (const auto& [key, value] : dict->entries()) {
      HYDRANT_ASSIGN_OR_RETURN(Value pair,
                               runtime->budget().NewSequence(Sequence::Kind::kTuple, {key, value}));
      pairs.push_back(std::move(pair));
    }
  } else if (!input.IsUndefined()) {
    return TypeError("Can only get item pairs from a mapping.");
  }
  return runtime->budget().NewSequence(Sequence::Kind::kIterator, std::move(pairs));
}

constexpr NamedFilter kSequenceFilters[] = {
    {"batch", BatchFilter},     {"dictsort", DictSortFilter}, {"first", FirstFilter},
    {"items", ItemsFilter},     {"join", JoinFilter},         {"last", LastFilter},
    {"list", ListFilter},       {"max", MaxFilter},           {"min", MinFilter},
    {"reverse", ReverseFilter}, {"slice", SliceFilter},       {"sort", SortFilter},
    {"sum", SumFilter},         {"unique", UniqueFilter}};

}  // namespace

std::span<const NamedFilter> SequenceFilters() { return kSequenceFilters; }

}  // namespace hydrant::jinja
