#include "engine/cache/state_allocator.h"

#include <cstddef>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "kernels/check.h"

namespace hydrant {

void StateAllocator::SetLines(const CachePlan& plan, SequenceSpace* space) const {
  space->state_lines = plan.state_lines;
  if (plan.state_lines == kNoStateLines) return;
  space->states_a_slab = static_cast<int32_t>(slab_.StatesIn(plan.state_lines));
}

int64_t StateAllocator::PagesWithState(std::span<const int32_t> pages) const {
  return std::accumulate(pages.begin(), pages.begin() + budget_heads_, int64_t{0});
}

int64_t StateAllocator::Missing(const SequenceSpace& space, int64_t pages) {
  const int64_t lacking = pages - static_cast<int64_t>(space.free_states.size());
  return space.state_lines == kNoStateLines || lacking <= 0 ? 0
                                                            : PagesOf(lacking, space.states_a_slab);
}

void StateAllocator::TakeSlabs(int64_t slabs, SequenceSpace* space) {
  const auto first = static_cast<std::ptrdiff_t>(space->slabs.size());
  space->slabs.resize(first + slabs);
  HYDRANT_CHECK(blocks_->Allocate(std::span(space->slabs).subspan(first)));
  num_slabs_ += slabs;
  space->num_pages += slabs;
  std::vector<int32_t>& free = space->free_states;
  // States of the first slab are taken first.
  for (auto slab = static_cast<std::ptrdiff_t>(space->slabs.size()); slab-- > first;) {
    for (int32_t i = space->states_a_slab; i-- > 0;)
      free.push_back(slab_.StateAt(space->slabs[slab], i, space->state_lines));
  }
}

int32_t StateAllocator::Take(int head, SequenceSpace* space) const {
  if (!HasState(*space, head)) return kNoState;
  HYDRANT_CHECK(!space->free_states.empty());
  const int32_t state = space->free_states.back();
  space->free_states.pop_back();
  return state;
}

void StateAllocator::Pack(SequenceSpace* space, CacheUpdates* updates) {
  const int64_t spare = static_cast<int64_t>(space->free_states.size()) / space->states_a_slab;
  const std::span<const int32_t> empty = std::span(space->slabs).last(spare);
  std::unordered_set<int32_t> leaving;
  for (const int32_t slab : empty) {
    for (int32_t i = 0; i < space->states_a_slab; ++i)
      leaving.insert(slab_.StateAt(slab, i, space->state_lines));
  }
  std::erase_if(space->free_states, [&](int32_t state) { return leaving.contains(state); });
  SlotCopies moves = {.slot = space->slot, .state_lines = space->state_lines};
  for (int head = 0; head < budget_heads_; ++head) {
    for (int32_t i = 0; i < space->pages[head]; ++i) {
      PageIds& page = space->blocks[space->BlockIndex(head, i)];
      if (!leaving.contains(page.state)) continue;
      const int32_t from = std::exchange(page.state, Take(head, space));
      moves.pages.push_back({{kNotCopied, from}, {kNotCopied, page.state}});
      updates->AddTableWrite({space->TableIndex(head, i), page});
    }
  }
  for (const int32_t slab : empty) blocks_->Free(slab);
  space->slabs.resize(space->slabs.size() - spare);
  space->num_pages -= spare;
  num_slabs_ -= spare;
  if (!moves.pages.empty()) updates->Add(std::move(moves));
}

void StateAllocator::FreeSlabs(const SequenceSpace& space) {
  for (const int32_t slab : space.slabs) blocks_->Free(slab);
  num_slabs_ -= static_cast<int64_t>(space.slabs.size());
}

}  // namespace hydrant
