// Compact of every backend against plain sorting: which entries are kept, that each keeps its bits,
// and that nothing else in the pool changes.
#include "kernels/ops/compact.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <set>

#include "tests/kernels/backend_test.h"
#include "tests/kernels/paged_pool.h"

namespace hydrant {
namespace {

constexpr int kSlots = 3, kLayers = 2, kSlot = 1, kLayer = 1;
constexpr int32_t kUntouched = -9;

struct Case {
  DType dtype = DType::kF32;
  int head_dim = 8;
  int block_size = 16;
  std::vector<int32_t> lengths = {};  // per head
  std::vector<int32_t> keep = {};
  int sinks = 0;
  int recent = 0;
  int next_position = 0;
  bool capped = false;  // caps equal keep
  bool log_weights = false;
  bool few_scores = false;  // many ties
  DecodeRule rule = {.scored = true};
};

float ScoreOf(std::mt19937_64& engine, bool few) {
  const uint64_t kind = engine() % 40;
  if (kind == 0) return kNan;
  if (kind == 1) return -INFINITY;
  if (kind == 2) return INFINITY;
  if (kind == 3) return -0.0f;
  if (few) return static_cast<float>(engine() % 5) - 2.0f;
  return std::normal_distribution<float>()(engine);
}

class CompactTest : public BackendTest {
 protected:
  void Make(const Case& c, uint64_t seed) {
    c_ = c;
    std::mt19937_64 engine(seed);
    heads_ = static_cast<int>(c.lengths.size());
    const int longest = *std::max_element(c.lengths.begin(), c.lengths.end());
    before_ = PagedPool({.num_slots = kSlots,
                         .num_layers = kLayers,
                         .num_kv_heads = heads_,
                         .width = (longest + c.block_size - 1) / c.block_size + 1,
                         .dtype = c.dtype,
                         .head_dim = c.head_dim,
                         .block_size = c.block_size},
                        engine());
    for (auto* rows : {&before_.keys, &before_.values})
      for (uint8_t& byte : *rows) byte = static_cast<uint8_t>(engine());
    // Past a head's length and in other pages, scores and positions would win if they were read.
    before_.scores.assign(before_.NumPlaces(), INFINITY);
    before_.positions.assign(before_.NumPlaces(), c.next_position - 1);
    if (c.log_weights) before_.log_weights = RandomFloats(2 * before_.NumPlaces(), seed + 1);
    before_.lengths.assign(before_.lengths.size(), kUntouched);
    before_.victims = before_.lengths;
    before_.rules[kSlot] = c.rule;
    for (int h = 0; h < heads_; ++h) {
      before_.lengths[Row(h)] = c.lengths[h];
      std::vector<int32_t> positions(c.next_position);
      std::iota(positions.begin(), positions.end(), 0);
      std::shuffle(positions.begin(), positions.end(), engine);
      for (int e = 0; e < c.lengths[h]; ++e) {
        before_.positions[Place(h, e)] = positions[e];
        before_.scores[before_.State(Place(h, e))] = ScoreOf(engine, c.few_scores);
      }
    }
  }

  size_t Row(int head) const { return before_.Head(kSlot, kLayer, head); }
  size_t Place(int head, int entry) const { return before_.Place(kSlot, kLayer, head, entry); }

  bool IsProtected(int32_t position) const {
    return position < c_.sinks || position >= c_.next_position - c_.recent;
  }
  int NumProtected(int head) const {
    int count = 0;
    for (int e = 0; e < c_.lengths[head]; ++e)
      count += IsProtected(before_.positions[Place(head, e)]) ? 1 : 0;
    return count;
  }

  void Run() {
    if (c_.capped) std::copy(c_.keep.begin(), c_.keep.end(), before_.caps.begin() + Row(0));
    DevicePool pool(backend(), before_);
    auto keep = Upload(c_.keep);
    CompactArgs args;
    args.keep = keep.data();
    args.sinks = c_.sinks;
    args.recent = c_.recent;
    args.next_position = c_.next_position;
    args.max_length = *std::max_element(c_.lengths.begin(), c_.lengths.end());
    args.slot = kSlot;
    args.layer = kLayer;
    args.pages = pool.Pages();
    args.tables = pool.Tables();
    backend().Compact(args);
    after_ = before_;
    pool.ReadBack(&after_);
  }

  // Entries 0 .. count - 1 of a head by position.
  std::map<int32_t, PoolEntry> Entries(const PagedPool& pool, int head, int count) const {
    std::map<int32_t, PoolEntry> entries;
    for (int e = 0; e < count; ++e) {
      const size_t place = Place(head, e);
      entries[pool.positions[place]] = EntryAt(pool, place);
    }
    return entries;
  }

  // Drops one entry at a time, the lowest score first, ties to the lower position.
  std::set<int32_t> Survivors(int head) const {
    std::vector<std::pair<float, int32_t>> open;
    std::set<int32_t> stay;
    for (int e = 0; e < c_.lengths[head]; ++e) {
      const size_t place = Place(head, e);
      const int32_t position = before_.positions[place];
      float score =
          c_.rule.by_position ? static_cast<float>(position) : before_.scores[before_.State(place)];
      if (std::isnan(score)) score = -INFINITY;
      stay.insert(position);
      if (!IsProtected(position)) open.emplace_back(score, position);
    }
    std::sort(open.begin(), open.end());
    for (int i = 0; i < c_.lengths[head] - c_.keep[head]; ++i) stay.erase(open[i].second);
    return stay;
  }

