// Connections that ConnectionQueue admits, keeps waiting and refuses. Descriptors are plain
// numbers.
#include "server/net/connection_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace hydrant {
namespace {

using std::chrono::milliseconds, std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

const ConnectionQueue::Clock::time_point kStart{};

class ConnectionQueueTest : public testing::Test {
 protected:
  void Add(int fd, const std::string& network, uint64_t unread,
           ConnectionQueue::Clock::time_point at) {
    unread_[fd] = unread;
    queue_.Add({.fd = fd, .network = network, .since = at, .until = at});
  }
  ConnectionQueue::Next Choose(ConnectionQueue::Clock::time_point now) {
    return queue_.Choose(
        now, [this](int fd) { return unread_.at(fd); },
        [now](const ConnectionQueue::Waiting& waiting) { return now >= waiting.until; });
  }
  // Enters connections of the network while there is room; returns their number.
  int Fill(const std::string& network) {
    int entered = 0;
    for (; queue_.HasRoom(network); ++entered) queue_.Enter(network);
    return entered;
  }
  static std::vector<int> Fds(const std::vector<ConnectionQueue::Waiting>& waiting) {
    std::vector<int> fds;
    fds.reserve(waiting.size());
    for (const ConnectionQueue::Waiting& one : waiting) fds.push_back(one.fd);
    return fds;
  }

  ConnectionQueue queue_;
  std::map<int, uint64_t> unread_;
};

TEST_F(ConnectionQueueTest, OneAddressLeavesRoomForOthers) {
  const int most = Fill("a");
  EXPECT_GT(most, 1);
  EXPECT_EQ(Fill("b"), most);
  int all = 2 * most;
  for (int i = 0; queue_.HasRoom(std::to_string(i)); ++i) all += Fill(std::to_string(i));
  EXPECT_EQ(all, 4 * most);  // the limit over all networks
  EXPECT_FALSE(queue_.HasRoom("never seen"));
  queue_.Settle("a");
  EXPECT_TRUE(queue_.HasRoom("a"));
  EXPECT_FALSE(queue_.HasRoom("b"));
  queue_.Settle("nobody");
  EXPECT_EQ(Fill("a"), 1);
}

TEST_F(ConnectionQueueTest, NothingEntersWhileItIsFull) {
  queue_.SetFull(true);
  Add(1, "a", 100, kStart);
  const ConnectionQueue::Next next = Choose(kStart);
  EXPECT_THAT(next.enter, IsEmpty());
  EXPECT_TRUE(next.lacks_room);
  queue_.SetFull(false);
  EXPECT_THAT(Fds(Choose(kStart).enter), ElementsAre(1));
  EXPECT_FALSE(queue_.AnyWaiting());
}

// A good client sends a few bytes and waits for the server's SETTINGS.
TEST_F(ConnectionQueueTest, FewestUnreadBytesEnterFirst) {
  Fill("a");
  Add(1, "a", 16000, kStart);
  Add(2, "a", 8000, kStart + milliseconds(1));
  Add(3, "a", 100, kStart + milliseconds(2));
  Add(4, "a", 100, kStart + milliseconds(3));
  EXPECT_TRUE(Choose(kStart + milliseconds(4)).lacks_room);
  for (const int expected : {3, 4, 2, 1}) {
    queue_.Settle("a");
    EXPECT_THAT(Fds(Choose(kStart + milliseconds(5)).enter), ElementsAre(expected));
  }
}

TEST_F(ConnectionQueueTest, AConnectionInBackoffLacksNoRoom) {
  queue_.Add({.fd = 1, .network = "a", .since = kStart, .until = kStart + seconds(1)});
  unread_[1] = 0;
  const ConnectionQueue::Next early = Choose(kStart);
  EXPECT_THAT(early.enter, IsEmpty());
  EXPECT_FALSE(early.lacks_room);
  EXPECT_TRUE(queue_.AnyWaitingOf("a"));
  EXPECT_FALSE(queue_.AnyWaitingOf("b"));
  EXPECT_THAT(Fds(Choose(kStart + seconds(1)).enter), ElementsAre(1));
}

TEST_F(ConnectionQueueTest, WaitingIsBounded) {
  Fill("a");
  Add(1, "a", 100, kStart);
  Add(2, "a", 100, kStart + seconds(5));
  EXPECT_THAT(Choose(kStart + seconds(10)).refuse, IsEmpty());
  EXPECT_THAT(Fds(Choose(kStart + seconds(13)).refuse), ElementsAre(1));
}

TEST_F(ConnectionQueueTest, OfTooManyTheLargestAreRefused) {
  constexpr int kMany = 3000;
  Fill("a");
  for (int i = 0; i < kMany; ++i) Add(i, "a", static_cast<uint64_t>(i), kStart);
  const ConnectionQueue::Next next = Choose(kStart);
  EXPECT_THAT(next.enter, IsEmpty());
  const size_t left = queue_.TakeAll().size();
  EXPECT_LT(left, 2000u);
  ASSERT_EQ(next.refuse.size(), kMany - left);
  for (const ConnectionQueue::Waiting& refused : next.refuse)
    EXPECT_GE(refused.fd, static_cast<int>(left));
}

}  // namespace
}  // namespace hydrant
