// The part of CacheSpace that lends pages for state: which slabs a sequence has, and whose state is
// where in them.
#include <algorithm>
#include <numeric>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/cache/cache_space.h"
#include "kernels/check.h"

namespace hydrant {

void CacheSpace::SetStateLines(const CachePlan& plan, SequenceSpace* space) const {
  space->state_lines = plan.state_lines;
  if (plan.state_lines == kNoStateLines) return;
  space->states_a_slab = static_cast<int32_t>(limits_.slab.StatesIn(plan.state_lines));
}

int64_t CacheSpace::PagesOfState(std::span<const int32_t> pages) const {
  return std::accumulate(pages.begin(), pages.begin() + full_heads_, int64_t{0});
}

int64_t CacheSpace::WithSlabs(const CachePlan& plan, std::span<const int32_t> pages) const {
  return std::accumulate(pages.begin(), pages.end(), int64_t{0}) +
         SlabsFor(limits_, plan, PagesOfState(pages));
}

void CacheSpace::TakeSlabs(int64_t slabs, SequenceSpace* space) {
  const auto first = static_cast<std::ptrdiff_t>(space->slabs.size());
  space->slabs.resize(first + slabs);
  HYDRANT_CHECK(blocks_.Allocate(std::span(space->slabs).subspan(first)));
  num_slabs_ += slabs;
  space->num_pages += slabs;
  std::vector<int32_t>& free = space->free_states;
  // The first slab's are taken first.
  for (auto slab = static_cast<std::ptrdiff_t>(space->slabs.size()); slab-- > first;) {
    for (int32_t i = space->states_a_slab; i-- > 0;)
      free.push_back(limits_.slab.StateAt(space->slabs[slab], i, space->state_lines));
  }
}

int32_t CacheSpace::TakeState(int head, SequenceSpace* space) const {
  if (!HasState(*space, head)) return kNoState;
  HYDRANT_CHECK(!space->free_states.empty());
  const int32_t state = space->free_states.back();
  space->free_states.pop_back();
  return state;
}

void CacheSpace::FreePage(PageIds page, SequenceSpace* space) {
  blocks_.Free(page.data);
  --space->num_pages;
  if (page.state != kNoState) space->free_states.push_back(page.state);
}

// What lies in the last slabs moves to what is free in the first.
void CacheSpace::PackState(SequenceSpace* space, CacheUpdates* updates) {
  if (!space->HasSpareSlab() || !space->unassigned_pages.empty()) return;
  const int64_t spare = static_cast<int64_t>(space->free_states.size()) / space->states_a_slab;
  const std::span<const int32_t> empty = std::span(space->slabs).last(spare);
  std::unordered_set<int32_t> leaving;
  for (const int32_t slab : empty) {
    for (int32_t i = 0; i < space->states_a_slab; ++i)
      leaving.insert(limits_.slab.StateAt(slab, i, space->state_lines));
  }
  std::erase_if(space->free_states, [&](int32_t state) { return leaving.contains(state); });
  SlotCopies moves = {.slot = space->slot, .state_lines = space->state_lines};
  for (int head = 0; head < full_heads_; ++head) {
    for (int32_t i = 0; i < space->pages[head]; ++i) {
      PageIds& page = space->blocks[space->BlockIndex(head, i)];
      if (!leaving.contains(page.state)) continue;
      const int32_t from = std::exchange(page.state, TakeState(head, space));
      moves.pages.push_back({{kNotCopied, from}, {kNotCopied, page.state}});
      updates->AddTableWrite({space->TableIndex(head, i), page});
    }
  }
  for (const int32_t slab : empty) blocks_.Free(slab);
  space->slabs.resize(space->slabs.size() - spare);
  space->num_pages -= spare;
  num_slabs_ -= spare;
  CountPromise(space);
  if (!moves.pages.empty()) updates->Add(std::move(moves));
}

}  // namespace hydrant
