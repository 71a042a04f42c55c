#include "scheduler/context_archive.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "scheduler/call_on_loop.h"

namespace hydrant {
namespace {

// Contexts that may wait to be saved; if the store is too slow, the oldest are dropped.
constexpr size_t kMaxWaiting = 64;
constexpr std::chrono::milliseconds kSavePatience{30'000};
constexpr char kLoading[] = "";  // the key shared by all loads

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A key allows fewer characters than a salt, and must not reveal it.
std::string KeyPrefix(const std::string& salt) {
  Sha256 hash;
  hash.Add("hydrant context salt ");
  hash.Add(salt);
  return HexOf(hash.Finish()).substr(0, sizeof(Sha256Digest)) + ".";
}

std::string KeyOf(const ContextId& id) { return KeyPrefix(id.salt) + id.handle; }

absl::Status Unknown(const ContextId& id) { return UnknownContext(id.handle).status; }

absl::Status NoStore() {
  return absl::UnimplementedError("this server saves no contexts; start it with --context-store");
}

absl::Status Named(const ContextId& id, const absl::Status& status) {
  return {status.code(), absl::StrCat("context ", id.handle, ": ", std::string(status.message()))};
}

// The error of a call that could not lock the context in time.
absl::Status BusyError(const ContextId& id, const StoreWait& wait) {
  if (wait.stop.stop_requested()) return absl::CancelledError("the caller has gone");
  return Named(id, absl::UnavailableError("another call still saves, loads or deletes one"));
}

std::unique_ptr<GuardedStore> Guarded(std::unique_ptr<ContextStore> store,
                                      const Circuit::OnChange& on_circuit) {
  if (store == nullptr) return nullptr;
  // Loads run one at a time, so that only one of many waiting loads asks a store that does not
  // answer: a single failure opens the circuit breaker.
  return std::make_unique<GuardedStore>(
      std::move(store), GuardedStoreOptions{.failures = 1, .on_change = on_circuit});
}

// Runs `ask` on the loop's thread.
template <typename Ask>
auto OnLoop(ServingLoop* loop, const Ask& ask) {
  return CallOnLoop(loop, &ServingLoop::WithContexts, ask);
}

}  // namespace

ContextArchive::ContextArchive(ServingLoop* loop, const OffloadMemory& memory,
                               const ContextHome& home, std::unique_ptr<ContextStore> store,
                               ContextArchiveOptions options)
    : loop_(loop),
      memory_(memory),
      home_(home),
      options_(std::move(options)),
      store_(Guarded(std::move(store), options_.on_circuit)) {
  if (store_ == nullptr) return;
  queue_ = std::make_unique<SaveQueue<ContextId>>(
      kMaxWaiting, 1, [this](std::span<const ContextId> ids) { SaveKept(ids.front()); });
  loop_->OnKept([this](const std::shared_ptr<const Context>& context) {
    queue_->Add(std::span(&context->id, 1));
  });
}

void ContextArchive::SaveKept(const ContextId& id) {
  const auto patience = options_.patience.count() > 0 ? options_.patience : kSavePatience;
  const absl::Status status = Save(id, StoreWait::For(patience));
  // A context evicted meanwhile need not be saved.
  if (!status.ok() && !absl::IsNotFound(status) && options_.on_unsaved) options_.on_unsaved(status);
}

bool ContextArchive::Flush(std::chrono::steady_clock::time_point deadline) {
  return queue_ == nullptr || queue_->Flush(deadline);
}

void ContextArchive::Stop(StoreDeadline deadline) {
  if (store_ != nullptr) store_->Stop(deadline);
}

absl::Status ContextArchive::Save(const ContextId& id, const StoreWait& wait) {
  absl::Status status = store_ == nullptr ? NoStore() : TrySave(id, wait);
  if (!status.ok() && !absl::IsNotFound(status)) ++metrics_.failed_saves;
  return status;
}

absl::Status ContextArchive::TrySave(const ContextId& id, const StoreWait& wait) {
  const auto begin = std::chrono::steady_clock::now();
  const auto name_lock = locks_.Acquire(KeyOf(id), wait);
  if (!name_lock.has_value()) return BusyError(id, wait);
  const ContextTable::Lease lease =
      OnLoop(loop_, [&](ContextTable* contexts) { return contexts->Acquire(id); });
  if (lease.context == nullptr) return Unknown(id);
  std::string bytes = EncodeContext(*lease.context, *lease.offloaded, memory_, home_);
  loop_->WithContexts([lease](ContextTable* contexts) {
    if (contexts != nullptr) contexts->Release(lease);
  });
  std::optional<int64_t> ttl;
  if (lease.context->expires_at > 0)
    ttl = std::max<int64_t>(1, lease.context->expires_at - UnixNow());
  const size_t size = bytes.size();
  if (const absl::Status put = store_->Put(KeyOf(id), std::move(bytes), ttl, wait); !put.ok())
    return Named(id, put);
  metrics_.saved_bytes += size;
  metrics_.save_seconds.Observe(SecondsSince(begin));
  return absl::OkStatus();
}

bool ContextArchive::IsInMemory(const ContextId& id) const {
  return loop_->contexts().Find(id, UnixNow()) != nullptr;
}

absl::Status ContextArchive::Load(const ContextId& id, const StoreWait& wait) {
  if (IsInMemory(id)) return absl::OkStatus();
  if (store_ == nullptr) return Unknown(id);
  const auto name_lock = locks_.Acquire(KeyOf(id), wait);
  if (!name_lock.has_value()) return BusyError(id, wait);
  if (IsInMemory(id)) return absl::OkStatus();
  const auto loading = locks_.Acquire(kLoading, wait);
  if (!loading.has_value()) return BusyError(id, wait);
  absl::Status status = TryLoad(id, wait);
  if (!status.ok() && !absl::IsNotFound(status)) ++metrics_.failed_loads;
  return status;
}

absl::Status ContextArchive::TryLoad(const ContextId& id, const StoreWait& wait) {
  const auto begin = std::chrono::steady_clock::now();
  const absl::StatusOr<std::string> bytes = store_->Get(KeyOf(id), MaxContextBytes(home_), wait);
  if (absl::IsNotFound(bytes.status())) return Unknown(id);
  if (!bytes.ok()) return Named(id, bytes.status());
  const absl::StatusOr<ContextFile> file = DecodeContext(*bytes, home_);
  if (!file.ok()) return Named(id, file.status());
  if (file->context->id != id) return Named(id, absl::DataLossError("it is another one"));
  if (file->context->HasExpired(UnixNow())) return Unknown(id);
  OffloadedCache offloaded = OnLoop(
      loop_, [&](ContextTable* contexts) { return contexts->Reserve(file->spans, file->pages); });
  if (offloaded.IsEmpty()) {
    return Named(id, absl::ResourceExhaustedError(
                         absl::StrCat("there is no room for its ", file->context->pages,
                                      " pages; delete others, or raise --context-memory-bytes")));
  }
  WriteContext(*file, offloaded, memory_);
  OnLoop(loop_, [&](ContextTable* contexts) {
    contexts->Add(file->context, std::move(offloaded));
    return true;
  });
  metrics_.loaded_bytes += bytes->size();
  metrics_.load_seconds.Observe(SecondsSince(begin));
  return absl::OkStatus();
}

absl::Status ContextArchive::Delete(const ContextId& id, const StoreWait& wait) {
  const auto name_lock = locks_.Acquire(KeyOf(id), wait);
  if (!name_lock.has_value()) return BusyError(id, wait);
  bool found = false;
  if (store_ != nullptr) {
    const absl::StatusOr<bool> deleted = store_->Delete(KeyOf(id), wait);
    if (!deleted.ok()) return Named(id, deleted.status());
    found = *deleted;
  }
  found = OnLoop(loop_, [&](ContextTable* contexts) { return contexts->Remove(id); }) || found;
  return found ? absl::OkStatus() : Unknown(id);
}

absl::StatusOr<std::vector<ContextArchive::Entry>> ContextArchive::List(const std::string& salt,
                                                                        const StoreWait& wait) {
  std::map<std::string, Entry> entries;
  for (std::shared_ptr<const Context>& context : loop_->contexts().List(salt, UnixNow())) {
    const ContextId& id = context->id;
    entries[id.handle] = {.id = id, .context = std::move(context)};
  }
  if (store_ != nullptr) {
    const std::string prefix = KeyPrefix(salt);
    HYDRANT_ASSIGN_OR_RETURN(const std::vector<StoredKey> keys, store_->List(prefix, wait));
    for (const StoredKey& stored : keys) {
      const std::string handle = stored.key.substr(prefix.size());
      Entry& entry = entries[handle];
      entry.id = {.salt = salt, .handle = handle};
      entry.stored_bytes = stored.bytes;
    }
  }
  std::vector<Entry> list;
  list.reserve(entries.size());
  for (auto& [handle, entry] : entries) list.push_back(std::move(entry));
  return list;
}

absl::StatusOr<ContextArchive::Entry> ContextArchive::Get(const ContextId& id,
                                                          const StoreWait& wait) {
  Entry entry = {.id = id, .context = loop_->contexts().Find(id, UnixNow())};
  if (store_ != nullptr) {
    const absl::StatusOr<int64_t> bytes = store_->SizeOf(KeyOf(id), wait);
    // A context in memory exists, whatever value the store has under its key.
    const bool is_good_enough = absl::IsDataLoss(bytes.status()) && entry.context != nullptr;
    if (!bytes.ok() && !absl::IsNotFound(bytes.status()) && !is_good_enough)
      return Named(id, bytes.status());
    entry.stored_bytes = bytes.value_or(-1);
  }
  if (entry.context == nullptr && entry.stored_bytes < 0) return Unknown(id);
  return entry;
}

}  // namespace hydrant
