#include "server/requests/event_router.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace hydrant {
namespace {

bool IsLast(const Event& event) {
  return std::holds_alternative<Finished>(event.what) || std::holds_alternative<Failed>(event.what);
}

}  // namespace

EventRouter::EventRouter(std::chrono::microseconds max_write_wait)
    : max_write_wait_(max_write_wait), thread_([this] { Run(); }) {}

EventRouter::~EventRouter() {
  {
    const MutexLock lock(inbox_mutex_);
    stopping_ = true;
  }
  inbox_filled_.notify_one();
  thread_.join();
}

void EventRouter::Add(RequestHandle handle, std::shared_ptr<EventReceiver> receiver) {
  const MutexLock lock(receivers_mutex_);
  receivers_.emplace(handle, std::move(receiver));
}

void EventRouter::Remove(RequestHandle handle) {
  const MutexLock lock(receivers_mutex_);
  receivers_.erase(handle);
}

void EventRouter::Deliver(std::vector<Event> events) {
  if (events.empty()) return;
  auto delivery = std::make_shared<PendingWrites>();
  const std::future<void> written = delivery->Written();
  {
    const MutexLock lock(inbox_mutex_);
    if (inbox_.empty()) {
      inbox_.swap(events);
    } else {
      inbox_.insert(inbox_.end(), std::make_move_iterator(events.begin()),
                    std::make_move_iterator(events.end()));
    }
    delivery_ = std::move(delivery);
  }
  inbox_filled_.notify_one();
  if (max_write_wait_.count() > 0) written.wait_for(max_write_wait_);
}

void EventRouter::Run() {
  std::vector<Event> events;
  while (true) {
    std::shared_ptr<PendingWrites> delivery;
    {
      MutexLock lock(inbox_mutex_);
      inbox_filled_.wait(lock.native(), [this]() HYDRANT_REQUIRES(inbox_mutex_) {
        return stopping_ || !inbox_.empty();
      });
      if (inbox_.empty()) return;
      events.swap(inbox_);
      delivery = std::move(delivery_);
    }
    Dispatch(events, delivery);
    events.clear();
  }
}

void EventRouter::Dispatch(std::vector<Event>& events,
                           const std::shared_ptr<PendingWrites>& delivery) {
  ++dispatch_;
  for (Event& event : events) {
    std::shared_ptr<EventReceiver> receiver = Find(event);
    if (receiver == nullptr) continue;
    receiver->OnEvent(std::move(event));
    if (std::exchange(receiver->last_dispatch_, dispatch_) != dispatch_)
      touched_.push_back(std::move(receiver));
  }
  for (const auto& receiver : touched_) receiver->OnStepEnd(delivery);
  touched_.clear();
}

std::shared_ptr<EventReceiver> EventRouter::Find(const Event& event) {
  const MutexLock lock(receivers_mutex_);
  const auto it = receivers_.find(event.handle);
  if (it == receivers_.end()) return nullptr;
  std::shared_ptr<EventReceiver> receiver = it->second;
  if (IsLast(event)) receivers_.erase(it);
  return receiver;
}

}  // namespace hydrant
