#include "scheduler/fair_queue.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace hydrant {

namespace {
constexpr double kNoTenant = std::numeric_limits<double>::infinity();
}  // namespace

void FairQueue::Open(const std::string& name, Sequence* sequence) {
  auto it = tenants_.find(name);
  if (it == tenants_.end()) {
    it = tenants_.emplace(name, Tenant{.name = name}).first;
    const auto weight = weights_.find(name);
    if (weight != weights_.end()) it->second.weight = weight->second;
  }
  Tenant& tenant = it->second;
  if (tenant.num_sequences++ == 0) {
    double least = kNoTenant;
    for (const auto& [other, active] : tenants_) {
      if (active.num_sequences > 0 && &active != &tenant) least = std::min(least, active.served_us);
    }
    if (least != kNoTenant) tenant.served_us = std::max(tenant.served_us, least);
  }
  sequence->tenant = &tenant;
}

void FairQueue::Close(Sequence* sequence) {
  --std::exchange(sequence->tenant, nullptr)->num_sequences;
}

void FairQueue::ForgetIdle() {
  std::erase_if(tenants_, [](const auto& entry) { return entry.second.num_sequences == 0; });
}

void FairQueue::Add(Sequence* sequence) {
  sequence->tenant->waiting.emplace(sequence->request.order, sequence);
  ++size_;
}

void FairQueue::Erase(Sequence* sequence) {
  size_ -= sequence->tenant->waiting.erase(sequence->request.order);
}

std::vector<Sequence*> FairQueue::InOrder() const {
  std::vector<Sequence*> all;
  for (const auto& [name, tenant] : tenants_) {
    for (const auto& [order, sequence] : tenant.waiting) all.push_back(sequence);
  }
  if (tenants_.size() > 1) {
    std::sort(all.begin(), all.end(), [](const Sequence* a, const Sequence* b) {
      return a->request.order < b->request.order;
    });
  }
  return all;
}

FairQueue::Turns::Turns(FairQueue* queue) {
  for (auto& [name, tenant] : queue->tenants_) {
    if (!tenant.waiting.empty())
      lines_.push_back({&tenant, tenant.waiting.begin(), tenant.waiting.end()});
  }
}

Sequence* FairQueue::Turns::Next() {
  Line* turn = nullptr;
  for (Line& line : lines_) {
    if (line.next == line.end) continue;
    if (turn == nullptr || line.tenant->served_us < turn->tenant->served_us) turn = &line;
  }
  if (turn == nullptr) return nullptr;
  return (turn->next++)->second;
}

}  // namespace hydrant
