// Statements that return an error to the caller, for functions that return
// absl::Status or absl::StatusOr:
//
//   HYDRANT_RETURN_IF_ERROR(CheckSizes(config));
//   HYDRANT_ASSIGN_OR_RETURN(const ModelConfig config, ReadConfig(path));
//   HYDRANT_ASSIGN_OR_RETURN(impl->backend, CreateBackend(name, options));
//
// The second moves the value of an absl::StatusOr into its first argument, a declaration or an
// existing variable. That argument has no comma outside of parentheses: where a type has one, write
// `auto`. The macro is several statements, so it is never the branch of an `if` without braces.
// Host code only: device sources do not include absl.
#ifndef HYDRANT_KERNELS_STATUS_MACROS_H_
#define HYDRANT_KERNELS_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define HYDRANT_RETURN_IF_ERROR(...)                                                            \
  do {                                                                                          \
    if (absl::Status hydrant_status = __VA_ARGS__; !hydrant_status.ok()) return hydrant_status; \
  } while (false)

// The line is in the name of the result because one scope may hold several.
#define HYDRANT_ASSIGN_OR_RETURN(target, ...) \
  HYDRANT_ASSIGN_OR_RETURN_VIA_(HYDRANT_JOIN_(hydrant_result_, __LINE__), target, __VA_ARGS__)

#define HYDRANT_ASSIGN_OR_RETURN_VIA_(result, target, ...) \
  auto result = __VA_ARGS__;                               \
  if (!result.ok()) return std::move(result).status();     \
  target = *std::move(result)

// Two steps, so that __LINE__ is a number before it becomes part of a name.
#define HYDRANT_JOIN_(a, b) HYDRANT_JOIN_EXPANDED_(a, b)
#define HYDRANT_JOIN_EXPANDED_(a, b) a##b

#endif  // HYDRANT_KERNELS_STATUS_MACROS_H_
