// Fixture for tests of page operations: a pool and its sequences' tables as host values, where a
// copy is an independent pool, and the same in a backend's memory. Every head has pages in random
// order, with pages of no sequence between them. Each page has a state with a different id, so that
// confusing the two ids is detected.
#ifndef HYDRANT_TESTS_KERNELS_PAGED_POOL_H_
#define HYDRANT_TESTS_KERNELS_PAGED_POOL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kernels/kv_pages.h"
#include "kernels/page_row.h"
#include "tests/kernels/backend_test.h"
#include "tests/kernels/page_ids.h"

namespace hydrant {

struct PagedPoolShape {
  int num_slots = 1;
  int num_layers = 1;
  int num_kv_heads = 1;
  int width = 1;  // pages per head
  DType dtype = DType::kF32;
  int head_dim = 8;
  int block_size = 16;
};

struct PagedPool {
  static constexpr int kSparePages = 7;    // of no sequence
  static constexpr int kSpareEntries = 5;  // of the table, before the first row

  KvLayout layout;
  int num_layers = 0, num_kv_heads = 0;
  std::vector<uint8_t> keys, values;  // [num_blocks, block_size] rows of kernels/page_row.h
  std::vector<int32_t> positions;     // [num_blocks, block_size]
  std::vector<float> scores;          // the same
  std::vector<float> log_weights;     // [num_blocks, block_size, 2]; empty: none
  std::vector<PageIds> blocks;
  std::vector<int64_t> row_begin;
  std::vector<int32_t> row_width, caps, lengths, victims;
  std::vector<DecodeRule> rules;

  PagedPool() = default;
  // Heads are empty and have no caps. Keys and values are NaN in every dtype, scores NaN, positions
  // INT_MIN; there are no log weights.
  PagedPool(const PagedPoolShape& shape, uint64_t seed)
      : num_layers(shape.num_layers), num_kv_heads(shape.num_kv_heads) {
    const int lists = shape.num_slots * num_layers * num_kv_heads;
    layout = {.dtype = shape.dtype,
              .head_dim = shape.head_dim,
              .block_size = shape.block_size,
              .num_blocks = lists * shape.width + kSparePages};
    keys.assign(NumPlaces() * RowBytes(), 0xFF);
    values = keys;
    positions.assign(NumPlaces(), INT_MIN);
    scores.assign(NumPlaces(), kNan);
    std::vector<int32_t> ids(layout.num_blocks);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937_64(seed));
    ids.resize(static_cast<size_t>(lists) * shape.width);
    blocks.assign(kSpareEntries, {-1, -1});
    for (const int32_t id : ids) blocks.push_back(WithState(id, layout.num_blocks));
    for (int slot = 0; slot < shape.num_slots; ++slot)
      row_begin.push_back(kSpareEntries +
                          static_cast<int64_t>(slot) * num_layers * num_kv_heads * shape.width);
    row_width.assign(shape.num_slots, shape.width);
    caps.assign(lists, INT32_MAX);
    lengths.assign(lists, 0);
    victims.assign(lists, -1);
    rules.resize(shape.num_slots);
  }

  size_t NumPlaces() const { return static_cast<size_t>(layout.num_blocks) * layout.block_size; }
  size_t RowBytes() const { return BytesOf(layout.dtype, layout.head_dim); }

  // Pointers to the host arrays.
  KvPages Pages() {
    return {layout,           keys.data(),   values.data(),
            positions.data(), scores.data(), log_weights.empty() ? nullptr : log_weights.data()};
  }
  SequenceTables Tables() {
    return {.num_layers = num_layers,
            .num_kv_heads = num_kv_heads,
            .blocks = blocks.data(),
            .row_begin = row_begin.data(),
            .row_width = row_width.data(),
            .caps = caps.data(),
            .lengths = lengths.data(),
            .victims = victims.data(),
            .rules = rules.data()};
  }

