#include "engine/text/jinja/globals.h"

#include <array>
#include <ctime>
#include <memory>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/python_text.h"
#include "engine/text/jinja/runtime.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

using Result = absl::StatusOr<Value>;
using Function = Result (*)(Runtime* runtime, const Arguments& arguments);

class BuiltIn final : public Object {
 public:
  BuiltIn(std::string_view name, Function function) : name_(name), function_(function) {}
  std::string TypeName() const override { return "function"; }
  bool IsCallable() const override { return true; }
  Result Call(Runtime* runtime, const Arguments& arguments) override {
    return function_(runtime, arguments);
  }
  std::string Repr() const override { return absl::StrCat("<function ", name_, ">"); }

 private:
  const std::string name_;
  const Function function_;
};

Result RaiseException(Runtime* runtime, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("raise_exception()", arguments, {"message"}, 1));
  HYDRANT_ASSIGN_OR_RETURN(const std::string message, ToText(&runtime->budget(), bound[0]));
  runtime->set_raised();
  return absl::InvalidArgumentError(message.substr(0, 4096));
}

// A format for C's strftime() with the result of Python's strftime() for a time without a zone: %Z
// and %z are empty, and %f (microseconds) is 000000. The format ends in a dot, so that C's result
// is never empty.
std::string FormatWithoutZone(std::string_view format) {
  std::string without;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      without += format[i];
      continue;
    }
    const char what = format[++i];
    if (what == 'Z' || what == 'z') continue;
    without += what == 'f' ? "000000" : std::string{'%', what};
  }
  return without + '.';
}

Result StrftimeNow(Runtime* runtime, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("strftime_now()", arguments, {"format"}, 1));
  HYDRANT_ASSIGN_OR_RETURN(const std::string format, bound.String(0, ""));
  std::array<char, 4096> text;
  const size_t length =
      std::strftime(text.data(), text.size(), FormatWithoutZone(format).c_str(), &runtime->now());
  if (length == 0)
    return absl::InvalidArgumentError("strftime_now: the text is longer than 4094 bytes");
  return runtime->budget().NewString(std::string(text.data(), length - 1));
}

Result Range(Runtime* runtime, const Arguments& arguments) {
  if (!arguments.keywords.empty()) return TypeError("range() takes no keyword arguments");
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("range()", arguments, {"start", "stop", "step"}, 1));
  HYDRANT_ASSIGN_OR_RETURN(int64_t start, bound.Int(0, 0));
  HYDRANT_ASSIGN_OR_RETURN(int64_t stop, bound.Int(1, 0));
  HYDRANT_ASSIGN_OR_RETURN(const int64_t step, bound.Int(2, 1));
  if (!bound.Has(1)) stop = std::exchange(start, 0);
  if (step == 0) return absl::InvalidArgumentError("range() arg 3 must not be zero");
  const int limit = runtime->budget().limits().max_range;
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int>(items.size()) == limit) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Range too big. The sandbox blocks ranges larger than MAX_RANGE (", limit, ")."));
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  std::string text = absl::StrCat("range(", start, ", ", stop);
  text += step == 1 ? ")" : absl::StrCat(", ", step, ")");
  return runtime->budget().NewSequence(Sequence::Kind::kRange, std::move(items), std::move(text));
}

// dict(mapping or pairs, name=value...)
absl::StatusOr<Dict> MakeDict(Runtime* runtime, const Arguments& arguments) {
  Dict dict;
  if (arguments.positional.size() > 1) return TypeError("dict expected at most 1 argument");
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    const Dict* other = from.AsDict();
    if (other != nullptr) {
      dict = *other;
    } else {
      HYDRANT_ASSIGN_OR_RETURN(const std::vector<Value> pairs, Iterate(&runtime->budget(), from));
      for (const Value& pair : pairs) {
        HYDRANT_ASSIGN_OR_RETURN(const std::vector<Value> parts, Iterate(&runtime->budget(), pair));
        if (parts.size() != 2)
          return TypeError("dict() wants pairs, and an element has another length");
        HYDRANT_RETURN_IF_ERROR(CheckHashable(parts[0]));
        HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(parts[0]));
        dict.Set(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.keywords) dict.Set(name, value);
  return dict;
}

Result DictFunction(Runtime* runtime, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(Dict dict, MakeDict(runtime, arguments));
  return runtime->budget().NewDict(std::move(dict));
}

Result NamespaceFunction(Runtime* runtime, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Dict dict, MakeDict(runtime, arguments));
  HYDRANT_RETURN_IF_ERROR(runtime->budget().AllocateItems(8 + 2 * dict.size()));
  const std::shared_ptr<Namespace> space = runtime->NewNamespace();
  for (const auto& [name, value] : dict.entries()) {
    if (!name.IsString()) return TypeError("namespace() wants names that are strings");
    HYDRANT_RETURN_IF_ERROR(CheckNamespaceName(name.AsString()));
    space->Set(name.AsString(), value);
  }
  return Value(std::shared_ptr<Object>(space));
}

