// Prompts that need not be read because another sequence has read the same tokens, or is reading
// them: prefix blocks, and samples of one prompt. Owned by the scheduler's thread.
#ifndef HYDRANT_SCHEDULER_PROMPT_REUSE_H_
#define HYDRANT_SCHEDULER_PROMPT_REUSE_H_

#include <cstdint>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/cache/kv_cache_manager.h"
#include "engine/cache/prefix_cache.h"
#include "engine/cache/prefix_layout.h"
#include "kernels/ops/prefix_blocks.h"
#include "scheduler/request.h"
#include "scheduler/sequence.h"
#include "scheduler/sequence_table.h"
#include "scheduler/step_ledger.h"

namespace hydrant {

class PromptReuse {
 public:
  // Borrows all; they outlive it. `watermark_pages`: stay free when a sample is forked.
  PromptReuse(const EngineLimits& limits, int64_t watermark_pages, SequenceTable* table,
              KvCacheManager* kv_cache, StepLedger* ledger)
      : limits_(limits),
        watermark_pages_(watermark_pages),
        table_(*table),
        kv_cache_(*kv_cache),
        ledger_(*ledger),
        blocks_(limits.num_prefix_blocks) {}

  // Prefix blocks.

  PrefixCache& blocks() { return blocks_; }
  const PrefixCache& blocks() const { return blocks_; }
  // Tokens of an unread prompt that need not be read, by the blocks that are filled.
  int UsableTokens(const Sequence& sequence) const { return UsableTokens(sequence, nullptr); }
  // An admitted sequence leases the blocks that it reads and those that it fills.
  void Open(Sequence* sequence);
  // It has read its context: its blocks are filled, and its pages may be shared.
  void Filled(Sequence* sequence);
  void Abandon(Sequence* sequence);
  // Whether the sequence is done earlier when it waits for a prompt that begins alike and is being
  // read: the two share the engine, so this holds where what that prompt has left to read, less
  // the tokens that are then read once instead of twice, is no more than the sequence's own.
  bool WaitsForPrefix(const Sequence& sequence);
  // The live sequences that fill blocks, for WaitsForPrefix(); Open() adds the sequence it opens.
  void ListReaders();
  // From now on TakeFilled() returns the keys of all blocks filled since its last call.
  void RecordFilled() { records_filled_ = true; }
  std::vector<PrefixKey> TakeFilled() { return std::exchange(filled_, {}); }

  // Samples.

  // A sample whose prompt is to be read by another.
  bool WaitsForPrompt(const Sequence& sequence) const;
  // Forks the samples of prompts that have been read; they share pages. Where one does not fit, it
  // and those behind it read the prompt themselves.
  void ForkSamples(TimeUs now, CacheUpdates* updates);

 private:
  // A live sequence that fills blocks, and their keys once they are asked for.
  struct Reader {
    const Sequence* sequence = nullptr;
    std::unordered_set<PrefixKey, PrefixKeyHash> fresh;
  };

  // `reader`: its blocks count as filled; null: none do.
  int UsableTokens(const Sequence& sequence, const Reader* reader) const;
  PrefixLayout LayoutOf(const Sequence& sequence) const {
    return {sequence.cache.plan, static_cast<int>(sequence.PrefillTokens().size()), limits_};
  }
  void AddReader(const Sequence* sequence) {
    if (!sequence->cache.prefix.keys.empty()) readers_.push_back({sequence, {}});
  }
  bool TryFork(Sequence* parent, Sequence* sample, TimeUs now, CacheUpdates* updates);

  const EngineLimits& limits_;
  const int64_t watermark_pages_;
  SequenceTable& table_;
  KvCacheManager& kv_cache_;
  StepLedger& ledger_;
  PrefixCache blocks_;
  bool records_filled_ = false;
  std::vector<PrefixKey> filled_;
  std::vector<Reader> readers_;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_PROMPT_REUSE_H_
