// Brings the loop's events to their streams on one writer thread, so that the engine thread pays
// for a vector swap and a notification per step, and not for serialising and sending (10-26
// microseconds a message).
//
// Where the engine computes on the same cores that send, a step that begins at once takes the core
// from the writer, and tokens wait for the scheduler's next tick (4 ms) or several. There the loop
// stands aside until the writer has handed over what it was given, for a bounded time: the writer
// never waits for a client.
#ifndef HYDRANT_SERVER_EVENT_ROUTER_H_
#define HYDRANT_SERVER_EVENT_ROUTER_H_

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "scheduler/request.h"
#include "scheduler/serving_loop.h"

namespace hydrant {

// The receiving end of one request. Called on the writer thread only; must not block.
class EventReceiver {
 public:
  virtual ~EventReceiver() = default;
  virtual void OnEvent(Event event) = 0;
  // After the last event of a step: time to write.
  virtual void OnStepEnd() = 0;
};

// Thread safe. The inbox is bounded by what the loop may produce: a few events a step for each live
// request, and the receivers merge what they cannot send.
class EventRouter final : public EventSink {
 public:
  // `stand_aside`: the longest that Deliver() waits for the writer; 0 where the engine's work is on
  // a device.
  explicit EventRouter(std::chrono::microseconds stand_aside = std::chrono::microseconds(0));
  ~EventRouter() override;  // delivers what is left, then joins the thread

  // Before Submit(), so that no event comes too early. The receiver is dropped after its Finished
  // or Failed.
  void Add(RequestHandle handle, std::shared_ptr<EventReceiver> receiver);
  // For a request that Submit() refused: no event follows.
  void Remove(RequestHandle handle);

  void Deliver(std::vector<Event> events) override;

 private:
  void Run();
  void Dispatch(std::vector<Event>& events);
  std::shared_ptr<EventReceiver> Find(const Event& event);

  const std::chrono::microseconds stand_aside_;
  std::mutex inbox_mutex_;
  std::condition_variable inbox_filled_;
  std::condition_variable all_handed_over_;
  std::vector<Event> inbox_;  // guarded by inbox_mutex_
  bool writing_ = false;      // guarded by inbox_mutex_: the writer holds events
  bool stopping_ = false;     // guarded by inbox_mutex_

  std::mutex receivers_mutex_;
  std::unordered_map<RequestHandle, std::shared_ptr<EventReceiver>>
      receivers_;  // guarded by receivers_mutex_

  std::vector<std::shared_ptr<EventReceiver>> touched_;  // writer thread only
  std::thread thread_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_EVENT_ROUTER_H_
