// Simulated well-behaved clients, with known bytes, stay within the rules; known floods do not.
#include "server/net/connection_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace hydrant {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr uint64_t kMiB = 1 << 20;
constexpr ConnectionLimits kLimits{
    .max_streams = 100, .max_message_bytes = 16 * kMiB, .max_metadata_bytes = 8192};
constexpr Seconds kLook{0.02};

// Growing counters, and the verdicts on them.
class Connection {
 public:
  explicit Connection(const ConnectionLimits& limits = kLimits) : limits_(limits) {}

  ConnectionRecord::Verdict Judge(Seconds elapsed = kLook) {
    return record_.Judge(limits_, counts, elapsed);
  }
  // The bytes received when the connection is ended; 0: not ended in `most` checks.
  template <typename Grow>
  uint64_t BytesUntil(ConnectionRule rule, int most, const Grow& grow, Seconds elapsed = kLook) {
    for (int i = 0; i < most; ++i) {
      grow(&counts);
      const ConnectionRecord::Verdict verdict = Judge(elapsed);
      if (verdict.holds) continue;
      EXPECT_EQ(verdict.broken, rule) << ConnectionRuleName(verdict.broken);
      return counts.bytes_received;
    }
    return 0;
  }

  ConnectionCounts counts;

 private:
  const ConnectionLimits limits_;
  ConnectionRecord record_;
};

TEST(OpenCalls, ExceedTheAnnouncedLimitByEndingCallsOnly) {
  Connection connection;
  connection.counts.calls.started = 600;
  EXPECT_TRUE(connection.Judge().holds);
  connection.counts.calls.started = 601;
  const ConnectionRecord::Verdict verdict = connection.Judge();
  EXPECT_FALSE(verdict.holds);
  EXPECT_EQ(verdict.broken, ConnectionRule::kOpenCalls);

  Connection long_lived;
  long_lived.counts.calls = {.started = 1'000'600, .succeeded = 600'000, .failed = 400'000};
  long_lived.counts.calls.messages_received = 1'000'000;
  EXPECT_TRUE(long_lived.Judge(std::chrono::hours(1)).holds);
}

TEST(OpenCalls, AreUnlimitedWithoutALimit) {
  ConnectionLimits limits = kLimits;
  limits.max_streams = 0;
  Connection connection(limits);
  connection.counts.calls.started = 1'000'000;
  EXPECT_TRUE(connection.Judge().holds);
}

// gRPC reads counters one after another: briefly more calls may have ended than begun.
TEST(OpenCalls, AreNoneWhereMoreHaveEnded) {
  Connection connection;
  connection.counts.calls = {.started = 5, .succeeded = 6};
  EXPECT_TRUE(connection.Judge().holds);
}

TEST(UnexplainedBytes, HeadersWithoutEndAreEnded) {
  for (const uint64_t rate : {kMiB / 2, 20 * kMiB}) {  // per check
    Connection connection;
    connection.counts.calls.started = 1;
    const uint64_t bytes =
        connection.BytesUntil(ConnectionRule::kUnexplainedBytes, 1000,
                              [&](ConnectionCounts* counts) { counts->bytes_received += rate; });
    EXPECT_GT(bytes, 16 * kMiB) << "it may be a message";
    EXPECT_LE(bytes, 28 * kMiB + rate);
  }
}

// After any number of calls: earlier explained bytes do not count.
TEST(UnexplainedBytes, HeadersWithoutEndAreEndedAfterAnHonestLife) {
  Connection connection;
  connection.counts = {.bytes_received = 1000 * kMiB,
                       .bytes_sent = 1000 * kMiB,
                       .calls = {.started = 50'001,
                                 .succeeded = 50'000,
                                 .messages_received = 50'000,
                                 .messages_sent = 5'000'000}};
  EXPECT_TRUE(connection.Judge(std::chrono::hours(1)).holds);
  EXPECT_GT(connection.BytesUntil(ConnectionRule::kUnexplainedBytes, 100,
                                  [](ConnectionCounts* counts) { counts->bytes_received += kMiB; }),
            0u);
}

TEST(UnexplainedBytes, PingsWithoutEndAreEndedThoughTheyAreAnswered) {
  Connection connection;
  EXPECT_GT(connection.BytesUntil(ConnectionRule::kUnexplainedBytes, 1000,
                                  [](ConnectionCounts* counts) {
                                    counts->bytes_received += kMiB;
                                    counts->bytes_sent += kMiB;
                                  }),
            0u);
}

TEST(UnexplainedBytes, APingASecondMayGoOnForYears) {
  Connection connection;
  EXPECT_EQ(connection.BytesUntil(
                ConnectionRule::kUnexplainedBytes, 100'000,
                [](ConnectionCounts* counts) { counts->bytes_received += 410 * 39; }, Seconds(410)),
            0u);
}

// A client's frames per token: two WINDOW_UPDATEs and a ping, each in a TLS record.
TEST(UnexplainedBytes, StreamsOfTokensMayGoOnForEver) {
  Connection connection;
  connection.counts.calls = {.started = 20, .messages_received = 20};
  EXPECT_EQ(connection.BytesUntil(ConnectionRule::kUnexplainedBytes, 100'000,
                                  [](ConnectionCounts* counts) {
                                    counts->calls.messages_sent += 1000;
                                    counts->bytes_sent += 1000 * 80;
                                    counts->bytes_received += 1000 * 3 * 39;
                                  }),
            0u);
}

