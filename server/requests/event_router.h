// Delivers the loop's events to their streams on one writer thread, so that the engine thread pays
// for a vector swap and a notification per step and not for serialization and sending (10-26
// microseconds a message).
//
// Where the engine computes on the same cores that send, a step that begins immediately takes the
// core from the writer, and tokens wait for one or several ticks (4 ms) of the operating system's
// scheduler. There the loop waits, for a bounded time, until its events have been written.
#ifndef HYDRANT_SERVER_REQUESTS_EVENT_ROUTER_H_
#define HYDRANT_SERVER_REQUESTS_EVENT_ROUTER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "kernels/mutex.h"
#include "scheduler/request.h"
#include "scheduler/serving_loop.h"

namespace hydrant {

// The pending writes of the events of one Deliver(); each receiver with an unfinished write holds a
// reference. Thread safe.
class PendingWrites {
 public:
  PendingWrites() = default;
  ~PendingWrites() { written_.set_value(); }
  PendingWrites(const PendingWrites&) = delete;
  PendingWrites& operator=(const PendingWrites&) = delete;

  // Ready when the last reference is released. REQUIRES: called once
  std::future<void> Written() { return written_.get_future(); }

 private:
  std::promise<void> written_;
};

// Receives the events of one request, all samples included. Called on the writer thread only; must
// not block.
class EventReceiver {
 public:
  virtual ~EventReceiver() = default;
  virtual void OnEvent(Event event) = 0;
  // Called after the last event of a step: time to write. If the client keeps up, the receiver
  // holds `delivery` until its write is done.
  virtual void OnStepEnd(const std::shared_ptr<PendingWrites>& delivery) = 0;

 private:
  friend class EventRouter;
  uint64_t last_dispatch_ = 0;  // the last dispatch that gave it an event
};

// Thread safe. The inbox is bounded by the loop's output: a few events a step for each live
// request. Receivers merge events that they cannot send yet.
class EventRouter final : public EventSink {
 public:
  // `max_write_wait`: the longest that Deliver() waits for its events to be written; 0 where the
  // engine runs on a device.
  explicit EventRouter(std::chrono::microseconds max_write_wait = std::chrono::microseconds(0));
  ~EventRouter() override;  // delivers pending events, then joins the thread

  // Call it before Submit(), so that no event is missed; once for each sample. The receiver is
  // dropped after the handle's Finished or Failed.
  void Add(RequestHandle handle, std::shared_ptr<EventReceiver> receiver);
  // For a request that Submit() refused: no event follows.
  void Remove(RequestHandle handle);

  void Deliver(std::vector<Event> events) override;

 private:
  void Run();
  void Dispatch(std::vector<Event>& events, const std::shared_ptr<PendingWrites>& delivery);
  std::shared_ptr<EventReceiver> Find(const Event& event);

  const std::chrono::microseconds max_write_wait_;
  Mutex inbox_mutex_;
  std::condition_variable inbox_filled_;
  std::vector<Event> inbox_ HYDRANT_GUARDED_BY(inbox_mutex_);
  // The writes of the newest events in the inbox.
  std::shared_ptr<PendingWrites> delivery_ HYDRANT_GUARDED_BY(inbox_mutex_);
  bool stopping_ HYDRANT_GUARDED_BY(inbox_mutex_) = false;

  Mutex receivers_mutex_;
  std::unordered_map<RequestHandle, std::shared_ptr<EventReceiver>> receivers_
      HYDRANT_GUARDED_BY(receivers_mutex_);

  // Writer thread only:
  std::vector<std::shared_ptr<EventReceiver>> touched_;
  uint64_t dispatch_ = 0;  // the current one, counted from 1
  std::thread thread_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_REQUESTS_EVENT_ROUTER_H_
