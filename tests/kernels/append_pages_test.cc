// AppendPages of every backend against plain sorting: which old and new entries are kept, where
// they lie, and that nothing else in the pool changes.
#include "kernels/ops/append_pages.h"

#include <algorithm>
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
  int num_tokens = 1;
  int first_position = 0;
  std::vector<int32_t> lengths = {};  // per head
  std::vector<int32_t> caps = {};
  bool few_scores = false;  // many ties
  bool write_scores = false;
  DecodeRule rule = {.scored = true};
};

class AppendPagesTest : public BackendTest {
 protected:
  void Make(const Case& c, uint64_t seed) {
    c_ = c;
    std::mt19937_64 engine(seed);
    heads_ = static_cast<int>(c.lengths.size());
    int most = 1;
    for (int h = 0; h < heads_; ++h) most = std::max(most, Keep(h));
    before_ = PagedPool({.num_slots = kSlots,
                         .num_layers = kLayers,
                         .num_kv_heads = heads_,
                         .width = (most + c.block_size - 1) / c.block_size + 1,
                         .dtype = c.dtype,
                         .head_dim = c.head_dim,
                         .block_size = c.block_size},
                        engine());
    // Numbers that every dtype represents exactly.
    const auto draw = [&](size_t count) {
      std::vector<float> values(count);
      for (float& x : values) x = static_cast<float>(engine() % 255) / 8.0f - 16.0f;
      return values;
    };
    for (size_t place = 0; place < before_.NumPlaces(); ++place) {
      before_.StoreRow(before_.keys, place, draw(c.head_dim).data());
      before_.StoreRow(before_.values, place, draw(c.head_dim).data());
    }
    k_ = draw(static_cast<size_t>(heads_) * (c.num_tokens + 2) * c.head_dim);
    v_ = draw(k_.size());
    // Past a head's length and in other pages, scores and positions would win if they were read.
    before_.scores.assign(before_.NumPlaces(), INFINITY);
    before_.positions.assign(before_.NumPlaces(), c.first_position + c.num_tokens - 1);
    before_.lengths.assign(before_.lengths.size(), kUntouched);
    before_.victims = before_.lengths;
    before_.rules[kSlot] = c.rule;
    const auto score = [&] {
      const uint64_t kind = engine() % 40;
      if (kind == 0) return kNan;
      if (kind == 1) return -INFINITY;
      if (c.few_scores) return static_cast<float>(engine() % 5);
      return static_cast<float>(engine() % 100000) / 64.0f;
    };
    sums_.assign(static_cast<size_t>(heads_) * (c.num_tokens + 3), kNan);
    for (int h = 0; h < heads_; ++h) {
      before_.lengths[Row(h)] = c.lengths[h];
      before_.caps[Row(h)] = c.caps[h];
      std::vector<int32_t> positions(c.first_position);
      std::iota(positions.begin(), positions.end(), 0);
      // The newest entries are present, as the rule protects them; the others are random.
      std::shuffle(positions.begin(), positions.end() - std::min(c.rule.recent, c.lengths[h]),
                   engine);
      std::reverse(positions.begin(), positions.end());
      for (int e = 0; e < c.lengths[h]; ++e) {
        before_.positions[Place(h, e)] = positions[e];
        before_.scores[before_.State(Place(h, e))] = score();
      }
      for (int i = 0; i < c.num_tokens; ++i) sums_[h * (c.num_tokens + 3) + i] = score();
    }
  }

  int Keep(int head) const { return std::min(c_.lengths[head] + c_.num_tokens, c_.caps[head]); }
  size_t Row(int head) const { return before_.Head(kSlot, kLayer, head); }
  size_t Place(int head, int entry) const { return before_.Place(kSlot, kLayer, head, entry); }

  // Rows of 310 for heads of at most 300 entries.
  static ScoreRowsArgs RowsOf(float* rows, DevicePool* pool) {
    ScoreRowsArgs args;
    args.rows = rows;
    args.stride = 310;
    args.max_length = 300;
    args.slot = kSlot;
    args.layer = kLayer;
    args.pages = pool->Pages();
    args.tables = pool->Tables();
    return args;
  }

