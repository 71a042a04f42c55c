// The variable `loop` of a for statement: its counters, its neighbours, cycle() and changed().
#ifndef HYDRANT_ENGINE_TEXT_JINJA_LOOP_CONTEXT_H_
#define HYDRANT_ENGINE_TEXT_JINJA_LOOP_CONTEXT_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja/value.h"

namespace hydrant::jinja {

class LoopContext final : public Object, public std::enable_shared_from_this<LoopContext> {
 public:
  explicit LoopContext(std::vector<Value> items);

  std::string TypeName() const override { return "LoopContext"; }
  Value Attribute(std::string_view name) const override;

  const std::vector<Value>& items() const { return items_; }
  void MoveTo(size_t index) { index_ = index; }

 private:
  class Method;

  const std::vector<Value> items_;
  size_t index_ = 0;
  mutable Value last_changed_;  // a tuple, for changed()
};

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_LOOP_CONTEXT_H_
