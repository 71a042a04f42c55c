// Runs a function on a new thread with a stack of the given size, and waits. For library code that
// recurses as deeply as its input is nested.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_LARGE_STACK_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_LARGE_STACK_H_

#include <cstddef>
#include <functional>

#include "absl/status/status.h"

namespace hydrant {

// REQUIRES: `function` does not throw. ResourceExhausted if the thread cannot be started; the
// function was not called then. Untouched stack pages cost nothing.
absl::Status RunOnLargeStack(size_t stack_bytes, const std::function<void()>& function);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_LARGE_STACK_H_