  // Index of a head in caps, lengths and victims.
  size_t Head(int slot, int layer, int head) const {
    return (static_cast<size_t>(slot) * num_layers + layer) * num_kv_heads + head;
  }
  // Index of an entry's key, value and position, in rows.
  size_t Place(int slot, int layer, int head, int entry) const {
    const int64_t row =
        row_begin[slot] + static_cast<int64_t>(layer * num_kv_heads + head) * row_width[slot];
    return static_cast<size_t>(blocks[row + entry / layout.block_size].data) * layout.block_size +
           entry % layout.block_size;
  }
  // Index of the score of the entry at `place`; its log weights are at twice that.
  size_t State(size_t place) const {
    return StateSlot(place, layout.block_size, layout.num_blocks);
  }

  std::vector<uint8_t> Stored(const float* row) const {
    std::vector<uint8_t> bytes(RowBytes());
    StorePageRow(layout.dtype, row, layout.head_dim, bytes.data(), 0);
    return bytes;
  }
  void StoreRow(std::vector<uint8_t>& rows, size_t place, const float* row) const {
    StorePageRow(layout.dtype, row, layout.head_dim, rows.data(), place * layout.head_dim);
  }
  std::vector<float> LoadRow(const std::vector<uint8_t>& rows, size_t place) const {
    std::vector<float> row(layout.head_dim);
    LoadPageRow(layout.dtype, rows.data(), place * layout.head_dim, row.size(), row.data());
    return row;
  }
  std::vector<uint8_t> BytesAt(const std::vector<uint8_t>& rows, size_t place) const {
    const auto begin = rows.begin() + static_cast<int64_t>(place * RowBytes());
    return {begin, begin + static_cast<int64_t>(RowBytes())};
  }
};

// The bits of an entry without its position: NaN equals itself, and -0 differs from 0.
struct PoolEntry {
  std::vector<uint8_t> key, value;
  uint32_t score = 0;
  std::vector<uint32_t> log_weights = {};

  friend bool operator==(const PoolEntry&, const PoolEntry&) = default;
};

inline PoolEntry EntryAt(const PagedPool& pool, size_t place) {
  const size_t state = pool.State(place);
  PoolEntry entry = {pool.BytesAt(pool.keys, place), pool.BytesAt(pool.values, place),
                     std::bit_cast<uint32_t>(pool.scores[state])};
  for (size_t i = 0; i < 2 && !pool.log_weights.empty(); ++i)
    entry.log_weights.push_back(std::bit_cast<uint32_t>(pool.log_weights[2 * state + i]));
  return entry;
}

// A pool in a backend's memory. The backend must outlive it.
class DevicePool {
 public:
  DevicePool(Backend& backend, const PagedPool& pool)
      : layout_(pool.layout),
        num_layers_(pool.num_layers),
        num_kv_heads_(pool.num_kv_heads),
        keys_(backend, pool.keys),
        values_(backend, pool.values),
        positions_(backend, pool.positions),
        scores_(backend, pool.scores),
        log_weights_(backend, pool.log_weights),
        blocks_(backend, pool.blocks),
        row_begin_(backend, pool.row_begin),
        row_width_(backend, pool.row_width),
        caps_(backend, pool.caps),
        lengths_(backend, pool.lengths),
        victims_(backend, pool.victims),
        rules_(backend, pool.rules) {}

  KvPages Pages() {
    return {layout_,        keys_.data(),
            values_.data(), positions_.data(),
            scores_.data(), log_weights_.size() == 0 ? nullptr : log_weights_.data()};
  }
  SequenceTables Tables() {
    return {.num_layers = num_layers_,
            .num_kv_heads = num_kv_heads_,
            .blocks = blocks_.data(),
            .row_begin = row_begin_.data(),
            .row_width = row_width_.data(),
            .caps = caps_.data(),
            .lengths = lengths_.data(),
            .victims = victims_.data(),
            .rules = rules_.data()};
  }

  // Reads back all data that operations may change. Fails the test after a write past
  // the end of an array.
  void ReadBack(PagedPool* pool) {
    keys_.ReadInto(&pool->keys);
    values_.ReadInto(&pool->values);
    ReadTables(pool);
  }
  // The same without keys and values.
  void ReadTables(PagedPool* pool) {
    positions_.ReadInto(&pool->positions);
    scores_.ReadInto(&pool->scores);
    log_weights_.ReadInto(&pool->log_weights);
    caps_.ReadInto(&pool->caps);
    lengths_.ReadInto(&pool->lengths);
    victims_.ReadInto(&pool->victims);
  }

