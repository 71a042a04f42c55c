// The state of a rendering available to filters, tests and functions. Used by one thread.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_RUNTIME_H_
#define HYDRANT_ENGINE_TEXT_JINJA_RUNTIME_H_

#include <ctime>
#include <memory>
#include <vector>

#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/value.h"

namespace hydrant::jinja {

class Runtime {
 public:
  Runtime(const Limits& limits, const std::tm& now) : budget_(limits), now_(now) {}
  // Breaks cycles: a namespace may contain itself.
  ~Runtime() {
    for (const std::shared_ptr<Namespace>& space : namespaces_) space->Clear();
  }
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Budget& budget() { return budget_; }
  const std::tm& now() const { return now_; }

  std::shared_ptr<Namespace> NewNamespace() {
    namespaces_.push_back(std::make_shared<Namespace>());
    return namespaces_.back();
  }

  // The error is raise_exception()'s message.
  bool raised() const { return raised_; }
  void set_raised() { raised_ = true; }

 private:
  Budget budget_;
  const std::tm now_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  bool raised_ = false;
};

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_RUNTIME_H_
