#include "engine/cache/state_allocator.h"

#include <cstddef>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "kernels/check.h"

namespace hydrant {

void StateAllocator::SetLines(const CachePlan& plan, SequenceBlocks* blocks) const {
  blocks->state_lines = plan.state_lines;
  if (plan.state_lines == kNoStateLines) return;
  blocks->states_a_slab = static_cast<int32_t>(slab_.StatesIn(plan.state_lines));
}

int64_t StateAllocator::PagesWithState(std::span<const int32_t> pages) const {
  return std::accumulate(pages.begin(), pages.begin() + budget_heads_, int64_t{0});
}

int64_t StateAllocator::Missing(const SequenceBlocks& blocks, int64_t pages) {
  const int64_t lacking = pages - static_cast<int64_t>(blocks.free_states.size());
  return blocks.state_lines == kNoStateLines || lacking <= 0
             ? 0
             : PagesOf(lacking, blocks.states_a_slab);
}

void StateAllocator::TakeSlabs(int64_t slabs, SequenceBlocks* blocks) {
  const auto first = static_cast<std::ptrdiff_t>(blocks->slabs.size());
  blocks->slabs.resize(first + slabs);
  HYDRANT_CHECK(blocks_->Allocate(std::span(blocks->slabs).subspan(first)));
  num_slabs_ += slabs;
  blocks->num_pages += slabs;
  std::vector<int32_t>& free = blocks->free_states;
  free.resize(free.size() + slabs * blocks->states_a_slab);
  int32_t* id = free.data() + free.size() - slabs * blocks->states_a_slab;
  // States of the first slab are taken first.
  for (auto slab = static_cast<std::ptrdiff_t>(blocks->slabs.size()); slab-- > first;) {
    const SlabShape::States states = slab_.StatesOf(blocks->slabs[slab], blocks->state_lines);
    for (int32_t i = blocks->states_a_slab; i-- > 0;) *id++ = states.At(i);
  }
}

int32_t StateAllocator::Take(int head, SequenceBlocks* blocks) const {
  if (!HasState(*blocks, head)) return kNoState;
  HYDRANT_CHECK(!blocks->free_states.empty());
  const int32_t state = blocks->free_states.back();
  blocks->free_states.pop_back();
  return state;
}

void StateAllocator::Pack(SequenceBlocks* blocks, CacheUpdates* updates) {
  const int64_t spare = static_cast<int64_t>(blocks->free_states.size()) / blocks->states_a_slab;
  const std::span<const int32_t> empty = std::span(blocks->slabs).last(spare);
  std::unordered_set<int32_t> leaving;
  for (const int32_t slab : empty) {
    const SlabShape::States states = slab_.StatesOf(slab, blocks->state_lines);
    for (int32_t i = 0; i < blocks->states_a_slab; ++i) leaving.insert(states.At(i));
  }
  std::erase_if(blocks->free_states, [&](int32_t state) { return leaving.contains(state); });
  SlotCopies moves = {.slot = blocks->slot, .state_lines = blocks->state_lines};
  for (int head = 0; head < budget_heads_; ++head) {
    for (int32_t i = 0; i < blocks->pages[head]; ++i) {
      PageIds& page = blocks->page_ids[blocks->BlockIndex(head, i)];
      if (!leaving.contains(page.state)) continue;
      const int32_t from = std::exchange(page.state, Take(head, blocks));
      moves.pages.push_back({{kNotCopied, from}, {kNotCopied, page.state}});
      updates->AddTableWrite({blocks->TableIndex(head, i), page});
    }
  }
  for (const int32_t slab : empty) blocks_->Free(slab);
  blocks->slabs.resize(blocks->slabs.size() - spare);
  blocks->num_pages -= spare;
  num_slabs_ -= spare;
  if (!moves.pages.empty()) updates->Add(std::move(moves));
}

void StateAllocator::FreeSlabs(const SequenceBlocks& blocks) {
  for (const int32_t slab : blocks.slabs) blocks_->Free(slab);
  num_slabs_ -= static_cast<int64_t>(blocks.slabs.size());
}

}  // namespace hydrant