 private:
  KvLayout layout_;
  int num_layers_, num_kv_heads_;
  DeviceArray<uint8_t> keys_, values_;
  DeviceArray<int32_t> positions_;
  DeviceArray<float> scores_, log_weights_;
  DeviceArray<PageIds> blocks_;
  DeviceArray<int64_t> row_begin_;
  DeviceArray<int32_t> row_width_, caps_, lengths_, victims_;
  DeviceArray<DecodeRule> rules_;
};

// The places that an operation may have changed: data (key, value, position) and state.
struct ChangedPlaces {
  explicit ChangedPlaces(const PagedPool& pool)
      : data(pool.NumPlaces(), false), state(pool.NumPlaces(), false) {}
  void Add(size_t place) { data[place] = state[place] = true; }

  std::vector<bool> data, state;
};

// Checks that only these places have changed, and in the tables only the rows of (slot, layer).
inline void ExpectNothingElseChanged(const PagedPool& before, const PagedPool& after,
                                     const ChangedPlaces& changed, int slot, int layer) {
  const size_t row_bytes = before.RowBytes();
  const auto same = [](const auto& a, const auto& b, size_t first, size_t count) {
    return std::memcmp(&a[first], &b[first], count * sizeof(a[0])) == 0;  // compares NaN too
  };
  for (size_t place = 0; place < before.NumPlaces(); ++place) {
    const size_t state = before.State(place);
    if (!changed.data[place]) {
      ASSERT_TRUE(same(before.keys, after.keys, place * row_bytes, row_bytes)) << place;
      ASSERT_TRUE(same(before.values, after.values, place * row_bytes, row_bytes)) << place;
      ASSERT_EQ(after.positions[place], before.positions[place]) << place;
    }
    if (!changed.state[place]) {
      ASSERT_TRUE(same(before.scores, after.scores, state, 1)) << place;
      if (before.log_weights.empty()) continue;
      ASSERT_TRUE(same(before.log_weights, after.log_weights, 2 * state, 2)) << place;
    }
  }
  const size_t first = before.Head(slot, layer, 0);
  for (size_t row = 0; row < before.lengths.size(); ++row) {
    if (row >= first && row < first + before.num_kv_heads) continue;
    ASSERT_EQ(after.lengths[row], before.lengths[row]) << "row " << row;
    ASSERT_EQ(after.victims[row], before.victims[row]) << "row " << row;
    ASSERT_EQ(after.caps[row], before.caps[row]) << "row " << row;
  }
}

// The victim of a head is the unprotected entry with the lowest score by its slot's rule
// (kernels/kv_pages.h), ties to the lower position; NaN counts as -infinity. If all are
// protected it is entry 0.
inline void ExpectVictim(const PagedPool& pool, int slot, int layer, int head,
                         int32_t next_position) {
  const DecodeRule& rule = pool.rules[slot];
  const size_t row = pool.Head(slot, layer, head);
  const int32_t length = pool.lengths[row], victim = pool.victims[row];
  ASSERT_GE(victim, 0) << "head " << head;
  ASSERT_LT(victim, std::max(length, 1)) << "head " << head;
  std::pair<float, int32_t> lowest = {INFINITY, INT32_MAX};
  for (int e = 0; e < length; ++e) {
    const size_t place = pool.Place(slot, layer, head, e);
    const int32_t position = pool.positions[place];
    if (position < rule.sinks || position > next_position - rule.recent) continue;
    float score = rule.by_position ? static_cast<float>(position) : pool.scores[pool.State(place)];
    if (std::isnan(score)) score = -INFINITY;
    lowest = std::min(lowest, {score, position});
  }
  if (lowest.second == INT32_MAX) {
    EXPECT_EQ(victim, 0) << "all protected, head " << head;
  } else {
    EXPECT_EQ(pool.positions[pool.Place(slot, layer, head, victim)], lowest.second)
        << "head " << head;
  }
}

}  // namespace hydrant

#endif  // HYDRANT_TESTS_KERNELS_PAGED_POOL_H_
