// The short text file that Git LFS leaves in place of a large file that was not fetched. Stateless.
#ifndef HYDRANT_ENGINE_MODEL_LFS_POINTER_H_
#define HYDRANT_ENGINE_MODEL_LFS_POINTER_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace hydrant {

bool IsLfsPointer(std::string_view bytes);

// An InvalidArgument error that says how to fetch the file itself.
absl::Status LfsPointerError(const std::string& path);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_LFS_POINTER_H_