// One message of a gigabyte is sent in frames of 16 KiB.
TEST(UnexplainedBytes, ALargeAnswerIsTaken) {
  Connection connection;
  connection.counts.calls = {.started = 1, .messages_received = 1};
  EXPECT_EQ(connection.BytesUntil(ConnectionRule::kUnexplainedBytes, 10'000,
                                  [](ConnectionCounts* counts) {
                                    counts->bytes_sent += kMiB;
                                    counts->bytes_received += (kMiB >> 14) * 2 * 39;
                                  }),
            0u);
}

// Parallel uploads in pieces, completed or cancelled midway; checked at random times.
TEST(UnexplainedBytes, NoUploadsOfAGoodClientAreEnded) {
  const uint64_t seed = 20261126;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) {
    return std::uniform_int_distribution<uint64_t>(0, n - 1)(random);
  };
  for (int round = 0; round < 20; ++round) {
    const uint64_t most = 1 + below(16);
    const uint64_t smallest = round % 2 == 0 ? 16 * kMiB : 100;
    Connection connection;
    std::vector<uint64_t> left;  // remaining bytes of each message
    for (int step = 0; step < 20'000; ++step) {
      SocketCalls& calls = connection.counts.calls;
      if (left.size() < most && below(3) > 0) {
        left.push_back(smallest + below(16 * kMiB - smallest + 1));
        ++calls.started;
        connection.counts.bytes_received += 500;
      }
      if (left.empty()) continue;
      const size_t one = below(left.size());
      const uint64_t piece = std::min(left[one], 1 + below(4 * kMiB));
      // Frames of 16 KiB, records of the same size.
      connection.counts.bytes_received += piece + (piece / 16384 + 1) * (9 + 22);
      left[one] -= piece;
      const bool whole = left[one] == 0, taken_back = !whole && below(40) == 0;
      if (whole) ++calls.messages_received, ++calls.succeeded;
      if (taken_back) ++calls.failed;
      if (whole || taken_back) left.erase(left.begin() + static_cast<ptrdiff_t>(one));
      if (below(4) == 0) {
        const ConnectionRecord::Verdict verdict = connection.Judge(Seconds(0));
        ASSERT_TRUE(verdict.holds) << ConnectionRuleName(verdict.broken) << ", round " << round
                                   << ", step " << step << ", " << left.size() << " on their way";
      }
    }
  }
}

TEST(FailedCalls, TensOfThousandsASecondAreEnded) {
  Connection connection;
  EXPECT_GT(connection.BytesUntil(ConnectionRule::kFailedCalls, 100,
                                  [](ConnectionCounts* counts) {
                                    counts->calls.started += 600;
                                    counts->calls.failed += 600;
                                    counts->bytes_received += 600 * 50;
                                  }),
            0u);
}

// Sequential calls that all pass their deadlines, or are refused for their token; or a client that
// cancels each call after the first token while others complete.
TEST(FailedCalls, WellBehavedClientsAreNotEnded) {
  Connection late;
  EXPECT_EQ(late.BytesUntil(
                ConnectionRule::kFailedCalls, 10'000,
                [](ConnectionCounts* counts) {
                  counts->calls.started += 4000;
                  counts->calls.messages_received += 4000;
                  counts->calls.failed += 4000;
                },
                Seconds(0.5)),
            0u);
  Connection half;
  EXPECT_EQ(half.BytesUntil(ConnectionRule::kFailedCalls, 10'000,
                            [](ConnectionCounts* counts) {
                              counts->calls.started += 200;
                              counts->calls.messages_received += 200;
                              counts->calls.failed += 100;
                              counts->calls.succeeded += 100;
                            }),
            0u);
}

TEST(HeldBytes, CountUnexplainedBytesAndCallsWithoutMessage) {
  ConnectionRecord record;
  EXPECT_EQ(record.held_bytes(), 0);
  ConnectionCounts counts;
  counts.calls = {.started = 50, .succeeded = 5, .messages_received = 50};
  EXPECT_TRUE(record.Judge(kLimits, counts, kLook).holds);
  EXPECT_EQ(record.held_bytes(), 0) << "calls that wait for their answers";
  counts.calls.started += 30;
  EXPECT_TRUE(record.Judge(kLimits, counts, kLook).holds);
  EXPECT_EQ(record.held_bytes(), 30 * 32768);
  counts.bytes_received += 9 * kMiB;
  EXPECT_TRUE(record.Judge(kLimits, counts, kLook).holds);
  EXPECT_NEAR(record.held_bytes(), 30 * 32768 + 9 * kMiB, 1024);
  counts.calls.failed += 75;
  EXPECT_TRUE(record.Judge(kLimits, counts, kLook).holds);
  EXPECT_EQ(record.held_bytes(), 0);
}

TEST(SmallCalls, FiveThousandASecondAreNoMatter) {
  Connection connection;
  EXPECT_EQ(connection.BytesUntil(ConnectionRule::kOpenCalls, 100'000,
                                  [](ConnectionCounts* counts) {
                                    counts->calls.started += 100;
                                    counts->calls.messages_received += 100;
                                    counts->calls.messages_sent += 100;
                                    counts->calls.succeeded += 100;
                                    counts->bytes_received += 100 * 700;
                                    counts->bytes_sent += 100 * 300;
                                  }),
            0u);
}

}  // namespace
}  // namespace hydrant
