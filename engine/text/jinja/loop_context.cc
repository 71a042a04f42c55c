#include "engine/text/jinja/loop_context.h"

#include <utility>

#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/runtime.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {

// loop.cycle(a, b) or loop.changed(value).
class LoopContext::Method final : public Object {
 public:
  Method(std::shared_ptr<const LoopContext> loop, bool cycles)
      : loop_(std::move(loop)), cycles_(cycles) {
    extent_ = loop_->extent();
  }

  std::string TypeName() const override { return "method"; }
  bool IsCallable() const override { return true; }
  absl::StatusOr<Value> Call(Runtime* runtime, const Arguments& arguments) override {
    const std::vector<Value>& values = arguments.positional;
    if (cycles_) {
      if (values.empty()) return TypeError("no items for cycling given");
      return values[loop_->index_ % values.size()];
    }
    HYDRANT_ASSIGN_OR_RETURN(Value now,
                             runtime->budget().NewSequence(Sequence::Kind::kTuple, values));
    HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(now));
    if (Equal(loop_->last_changed_, now)) return Value(false);
    loop_->last_changed_ = std::move(now);
    return Value(true);
  }

 private:
  const std::shared_ptr<const LoopContext> loop_;
  const bool cycles_;
};

LoopContext::LoopContext(std::vector<Value> items) : items_(std::move(items)) {
  for (const Value& item : items_) extent_.Add(item.GetExtent());
}

Value LoopContext::Attribute(std::string_view name) const {
  const auto index = static_cast<int64_t>(index_), length = static_cast<int64_t>(items_.size());
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "revindex") return Value(length - index);
  if (name == "revindex0") return Value(length - index - 1);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 == length);
  if (name == "length") return Value(length);
  if (name == "depth") return Value(int64_t{1});
  if (name == "depth0") return Value(int64_t{0});
  if (name == "previtem") {
    return index > 0 ? items_[index_ - 1] : Value::UndefinedBecause("there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < length ? items_[index_ + 1]
                              : Value::UndefinedBecause("there is no next item");
  }
  if (name == "cycle" || name == "changed") {
    return Value(
        std::shared_ptr<Object>(std::make_shared<Method>(shared_from_this(), name == "cycle")));
  }
  return Object::Attribute(name);
}

}  // namespace hydrant::jinja