  void Run() {
    DevicePool pool(backend(), before_);
    auto k = Upload(k_), v = Upload(v_), sums = Upload(sums_);
    AppendPagesArgs args;
    args.k = k.data() + c_.head_dim;
    args.v = v.data() + c_.head_dim;
    args.kv_head_stride = static_cast<int64_t>(c_.num_tokens + 2) * c_.head_dim;
    args.sums = sums.data();
    args.sum_stride = c_.num_tokens + 3;
    args.write_scores = c_.write_scores;
    args.num_tokens = c_.num_tokens;
    args.first_position = c_.first_position;
    args.slot = kSlot;
    args.layer = kLayer;
    args.pages = pool.Pages();
    args.tables = pool.Tables();
    backend().AppendPages(args);
    after_ = before_;
    pool.ReadBack(&after_);
  }

  float NewScore(int head, int token) const {
    return c_.rule.by_position ? static_cast<float>(c_.first_position + token)
                               : sums_[head * (c_.num_tokens + 3) + token];
  }
  PoolEntry NewEntry(int head, int token) const {
    const size_t at = (static_cast<size_t>(head) * (c_.num_tokens + 2) + token + 1) * c_.head_dim;
    return {before_.Stored(&k_[at]), before_.Stored(&v_[at]),
            std::bit_cast<uint32_t>(NewScore(head, token))};
  }

  // A head's expected entries by position: evicts one at a time, the lowest score first, ties to
  // the lower position.
  std::map<int32_t, PoolEntry> Expected(int head) const {
    std::map<int32_t, PoolEntry> all;
    for (int e = 0; e < c_.lengths[head]; ++e) {
      const size_t place = Place(head, e);
      all[before_.positions[place]] = EntryAt(before_, place);
      if (!c_.rule.scored) all[before_.positions[place]].score = 0;
    }
    for (int i = 0; i < c_.num_tokens; ++i) all[c_.first_position + i] = NewEntry(head, i);
    std::vector<std::pair<float, int32_t>> open;
    const int newest = c_.first_position + c_.num_tokens - c_.rule.recent;
    for (const auto& [position, entry] : all) {
      if (position < c_.rule.sinks || position >= newest) continue;
      const float score =
          c_.rule.by_position ? static_cast<float>(position) : std::bit_cast<float>(entry.score);
      open.emplace_back(std::isnan(score) ? -INFINITY : score, position);
    }
    std::sort(open.begin(), open.end());
    for (int i = 0; static_cast<int>(all.size()) > Keep(head); ++i) all.erase(open.at(i).second);
    return all;
  }

  void Check(const std::string& what) {
    SCOPED_TRACE(what);
    ChangedPlaces changed(before_);
    for (int h = 0; h < heads_; ++h) {
      ASSERT_EQ(after_.lengths[Row(h)], Keep(h)) << "head " << h;
      const std::map<int32_t, PoolEntry> expected = Expected(h);
      std::set<int32_t> found;
      for (int e = 0; e < Keep(h); ++e) {
        const size_t place = Place(h, e);
        changed.Add(place);
        const int32_t position = after_.positions[place];
        ASSERT_TRUE(expected.contains(position)) << "head " << h << " position " << position;
        ASSERT_TRUE(found.insert(position).second) << "twice, head " << h;
        PoolEntry entry = EntryAt(after_, place);
        const bool writes = c_.write_scores && position >= c_.first_position;
        if (!c_.rule.scored && !writes) entry.score = expected.at(position).score;
        ASSERT_EQ(entry, expected.at(position)) << "head " << h << " position " << position;
        const bool stayed = e < c_.lengths[h] && expected.contains(before_.positions[place]);
        if (stayed) {
          ASSERT_EQ(position, before_.positions[place]) << "moved without need";
        }
      }
      if (!c_.rule.scored || Keep(h) < c_.caps[h]) {
        EXPECT_EQ(after_.victims[Row(h)], kUntouched) << "no victim was due, head " << h;
      } else {
        ASSERT_NO_FATAL_FAILURE(
            ExpectVictim(after_, kSlot, kLayer, h, c_.first_position + c_.num_tokens));
      }
    }
    ASSERT_NO_FATAL_FAILURE(ExpectNothingElseChanged(before_, after_, changed, kSlot, kLayer));
  }

