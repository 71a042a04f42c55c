#include "scheduler/invariants.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace hydrant {

namespace {

// Counts the units that live sequences hold. A unit that is held twice is an error, unless it may
// be shared.
class Ledger {
 public:
  Ledger(const char* what, int64_t size) : what_(what), held_(size, 0) {}

  void Take(int64_t begin, int64_t length, bool may_share = false) {
    for (int64_t i = begin; i < begin + length; ++i) {
      if (i < 0 || i >= static_cast<int64_t>(held_.size()) || (held_[i] != 0 && !may_share)) {
        error_ = absl::StrCat(what_, " ", i, " is out of range or held twice");
        return;
      }
      num_held_ += held_[i]++ == 0 ? 1 : 0;
    }
  }
  int NumHolders(int64_t i) const { return held_[i]; }
  absl::Status Check(int64_t num_free) const {
    if (!error_.empty()) return absl::InternalError(error_);
    if (num_held_ + num_free == static_cast<int64_t>(held_.size())) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat(what_, ": ", num_held_, " held + ", num_free, " free != ", held_.size()));
  }

 private:
  const char* what_;
  std::vector<int> held_;
  int64_t num_held_ = 0;
  std::string error_;
};

// The states in a sequence's slabs: each of its pages names one of them, where it keeps state.
class StatesOfSlabs {
 public:
  StatesOfSlabs(const SequenceBlocks& blocks, const SlabShape& shape)
      : has_state_(blocks.state_lines > 0) {
    for (const int32_t slab : blocks.slabs) {
      const SlabShape::States states = shape.StatesOf(slab, blocks.state_lines);
      for (int64_t i = 0; i < shape.StatesIn(blocks.state_lines); ++i) states_.insert(states.At(i));
    }
  }

  bool Take(int32_t state, bool may_have_state) {
    return may_have_state && has_state_ ? states_.erase(state) == 1 : state == kNoState;
  }
  bool AllTaken() const { return states_.empty(); }

 private:
  bool has_state_;
  std::unordered_set<int32_t> states_;
};

absl::Status StateError(int32_t state) {
  return absl::InternalError(
      absl::StrCat("state ", state, " is not the sequence's, or named twice"));
}

absl::Status Broken(absl::string_view message) { return absl::InternalError(message); }

// Pages that the updates of the newest batch write with others' contents: until a compaction frees
// pages, which may then be written again, each is written once and not read afterwards.
absl::Status CheckUpdates(const Batch& batch) {
  std::unordered_set<int32_t> written;
  absl::Status status;
  const auto read = [&](const std::vector<PageCopy>& pages) {
    for (const PageCopy& page : pages) {
      if (page.from.data != kNotCopied && written.contains(page.from.data))
        status = Broken(
            absl::StrCat("page ", page.from.data, " is read after it was written in one step"));
    }
  };
  const auto write = [&](const std::vector<PageCopy>& pages) {
    for (const PageCopy& page : pages) {
      if (page.to.data != kNotCopied && !written.insert(page.to.data).second)
        status = Broken(absl::StrCat("page ", page.to.data, " is written twice in one step"));
    }
  };
  for (const CacheUpdate& update : batch.list) {
    if (std::holds_alternative<SlotCompaction>(update)) written.clear();
    if (const auto* out = std::get_if<SwapOut>(&update)) read(out->pages);
    if (const auto* in = std::get_if<SwapIn>(&update)) write(in->pages);
    if (const auto* copies = std::get_if<SlotCopies>(&update)) {
      read(copies->pages);
      write(copies->pages);
    }
  }
  return status;
}

