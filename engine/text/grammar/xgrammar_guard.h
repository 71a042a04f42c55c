// Catches XGrammar's exceptions and limits its steps. For .cc files of this folder only.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_XGRAMMAR_GUARD_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_XGRAMMAR_GUARD_H_

#include <cstdint>
#include <exception>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/text/grammar/xgrammar_logging.h"

namespace hydrant {

// Calls the library on this thread. ResourceExhausted if it exceeded `max_steps` or memory was
// short; InvalidArgument with the library's message if it threw. Its objects are then unusable.
// steps_taken: may be null.
template <typename Function>
absl::Status CallXgrammar(int64_t max_steps, const Function& function,
                          int64_t* steps_taken = nullptr) {
  absl::Status status;
  grammar_steps_left = max_steps;
  try {
    function();
  } catch (const GrammarTooCostly&) {
    status = absl::ResourceExhaustedError(absl::StrCat("takes more than ", max_steps, " steps"));
  } catch (const std::bad_alloc&) {
    status = absl::ResourceExhaustedError("takes more memory than there is");
  } catch (const std::exception& error) {
    status = absl::InvalidArgumentError(error.what());
  }
  if (steps_taken != nullptr) *steps_taken = max_steps - grammar_steps_left;
  grammar_steps_left = std::numeric_limits<int64_t>::max();
  return status;
}

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_XGRAMMAR_GUARD_H_
