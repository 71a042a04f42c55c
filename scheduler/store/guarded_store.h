// Calls a store on threads of its own, so that no caller waits beyond its deadline, even if the
// store hangs: a dead disk, a server that sends a byte a second, a host name that does not resolve.
// A store that does not answer gets no calls for a while (circuit.h). Writes and deletions of one
// key run one at a time: a call begins when the previous one has ended, even if the caller of that
// one has given up. Thread safe.
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
  int failures = 3;  // in a row that open the circuit breaker
  Circuit::OnChange on_change = {};
};

// Errors are ContextStore's, and in addition
//   UNAVAILABLE  no answer by the deadline, the circuit breaker is open, or Stop() was called
//   CANCELLED    the caller's stop token was triggered
// A running call continues without its caller, until its deadline if the store respects it.
class GuardedStore {
 public:
  explicit GuardedStore(std::unique_ptr<ContextStore> store,
                        const GuardedStoreOptions& options = {});
  ~GuardedStore() { Stop(); }  // does not wait for running calls
  GuardedStore(const GuardedStore&) = delete;
  GuardedStore& operator=(const GuardedStore&) = delete;

  absl::Status Put(std::string_view key, std::string value, std::optional<int64_t> ttl_seconds,
                   const StoreWait& wait);
  absl::StatusOr<std::string> Get(std::string_view key, size_t max_bytes, const StoreWait& wait);
  absl::StatusOr<int64_t> SizeOf(std::string_view key, const StoreWait& wait);
  absl::StatusOr<bool> Delete(std::string_view key, const StoreWait& wait);
  absl::StatusOr<std::vector<StoredKey>> List(std::string_view prefix, const StoreWait& wait);

  // Whether a call would be refused now because the circuit breaker is open.
  bool IsCircuitOpen() const;
  // Waits for running calls until the deadline, then ends all waiting calls and refuses later ones.
  void Stop(StoreDeadline deadline = {});
  const Circuit& circuit() const;

 private:
  struct State;
  // changed_key: the key that the call writes or deletes; "": none.
  template <typename Answer>
  Answer Ask(const std::string& changed_key, const StoreWait& wait,
             std::function<Answer(ContextStore*)> ask);

  const std::shared_ptr<State> state_;  // shared with the threads that call the store
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_STORE_GUARDED_STORE_H_
