// Scheduler::CheckInvariants: slow and plain, for tests.
#include <algorithm>
#include <unordered_set>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/scheduler.h"

namespace hydrant {

namespace {

// Counts every unit of what live sequences hold; a unit held twice is an error, unless it may be
// shared.
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

// What a sequence has in its slabs: each of its pages names another of it, where it keeps state.
class StatesOfSlabs {
 public:
  StatesOfSlabs(const SequenceSpace& space, const SlabShape& shape)
      : has_state_(space.state_lines > 0) {
    for (const int32_t slab : space.slabs) {
      for (int64_t i = 0; i < shape.StatesIn(space.state_lines); ++i)
        states_.insert(shape.StateAt(slab, i, space.state_lines));
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

}  // namespace

// Pages that the updates of the newest batch write with others' contents: until a cut frees pages,
// which may then be written again, each is written once and not read afterwards.
absl::Status Scheduler::CheckUpdates() const {
  std::unordered_set<int32_t> written;
  absl::Status status;
  const auto read = [&](const std::vector<PageCopy>& pages) {
    for (const PageCopy& page : pages) {
      if (page.from.data != kNotCopied && written.contains(page.from.data))
        status = absl::InternalError(
            absl::StrCat("page ", page.from.data, " is read after it was written in one step"));
    }
  };
  const auto write = [&](const std::vector<PageCopy>& pages) {
    for (const PageCopy& page : pages) {
      if (page.to.data != kNotCopied && !written.insert(page.to.data).second)
        status = absl::InternalError(
            absl::StrCat("page ", page.to.data, " is written twice in one step"));
    }
  };
  for (const CacheUpdate& update : batch_.list) {
    if (std::holds_alternative<SlotCut>(update)) written.clear();
    if (const auto* out = std::get_if<SwapOut>(&update)) read(out->pages);
    if (const auto* in = std::get_if<SwapIn>(&update)) write(in->pages);
    if (const auto* copies = std::get_if<SlotCopies>(&update)) {
      read(copies->pages);
      write(copies->pages);
    }
  }
  return status;
}

// Nothing was taken from it, and nothing that it may come to hold is missing.
absl::Status Scheduler::CheckPromise(const Sequence& sequence) const {
  const SequenceSpace& space = sequence.space;
  if (!sequence.IsPromised())
    return space.promised_pages == 0 ? absl::OkStatus() : absl::InternalError("promised to others");
  const Usage& usage = sequence.usage;
  if (usage.preemptions + usage.swaps + usage.shrinks > 0)
    return absl::InternalError("its pages were promised, and were taken from it");
  const int64_t tokens = sequence.max_total_tokens - 1;
  if (space.row_width < space.row_limit)
    return absl::InternalError("its row is too narrow for what was promised");
  // Before a cut heads may hold more than they ever will, and after it state lies scattered until
  // the next step.
  if (space.lengths_known && !space.HasSpareSlab() && !sequence.plan.life->CutsWithoutCaps() &&
      space_.PagesMissing(space, tokens) > 0)
    return absl::InternalError(absl::StrCat(space_.PagesMissing(space, tokens),
                                            " pages that it may take were not promised to it"));
  return absl::OkStatus();
}

absl::Status Scheduler::CheckInvariants() const {
  Ledger pages("page", limits_.num_blocks), table("table entry", limits_.table_entries),
      arena("arena token", limits_.prefill_arena_tokens), slots("slot", limits_.max_num_seqs);
  const int heads = limits_.num_layers * limits_.num_kv_heads;
  const int full_heads = limits_.FullLayers() * limits_.num_kv_heads;
  int64_t promised = 0, num_slabs = 0;
  for (const Sequence* sequence : live_) {
    const SequenceSpace& space = sequence->space;
    slots.Take(space.slot, 1);
    table.Take(space.row_begin, int64_t{space.row_width} * heads +
                                    static_cast<int64_t>(space.unassigned_pages.size()));
    arena.Take(space.arena_begin, space.arena_tokens);
    int64_t num_pages = 0;
    StatesOfSlabs states(space, limits_.slab);
    for (int head = 0; head < heads; ++head) {
      num_pages += space.pages[head];
      if (space.unassigned_pages.empty() && PagesOf(space.spans[head].MostUntil(space.capacity),
                                                    limits_.block_size) > space.pages[head])
        return absl::InternalError("a head's pages are full before its sequence's capacity");
      for (int32_t i = 0; i < space.pages[head]; ++i) {
        const auto [block, state] = space.blocks[space.BlockIndex(head, i)];
        const bool may_share = !space.shared.empty() && i < space.shared[head];
        pages.Take(block, 1, may_share && space_.NumOwners(block) > 1);
        if (!space_.IsLivePage(block))
          return absl::InternalError(absl::StrCat("page ", block, " is free but named"));
        if (!states.Take(state, head < full_heads)) return StateError(state);
      }
      if (!space.shared.empty() && space.shared[head] > 0 &&
          sequence->num_seen - space.spans[head].dropped > space.spans[head].cap)
        return absl::InternalError("a head overwrites entries in pages that may be shared");
    }
    num_pages += static_cast<int64_t>(space.unassigned_pages.size());
    for (const auto [block, state] : space.unassigned_pages) {
      pages.Take(block, 1);
      if (!states.Take(state, true)) return StateError(state);
    }
    for (const int32_t state : space.free_states) {
      if (!states.Take(state, true)) return StateError(state);
    }
    if (!states.AllTaken()) return absl::InternalError("state is lost");
    for (const int32_t slab : space.slabs) pages.Take(slab, 1);
    num_slabs += static_cast<int64_t>(space.slabs.size());
    num_pages += static_cast<int64_t>(space.slabs.size());
    if (num_pages != space.num_pages)
      return absl::InternalError("num_pages does not count the pages");
    promised += space.promised_pages;
    const absl::Status kept = CheckPromise(*sequence);
    if (!kept.ok()) return kept;
    if (sequence->IsSwapped()) return absl::InternalError("live, but swapped out");
    if (sequence->IsWaiting() || !space.IsOpen())
      return absl::InternalError("live, but waiting or without space");
  }
  for (int page = 0; page < limits_.num_blocks; ++page) {
    if (pages.NumHolders(page) != space_.NumOwners(page))
      return absl::InternalError(absl::StrCat("page ", page, " has ", space_.NumOwners(page),
                                              " owners, in ", pages.NumHolders(page), " tables"));
  }
  if (promised != space_.NumFreePages() - space_.NumUnpromisedPages() ||
      promised > space_.NumFreePages())
    return absl::InternalError(
        absl::StrCat(promised, " pages are promised of ", space_.NumFreePages(), " free ones, ",
                     space_.NumUnpromisedPages(), " are counted as others'"));
  int64_t queued_tokens = 0, swapped_pages = 0;
  for (const Sequence* sequence : waiting_.InOrder()) {
    queued_tokens += sequence->NumKnown();
    swapped_pages += static_cast<int64_t>(sequence->swapped.host_pages.size());
    if (sequence->space.IsOpen() || !sequence->prefix.IsEmpty() || !sequence->IsWaiting())
      return absl::InternalError("waiting, but holds something");
  }
  if (swapped_pages != swapped_pages_)
    return absl::InternalError("swapped_pages does not count the swapped pages");
  if (queued_tokens != queued_tokens_)
    return absl::InternalError("queued_tokens does not count the queue");
  if (live_.size() + waiting_.size() != sequences_.size())
    return absl::InternalError("a sequence is in no list");
  for (const StepInFlight& step : in_flight_) {
    for (const ScheduledToken& row : step.decode) {
      const auto it = sequences_.find(row.cache.sequence->handle);
      if (row.cache.sequence->ended == (it != sequences_.end()))
        return absl::InternalError("a step names a sequence that is neither live nor has ended");
    }
  }
  std::vector<const PrefixLease*> leases;
  for (const Sequence* sequence : live_) leases.push_back(&sequence->prefix);
  absl::Status status = prefix_cache_.CheckInvariants(leases);
  if (status.ok()) status = CheckUpdates();
  if (status.ok() && contexts_.NumHostPages() + swapped_pages_ + space_.NumFreeHostPages() !=
                         limits_.num_host_pages)
    status = absl::InternalError("host pages are neither a context's, nor swapped, nor free");
  if (status.ok()) status = pages.Check(space_.NumFreePages());
  if (status.ok() && num_slabs != space_.NumSlabs())
    status = absl::InternalError("some pages for state are nobody's");
  if (status.ok()) status = table.Check(space_.NumFreeTableEntries());
  if (status.ok()) status = arena.Check(space_.NumFreeArenaTokens());
  if (status.ok()) status = slots.Check(space_.NumFreeSlots());
  return status;
}

}  // namespace hydrant
