// AppendPages of every backend against plain sorting: which entries stay, old and new, where they
// lie, and that nothing else in the pool changes.
#include "kernels/ops/append_pages.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "kernels/page_element.h"
#include "tests/kernels/backend_test.h"
#include "tests/kernels/page_ids.h"

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
  bool few_scores = false;  // ties everywhere
  bool write_scores = false;
  DecodeRule rule = {.scored = true};
};

// Elements of keys and values are read as floats: numbers that every dtype holds exactly.
struct Pool {
  std::vector<float> keys, values;  // [num_blocks, block_size, head_dim]
  std::vector<int32_t> positions, lengths, victims;
  std::vector<float> scores;
};

struct Entry {
  std::vector<float> key, value;
  float score = 0;
  bool operator==(const Entry& other) const {
    const bool same_score = score == other.score || (std::isnan(score) && std::isnan(other.score));
    return key == other.key && value == other.value && same_score;
  }
};

class AppendPagesTest : public BackendTest {
 protected:
  void Make(const Case& c, uint64_t seed) {
    c_ = c;
    std::mt19937_64 engine(seed);
    heads_ = static_cast<int>(c.lengths.size());
    int most = 1;
    for (int h = 0; h < heads_; ++h) most = std::max(most, Keep(h));
    width_ = (most + c.block_size - 1) / c.block_size + 1;
    num_blocks_ = kLayers * heads_ * width_ + 3;
    std::vector<int32_t> ids(num_blocks_);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), engine);
    const std::vector<PageIds> pages = WithStates(ids, num_blocks_);
    blocks_.assign(5, {-1, -1});
    blocks_.insert(blocks_.end(), pages.begin(), pages.begin() + kLayers * heads_ * width_);
    const size_t slots = static_cast<size_t>(num_blocks_) * c.block_size;
    const auto element = [&] { return static_cast<float>(engine() % 255) / 8.0f - 16.0f; };
    const auto fill = [&](std::vector<float>* to, size_t count) {
      to->resize(count);
      for (float& x : *to) x = element();
    };
    fill(&before_.keys, slots * c.head_dim);
    fill(&before_.values, slots * c.head_dim);
    fill(&k_, static_cast<size_t>(heads_) * (c.num_tokens + 2) * c.head_dim);
    fill(&v_, k_.size());
    // Past a head's length, and in other pages, lie scores and positions that would win.
    before_.scores.assign(slots, INFINITY);
    before_.positions.assign(slots, c.first_position + c.num_tokens - 1);
    before_.lengths.assign(kSlots * kLayers * heads_, kUntouched);
    before_.victims = before_.lengths;
    const auto score = [&] {
      const uint64_t kind = engine() % 40;
      if (kind == 0) return kNan;
      if (kind == 1) return -INFINITY;
      if (c.few_scores) return static_cast<float>(engine() % 5);
      return static_cast<float>(engine() % 100000) / 64.0f;
    };
    sums_.assign(static_cast<size_t>(heads_) * (c.num_tokens + 3), kNan);
    for (int h = 0; h < heads_; ++h) {
      before_.lengths[HeadIndex(h)] = c.lengths[h];
      std::vector<int32_t> positions(c.first_position);
      std::iota(positions.begin(), positions.end(), 0);
      // The newest are there, as the rule protects them; the others are any.
      std::shuffle(positions.begin(), positions.end() - std::min(c.rule.recent, c.lengths[h]),
                   engine);
      std::reverse(positions.begin(), positions.end());
      for (int e = 0; e < c.lengths[h]; ++e) {
        before_.positions[SlotIndex(h, e)] = positions[e];
        before_.scores[StateIndex(h, e)] = score();
      }
      for (int i = 0; i < c.num_tokens; ++i) sums_[h * (c.num_tokens + 3) + i] = score();
    }
  }

  int Keep(int head) const { return std::min(c_.lengths[head] + c_.num_tokens, c_.caps[head]); }
  size_t HeadIndex(int head) const { return (kSlot * kLayers + kLayer) * heads_ + head; }
  size_t SlotIndex(int head, int entry) const {
    const PageIds* ids = blocks_.data() + 5 + (kLayer * heads_ + head) * width_;
    return static_cast<size_t>(ids[entry / c_.block_size].data) * c_.block_size +
           entry % c_.block_size;
  }

  size_t State(size_t slot) const { return StateSlot(slot, c_.block_size, num_blocks_); }
  size_t StateIndex(int head, int entry) const { return State(SlotIndex(head, entry)); }

  template <typename Word>
  std::vector<Word> Stored(const std::vector<float>& values) const {
    std::vector<Word> stored(values.size());
    for (size_t i = 0; i < values.size(); ++i)
      StorePageElement(c_.dtype, stored.data(), i, values[i]);
    return stored;
  }
  template <typename Word>
  std::vector<float> Loaded(const std::vector<Word>& stored) const {
    std::vector<float> values(stored.size());
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = LoadPageElement(c_.dtype, stored.data(), i);
    return values;
  }

  void Run() {
    if (c_.dtype == DType::kF32) {
      Execute<float>();
    } else {
      Execute<uint16_t>();
    }
  }
  template <typename Word>
  void Execute() {
    auto keys = Upload(Stored<Word>(before_.keys)), values = Upload(Stored<Word>(before_.values));
    auto positions = Upload(before_.positions), lengths = Upload(before_.lengths);
    auto victims = Upload(before_.victims);
    auto blocks = Upload(blocks_);
    auto scores = Upload(before_.scores), k = Upload(k_), v = Upload(v_), sums = Upload(sums_);
    auto row_begin = Upload(std::vector<int64_t>{0, 5, 0});
    auto row_width = Upload(std::vector<int32_t>(kSlots, width_));
    std::vector<int32_t> all_caps(before_.lengths.size(), INT32_MAX);
    std::copy(c_.caps.begin(), c_.caps.end(), all_caps.begin() + HeadIndex(0));
    auto caps = Upload(all_caps);
    auto rules = Upload(std::vector<uint8_t>(kSlots * sizeof(DecodeRule)));
    backend().CopyToDevice(rules.data() + kSlot * sizeof(DecodeRule), &c_.rule, sizeof(c_.rule));
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
    args.pages = {.layout = {.dtype = c_.dtype,
                             .head_dim = c_.head_dim,
                             .block_size = c_.block_size,
                             .num_blocks = num_blocks_},
                  .keys = keys.data(),
                  .values = values.data(),
                  .positions = positions.data(),
                  .scores = scores.data()};
    args.tables = {.num_layers = kLayers,
                   .num_kv_heads = heads_,
                   .blocks = blocks.data(),
                   .row_begin = row_begin.data(),
                   .row_width = row_width.data(),
                   .caps = caps.data(),
                   .lengths = lengths.data(),
                   .victims = victims.data(),
                   .rules = reinterpret_cast<const DecodeRule*>(rules.data())};
    backend().AppendPages(args);
    after_ = {.keys = Loaded(keys.Read()),
              .values = Loaded(values.Read()),
              .positions = positions.Read(),
              .lengths = lengths.Read(),
              .victims = victims.Read(),
              .scores = scores.Read()};
  }

  Entry EntryAt(const Pool& pool, size_t slot) const {
    const size_t d = c_.head_dim;
    return {{pool.keys.begin() + slot * d, pool.keys.begin() + (slot + 1) * d},
            {pool.values.begin() + slot * d, pool.values.begin() + (slot + 1) * d},
            pool.scores[State(slot)]};
  }
  Entry NewEntry(int head, int token) const {
    const size_t d = c_.head_dim;
    const size_t at = (static_cast<size_t>(head) * (c_.num_tokens + 2) + token + 1) * d;
    Entry entry{{k_.begin() + at, k_.begin() + at + d}, {v_.begin() + at, v_.begin() + at + d}};
    entry.score = c_.rule.by_position ? static_cast<float>(c_.first_position + token)
                                      : sums_[head * (c_.num_tokens + 3) + token];
    return entry;
  }

  // What a head is to hold, by position: entries leave one at a time, the lowest score first, of
  // equals the lower position.
  std::map<int32_t, Entry> Expected(int head) const {
    std::map<int32_t, Entry> all;
    for (int e = 0; e < c_.lengths[head]; ++e) {
      const size_t slot = SlotIndex(head, e);
      all[before_.positions[slot]] = EntryAt(before_, slot);
      if (!c_.rule.scored) all[before_.positions[slot]].score = 0;
    }
    for (int i = 0; i < c_.num_tokens; ++i) all[c_.first_position + i] = NewEntry(head, i);
    std::vector<std::pair<float, int32_t>> open;
    const int newest = c_.first_position + c_.num_tokens - c_.rule.recent;
    for (const auto& [position, entry] : all) {
      if (position < c_.rule.sinks || position >= newest) continue;
      const float score = c_.rule.by_position ? static_cast<float>(position) : entry.score;
      open.emplace_back(std::isnan(score) ? -INFINITY : score, position);
    }
    std::sort(open.begin(), open.end());
    for (int i = 0; static_cast<int>(all.size()) > Keep(head); ++i) all.erase(open.at(i).second);
    return all;
  }

  void CheckVictim(int head) const {
    const int32_t victim = after_.victims[HeadIndex(head)];
    if (!c_.rule.scored || Keep(head) < c_.caps[head]) {
      EXPECT_EQ(victim, kUntouched) << "no victim was due, head " << head;
      return;
    }
    std::pair<float, int32_t> lowest = {INFINITY, INT32_MAX};
    const int next = c_.first_position + c_.num_tokens;
    for (int e = 0; e < Keep(head); ++e) {
      const size_t slot = SlotIndex(head, e);
      const int32_t position = after_.positions[slot];
      if (position < c_.rule.sinks || position > next - c_.rule.recent) continue;
      float score = c_.rule.by_position ? static_cast<float>(position) : after_.scores[State(slot)];
      if (std::isnan(score)) score = -INFINITY;
      lowest = std::min(lowest, {score, position});
    }
    if (lowest.second == INT32_MAX) {
      EXPECT_EQ(victim, 0) << "all protected, head " << head;
    } else {
      EXPECT_EQ(after_.positions[SlotIndex(head, victim)], lowest.second) << "head " << head;
    }
  }

  void Check(const std::string& what) {
    SCOPED_TRACE(what);
    std::vector<bool> may_change(before_.positions.size(), false);
    for (int h = 0; h < heads_; ++h) {
      ASSERT_EQ(after_.lengths[HeadIndex(h)], Keep(h)) << "head " << h;
      const std::map<int32_t, Entry> expected = Expected(h);
      std::set<int32_t> found;
      for (int e = 0; e < Keep(h); ++e) {
        const size_t slot = SlotIndex(h, e);
        may_change[slot] = true;
        const int32_t position = after_.positions[slot];
        ASSERT_TRUE(expected.contains(position)) << "head " << h << " position " << position;
        ASSERT_TRUE(found.insert(position).second) << "twice, head " << h;
        Entry entry = EntryAt(after_, slot);
        const bool writes = c_.write_scores && position >= c_.first_position;
        if (!c_.rule.scored && !writes) entry.score = expected.at(position).score;
        ASSERT_EQ(entry, expected.at(position)) << "head " << h << " position " << position;
        const bool stayed = e < c_.lengths[h] && expected.contains(before_.positions[slot]);
        if (stayed) {
          ASSERT_EQ(position, before_.positions[slot]) << "moved without need";
        }
      }
      ASSERT_NO_FATAL_FAILURE(CheckVictim(h));
    }
    for (size_t slot = 0; slot < may_change.size(); ++slot) {
      if (may_change[slot]) continue;
      ASSERT_EQ(EntryAt(after_, slot), EntryAt(before_, slot)) << slot;
      ASSERT_EQ(after_.positions[slot], before_.positions[slot]) << slot;
    }
    for (size_t i = 0; i < after_.lengths.size(); ++i) {
      if (i >= HeadIndex(0) && i < HeadIndex(0) + heads_) continue;
      ASSERT_EQ(after_.lengths[i], kUntouched) << i;
      ASSERT_EQ(after_.victims[i], kUntouched) << i;
    }
  }

  Case c_;
  int heads_ = 0, width_ = 0, num_blocks_ = 0;
  std::vector<PageIds> blocks_;
  std::vector<float> k_, v_;  // [heads, num_tokens + 2, head_dim], the tokens from 1 on
  std::vector<float> sums_;   // [heads, num_tokens + 3]
  Pool before_, after_;
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

