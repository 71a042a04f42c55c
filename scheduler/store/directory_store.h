// A folder with one file per key. Processes may share it, on one machine or on a network file
// system: files are written under a temporary name and renamed. Its files are KEY.context; other
// files are not touched.
#ifndef HYDRANT_SCHEDULER_STORE_DIRECTORY_STORE_H_
#define HYDRANT_SCHEDULER_STORE_DIRECTORY_STORE_H_

#include <memory>
#include <mutex>
#include <string>

#include "scheduler/store/context_store.h"

namespace hydrant {

// max_bytes: 0: no limit.
absl::StatusOr<std::unique_ptr<ContextStore>> OpenDirectoryStore(const std::string& path,
                                                                 int64_t max_bytes);

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_STORE_DIRECTORY_STORE_H_
