// Questions to the loop's thread from others that wait for the answer.
#ifndef HYDRANT_SCHEDULER_CALL_ON_LOOP_H_
#define HYDRANT_SCHEDULER_CALL_ON_LOOP_H_

#include <functional>
#include <future>
#include <memory>
#include <type_traits>

#include "scheduler/serving_loop.h"

namespace hydrant {

// `with`: ServingLoop::WithContexts or WithPrefixCache. An empty answer where the loop has stopped.
template <typename Table, typename Ask>
auto CallOnLoop(ServingLoop* loop, void (ServingLoop::*with)(std::function<void(Table*)>),
                const Ask& ask) {
  using Answer = std::invoke_result_t<Ask, Table*>;
  // Shared: the waiting thread may go on before the loop has left set_value().
  const auto promise = std::make_shared<std::promise<Answer>>();
  (loop->*with)([promise, &ask](Table* table) {
    promise->set_value(table == nullptr ? Answer() : ask(table));
  });
  return promise->get_future().get();
}

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_CALL_ON_LOOP_H_
