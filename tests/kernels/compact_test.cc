// Compact of every backend against plain sorting: which entries stay, that each keeps its bits, and
// that nothing else in the pool changes.
#include "kernels/ops/compact.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <set>

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
  std::vector<int32_t> lengths = {};  // per head
  std::vector<int32_t> keep = {};
  int sinks = 0;
  int recent = 0;
  int next_position = 0;
  bool capped = false;  // caps are keep
  bool log_weights = false;
  bool few_scores = false;  // ties everywhere
  DecodeRule rule = {.scored = true};
};

// The pool as raw words, so that NaN compares like any other. Elements are 2 or 4 bytes.
struct Pool {
  std::vector<uint32_t> keys, values;  // [num_blocks, block_size, head_dim]
  std::vector<int32_t> positions, lengths, victims;
  std::vector<float> scores, log_weights;
};

// Everything an entry consists of.
struct Entry {
  std::vector<uint32_t> words;
  bool operator==(const Entry& other) const { return words == other.words; }
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
    width_ = (longest + c.block_size - 1) / c.block_size + 1;
    num_blocks_ = kLayers * heads_ * width_ + 3;
    std::vector<int32_t> ids(num_blocks_);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), engine);
    const std::vector<PageIds> pages = WithStates(ids, num_blocks_);
    blocks_.assign(5, {-1, -1});
    blocks_.insert(blocks_.end(), pages.begin(), pages.begin() + kLayers * heads_ * width_);

    const size_t slots = static_cast<size_t>(num_blocks_) * c.block_size;
    const size_t table = static_cast<size_t>(kSlots) * kLayers * heads_;
    before_.keys.resize(slots * c.head_dim);
    before_.values.resize(slots * c.head_dim);
    const uint32_t mask = c.dtype == DType::kF32 ? 0xFFFFFFFFu : 0xFFFFu;
    for (auto* rows : {&before_.keys, &before_.values})
      for (uint32_t& word : *rows) word = static_cast<uint32_t>(engine()) & mask;
    // Past a head's length, and in other pages, lie scores and positions that would win.
    before_.scores.assign(slots, INFINITY);
    before_.positions.assign(slots, c.next_position - 1);
    before_.log_weights = RandomFloats(2 * slots, seed + 1);
    before_.lengths.assign(table, kUntouched);
    before_.victims.assign(table, kUntouched);
    for (int h = 0; h < heads_; ++h) {
      before_.lengths[HeadIndex(h)] = c.lengths[h];
      std::vector<int32_t> positions(c.next_position);
      std::iota(positions.begin(), positions.end(), 0);
      std::shuffle(positions.begin(), positions.end(), engine);
      for (int e = 0; e < c.lengths[h]; ++e) {
        before_.positions[SlotIndex(h, e)] = positions[e];
        before_.scores[State(SlotIndex(h, e))] = ScoreOf(engine, c.few_scores);
      }
    }
  }

  bool IsProtected(int32_t position) const {
    return position < c_.sinks || position >= c_.next_position - c_.recent;
  }
  int NumProtected(int head) const {
    int count = 0;
    for (int e = 0; e < c_.lengths[head]; ++e)
      count += IsProtected(before_.positions[SlotIndex(head, e)]) ? 1 : 0;
    return count;
  }

  void Run() { after_ = c_.dtype == DType::kF32 ? Execute<uint32_t>() : Execute<uint16_t>(); }

  template <typename Word>
  Pool Execute() {
    const size_t table = before_.lengths.size();
    auto keys = Upload(std::vector<Word>(before_.keys.begin(), before_.keys.end()));
    auto values = Upload(std::vector<Word>(before_.values.begin(), before_.values.end()));
    auto positions = Upload(before_.positions), lengths = Upload(before_.lengths);
    auto victims = Upload(before_.victims), keep = Upload(c_.keep);
    auto blocks = Upload(blocks_);
    auto scores = Upload(before_.scores), log_weights = Upload(before_.log_weights);
    auto row_begin = Upload(std::vector<int64_t>{0, 5, 0});
    auto row_width = Upload(std::vector<int32_t>(kSlots, width_));
    std::vector<int32_t> all_caps(table, INT32_MAX);
    if (c_.capped) std::copy(c_.keep.begin(), c_.keep.end(), all_caps.begin() + HeadIndex(0));
    auto caps = Upload(all_caps);
    auto rules = Upload(std::vector<uint8_t>(kSlots * sizeof(DecodeRule)));
    backend().CopyToDevice(rules.data() + kSlot * sizeof(DecodeRule), &c_.rule, sizeof(c_.rule));
    CompactArgs args;
    args.keep = keep.data();
    args.sinks = c_.sinks;
    args.recent = c_.recent;
    args.next_position = c_.next_position;
    args.max_length = *std::max_element(c_.lengths.begin(), c_.lengths.end());
    args.slot = kSlot;
    args.layer = kLayer;
    args.pages = {.layout = {.dtype = c_.dtype,
                             .head_dim = c_.head_dim,
                             .block_size = c_.block_size,
                             .num_blocks = num_blocks_},
                  .keys = keys.data(),
                  .values = values.data(),
                  .positions = positions.data(),
                  .scores = scores.data(),
                  .log_weights = c_.log_weights ? log_weights.data() : nullptr};
    args.tables = {.num_layers = kLayers,
                   .num_kv_heads = heads_,
                   .blocks = blocks.data(),
                   .row_begin = row_begin.data(),
                   .row_width = row_width.data(),
                   .caps = caps.data(),
                   .lengths = lengths.data(),
                   .victims = victims.data(),
                   .rules = reinterpret_cast<const DecodeRule*>(rules.data())};
    backend().Compact(args);
    Pool after;
    for (const Word word : keys.Read()) after.keys.push_back(word);
    for (const Word word : values.Read()) after.values.push_back(word);
    after.positions = positions.Read();
    after.lengths = lengths.Read();
    after.victims = victims.Read();
    after.scores = scores.Read();
    after.log_weights = log_weights.Read();
    return after;
  }

  size_t HeadIndex(int head) const { return (kSlot * kLayers + kLayer) * heads_ + head; }
  size_t SlotIndex(int head, int entry) const {
    const PageIds* ids = blocks_.data() + 5 + (kLayer * heads_ + head) * width_;
    return static_cast<size_t>(ids[entry / c_.block_size].data) * c_.block_size +
           entry % c_.block_size;
  }

  size_t State(size_t slot) const { return StateSlot(slot, c_.block_size, num_blocks_); }

  Entry EntryAt(const Pool& pool, size_t slot) const {
    Entry entry;
    for (int i = 0; i < c_.head_dim; ++i) {
      entry.words.push_back(pool.keys[slot * c_.head_dim + i]);
      entry.words.push_back(pool.values[slot * c_.head_dim + i]);
    }
    entry.words.push_back(std::bit_cast<uint32_t>(pool.positions[slot]));
    entry.words.push_back(std::bit_cast<uint32_t>(pool.scores[State(slot)]));
    for (int i = 0; i < 2 && c_.log_weights; ++i)
      entry.words.push_back(std::bit_cast<uint32_t>(pool.log_weights[2 * State(slot) + i]));
    return entry;
  }

  // Entries 0 .. count - 1 of a head by their positions.
  std::map<int32_t, Entry> Entries(const Pool& pool, int head, int count) const {
    std::map<int32_t, Entry> entries;
    for (int e = 0; e < count; ++e) {
      const size_t slot = SlotIndex(head, e);
      entries[pool.positions[slot]] = EntryAt(pool, slot);
    }
    return entries;
  }

  // Drops one entry at a time, the lowest score first, of equals the lower position.
  std::set<int32_t> Survivors(int head) const {
    std::vector<std::pair<float, int32_t>> open;
    std::set<int32_t> stay;
    for (int e = 0; e < c_.lengths[head]; ++e) {
      const size_t slot = SlotIndex(head, e);
      const int32_t position = before_.positions[slot];
      float score =
          c_.rule.by_position ? static_cast<float>(position) : before_.scores[State(slot)];
      if (std::isnan(score)) score = -INFINITY;
      stay.insert(position);
      if (!IsProtected(position)) open.emplace_back(score, position);
    }
    std::sort(open.begin(), open.end());
    for (int i = 0; i < c_.lengths[head] - c_.keep[head]; ++i) stay.erase(open[i].second);
    return stay;
  }

  void CheckVictim(int head) const {
    const int32_t victim = after_.victims[HeadIndex(head)];
    if (!c_.capped || !c_.rule.scored) {
      EXPECT_EQ(victim, kUntouched) << "no victim was due, head " << head;
      return;
    }
    ASSERT_GE(victim, 0);
    ASSERT_LT(victim, std::max(c_.keep[head], 1));
    std::pair<float, int32_t> lowest = {INFINITY, INT32_MAX};
    for (int e = 0; e < c_.keep[head]; ++e) {
      const size_t slot = SlotIndex(head, e);
      const int32_t position = after_.positions[slot];
      if (position < c_.rule.sinks || position > c_.next_position - c_.rule.recent) continue;
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
    std::vector<bool> owned(before_.positions.size(), false);
    for (int h = 0; h < heads_; ++h) {
      EXPECT_EQ(after_.lengths[HeadIndex(h)], c_.keep[h]);
      const std::map<int32_t, Entry> had = Entries(before_, h, c_.lengths[h]);
      const std::map<int32_t, Entry> has = Entries(after_, h, c_.keep[h]);
      std::set<int32_t> positions;
      for (const auto& [position, entry] : has) {
        positions.insert(position);
        ASSERT_TRUE(had.count(position)) << position;
        ASSERT_EQ(entry, had.at(position)) << "head " << h << " position " << position;
      }
      ASSERT_EQ(positions, Survivors(h)) << "head " << h;
      for (int e = 0; e < c_.lengths[h]; ++e) {
        const size_t slot = SlotIndex(h, e);
        owned[slot] = c_.keep[h] < c_.lengths[h];
        if (e >= c_.keep[h] || positions.count(before_.positions[slot]) == 0) continue;
        ASSERT_EQ(after_.positions[slot], before_.positions[slot]) << "moved without need";
      }
      ASSERT_NO_FATAL_FAILURE(CheckVictim(h));
    }
    for (size_t slot = 0; slot < owned.size(); ++slot) {
      if (owned[slot]) continue;
      ASSERT_EQ(EntryAt(after_, slot), EntryAt(before_, slot)) << slot;
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
  Pool before_, after_;
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

// More entries than a block of threads takes at once.
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

// An unscored rule has no scores: with by_position positions alone decide, and there is no victim.
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