  Case c_;
  int heads_ = 0;
  std::vector<float> k_, v_;  // [heads, num_tokens + 2, head_dim], tokens start at 1
  std::vector<float> sums_;   // [heads, num_tokens + 3]
  PagedPool before_, after_;
};

TEST_P(AppendPagesTest, RandomHeads) {
  const uint64_t seed = 43;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 engine(seed);
  const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  const int dims[] = {8, 10, 16, 64, 7};
  const int tokens[] = {1, 2, 5, 16, 17, 40, 90};
  for (int trial = 0; trial < 150; ++trial) {
    Case c;
    c.dtype = dtypes[trial % 3];
    c.head_dim = dims[trial % 5];
    c.block_size = trial % 4 == 0 ? 1 + static_cast<int>(engine() % 7) : 16;
    c.num_tokens = tokens[trial % 7];
    c.first_position = 80 + static_cast<int>(engine() % 60);
    c.few_scores = trial % 5 < 3;
    c.rule.by_position = trial % 7 == 0;
    c.rule.sinks = static_cast<int>(engine() % 6);
    c.rule.recent = static_cast<int>(engine() % 20);
    const int heads = 1 + static_cast<int>(engine() % 4);
    for (int h = 0; h < heads; ++h) {
      const int protects = c.rule.sinks + c.rule.recent;
      c.lengths.push_back(1 + static_cast<int>(engine() % 70));
      // Full, nearly full, or far from it.
      const int room = h % 3 == 0 ? 0 : static_cast<int>(engine() % 30);
      c.caps.push_back(std::max(c.lengths[h] + room, protects));
    }
    if (trial % 11 == 0) {
      c.rule = {.scored = false};
      c.write_scores = trial % 2 == 0;
      c.caps.assign(heads, INT32_MAX);
    }
    Make(c, seed + trial);
    Run();
    ASSERT_NO_FATAL_FAILURE(Check("trial " + std::to_string(trial)));
  }
}

// More entries than a thread block handles at once, and more new entries than a head may hold.
TEST_P(AppendPagesTest, LongHeads) {
  for (const bool few : {false, true}) {
    Case c{.dtype = DType::kBF16, .num_tokens = 1500, .first_position = 3100};
    c.lengths = {3000, 1025, 100, 7, 1};
    c.caps = {3000, 2048, 100, INT32_MAX, 1600};
    c.rule.sinks = 4;
    c.rule.recent = 64;
    c.few_scores = few;
    Make(c, 7);
    Run();
    ASSERT_NO_FATAL_FAILURE(Check(few ? "ties" : "distinct"));
  }
}

// A window of the newest: every old entry is evicted, and the first new ones too.
TEST_P(AppendPagesTest, NewOnesMayLeaveAtOnce) {
  Case c{.num_tokens = 50, .first_position = 200, .lengths = {20, 20}, .caps = {20, 20}};
  c.rule = {.by_position = true, .scored = true, .recent = 20};
  Make(c, 3);
  Run();
  Check("window");
  std::set<int32_t> held;
  for (int e = 0; e < 20; ++e) held.insert(after_.positions[Place(1, e)]);
  EXPECT_EQ(*held.begin(), 230);
  EXPECT_EQ(held.size(), 20u);
}

