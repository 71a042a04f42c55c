// The values of a template, with Python's types. Immutable, except namespaces and iterators, which
// are consumed. Copies share their contents. The values of one rendering belong to one thread.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_VALUE_H_
#define HYDRANT_ENGINE_TEXT_JINJA_VALUE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

namespace hydrant::jinja {

class Dict;
class Object;
class Runtime;
class Sequence;
struct Arguments;

// The result of a missing name or attribute: printed as nothing, an error in most other uses.
struct Undefined {
  std::shared_ptr<const std::string> why;  // "'x' is undefined"; null: name unknown
};
struct None {};

struct Text {
  std::string utf8;  // valid
  bool ascii;        // byte indices are code point indices
  bool markup;       // made by `safe` or `escape`: text appended to it is escaped
};

// The size of a value as a tree: shared parts count once per container. A walk over a value takes
// as many steps.
struct Extent {
  int height = 0;      // of its containers; 0: not a container
  int64_t weight = 1;  // number of values in it, plus text bytes / 64

  void Add(const Extent& part);
};

class Value {
 public:
  Value() = default;  // undefined
  explicit Value(Undefined undefined) : data_(std::move(undefined)) {}
  explicit Value(None none) : data_(none) {}
  explicit Value(bool value) : data_(value) {}
  explicit Value(int64_t value) : data_(value) {}
  explicit Value(double value) : data_(value) {}
  explicit Value(std::shared_ptr<const Text> text) : data_(std::move(text)) {}
  explicit Value(std::shared_ptr<Sequence> sequence) : data_(std::move(sequence)) {}
  explicit Value(std::shared_ptr<const Dict> dict) : data_(std::move(dict)) {}
  explicit Value(std::shared_ptr<Object> object) : data_(std::move(object)) {}
  // REQUIRES: `utf8` is valid UTF-8.
  static Value String(std::string utf8, bool markup = false);
  static Value UndefinedBecause(std::string why);

  bool IsUndefined() const { return std::holds_alternative<Undefined>(data_); }
  bool IsNone() const { return std::holds_alternative<None>(data_); }
  bool IsBool() const { return std::holds_alternative<bool>(data_); }
  bool IsInt() const { return std::holds_alternative<int64_t>(data_); }
  bool IsFloat() const { return std::holds_alternative<double>(data_); }
  bool IsString() const { return std::holds_alternative<std::shared_ptr<const Text>>(data_); }
  bool IsIntegral() const { return IsInt() || IsBool(); }  // bool is a subclass of int
  bool IsNumber() const { return IsIntegral() || IsFloat(); }

  // REQUIRES: the value is of the type.
  bool AsBool() const { return std::get<bool>(data_); }
  int64_t AsInt() const { return IsBool() ? int64_t{AsBool()} : std::get<int64_t>(data_); }
  double AsDouble() const {
    return IsFloat() ? std::get<double>(data_) : static_cast<double>(AsInt());
  }
  const Text& AsText() const { return *std::get<std::shared_ptr<const Text>>(data_); }
  const std::string& AsString() const { return AsText().utf8; }
  const Undefined& AsUndefined() const { return std::get<Undefined>(data_); }

  // Null if the value has another type.
  Sequence* AsSequence() const;
  const Dict* AsDict() const;
  Object* AsObject() const;
  std::shared_ptr<const Dict> SharedDict() const;
  std::shared_ptr<Object> SharedObject() const;

  bool IsTrue() const;           // Python's truth
  std::string TypeName() const;  // Python's: "str", "NoneType"
  Extent GetExtent() const;
  // Python's `is`, as far as templates can observe it.
  bool IsSameAs(const Value& other) const;

 private:
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<Sequence>, std::shared_ptr<const Dict>, std::shared_ptr<Object>>
      data_;
};

// list, tuple, range, a view of a dict, or an iterator (the result of filters such as map; its
// items are precomputed, but it is consumed as in Python).
class Sequence {
 public:
  enum class Kind { kList, kTuple, kRange, kKeys, kValues, kItems, kIterator };

  // `range_text`: the source form of a range.
  Sequence(Kind kind, std::vector<Value> items, std::string range_text = "");

  Kind kind() const { return kind_; }
  const std::vector<Value>& items() const { return items_; }
  const Extent& extent() const { return extent_; }
  const std::string& range_text() const { return range_text_; }
  bool IsIterator() const { return kind_ == Kind::kIterator; }
  bool HasIndex() const { return kind_ <= Kind::kRange; }
  std::string_view TypeName() const;

  // All items; exhausts an iterator.
  std::vector<Value> TakeAll();
  // The next item of an iterator, or the first of any other sequence; nullptr: none.
  const Value* TakeFirst();

 private:
  const Kind kind_;
  const std::vector<Value> items_;
  const std::string range_text_;
  size_t next_ = 0;  // position of an iterator
  Extent extent_{.height = 1};
};

// In insertion order. Keys must be hashable (Hash in operators.h).
class Dict {
 public:
  using Entry = std::pair<Value, Value>;

  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  const Extent& extent() const { return extent_; }

  const Value* Find(const Value& key) const;  // null: absent
  const Value* Find(std::string_view key) const;
  // An existing key keeps its position. REQUIRES: `key` is hashable.
  void Set(const Value& key, Value value);
  void Set(std::string_view key, Value value);

 private:
  static constexpr size_t kLinear = 8;  // up to this size entries are compared one by one

  size_t IndexOf(const Value& key) const;  // size(): absent

  std::vector<Entry> entries_;
  absl::flat_hash_map<uint64_t, std::vector<uint32_t>> index_;  // by hash; empty while linear
  Extent extent_{.height = 1};
};

// Values with attributes or a call operator: functions, methods, macros, namespaces, `loop`.
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string TypeName() const = 0;
  virtual bool IsCallable() const { return false; }
  virtual absl::StatusOr<Value> Call(Runtime* runtime, const Arguments& arguments);
  // Undefined if there is none.
  virtual Value Attribute(std::string_view name) const;
  virtual std::string Repr() const { return "<" + TypeName() + ">"; }
  const Extent& extent() const { return extent_; }

 protected:
  Extent extent_;  // includes the object's contents, but not a namespace's
};

// The value of `namespace(...)`: the only mutable value in templates.
class Namespace final : public Object {
 public:
  std::string TypeName() const override { return "Namespace"; }
  Value Attribute(std::string_view name) const override;
  void Set(std::string_view name, Value value) { values_.Set(name, std::move(value)); }
  void Clear() { values_ = Dict(); }
  const Dict& values() const { return values_; }

 private:
  Dict values_;
};

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_VALUE_H_
