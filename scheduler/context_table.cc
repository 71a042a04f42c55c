#include "scheduler/context_table.h"

#include <utility>

namespace hydrant {

ContextTable::~ContextTable() {
  while (!by_use_.empty()) Remove(by_use_.front().context->handle);
}

bool ContextTable::Keep(std::shared_ptr<const Context> context, const SequenceSpace& space,
                        CacheUpdates* updates) {
  if (!space_->MayEverSwapOut(space)) return false;
  Kept kept = {.context = std::move(context), .space = {}};
  while (!space_->TrySwapOut(space, &kept.space, updates)) {
    Remove(std::string(by_use_.front().context->handle));
    ++num_evicted_;
  }
  Remove(kept.context->handle);
  directory_->Add(kept.context);
  by_use_.push_back(std::move(kept));
  contexts_[by_use_.back().context->handle] = std::prev(by_use_.end());
  return true;
}

const KeptSpace* ContextTable::Use(const Context& context) {
  const auto it = contexts_.find(context.handle);
  if (it == contexts_.end() || it->second->context.get() != &context) return nullptr;
  by_use_.splice(by_use_.end(), by_use_, it->second);
  return &it->second->space;
}

void ContextTable::Remove(const std::string& handle) {
  const auto it = contexts_.find(handle);
  if (it == contexts_.end()) return;
  directory_->Remove(handle);
  space_->Drop(&it->second->space);
  by_use_.erase(it->second);
  contexts_.erase(it);
}

int64_t ContextTable::NumHostPages() const {
  int64_t pages = 0;
  for (const Kept& kept : by_use_) pages += static_cast<int64_t>(kept.space.host_pages.size());
  return pages;
}

}  // namespace hydrant
