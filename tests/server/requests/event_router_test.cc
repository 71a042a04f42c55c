// The router without gRPC: delivery, order, and duration.
#include "server/requests/event_router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>

namespace hydrant {
namespace {

using testing::ElementsAre;

// Records events; `done` is set by the last event's step.
class Recorder final : public EventReceiver {
 public:
  void OnEvent(Event event) override {
    if (const auto* delta = std::get_if<Delta>(&event.what)) words.push_back(delta->text);
    if (std::holds_alternative<Finished>(event.what)) {
      words.push_back("finished");
      ended_ = true;
    }
  }
  void OnStepEnd(const std::shared_ptr<PendingWrites>&) override {
    words.push_back("|");
    if (ended_) done.set_value();
    ended_ = false;
  }
  std::vector<std::string> words;
  std::promise<void> done;

 private:
  bool ended_ = false;
};

Event TextEvent(RequestHandle handle, const std::string& text) { return {handle, Delta{{}, text}}; }

TEST(EventRouter, DeliversInOrderAndDropsTheReceiverAfterTheEnd) {
  EventRouter router;
  const auto recorder = std::make_shared<Recorder>();
  router.Add(1, recorder);
  std::future<void> done = recorder->done.get_future();
  router.Deliver({TextEvent(1, "a"),
                  TextEvent(2, "of nobody"),
                  TextEvent(1, "b"),
                  {1, Finished{}},
                  TextEvent(1, "too late")});
  done.wait();
  EXPECT_THAT(recorder->words, ElementsAre("a", "b", "finished", "|"));
}

// The samples of a request have one receiver, with one OnStepEnd() per step even if other events
// lie between.
TEST(EventRouter, SeveralHandlesMayHaveOneReceiver) {
  const auto recorder = std::make_shared<Recorder>();
  const auto other = std::make_shared<Recorder>();
  {
    EventRouter router;
    for (const RequestHandle handle : {1, 2}) router.Add(handle, recorder);
    router.Add(3, other);
    router.Deliver({TextEvent(1, "a"),
                    {2, Finished{}},
                    TextEvent(3, "x"),
                    TextEvent(2, "too late"),
                    TextEvent(1, "b")});
  }
  EXPECT_THAT(recorder->words, ElementsAre("a", "finished", "b", "|"));
  EXPECT_THAT(other->words, ElementsAre("x", "|"));
  EXPECT_EQ(recorder.use_count(), 1);
}

TEST(EventRouter, ARemovedReceiverHearsNothing) {
  const auto gone = std::make_shared<Recorder>();
  const auto stays = std::make_shared<Recorder>();
  {
    EventRouter router;
    router.Add(1, gone);
    router.Add(2, stays);
    router.Remove(1);
    router.Deliver({TextEvent(1, "x"), {2, Finished{}}});
  }  // the destructor delivers pending events
  EXPECT_TRUE(gone->words.empty());
  EXPECT_THAT(stays->words, ElementsAre("finished", "|"));
  EXPECT_EQ(gone.use_count(), 1);
  EXPECT_EQ(stays.use_count(), 1);
}

// With `max_write_wait` the loop continues only when the writer has delivered everything.
TEST(EventRouter, DeliverStandsAsideForTheWriter) {
  EventRouter router(std::chrono::hours(1));
  const auto recorder = std::make_shared<Recorder>();
  router.Add(1, recorder);
  for (int step = 0; step < 1000; ++step) {
    router.Deliver({TextEvent(1, "x")});
    ASSERT_EQ(recorder->words.size(), 2 * static_cast<size_t>(step + 1)) << "words and step ends";
  }
}

// A delivery with an unfinished write counts as not delivered.
TEST(EventRouter, DeliverWaitsForAWriteThatIsUnderWay) {
  class Writer final : public EventReceiver {
   public:
    void OnEvent(Event) override {}
    void OnStepEnd(const std::shared_ptr<PendingWrites>& delivery) override {
      if (write_.joinable()) write_.join();
      write_ = std::thread([this, held = delivery]() mutable {
        std::this_thread::yield();
        ++written;
        held.reset();
      });
    }
    ~Writer() override { write_.join(); }
    std::atomic<int> written{0};

   private:
    std::thread write_;
  };
  EventRouter router(std::chrono::hours(1));
  const auto writer = std::make_shared<Writer>();
  router.Add(1, writer);
  for (int step = 1; step <= 1000; ++step) {
    router.Deliver({TextEvent(1, "x")});
    ASSERT_EQ(writer->written, step);
  }
}

// A receiver that blocks, which is not allowed, delays the loop for the bounded time only.
TEST(EventRouter, DeliverDoesNotWaitLongerThanItMay) {
  class Blocked final : public EventReceiver {
   public:
    explicit Blocked(std::shared_future<void> release) : release_(std::move(release)) {}
    void OnEvent(Event) override { release_.wait(); }
    void OnStepEnd(const std::shared_ptr<PendingWrites>&) override {}

   private:
    std::shared_future<void> release_;
  };
  std::promise<void> release;
  EventRouter router(std::chrono::milliseconds(1));
  router.Add(1, std::make_shared<Blocked>(release.get_future().share()));
  router.Deliver({TextEvent(1, "x")});
  router.Deliver({TextEvent(1, "y")});
  release.set_value();
}

TEST(EventRouter, ManySendersLoseNothing) {
  constexpr int kThreads = 4, kEvents = 5000;
  std::vector<std::shared_ptr<Recorder>> recorders;
  {
    EventRouter router;
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      recorders.push_back(std::make_shared<Recorder>());
      router.Add(t + 1, recorders.back());
    }
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&router, t] {
        for (int i = 0; i < kEvents; ++i) router.Deliver({TextEvent(t + 1, std::to_string(i))});
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  for (const auto& recorder : recorders) {
    int next = 0;
    for (const std::string& word : recorder->words) {
      if (word == "|") continue;
      EXPECT_EQ(word, std::to_string(next++));
    }
    EXPECT_EQ(next, kEvents);
  }
}

}  // namespace
}  // namespace hydrant
