// Runs a function on a thread of its own whose stack is as large as it is told, and waits. For code
// of others that recurses as deeply as its input is nested.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_LARGE_STACK_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_LARGE_STACK_H_

#include <cstddef>
#include <functional>

#include "absl/status/status.h"

namespace hydrant {

// REQUIRES: `function` does not throw. ResourceExhausted where the thread cannot be started; the
// function has not been called then. Pages of the stack that are not touched cost nothing.
absl::Status RunOnLargeStack(size_t stack_bytes, const std::function<void()>& function);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_LARGE_STACK_H_
