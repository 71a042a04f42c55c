// A store that is asked on threads of its own, so that no caller waits longer than it said it
// would, whatever the store does: a disk that is dead, a server that sends a byte a second, a name
// that does not resolve. One that does not answer is left alone for a while (circuit.h). Writes and
// deletions of one key happen in the order in which they were asked for, also where a caller has
// given up on one. Thread safe.
#ifndef HYDRANT_SCHEDULER_STORE_GUARDED_STORE_H_
#define HYDRANT_SCHEDULER_STORE_GUARDED_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/store/circuit.h"
#include "scheduler/store/context_store.h"
#include "scheduler/store/store_wait.h"

namespace hydrant {

struct GuardedStoreOptions {
  int failures = 3;  // in a row, after which it is left alone
  Circuit::OnChange on_change = {};
};

// Errors are ContextStore's, and besides
//   UNAVAILABLE  it did not answer by the deadline, is left alone, or Stop() was called
//   CANCELLED    the caller was told to stop
// What has begun goes on without its caller, until its deadline where the store keeps to it.
class GuardedStore {
 public:
  explicit GuardedStore(std::unique_ptr<ContextStore> store, GuardedStoreOptions options = {});
  ~GuardedStore() { Stop(); }  // waits for nothing
  GuardedStore(const GuardedStore&) = delete;
  GuardedStore& operator=(const GuardedStore&) = delete;

  absl::Status Put(std::string_view key, std::string value, std::optional<int64_t> ttl_seconds,
                   const StoreWait& wait);
  absl::StatusOr<std::string> Get(std::string_view key, size_t max_bytes, const StoreWait& wait);
  absl::StatusOr<int64_t> SizeOf(std::string_view key, const StoreWait& wait);
  absl::StatusOr<bool> Delete(std::string_view key, const StoreWait& wait);
  absl::StatusOr<std::vector<StoredKey>> List(std::string_view prefix, const StoreWait& wait);

  // Whether a call would be refused now because the store is left alone.
  bool IsLeftAlone() const;
  // Gives what is at work until the deadline, then ends all that wait and refuses all that follow.
  void Stop(StoreDeadline deadline = {});
  const Circuit& circuit() const;

 private:
  struct State;
  // changed_key: "" where nothing is written.
  template <typename Answer>
  Answer Ask(const std::string& changed_key, const StoreWait& wait,
             std::function<Answer(ContextStore*)> ask);

  const std::shared_ptr<State> state_;  // shared with the threads that ask
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_STORE_GUARDED_STORE_H_