TEST_P(AppendPagesTest, ScoresGoToRowsAndBack) {
  Case c{.num_tokens = 1, .first_position = 400, .lengths = {300, 17, 1}};
  c.caps = {INT32_MAX, INT32_MAX, INT32_MAX};
  Make(c, 5);
  DevicePool pool(backend(), before_);
  auto rows = Upload(std::vector<float>(3 * 310, -5.0f));
  ScoreRowsArgs args = RowsOf(rows.data(), &pool);
  backend().GatherScores(args);
  std::vector<float> gathered = rows.Read();
  for (int h = 0; h < 3; ++h) {
    for (int e = 0; e < 310; ++e) {
      const float score = e < c.lengths[h] ? before_.scores[before_.State(Place(h, e))] : -5.0f;
      const float got = gathered[h * 310 + e];
      ASSERT_TRUE(got == score || (std::isnan(got) && std::isnan(score))) << h << " " << e;
      gathered[h * 310 + e] = static_cast<float>(1000 * h + e);
    }
  }
  backend().CopyToDevice(rows.data(), gathered.data(), gathered.size() * sizeof(float));
  backend().ScatterScores(args);
  after_ = before_;
  pool.ReadBack(&after_);
  std::vector<float> expected = before_.scores;
  for (int h = 0; h < 3; ++h) {
    for (int e = 0; e < c.lengths[h]; ++e)
      expected[before_.State(Place(h, e))] = static_cast<float>(1000 * h + e);
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i])) continue;
    ASSERT_EQ(after_.scores[i], expected[i]) << i;
  }
}

TEST_P(AppendPagesTest, EntriesWithoutAScoreCountAsZero) {
  Case c{.num_tokens = 1, .first_position = 400, .lengths = {300, 17}};
  c.caps = {INT32_MAX, INT32_MAX};
  Make(c, 6);
  DevicePool pool(backend(), before_);
  auto rows = Upload(std::vector<float>(2 * 310, -5.0f));
  ScoreRowsArgs args = RowsOf(rows.data(), &pool);
  args.scored_end = 250;
  backend().GatherScores(args);
  const std::vector<float> gathered = rows.Read();
  int later = 0;
  for (int h = 0; h < 2; ++h) {
    for (int e = 0; e < c.lengths[h]; ++e) {
      const bool scored = before_.positions[Place(h, e)] < 250;
      const float score = scored ? before_.scores[before_.State(Place(h, e))] : 0.0f;
      const float got = gathered[h * 310 + e];
      ASSERT_TRUE(got == score || (std::isnan(got) && std::isnan(score))) << h << " " << e;
      later += scored ? 0 : 1;
    }
  }
  EXPECT_GT(later, 50);
}

// Rows grow by the length of each entry's value, of every page dtype.
TEST_P(AppendPagesTest, RowsTimesTheLengthsOfValues) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kE4M3, DType::kQ8_0, DType::kQ4_0}) {
    SCOPED_TRACE(DTypeName(dtype));
    Case c{.num_tokens = 1, .first_position = 400, .lengths = {300, 17, 1}};
    c.caps = {INT32_MAX, INT32_MAX, INT32_MAX};
    c.dtype = dtype;
    c.head_dim = 64;
    Make(c, 7);
    DevicePool pool(backend(), before_);
    const std::vector<float> before = RandomFloats(3 * 310, 8);
    auto rows = Upload(before);
    ScoreRowsArgs args = RowsOf(rows.data(), &pool);
    backend().TimesValueLengths(args);
    const std::vector<float> after = rows.Read();
    std::vector<float> value(c.head_dim);
    for (int h = 0; h < 3; ++h) {
      for (int e = 0; e < 310; ++e) {
        float expected = before[h * 310 + e];
        if (e < c.lengths[h]) {
          const size_t first = Place(h, e) * c.head_dim;
          LoadPageRow(dtype, before_.values.data(), first, c.head_dim, value.data());
          double squares = 0;
          for (const float x : value) squares += double{x} * x;
          expected *= static_cast<float>(std::sqrt(squares));
        }
        ASSERT_NEAR(after[h * 310 + e], expected, 1e-5 * std::abs(expected)) << h << " " << e;
      }
    }
  }
}

HYDRANT_FOR_EACH_BACKEND(AppendPagesTest);

}  // namespace
}  // namespace hydrant
