// The variables of a block and of its enclosing blocks. A macro shares the scope of its definition.
// Used by one thread.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_SCOPE_H_
#define HYDRANT_ENGINE_TEXT_JINJA_SCOPE_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "engine/text/jinja/value.h"

namespace hydrant::jinja {

class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> parent) : parent_(std::move(parent)) {}

  // Null if neither this scope nor an enclosing one has the name.
  const Value* Find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent_.get()) {
      const auto found = scope->variables_.find(name);
      if (found != scope->variables_.end()) return &found->second;
    }
    return nullptr;
  }
  void Set(const std::string& name, Value value) { variables_[name] = std::move(value); }
  void Clear() { variables_.clear(); }

 private:
  const std::shared_ptr<Scope> parent_;
  absl::flat_hash_map<std::string, Value> variables_;
};

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_SCOPE_H_
