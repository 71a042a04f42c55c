// A published record is always read whole, regardless of concurrent writes.
#include "scheduler/published.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace hydrant {
namespace {

struct Record {
  std::array<uint64_t, 40> numbers = {};
  uint32_t last = 0;  // makes the size no multiple of a word
};

Record RecordOf(uint32_t number) {
  Record record;
  record.numbers.fill(number);
  record.last = number;
  return record;
}

TEST(PublishedTest, IsZeroAtFirstAndThenTheLastRecord) {
  Published<Record> published;
  EXPECT_EQ(published.Load().last, 0u);
  for (uint32_t i = 1; i < 5; ++i) {
    published.Store(RecordOf(i));
    EXPECT_EQ(published.Load().numbers, RecordOf(i).numbers);
    EXPECT_EQ(published.Load().last, i);
  }
}

TEST(PublishedTest, ReadersSeeWholeRecordsInOrder) {
  constexpr uint32_t kStores = 200'000;
  Published<Record> published;
  std::atomic<int> torn{0}, backwards{0};
  std::vector<std::thread> readers;
  readers.reserve(2);
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      for (uint32_t before = 0; before < kStores;) {
        const Record record = published.Load();
        for (const uint64_t number : record.numbers) torn += number != record.last ? 1 : 0;
        backwards += record.last < before ? 1 : 0;
        before = record.last;
      }
    });
  }
  for (uint32_t i = 1; i <= kStores; ++i) published.Store(RecordOf(i));
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(backwards, 0);
}

}  // namespace
}  // namespace hydrant
