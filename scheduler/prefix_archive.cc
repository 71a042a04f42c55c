#include "scheduler/prefix_archive.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/cache/prefix_layout.h"
#include "kernels/ops/prefix_blocks.h"
#include "scheduler/call_on_loop.h"
#include "scheduler/context_file.h"
#include "scheduler/request_check.h"

namespace hydrant {
namespace {

constexpr std::string_view kMagic = "HYDRPFX1";
// Blocks that may wait to be saved; if the store is too slow, the oldest are dropped.
constexpr size_t kMaxWaiting = 4096;
constexpr size_t kMaxStored = 1 << 18;  // remembered keys
// Bytes of blocks copied between two steps: a few milliseconds.
constexpr size_t kCopiedBytes = 8 << 20;
// The longest wait for a prompt's blocks: a second, and a little more per block, at most 5 s.
constexpr std::chrono::milliseconds kPatience{1'000};
constexpr std::chrono::milliseconds kPatienceForABlock{20};
constexpr std::chrono::milliseconds kMaxPatience{5'000};

std::chrono::milliseconds PatienceFor(size_t blocks) {
  return std::min(kMaxPatience, kPatience + static_cast<int64_t>(blocks) * kPatienceForABlock);
}

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::string_view AsText(const Sha256Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string StoreKey(const PrefixKey& key) { return "prefix." + HexOf(key); }

// Covers the key, so that a value stored under another key is detected.
Sha256Digest Checksum(const PrefixKey& key, std::string_view block) {
  Sha256 hash;
  hash.Add(key.data(), key.size());
  hash.Add(block);
  return hash.Finish();
}

std::string Encode(const PrefixKey& key, std::string_view block) {
  std::string value(kMagic);
  value += AsText(Checksum(key, block));
  return value.append(block);
}

constexpr size_t kHeader = kMagic.size() + sizeof(Sha256Digest);

// Returns the block without its header.
absl::StatusOr<std::string> Decode(const PrefixKey& key, std::string value, size_t block_bytes) {
  const auto wrong = [&](const char* what) {
    return absl::DataLossError(absl::StrCat(StoreKey(key), ": ", what));
  };
  if (value.size() != kHeader + block_bytes) return wrong("its size is another one");
  if (!std::string_view(value).starts_with(kMagic)) return wrong("it is no prefix block");
  const std::string_view block = std::string_view(value).substr(kHeader);
  if (std::string_view(value).substr(kMagic.size(), sizeof(Sha256Digest)) !=
      AsText(Checksum(key, block)))
    return wrong("it was changed: the checksum is another one");
  value.erase(0, kHeader);
  return value;
}

// Runs `ask` on the loop's thread.
template <typename Ask>
auto OnLoop(ServingLoop* loop, const Ask& ask) {
  return CallOnLoop(loop, &ServingLoop::WithPrefixCache, ask);
}

}  // namespace

Sha256Digest PrefixSecretOf(const ContextHome& home) {
  Sha256 hash;
  hash.Add("hydrant prefix blocks ");
  hash.Add(kMagic);
  hash.Add(AsText(home.model));
  const int64_t shape[] = {static_cast<int64_t>(home.layout.dtype),
                           home.layout.head_dim,
                           home.limits.num_layers,
                           home.limits.num_kv_heads,
                           home.limits.Window(),
                           kPrefixBlockTokens};
  hash.Add(shape, sizeof(shape));
  return hash.Finish();
}

PrefixArchive::PrefixArchive(ServingLoop* loop, const Tokenizer* tokenizer,
                             const EngineLimits& limits, const PrefixMemory& memory,
                             std::unique_ptr<ContextStore> store, OnFailure on_failure,
                             Circuit::OnChange on_circuit)
    : loop_(loop),
      tokenizer_(tokenizer),
      limits_(limits),
      memory_(memory),
      store_(std::move(store), {.failures = 1, .on_change = std::move(on_circuit)}),
      on_failure_(std::move(on_failure)) {
  queue_ = std::make_unique<SaveQueue<PrefixKey>>(
      kMaxWaiting, BlocksAtOnce(), [this](std::span<const PrefixKey> keys) { Save(keys); });
  loop_->OnPrefixFilled([this](const std::vector<PrefixKey>& keys) {
    std::vector<PrefixKey> more;
    {
      const MutexLock lock(mutex_);
      for (const PrefixKey& key : keys) {
        if (!stored_.contains(key)) more.push_back(key);
      }
    }
    queue_->Add(more);
  });
}

bool PrefixArchive::Flush(std::chrono::steady_clock::time_point deadline) {
  return queue_->Flush(deadline);
}

// Number of blocks copied between two steps.
size_t PrefixArchive::BlocksAtOnce() const {
  return std::max<size_t>(1, kCopiedBytes / std::max<size_t>(memory_.block_bytes, 1));
}

void PrefixArchive::RememberStored(std::span<const PrefixKey> keys) {
  const MutexLock lock(mutex_);
  if (stored_.size() + keys.size() > kMaxStored) stored_.clear();
  stored_.insert(keys.begin(), keys.end());
}

// Saves the blocks that are still in the cache.
void PrefixArchive::Save(std::span<const PrefixKey> keys) {
  if (store_.IsCircuitOpen()) {
    metrics_.failed_saves += keys.size();
    return;
  }
  const Blocks blocks = OnLoop(loop_, [&](PrefixCache* cache) {
    Blocks copies;
    for (const PrefixKey& key : keys) {
      if (const std::optional<int32_t> id = cache->Find(key))
        copies.emplace(key, std::string(memory_.At(*id), memory_.block_bytes));
    }
    return copies;
  });
  for (const auto& [key, block] : blocks) {
    std::string value = Encode(key, block);
    const size_t size = value.size();
    const absl::Status status =
        store_.Put(StoreKey(key), std::move(value), std::nullopt, StoreWait::For(kPatience));
    if (!status.ok()) {
      ++metrics_.failed_saves;
      Failed(status);
      if (store_.IsCircuitOpen()) return;
      continue;
    }
    metrics_.saved_bytes += size;
    RememberStored(std::span(&key, 1));
  }
}

bool PrefixArchive::MayFetch(const Request& request) const {
  return request.prefix_caching && request.from == nullptr && request.context.empty() &&
         request.pooling != EmbeddingPooling::kMean &&
         std::cmp_greater_equal(request.prompt.size(), kPrefixBlockTokens) &&
         !store_.IsCircuitOpen();
}

void PrefixArchive::Fetch(const Request& request, const std::stop_token& stop) {
  if (!MayFetch(request)) return;
  const std::variant<CheckedRequest, hydrant::Failed> checked =
      CheckRequest(request, limits_, *tokenizer_);
  // its refusal is reported elsewhere
  if (std::holds_alternative<hydrant::Failed>(checked)) return;
  const auto& good = std::get<CheckedRequest>(checked);
  const CachePlan& plan = good.plan;
  const std::vector<PrefixKey>& keys = good.prefix_keys;
  if (keys.empty()) return;
  const auto begin = std::chrono::steady_clock::now();
  const PrefixLayout layout(plan, static_cast<int>(plan.prompt.tokens + good.probe.size()),
                            limits_);
  std::vector<int32_t> everywhere;
  for (size_t i = 1; i <= keys.size(); ++i)
    everywhere.push_back(static_cast<int32_t>(i * kPrefixBlockTokens));
  const std::vector<PrefixKey> all = layout.KeysFrom(keys, 0, everywhere);
  const std::set<PrefixKey> here = OnLoop(loop_, [&](PrefixCache* cache) {
    std::set<PrefixKey> filled;
    for (const PrefixKey& key : all) {
      if (cache->IsFilled(key)) filled.insert(key);
    }
    return filled;
  });
  const StoreWait wait = StoreWait::For(PatienceFor(all.size() - here.size()), stop);
  Blocks fetched;
  const int known = layout.Usable(keys, [&](const PrefixKey& key) { return here.contains(key); });
  const int usable = layout.Usable(keys, [&](const PrefixKey& key) {
    return here.contains(key) || IsStored(key, wait, &fetched);
  });
  if (usable > known) {
    PrefixText text;
    if (request.publish_kv_events) text = {keys, good.request.prompt};
    Install(layout.KeysBefore(keys, usable), text, &fetched);
    metrics_.loaded_tokens += usable - known;
    metrics_.load_seconds.Observe(SecondsSince(begin));
  }
  blocks_in_hand_ -= static_cast<int64_t>(fetched.size());
}

// Fetches the block, unless the fetched blocks of all prompts fill half of the cache already.
bool PrefixArchive::IsStored(const PrefixKey& key, const StoreWait& wait, Blocks* fetched) {
  if (fetched->contains(key)) return true;
  if (store_.IsCircuitOpen() || wait.stop.stop_requested() ||
      blocks_in_hand_ >= limits_.num_prefix_blocks / 2)
    return false;
  absl::StatusOr<std::string> value =
      store_.Get(StoreKey(key), kHeader + memory_.block_bytes, wait);
  if (absl::IsNotFound(value.status()) || absl::IsCancelled(value.status())) return false;
  if (value.ok()) value = Decode(key, *std::move(value), memory_.block_bytes);
  if (!value.ok()) {
    ++metrics_.failed_loads;
    Failed(value.status());
    return false;
  }
  metrics_.loaded_bytes += value->size();
  fetched->emplace(key, *std::move(value));
  ++blocks_in_hand_;
  return true;
}

// Copies to free blocks, a few between two steps.
void PrefixArchive::Install(std::span<const PrefixKey> keys, const PrefixText& text,
                            Blocks* fetched) {
  std::vector<PrefixKey> next;
  const auto install = [&] {
    OnLoop(loop_, [&](PrefixCache* cache) {
      PrefixLease lease = cache->Open({}, next);
      for (size_t i = 0; i < lease.fresh.size(); ++i)
        std::memcpy(memory_.At(lease.fresh[i]), fetched->at(lease.keys[i]).data(),
                    memory_.block_bytes);
      cache->Fill(&lease, text);
      return true;
    });
    RememberStored(next);
    next.clear();
  };
  for (const PrefixKey& key : keys) {
    if (!fetched->contains(key)) continue;
    next.push_back(key);
    if (next.size() == BlocksAtOnce()) install();
  }
  if (!next.empty()) install();
}

void PrefixArchive::Failed(const absl::Status& status) {
  if (on_failure_ == nullptr) return;
  const MutexLock lock(failure_mutex_);
  on_failure_(status);
}

}  // namespace hydrant
