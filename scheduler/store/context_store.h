// A key-value store for saved contexts outside of the process; values are opaque bytes. A folder,
// or a Redis.
#ifndef HYDRANT_SCHEDULER_STORE_CONTEXT_STORE_H_
#define HYDRANT_SCHEDULER_STORE_CONTEXT_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/store/store_wait.h"

namespace hydrant {

struct StoredKey {
  std::string key;
  int64_t bytes = 0;  // size of its value
};

// Calls block, and are safe from any thread. They end at their deadline, unless the system does not
// return: a dead disk, a host name that does not resolve. GuardedStore ends those calls, too. A key
// is 1 to 200 of A-Z, a-z, 0-9, '.', '_' and '-', not beginning with '.'; other keys are
// INVALID_ARGUMENT. Further errors, which name the store:
//   UNAVAILABLE         it cannot be reached, or did not answer in time
//   RESOURCE_EXHAUSTED  there is no room for the value, or too many keys to list
//   PERMISSION_DENIED   access is not allowed
//   DATA_LOSS           the stored value is damaged
class ContextStore {
 public:
  virtual ~ContextStore() = default;
  // Writes or replaces: a reader sees the old value, the new one or none, and never a part. When it
  // returns, the value survives the end of the process.
  virtual absl::Status Put(std::string_view key, std::string_view value,
                           std::optional<int64_t> ttl_seconds, StoreDeadline deadline) = 0;
  // NOT_FOUND; RESOURCE_EXHAUSTED: the value has more than max_bytes. At most max(max_bytes, a few
  // megabytes) of such a value are read.
  virtual absl::StatusOr<std::string> Get(std::string_view key, size_t max_bytes,
                                          StoreDeadline deadline) = 0;
  // The value's size in bytes; NOT_FOUND.
  virtual absl::StatusOr<int64_t> SizeOf(std::string_view key, StoreDeadline deadline) = 0;
  // Returns whether the key existed.
  virtual absl::StatusOr<bool> Delete(std::string_view key, StoreDeadline deadline) = 0;
  // Sorted by key; RESOURCE_EXHAUSTED: there are more than kMaxListedKeys keys.
  virtual absl::StatusOr<std::vector<StoredKey>> List(std::string_view prefix,
                                                      StoreDeadline deadline) = 0;
  virtual std::string Description() const = 0;  // for the log: without password
};

inline constexpr size_t kMaxListedKeys = 100'000;

struct ContextStoreOptions {
  // limit of a folder, the least recently used values are evicted; 0: no limit
  int64_t max_bytes = 0;
};

// dir:PATH                                            created if missing
// redis://[[USER]:PASSWORD@]HOST[:PORT][/DB][?prefix=NAME]
// unix:PATH[?db=DB&prefix=NAME]                       a Redis, too
// A folder must be usable now; a Redis may become available later.
absl::StatusOr<std::unique_ptr<ContextStore>> OpenContextStore(const std::string& uri,
                                                               const ContextStoreOptions& options);

absl::Status CheckStoreKey(std::string_view key);

// The error of List() if there are too many keys.
absl::Status TooManyKeys(const std::string& store);
// The error of a call that missed its deadline.
absl::Status DeadlineError(const std::string& store);

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_STORE_CONTEXT_STORE_H_
