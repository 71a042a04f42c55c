#include "scheduler/store/guarded_store.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <new>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/mutex.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using Clock = std::chrono::steady_clock;

// Threads that may wait for a store which does not answer.
constexpr int kMaxThreads = 16;
// If a call had less time, its timeout does not count as a failure of the store.
constexpr std::chrono::milliseconds kFairChance{100};

absl::Status StatusOf(const absl::Status& status) { return status; }
template <typename T>
absl::Status StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}

absl::Status OutOfMemory() { return absl::ResourceExhaustedError("out of memory"); }

}  // namespace

struct GuardedStore::State {
  State(std::unique_ptr<ContextStore> inner, const GuardedStoreOptions& options)
      : store(std::move(inner)), circuit(options.failures, options.on_change) {}

  // The error of a call that ended without an answer. `begin`: the start of the call.
  absl::Status NoAnswer(const StoreWait& wait, Clock::time_point begin) HYDRANT_REQUIRES(mutex) {
    if (stopped) return absl::UnavailableError("the server is shutting down");
    if (wait.stop.stop_requested()) return absl::CancelledError("the caller has gone");
    const absl::Status late =
        absl::UnavailableError(absl::StrCat(store->Description(), " did not answer in time"));
    Report(late, wait, begin);
    return late;
  }

  void Report(const absl::Status& status, const StoreWait& wait, Clock::time_point begin) {
    const Clock::time_point now = Clock::now();
    if (!absl::IsUnavailable(status)) return circuit.Succeeded();
    if (now < wait.deadline || wait.deadline - begin >= kFairChance) circuit.Failed(status, now);
  }

  const std::unique_ptr<ContextStore> store;
  Circuit circuit;

  Mutex mutex;
  std::condition_variable_any changed;
  std::set<std::string> changing HYDRANT_GUARDED_BY(mutex);  // keys of running writes and deletions
  int num_threads HYDRANT_GUARDED_BY(mutex) = 0;
  bool stopped HYDRANT_GUARDED_BY(mutex) = false;
};

GuardedStore::GuardedStore(std::unique_ptr<ContextStore> store, const GuardedStoreOptions& options)
    : state_(std::make_shared<State>(std::move(store), options)) {}

template <typename Answer>
Answer GuardedStore::Ask(const std::string& changed_key, const StoreWait& wait,
                         std::function<Answer(ContextStore*)> ask) {
  State& state = *state_;
  const Clock::time_point begin = Clock::now();
  HYDRANT_RETURN_IF_ERROR(state.circuit.Enter(begin));
  MutexLock lock(state.mutex);
  const auto may_begin = [&]() HYDRANT_REQUIRES(state.mutex) {
    return state.stopped ||
           (state.num_threads < kMaxThreads && !state.changing.contains(changed_key));
  };
  const bool begins = state.changed.wait_until(lock.native(), wait.stop, wait.deadline, may_begin);
  if (!begins || state.stopped || wait.stop.stop_requested()) return state.NoAnswer(wait, begin);
  const auto answer = std::make_shared<std::optional<Answer>>();
  const auto run = [shared = state_, answer, changed_key, ask = std::move(ask)] {
    Answer got = OutOfMemory();
    try {
      got = ask(shared->store.get());
    } catch (const std::bad_alloc&) {
    } catch (const std::exception& error) {  // thrown by std::filesystem on a failing disk
      got = absl::UnavailableError(error.what());
    }
    const MutexLock end(shared->mutex);
    answer->emplace(std::move(got));
    shared->changing.erase(changed_key);
    --shared->num_threads;
    shared->changed.notify_all();
  };
  try {
    std::thread(run).detach();
  } catch (const std::system_error&) {
    return absl::ResourceExhaustedError("the system refuses another thread");
  }
  ++state.num_threads;
  if (!changed_key.empty()) state.changing.insert(changed_key);
  const auto has_ended = [&]() HYDRANT_REQUIRES(state.mutex) {
    return answer->has_value() || state.stopped;
  };
  state.changed.wait_until(lock.native(), wait.stop, wait.deadline, has_ended);
  if (!answer->has_value()) return state.NoAnswer(wait, begin);
  state.Report(StatusOf(**answer), wait, begin);
  return std::move(**answer);
}

absl::Status GuardedStore::Put(std::string_view key, std::string value,
                               std::optional<int64_t> ttl_seconds, const StoreWait& wait) {
  const auto shared = std::make_shared<const std::string>(std::move(value));
  return Ask<absl::Status>(std::string(key), wait,
                           [=, key = std::string(key)](ContextStore* store) {
                             return store->Put(key, *shared, ttl_seconds, wait.deadline);
                           });
}

absl::StatusOr<std::string> GuardedStore::Get(std::string_view key, size_t max_bytes,
                                              const StoreWait& wait) {
  return Ask<absl::StatusOr<std::string>>("", wait,
                                          [=, key = std::string(key)](ContextStore* store) {
                                            return store->Get(key, max_bytes, wait.deadline);
                                          });
}

absl::StatusOr<int64_t> GuardedStore::SizeOf(std::string_view key, const StoreWait& wait) {
  return Ask<absl::StatusOr<int64_t>>("", wait, [=, key = std::string(key)](ContextStore* store) {
    return store->SizeOf(key, wait.deadline);
  });
}

absl::StatusOr<bool> GuardedStore::Delete(std::string_view key, const StoreWait& wait) {
  return Ask<absl::StatusOr<bool>>(std::string(key), wait,
                                   [=, key = std::string(key)](ContextStore* store) {
                                     return store->Delete(key, wait.deadline);
                                   });
}

absl::StatusOr<std::vector<StoredKey>> GuardedStore::List(std::string_view prefix,
                                                          const StoreWait& wait) {
  return Ask<absl::StatusOr<std::vector<StoredKey>>>(
      "", wait, [=, prefix = std::string(prefix)](ContextStore* store) {
        return store->List(prefix, wait.deadline);
      });
}

bool GuardedStore::IsCircuitOpen() const { return state_->circuit.Refuses(Clock::now()); }

void GuardedStore::Stop(StoreDeadline deadline) {
  MutexLock lock(state_->mutex);
  if (state_->stopped) return;
  state_->changed.wait_until(lock.native(), deadline, [this]() HYDRANT_REQUIRES(state_->mutex) {
    return state_->num_threads == 0;
  });
  state_->stopped = true;
  state_->changed.notify_all();
}

const Circuit& GuardedStore::circuit() const { return state_->circuit; }

}  // namespace hydrant
