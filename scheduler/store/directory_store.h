// A folder of files, one a key. Processes may share it, on one machine or by a network file system:
// files are written beside and renamed. Its files are KEY.context; others are left alone.
#ifndef HYDRANT_SCHEDULER_STORE_DIRECTORY_STORE_H_
#define HYDRANT_SCHEDULER_STORE_DIRECTORY_STORE_H_

#include <memory>
#include <mutex>
#include <string>

#include "scheduler/store/context_store.h"

namespace hydrant {

// max_bytes: 0: no bound.
absl::StatusOr<std::unique_ptr<ContextStore>> OpenDirectoryStore(const std::string& path,
                                                                 int64_t max_bytes);

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_STORE_DIRECTORY_STORE_H_