  void Check(const std::string& what) {
    SCOPED_TRACE(what);
    ChangedPlaces changed(before_);
    for (int h = 0; h < heads_; ++h) {
      EXPECT_EQ(after_.lengths[Row(h)], c_.keep[h]);
      const std::map<int32_t, PoolEntry> had = Entries(before_, h, c_.lengths[h]);
      const std::map<int32_t, PoolEntry> has = Entries(after_, h, c_.keep[h]);
      std::set<int32_t> positions;
      for (const auto& [position, entry] : has) {
        positions.insert(position);
        ASSERT_TRUE(had.count(position)) << position;
        ASSERT_EQ(entry, had.at(position)) << "head " << h << " position " << position;
      }
      ASSERT_EQ(positions, Survivors(h)) << "head " << h;
      for (int e = 0; e < c_.lengths[h]; ++e) {
        const size_t place = Place(h, e);
        if (c_.keep[h] < c_.lengths[h]) changed.Add(place);
        if (e >= c_.keep[h] || positions.count(before_.positions[place]) == 0) continue;
        ASSERT_EQ(after_.positions[place], before_.positions[place]) << "moved without need";
      }
      if (c_.capped && c_.rule.scored) {
        ASSERT_NO_FATAL_FAILURE(ExpectVictim(after_, kSlot, kLayer, h, c_.next_position));
      } else {
        EXPECT_EQ(after_.victims[Row(h)], kUntouched) << "no victim was due, head " << h;
      }
    }
    ASSERT_NO_FATAL_FAILURE(ExpectNothingElseChanged(before_, after_, changed, kSlot, kLayer));
  }

  Case c_;
  int heads_ = 0;
  PagedPool before_, after_;
};

TEST_P(CompactTest, RandomHeads) {
  const uint64_t seed = 41;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 engine(seed);
  const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  const int dims[] = {8, 10, 16, 64, 7};
  for (int trial = 0; trial < 120; ++trial) {
    Case c;
    c.dtype = dtypes[trial % 3];
    c.head_dim = dims[trial % 5];
    c.block_size = trial % 4 == 0 ? 1 + static_cast<int>(engine() % 7) : 16;
    const int heads = 1 + static_cast<int>(engine() % 4);
    for (int h = 0; h < heads; ++h) c.lengths.push_back(1 + static_cast<int>(engine() % 70));
    c.keep = c.lengths;
    c.next_position = 70 + static_cast<int>(engine() % 60);
    c.sinks = static_cast<int>(engine() % 6);
    c.recent = static_cast<int>(engine() % 20);
    c.capped = trial % 2 == 0;
    c.log_weights = trial % 3 != 2;
    c.rule.weighted = trial % 3 == 0;
    c.few_scores = trial % 5 < 3;
    c.rule.by_position = trial % 7 == 0;
    c.rule.sinks = c.sinks;
    c.rule.recent = static_cast<int>(engine() % 20);
    Make(c, seed + trial);
    for (int h = 0; h < heads; ++h) {
      const int least = NumProtected(h);
      c_.keep[h] = least + static_cast<int>(engine() % (c.lengths[h] - least + 1));
    }
    Run();
    ASSERT_NO_FATAL_FAILURE(Check("trial " + std::to_string(trial)));
  }
}

TEST_P(CompactTest, BlockBoundaries) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int length : {1, 15, 16, 17, 31, 32, 33}) {
      Case c{.dtype = dtype, .next_position = 50, .capped = true, .few_scores = true};
      for (const int keep : {0, 1, 15, 16, 17, 31, 32, 33}) {
        if (keep > length) continue;
        c.lengths.push_back(length);
        c.keep.push_back(keep);
      }
      Make(c, 100 + length);
      Run();
      ASSERT_NO_FATAL_FAILURE(Check("length " + std::to_string(length)));
    }
  }
}

// More entries than a thread block handles at once.
TEST_P(CompactTest, LongHeads) {
  for (const bool few : {false, true}) {
    Case c{.dtype = DType::kBF16, .lengths = {3000, 1025, 2048, 7}, .keep = {100, 1024, 1500, 6}};
    c.sinks = 4;
    c.recent = 64;
    c.next_position = 3100;
    c.log_weights = c.rule.weighted = c.few_scores = few;
    Make(c, 7);
    c_.keep[3] = std::max(6, NumProtected(3));
    Run();
    ASSERT_NO_FATAL_FAILURE(Check(few ? "ties" : "distinct"));
  }
}

TEST_P(CompactTest, KeepingAllMovesNothingAndPicksTheVictim) {
  Case c{.lengths = {20, 33}, .keep = {20, 33}, .next_position = 60, .capped = true};
  c.rule.recent = 5;
  Make(c, 3);
  Run();
  Check("all kept");
  EXPECT_EQ(after_.positions, before_.positions);
  EXPECT_EQ(after_.keys, before_.keys);
  EXPECT_EQ(after_.values, before_.values);
}

// An unscored rule has no scores: with by_position only positions decide, and there is no victim.
TEST_P(CompactTest, UnscoredByPositionKeepsTheNewest) {
  Case c{.lengths = {40}, .keep = {10}, .sinks = 2, .next_position = 40, .capped = true};
  c.rule = {.by_position = true, .scored = false};
  Make(c, 9);
  Run();
  Check("by position");
  std::set<int32_t> expected = {0, 1};
  for (int32_t p = 32; p < 40; ++p) expected.insert(p);
  EXPECT_EQ(Survivors(0), expected);
}

HYDRANT_FOR_EACH_BACKEND(CompactTest);

}  // namespace
}  // namespace hydrant
