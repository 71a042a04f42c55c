#include "server/apis/kv_event_stream.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <variant>

#include "server/wire/wire_message.h"

namespace hydrant {
namespace {

namespace common = smg::grpc::common;

// Some 600 KB.
constexpr size_t kChunkBlocks = kMaxKvChanges;

double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

common::KvCacheEvent* AddEvent(common::KvEventBatch* batch) {
  common::KvCacheEvent* event = batch->add_events();
  event->set_event_id(static_cast<uint64_t>(batch->events_size()));
  return event;
}

// Appends to the last event if the block follows that event's last block.
void AddStored(const KvBlock& block, common::KvEventBatch* batch) {
  common::KvBlocksStored* stored = nullptr;
  if (batch->events_size() > 0) {
    common::KvCacheEvent* last = batch->mutable_events(batch->events_size() - 1);
    if (last->has_stored() && block.parent.has_value() &&
        last->stored().blocks().rbegin()->block_hash() == *block.parent)
      stored = last->mutable_stored();
  }
  if (stored == nullptr) {
    stored = AddEvent(batch)->mutable_stored();
    if (block.parent.has_value()) stored->set_parent_block_hash(*block.parent);
  }
  common::KvBlock* wire = stored->add_blocks();
  wire->set_block_hash(block.hash);
  wire->mutable_token_ids()->Add(block.tokens.begin(), block.tokens.end());
  wire->set_block_size(kPrefixBlockTokens);
}

void AddRemoved(KvBlockHash hash, common::KvEventBatch* batch) {
  const int count = batch->events_size();
  common::KvCacheEvent* event = count > 0 && batch->events(count - 1).has_removed()
                                    ? batch->mutable_events(count - 1)
                                    : AddEvent(batch);
  event->mutable_removed()->add_block_hashes(hash);
}

}  // namespace

common::KvEventBatch ToWireBatch(const KvEventBatch& batch) {
  common::KvEventBatch wire;
  wire.set_sequence_number(batch.sequence);
  wire.set_timestamp(batch.unix_seconds);
  for (const KvChange& change : batch.changes) {
    if (const auto* stored = std::get_if<KvBlock>(&change)) {
      AddStored(*stored, &wire);
    } else {
      AddRemoved(std::get<KvBlockRemoved>(change).hash, &wire);
    }
  }
  return wire;
}

std::deque<common::KvEventBatch> ToWireSnapshot(const KvEvents::Snapshot& snapshot,
                                                double unix_seconds) {
  const size_t count =
      std::max<size_t>(1, (snapshot.blocks.size() + kChunkBlocks - 1) / kChunkBlocks);
  std::deque<common::KvEventBatch> chunks;
  for (size_t i = 0; i < count; ++i) {
    common::KvEventBatch& chunk = chunks.emplace_back();
    chunk.set_sequence_number(snapshot.sequence - (count - 1 - i));
    chunk.set_timestamp(unix_seconds);
    chunk.mutable_snapshot()->set_index(static_cast<uint32_t>(i));
    chunk.mutable_snapshot()->set_count(static_cast<uint32_t>(count));
    chunk.mutable_snapshot()->set_blocks(snapshot.blocks.size());
    if (i == 0) AddEvent(&chunk)->mutable_cleared();
    const size_t end = std::min(snapshot.blocks.size(), (i + 1) * kChunkBlocks);
    for (size_t at = i * kChunkBlocks; at < end; ++at) AddStored(snapshot.blocks[at], &chunk);
  }
  return chunks;
}

void KvEventStream::Begin(uint64_t last) {
  {
    const MutexLock lock(mutex());
    // If `last` is still stored it is sent again, in case the subscriber meant the first number
    // it lacks.
    next_ = last == 0 || events_->Find(last).has_value() ? last : last + 1;
  }
  listener_ = events_->Listen([this] { Wake(); });
  const MutexLock lock(mutex());
  Advance();
}

void KvEventStream::OnDone() {
  if (listener_ != 0) events_->StopListening(listener_);
  LongLivedStream::OnDone();
}

// Called on the loop's thread; an alarm moves the work to another thread.
void KvEventStream::Wake() {
  const MutexLock lock(mutex());
  if (!CanWrite() || std::exchange(wakes_, true)) return;
  alarm_.emplace();
  alarm_->Set(std::chrono::system_clock::now(), [weak = weak_from_this()](bool) {
    const auto stream = std::static_pointer_cast<KvEventStream>(weak.lock());
    if (stream == nullptr) return;
    const MutexLock lock(stream->mutex());
    stream->wakes_ = false;
    stream->Advance();
  });
}

void KvEventStream::Advance() {
  if (!CanWrite()) return;
  if (snapshot_.empty()) {
    const std::optional<std::shared_ptr<const KvEventBatch>> batch = events_->Find(next_);
    if (batch.has_value()) {
      if (*batch == nullptr) return;
      ++next_;
      return Write(ToWire(ToWireBatch(**batch)));
    }
    const KvEvents::Snapshot snapshot = events_->Blocks();
    next_ = snapshot.sequence + 1;
    snapshot_ = ToWireSnapshot(snapshot, UnixSeconds());
  }
  Write(ToWire(snapshot_.front()));
  snapshot_.pop_front();
}

}  // namespace hydrant
