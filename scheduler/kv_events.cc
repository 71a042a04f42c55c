#include "scheduler/kv_events.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>
#include <unordered_set>
#include <utility>

namespace hydrant {
namespace {

// Uses bytes that are equal in the keys of all parts of a block.
KvBlockHash HashOf(const PrefixKey& key) {
  KvBlockHash hash = 0;
  std::memcpy(&hash, key.data() + 8, sizeof(hash));
  return hash;
}

}  // namespace

void KvEvents::OnFilled(const PrefixText& text, std::span<const PrefixKey> filled) {
  if (text.keys.empty()) return;
  const std::unordered_set<PrefixKey, PrefixKeyHash> news(filled.begin(), filled.end());
  for (size_t i = 0; i < text.keys.size(); ++i) {
    if (!news.contains(text.keys[i])) continue;
    KvBlock block = {.hash = HashOf(text.keys[i]), .place = static_cast<int32_t>(i)};
    if (i > 0) block.parent = HashOf(text.keys[i - 1]);
    const auto tokens = text.tokens.subspan(i * kPrefixBlockTokens, kPrefixBlockTokens);
    std::copy(tokens.begin(), tokens.end(), block.tokens.begin());
    changes_.emplace_back(block);
  }
}

void KvEvents::OnEvicted(const PrefixKey& key) {
  changes_.emplace_back(KvBlockRemoved{HashOf(key)});
}

void KvEvents::Publish(double unix_seconds) {
  if (changes_.empty()) return;
  {
    const MutexLock lock(mutex_);
    std::vector<KvChange> told;
    for (const KvChange& change : std::exchange(changes_, {})) {
      if (const auto* stored = std::get_if<KvBlock>(&change)) {
        blocks_.insert_or_assign(stored->hash, *stored);
      } else if (blocks_.erase(std::get<KvBlockRemoved>(change).hash) == 0) {
        continue;  // was never published
      }
      told.push_back(change);
    }
    if (told.empty()) return;
    Append(std::move(told), unix_seconds);
  }
  const MutexLock lock(listeners_mutex_);
  for (const auto& [number, on_batch] : listeners_) on_batch();
}

void KvEvents::Append(std::vector<KvChange> changes, double unix_seconds) {
  for (size_t at = 0; at < changes.size(); at += kMaxKvChanges) {
    const auto begin = std::make_move_iterator(changes.begin() + static_cast<ptrdiff_t>(at));
    const auto count = std::min(kMaxKvChanges, changes.size() - at);
    history_.push_back(std::make_shared<KvEventBatch>(
        KvEventBatch{.sequence = ++last_,
                     .unix_seconds = unix_seconds,
                     .changes = {begin, begin + static_cast<ptrdiff_t>(count)}}));
    history_changes_ += count;
  }
  while (history_changes_ > kKvHistory) {
    history_changes_ -= history_.front()->changes.size();
    history_.pop_front();
  }
}

std::optional<std::shared_ptr<const KvEventBatch>> KvEvents::Find(uint64_t sequence) const {
  const MutexLock lock(mutex_);
  if (sequence == last_ + 1) return nullptr;
  const uint64_t first = last_ + 1 - history_.size();
  if (sequence < first || sequence > last_) return std::nullopt;
  return history_[sequence - first];
}

KvEvents::Snapshot KvEvents::Blocks() const {
  Snapshot snapshot;
  {
    const MutexLock lock(mutex_);
    snapshot.sequence = last_;
    snapshot.blocks.reserve(blocks_.size());
    for (const auto& [hash, block] : blocks_) snapshot.blocks.push_back(block);
  }
  std::ranges::sort(snapshot.blocks, [](const KvBlock& a, const KvBlock& b) {
    return std::pair(a.place, a.hash) < std::pair(b.place, b.hash);
  });
  return snapshot;
}

uint64_t KvEvents::Listen(std::function<void()> on_batch) {
  const MutexLock lock(listeners_mutex_);
  listeners_.emplace(++next_listener_, std::move(on_batch));
  return next_listener_;
}

void KvEvents::StopListening(uint64_t listener) {
  const MutexLock lock(listeners_mutex_);
  listeners_.erase(listener);
}

}  // namespace hydrant