// Pages that were reserved for a sequence are all there, and none was taken.
absl::Status CheckReservation(const Sequence& sequence, const KvCacheManager& all) {
  const SequenceBlocks& blocks = sequence.cache.blocks;
  if (!sequence.IsGuaranteed())
    return blocks.reserved_pages == 0 ? absl::OkStatus() : Broken("promised to others");
  const Usage& usage = sequence.account.usage;
  if (usage.preemptions + usage.swaps + usage.shrinks > 0)
    return Broken("its pages were promised, and were taken from it");
  const int64_t tokens = sequence.progress.max_total_tokens - 1;
  if (blocks.row_width < blocks.row_limit)
    return Broken("its row is too narrow for the promised pages");
  // Before a compaction heads may hold more than they ever will, and after it state lies scattered
  // until the next step.
  if (blocks.lengths_known && !blocks.HasSpareSlab() &&
      !sequence.cache.plan.retention->CompactsWithoutCaps() && all.PagesMissing(blocks, tokens) > 0)
    return Broken(absl::StrCat(all.PagesMissing(blocks, tokens),
                               " pages that it may take were not promised to it"));
  return absl::OkStatus();
}

// Everything that live sequences hold of the engine's memory.
class HeldMemory {
 public:
  explicit HeldMemory(const SchedulerState& state)
      : limits_(state.limits),
        all_(state.kv_cache),
        heads_(limits_.num_layers * limits_.num_kv_heads),
        budget_heads_(limits_.BudgetHeads()),
        pages_("page", limits_.num_blocks),
        table_("table entry", limits_.table_entries),
        arena_("arena token", limits_.prefill_arena_tokens),
        slots_("slot", limits_.max_num_seqs) {}

  absl::Status Add(const Sequence& sequence) {
    const SequenceBlocks& blocks = sequence.cache.blocks;
    slots_.Take(blocks.slot, 1);
    table_.Take(blocks.row_begin, int64_t{blocks.row_width} * heads_ +
                                      static_cast<int64_t>(blocks.unassigned_pages.size()));
    arena_.Take(blocks.arena_begin, blocks.arena_tokens);
    reserved_ += blocks.reserved_pages;
    StatesOfSlabs states(blocks, limits_.slab);
    int64_t num_pages = 0;
    for (int head = 0; head < heads_; ++head) {
      num_pages += blocks.pages[head];
      const absl::Status status = AddHead(sequence, head, &states);
      if (!status.ok()) return status;
    }
    return AddOtherPages(blocks, num_pages, &states);
  }

  absl::Status Check() const {
    for (int page = 0; page < limits_.num_blocks; ++page) {
      if (pages_.NumHolders(page) != all_.NumOwners(page))
        return Broken(absl::StrCat("page ", page, " has ", all_.NumOwners(page), " owners, in ",
                                   pages_.NumHolders(page), " tables"));
    }
    if (reserved_ != all_.NumFreePages() - all_.NumUnreservedPages() ||
        reserved_ > all_.NumFreePages())
      return Broken(absl::StrCat(reserved_, " pages are promised of ", all_.NumFreePages(),
                                 " free ones, ", all_.NumUnreservedPages(),
                                 " are counted as others'"));
    if (num_slabs_ != all_.NumSlabs()) return Broken("a page for state has no sequence");
    absl::Status status = pages_.Check(all_.NumFreePages());
    if (status.ok()) status = table_.Check(all_.NumFreeTableEntries());
    if (status.ok()) status = arena_.Check(all_.NumFreeArenaTokens());
    if (status.ok()) status = slots_.Check(all_.NumFreeSlots());
    return status;
  }

 private:
  absl::Status AddHead(const Sequence& sequence, int head, StatesOfSlabs* states) {
    const SequenceBlocks& blocks = sequence.cache.blocks;
    const HeadSpan& span = blocks.spans[head];
    if (blocks.unassigned_pages.empty() &&
        PagesOf(span.PeakEntries(blocks.capacity), limits_.block_size) > blocks.pages[head])
      return Broken("a head's pages are full before its sequence's capacity");
    for (int32_t i = 0; i < blocks.pages[head]; ++i) {
      const auto [block, state] = blocks.page_ids[blocks.BlockIndex(head, i)];
      const bool may_share = !blocks.shared.empty() && i < blocks.shared[head];
      pages_.Take(block, 1, may_share && all_.NumOwners(block) > 1);
      if (!all_.IsLivePage(block))
        return Broken(absl::StrCat("page ", block, " is free but named"));
      if (!states->Take(state, head < budget_heads_)) return StateError(state);
    }
    if (!blocks.shared.empty() && blocks.shared[head] > 0 &&
        sequence.progress.num_seen - span.dropped > span.cap)
      return Broken("a head overwrites entries in pages that may be shared");
    return absl::OkStatus();
  }

