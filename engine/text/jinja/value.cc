#include "engine/text/jinja/value.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/operators.h"

namespace hydrant::jinja {

Value Value::String(std::string utf8, bool markup) {
  const bool ascii = std::all_of(utf8.begin(), utf8.end(),
                                 [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  return Value(std::make_shared<const Text>(Text{std::move(utf8), ascii, markup}));
}

Value Value::UndefinedBecause(std::string why) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(why))});
}

Sequence* Value::AsSequence() const {
  const auto* held = std::get_if<std::shared_ptr<Sequence>>(&data_);
  return held == nullptr ? nullptr : held->get();
}

std::shared_ptr<const Dict> Value::SharedDict() const {
  const auto* held = std::get_if<std::shared_ptr<const Dict>>(&data_);
  return held == nullptr ? nullptr : *held;
}

const Dict* Value::AsDict() const {
  const auto* held = std::get_if<std::shared_ptr<const Dict>>(&data_);
  return held == nullptr ? nullptr : held->get();
}

std::shared_ptr<Object> Value::SharedObject() const {
  const auto* held = std::get_if<std::shared_ptr<Object>>(&data_);
  return held == nullptr ? nullptr : *held;
}

Object* Value::AsObject() const {
  const auto* held = std::get_if<std::shared_ptr<Object>>(&data_);
  return held == nullptr ? nullptr : held->get();
}

bool Value::IsTrue() const {
  if (IsUndefined() || IsNone()) return false;
  if (IsNumber()) return AsDouble() != 0;
  if (IsString()) return !AsString().empty();
  if (const Sequence* sequence = AsSequence())
    return sequence->IsIterator() || !sequence->items().empty();
  if (const Dict* dict = AsDict()) return dict->size() > 0;
  return true;
}

std::string Value::TypeName() const {
  if (IsUndefined()) return "Undefined";
  if (IsNone()) return "NoneType";
  if (IsBool()) return "bool";
  if (IsInt()) return "int";
  if (IsFloat()) return "float";
  if (IsString()) return AsText().markup ? "Markup" : "str";
  if (const Sequence* sequence = AsSequence()) return std::string(sequence->TypeName());
  if (AsDict() != nullptr) return "dict";
  return AsObject()->TypeName();
}

void Extent::Add(const Extent& part) {
  height = std::max(height, part.height + 1);
  if (__builtin_add_overflow(weight, part.weight, &weight)) weight = INT64_MAX;
}

Extent Value::GetExtent() const {
  if (IsString()) return {.weight = 1 + static_cast<int64_t>(AsString().size() / 64)};
  if (const Sequence* sequence = AsSequence()) return sequence->extent();
  if (const Dict* dict = AsDict()) return dict->extent();
  if (const Object* object = AsObject()) return object->extent();
  return {};
}

bool Value::IsSameAs(const Value& other) const {
  if (AsSequence() != nullptr) return AsSequence() == other.AsSequence();
  if (AsDict() != nullptr) return AsDict() == other.AsDict();
  if (AsObject() != nullptr) return AsObject() == other.AsObject();
  return TypeName() == other.TypeName() && Equal(*this, other);
}

Sequence::Sequence(Kind kind, std::vector<Value> items, std::string range_text)
    : kind_(kind), items_(std::move(items)), range_text_(std::move(range_text)) {
  for (const Value& item : items_) extent_.Add(item.GetExtent());
}

std::string_view Sequence::TypeName() const {
  switch (kind_) {
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kRange:
      return "range";
    case Kind::kKeys:
      return "dict_keys";
    case Kind::kValues:
      return "dict_values";
    case Kind::kItems:
      return "dict_items";
    case Kind::kIterator:
      break;
  }
  return "generator";
}

std::vector<Value> Sequence::TakeAll() {
  if (!IsIterator()) return items_;
  std::vector<Value> rest(items_.begin() + static_cast<std::ptrdiff_t>(next_), items_.end());
  next_ = items_.size();
  return rest;
}

const Value* Sequence::TakeFirst() {
  if (next_ >= items_.size()) return nullptr;
  return &items_[IsIterator() ? next_++ : 0];
}

size_t Dict::IndexOf(const Value& key) const {
  if (index_.empty()) {
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& entry) { return Equal(entry.first, key); });
    return static_cast<size_t>(found - entries_.begin());
  }
  const auto bucket = index_.find(Hash(key));
  if (bucket == index_.end()) return entries_.size();
  for (const uint32_t at : bucket->second) {
    if (Equal(entries_[at].first, key)) return at;
  }
  return entries_.size();
}

const Value* Dict::Find(const Value& key) const {
  const size_t at = IndexOf(key);
  return at < entries_.size() ? &entries_[at].second : nullptr;
}

const Value* Dict::Find(std::string_view key) const {
  if (!index_.empty()) return Find(Value::String(std::string(key)));
  for (const Entry& entry : entries_) {
    if (entry.first.IsString() && entry.first.AsString() == key) return &entry.second;
  }
  return nullptr;
}

void Dict::Set(const Value& key, Value value) {
  extent_.Add(key.GetExtent());
  extent_.Add(value.GetExtent());
  const size_t at = IndexOf(key);
  if (at < entries_.size()) {
    entries_[at].second = std::move(value);
    return;
  }
  entries_.emplace_back(key, std::move(value));
  if (entries_.size() <= kLinear) return;
  const size_t first = index_.empty() ? 0 : at;
  for (size_t i = first; i < entries_.size(); ++i)
    index_[Hash(entries_[i].first)].push_back(static_cast<uint32_t>(i));
}

void Dict::Set(std::string_view key, Value value) {
  Set(Value::String(std::string(key)), std::move(value));
}

absl::StatusOr<Value> Object::Call(Runtime*, const Arguments&) {
  return absl::InvalidArgumentError(absl::StrCat("'", TypeName(), "' object is not callable"));
}

Value Object::Attribute(std::string_view name) const {
  return Value::UndefinedBecause(
      absl::StrCat("'", TypeName(), " object' has no attribute '", std::string(name), "'"));
}

Value Namespace::Attribute(std::string_view name) const {
  const Value* found = values_.Find(name);
  return found != nullptr ? *found : Object::Attribute(name);
}

}  // namespace hydrant::jinja
