#include "scheduler/context_archive.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "scheduler/ask_loop.h"

namespace hydrant {
namespace {

// More wait only where the store is slower than requests end; the oldest of them are not saved.
constexpr size_t kMostWaiting = 64;

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A salt may hold anything, a key may not; and who reads a store's keys learns no salt.
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

// On the loop's thread.
template <typename Ask>
auto Asked(ServingLoop* loop, const Ask& ask) {
  return AskLoop(loop, &ServingLoop::WithContexts, ask);
}

}  // namespace

ContextArchive::ContextArchive(ServingLoop* loop, const KeptMemory& memory, const ContextHome& home,
                               std::unique_ptr<ContextStore> store, OnUnsaved on_unsaved)
    : loop_(loop),
      memory_(memory),
      home_(home),
      store_(std::move(store)),
      on_unsaved_(std::move(on_unsaved)) {
  if (store_ == nullptr) return;
  queue_ = std::make_unique<SaveQueue<ContextId>>(
      kMostWaiting, 1, [this](std::span<const ContextId> ids) { SaveKept(ids.front()); });
  loop_->OnKept([this](const std::shared_ptr<const Context>& context) {
    queue_->Add(std::span(&context->id, 1));
  });
}

void ContextArchive::SaveKept(const ContextId& id) {
  const absl::Status status = Save(id);
  // One that has left already was not worth it.
  if (!status.ok() && !absl::IsNotFound(status) && on_unsaved_) on_unsaved_(status);
}

bool ContextArchive::Flush(std::chrono::steady_clock::time_point deadline) {
  return queue_ == nullptr || queue_->Flush(deadline);
}

absl::Status ContextArchive::Save(const ContextId& id) {
  absl::Status status = store_ == nullptr ? NoStore() : TrySave(id);
  if (!status.ok() && !absl::IsNotFound(status)) ++metrics_.failed_saves;
  return status;
}

absl::Status ContextArchive::TrySave(const ContextId& id) {
  const auto begin = std::chrono::steady_clock::now();
  const ContextTable::Lease lease =
      Asked(loop_, [&](ContextTable* contexts) { return contexts->Acquire(id); });
  if (lease.context == nullptr) return Unknown(id);
  const std::string bytes = EncodeContext(*lease.context, *lease.space, memory_, home_);
  loop_->WithContexts([lease](ContextTable* contexts) {
    if (contexts != nullptr) contexts->Release(lease);
  });
  std::optional<int64_t> ttl;
  if (lease.context->expires_at > 0)
    ttl = std::max<int64_t>(1, lease.context->expires_at - UnixNow());
  if (const absl::Status put = store_->Put(KeyOf(id), bytes, ttl); !put.ok()) return Named(id, put);
  metrics_.saved_bytes += bytes.size();
  metrics_.save_seconds.Observe(SecondsSince(begin));
  return absl::OkStatus();
}

bool ContextArchive::IsHere(const ContextId& id) const {
  return loop_->contexts().Find(id, UnixNow()) != nullptr;
}

absl::Status ContextArchive::Load(const ContextId& id) {
  const std::lock_guard<std::mutex> one_at_a_time(load_mutex_);
  if (IsHere(id)) return absl::OkStatus();
  if (store_ == nullptr) return Unknown(id);
  absl::Status status = TryLoad(id);
  if (!status.ok() && !absl::IsNotFound(status)) ++metrics_.failed_loads;
  return status;
}

absl::Status ContextArchive::TryLoad(const ContextId& id) {
  const auto begin = std::chrono::steady_clock::now();
  const absl::StatusOr<std::string> bytes = store_->Get(KeyOf(id));
  if (absl::IsNotFound(bytes.status())) return Unknown(id);
  if (!bytes.ok()) return Named(id, bytes.status());
  const absl::StatusOr<ContextFile> file = DecodeContext(*bytes, home_);
  if (!file.ok()) return Named(id, file.status());
  if (file->context->id != id) return Named(id, absl::DataLossError("it is another one"));
  if (file->context->HasExpired(UnixNow())) return Unknown(id);
  KeptSpace space = Asked(
      loop_, [&](ContextTable* contexts) { return contexts->Reserve(file->spans, file->pages); });
  if (space.IsEmpty()) {
    return Named(id, absl::ResourceExhaustedError(
                         absl::StrCat("there is no room for its ", file->context->pages,
                                      " pages; delete others, or raise --context-memory-bytes")));
  }
  WriteContext(*file, space, memory_);
  Asked(loop_, [&](ContextTable* contexts) {
    contexts->Add(file->context, std::move(space));
    return true;
  });
  metrics_.loaded_bytes += bytes->size();
  metrics_.load_seconds.Observe(SecondsSince(begin));
  return absl::OkStatus();
}

absl::Status ContextArchive::Delete(const ContextId& id) {
  bool found = Asked(loop_, [&](ContextTable* contexts) { return contexts->Remove(id); });
  if (store_ != nullptr) {
    HYDRANT_ASSIGN_OR_RETURN(const std::vector<StoredKey> keys, store_->List(KeyOf(id)));
    found = found || (!keys.empty() && keys.front().key == KeyOf(id));
    HYDRANT_RETURN_IF_ERROR(store_->Delete(KeyOf(id)));
  }
  return found ? absl::OkStatus() : Unknown(id);
}

absl::StatusOr<std::vector<ContextArchive::Entry>> ContextArchive::List(const std::string& salt) {
  std::map<std::string, Entry> entries;
  for (std::shared_ptr<const Context>& context : loop_->contexts().List(salt, UnixNow())) {
    const ContextId& id = context->id;
    entries[id.handle] = {.id = id, .context = std::move(context)};
  }
  if (store_ != nullptr) {
    const std::string prefix = KeyPrefix(salt);
    HYDRANT_ASSIGN_OR_RETURN(const std::vector<StoredKey> keys, store_->List(prefix));
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

absl::StatusOr<ContextArchive::Entry> ContextArchive::Get(const ContextId& id) {
  HYDRANT_ASSIGN_OR_RETURN(std::vector<Entry> entries, List(id.salt));
  for (Entry& entry : entries) {
    if (entry.id == id) return std::move(entry);
  }
  return Unknown(id);
}

}  // namespace hydrant