  // Unassigned pages and slabs.
  absl::Status AddOtherPages(const SequenceBlocks& blocks, int64_t num_pages,
                             StatesOfSlabs* states) {
    for (const auto [block, state] : blocks.unassigned_pages) {
      pages_.Take(block, 1);
      if (!states->Take(state, true)) return StateError(state);
    }
    for (const int32_t state : blocks.free_states) {
      if (!states->Take(state, true)) return StateError(state);
    }
    if (!states->AllTaken()) return Broken("state is lost");
    for (const int32_t slab : blocks.slabs) pages_.Take(slab, 1);
    num_slabs_ += static_cast<int64_t>(blocks.slabs.size());
    num_pages += static_cast<int64_t>(blocks.unassigned_pages.size() + blocks.slabs.size());
    if (num_pages != blocks.num_pages) return Broken("num_pages does not count the pages");
    return absl::OkStatus();
  }

  const EngineLimits& limits_;
  const KvCacheManager& all_;
  const int heads_, budget_heads_;
  Ledger pages_, table_, arena_, slots_;
  int64_t reserved_ = 0, num_slabs_ = 0;
};

absl::Status CheckLive(const SchedulerState& state) {
  HeldMemory held(state);
  for (const Sequence* sequence : state.table.live()) {
    if (sequence->IsWaiting() || !sequence->cache.blocks.IsOpen())
      return Broken("live, but waiting or without space");
    if (sequence->phase == Phase::kResuming) return Broken("still resuming after its step");
    if (!sequence->cache.swapped.IsEmpty()) return Broken("live, but swapped out");
    absl::Status status = held.Add(*sequence);
    if (status.ok()) status = CheckReservation(*sequence, state.kv_cache);
    if (!status.ok()) return status;
  }
  return held.Check();
}

absl::Status CheckQueue(const SchedulerState& state) {
  int64_t queued_tokens = 0, swapped_pages = 0;
  for (const Sequence* sequence : state.table.queue().InOrder()) {
    const SequenceCache& cache = sequence->cache;
    queued_tokens += sequence->progress.NumKnown();
    swapped_pages += static_cast<int64_t>(cache.swapped.host_pages.size());
    if (cache.blocks.IsOpen() || !cache.prefix.IsEmpty() || !sequence->IsWaiting())
      return Broken("waiting, but holds something");
    if (cache.swapped.IsEmpty() == sequence->IsSwapped())
      return Broken("its phase does not say whether its cache is in host memory");
  }
  if (swapped_pages != state.swapped_pages)
    return Broken("swapped_pages does not count the swapped pages");
  if (queued_tokens != state.table.queued_tokens())
    return Broken("queued_tokens does not count the queue");
  if (state.contexts.NumHostPages() + swapped_pages + state.kv_cache.NumFreeHostPages() !=
      state.limits.num_host_pages)
    return Broken("host pages are neither a context's, nor swapped, nor free");
  if (state.table.live().size() + state.table.queue().size() != state.table.size())
    return Broken("a sequence is in no list");
  return absl::OkStatus();
}

absl::Status CheckSteps(const SchedulerState& state) {
  for (const StepRecord& step : state.ledger.in_flight()) {
    for (const ScheduledToken& row : step.decoded) {
      const Sequence* sequence = row.cache.sequence;
      if (sequence->HasEnded() == (state.table.Find(sequence->handle) != nullptr))
        return Broken("a step names a sequence that is neither live nor has ended");
    }
  }
  return CheckUpdates(state.batch);
}

}  // namespace

absl::Status CheckInvariants(const SchedulerState& state) {
  std::vector<const PrefixLease*> leases;
  for (const Sequence* sequence : state.table.live()) leases.push_back(&sequence->cache.prefix);
  absl::Status status = CheckLive(state);
  if (status.ok()) status = CheckQueue(state);
  if (status.ok()) status = CheckSteps(state);
  if (status.ok()) status = state.prefix_cache.CheckInvariants(leases);
  return status;
}

}  // namespace hydrant