// Returns its values cyclically.
class Cycler final : public Object, public std::enable_shared_from_this<Cycler> {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)) {
    for (const Value& item : items_) extent_.Add(item.GetExtent());
  }

  std::string TypeName() const override { return "Cycler"; }
  Value Attribute(std::string_view name) const override;

  Value Next() const {
    const Value item = items_[at_];
    at_ = (at_ + 1) % items_.size();
    return item;
  }
  void Reset() const { at_ = 0; }

 private:
  const std::vector<Value> items_;
  mutable size_t at_ = 0;
};

class CyclerMethod final : public Object {
 public:
  CyclerMethod(std::shared_ptr<const Cycler> cycler, bool resets)
      : cycler_(std::move(cycler)), resets_(resets) {
    extent_ = cycler_->extent();
  }
  std::string TypeName() const override { return "method"; }
  bool IsCallable() const override { return true; }
  Result Call(Runtime*, const Arguments&) override {
    if (!resets_) return cycler_->Next();
    cycler_->Reset();
    return Value(None{});
  }

 private:
  const std::shared_ptr<const Cycler> cycler_;
  const bool resets_;
};

Value Cycler::Attribute(std::string_view name) const {
  if (name == "current") return items_[at_];
  if (name != "next" && name != "reset") return Object::Attribute(name);
  return Value(
      std::shared_ptr<Object>(std::make_shared<CyclerMethod>(shared_from_this(), name == "reset")));
}

Result CyclerFunction(Runtime* runtime, const Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.keywords.empty())
    return TypeError("at least one item has to be provided");
  HYDRANT_RETURN_IF_ERROR(runtime->budget().AllocateItems(arguments.positional.size()));
  auto cycler = std::make_shared<Cycler>(arguments.positional);
  HYDRANT_RETURN_IF_ERROR(runtime->budget().CheckExtent(cycler->extent()));
  return Value(std::shared_ptr<Object>(std::move(cycler)));
}

// Returns nothing at its first call, then the separator.
class Joiner final : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {
    extent_.Add(separator_.GetExtent());
  }
  std::string TypeName() const override { return "Joiner"; }
  bool IsCallable() const override { return true; }
  Result Call(Runtime*, const Arguments&) override {
    return std::exchange(used_, true) ? separator_ : Value::String("");
  }

 private:
  const Value separator_;
  bool used_ = false;
};

Result JoinerFunction(Runtime* runtime, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("joiner()", arguments, {"sep"}, 0));
  const Value separator = bound.Has(0) ? bound[0] : Value::String(", ");
  auto joiner = std::make_shared<Joiner>(separator);
  HYDRANT_RETURN_IF_ERROR(runtime->budget().CheckExtent(joiner->extent()));
  return Value(std::shared_ptr<Object>(std::move(joiner)));
}

struct NamedFunction {
  std::string_view name;
  Function function;
};

constexpr NamedFunction kFunctions[] = {
    {"cycler", CyclerFunction},          {"dict", DictFunction},
    {"joiner", JoinerFunction},          {"namespace", NamespaceFunction},
    {"raise_exception", RaiseException}, {"range", Range},
    {"strftime_now", StrftimeNow}};

const NamedFunction* Find(std::string_view name) {
  for (const NamedFunction& one : kFunctions) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

}  // namespace

absl::Status CheckNamespaceName(std::string_view name) {
  if (!name.starts_with("_")) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a namespace cannot have the attribute '",
                                                 std::string(name),
                                                 "': it begins with an underscore"));
}

bool IsGlobal(std::string_view name) { return Find(name) != nullptr; }

Value FindGlobal(std::string_view name) {
  const NamedFunction* found = Find(name);
  if (found == nullptr) return {};
  return Value(std::shared_ptr<Object>(std::make_shared<BuiltIn>(found->name, found->function)));
}

}  // namespace hydrant::jinja