// More entries than a block of threads takes at once, and more new ones than a head may hold.
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

// A window of the newest: all that was there leaves, and so does what came first of the new.
TEST_P(AppendPagesTest, NewOnesMayLeaveAtOnce) {
  Case c{.num_tokens = 50, .first_position = 200, .lengths = {20, 20}, .caps = {20, 20}};
  c.rule = {.by_position = true, .scored = true, .recent = 20};
  Make(c, 3);
  Run();
  Check("window");
  std::set<int32_t> held;
  for (int e = 0; e < 20; ++e) held.insert(after_.positions[SlotIndex(1, e)]);
  EXPECT_EQ(*held.begin(), 230);
  EXPECT_EQ(held.size(), 20u);
}

TEST_P(AppendPagesTest, ScoresGoToRowsAndBack) {
  Case c{.num_tokens = 1, .first_position = 400, .lengths = {300, 17, 1}};
  c.caps = {INT32_MAX, INT32_MAX, INT32_MAX};
  Make(c, 5);
  auto scores = Upload(before_.scores), rows = Upload(std::vector<float>(3 * 310, -5.0f));
  auto lengths = Upload(before_.lengths);
  auto blocks = Upload(blocks_);
  auto row_begin = Upload(std::vector<int64_t>{0, 5, 0});
  auto row_width = Upload(std::vector<int32_t>(kSlots, width_));
  ScoreRowsArgs args;
  args.rows = rows.data();
  args.stride = 310;
  args.max_length = 300;
  args.slot = kSlot;
  args.layer = kLayer;
  args.pages.layout = {.head_dim = 8, .block_size = 16, .num_blocks = num_blocks_};
  args.pages.scores = scores.data();
  args.tables = {.num_layers = kLayers,
                 .num_kv_heads = heads_,
                 .blocks = blocks.data(),
                 .row_begin = row_begin.data(),
                 .row_width = row_width.data(),
                 .lengths = lengths.data()};
  backend().GatherScores(args);
  std::vector<float> gathered = rows.Read();
  for (int h = 0; h < 3; ++h) {
    for (int e = 0; e < 310; ++e) {
      const float score = e < c.lengths[h] ? before_.scores[StateIndex(h, e)] : -5.0f;
      const float got = gathered[h * 310 + e];
      ASSERT_TRUE(got == score || (std::isnan(got) && std::isnan(score))) << h << " " << e;
      gathered[h * 310 + e] = static_cast<float>(1000 * h + e);
    }
  }
  backend().CopyToDevice(rows.data(), gathered.data(), gathered.size() * sizeof(float));
  backend().ScatterScores(args);
  const std::vector<float> after = scores.Read();
  std::vector<float> expected = before_.scores;
  for (int h = 0; h < 3; ++h) {
    for (int e = 0; e < c.lengths[h]; ++e)
      expected[StateIndex(h, e)] = static_cast<float>(1000 * h + e);
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i])) continue;
    ASSERT_EQ(after[i], expected[i]) << i;
  }
}

HYDRANT_FOR_EACH_BACKEND(AppendPagesTest);

}  // namespace
}  // namespace hydrant
