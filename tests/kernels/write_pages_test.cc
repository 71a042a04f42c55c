// WritePages: compares every element of the pages, including untouched ones.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "kernels/float16.h"
#include "kernels/ops/select.h"
#include "tests/kernels/backend_test.h"
#include "tests/kernels/paged_pool.h"

namespace hydrant {
namespace {

struct Case {
  DType dtype = DType::kF32;
  int head_dim = 8;
  int block_size = 16;
  std::vector<int32_t> keep = {};  // per head
  int n = 0;
  int32_t cap = INT32_MAX;
  DecodeRule rule = {};
  bool with_kept = true;
  bool with_scores = true;
  bool with_log_weights = false;
  bool has_scores = true;  // whether the pages have scores
  int num_written = 0;
  int rotary_dim = 0;  // of a rolling rule
  bool interleaved = false;
};

constexpr int kSlots = 3, kLayers = 2, kSlot = 1, kLayer = 1;
constexpr int32_t kUntouched = -9;

float RoundTo(DType dtype, float value) {
  if (dtype == DType::kF16) return F16ToFloat(FloatToF16(value));
  if (dtype == DType::kBF16) return BF16ToFloat(FloatToBF16(value));
  return value;
}

class WritePagesTest : public BackendTest {
 protected:
  // Fills the inputs from `seed` and runs the operation.
  void Run(const Case& c, uint64_t seed) {
    heads_ = static_cast<int>(c.keep.size());
    kv_stride_ = static_cast<int64_t>(c.n) * c.head_dim + 11;
    score_stride_ = c.n + 2;
    kept_stride_ = c.n + 4;
    k_ = RandomFloats(heads_ * kv_stride_, seed);
    v_ = RandomFloats(heads_ * kv_stride_, seed + 1);
    if (!c.rule.rolling) PlantExtremes(k_);
    MakeRotary(c);
    scores_ = RandomFloats(heads_ * score_stride_, seed + 2);
    ChooseKept(c, seed + 3);
    MakePool(c, seed + 4);
    Execute(c);
  }

  static void PlantExtremes(std::vector<float>& values) {
    const float extremes[] = {0.0f,        -0.0f,      65504.0f, 65520.0f, 1e38f,  -1e38f,
                              INFINITY,    1e-7f,      6e-8f,    2.9e-8f,  1e-40f, 1.00390625f,
                              1.01171875f, 3.3895e38f, kNan,     -kNan};
    for (size_t i = 0; i < std::size(extremes) && i * 3 < values.size(); ++i) {
      values[i * 3] = extremes[i];
    }
  }

  // Rotation angles for the keys of a rolling slot.
  void MakeRotary(const Case& c) {
    rotary_ = {.rotary_dim = c.rotary_dim, .interleaved = c.interleaved};
    cos_.clear();
    sin_.clear();
    for (int p = 0; p < c.n; ++p) {
      for (int i = 0; i < c.rotary_dim / 2; ++i) {
        cos_.push_back(static_cast<float>(std::cos(Angle(p, i))));
        sin_.push_back(static_cast<float>(std::sin(Angle(p, i))));
      }
    }
  }
  double Angle(int position, int pair) const {
    return position * std::pow(100.0, -2.0 * pair / rotary_.rotary_dim);
  }
  // Key `k` rotated back, in double.
  std::vector<double> Unturned(const float* k, int head_dim, int position) const {
    std::vector<double> key(k, k + head_dim);
    for (int i = 0; i < rotary_.rotary_dim / 2; ++i) {
      const int a = rotary_.interleaved ? 2 * i : i;
      const int b = rotary_.interleaved ? 2 * i + 1 : i + rotary_.rotary_dim / 2;
      const double c = std::cos(Angle(position, i)), s = std::sin(Angle(position, i));
      key[a] = k[a] * c + k[b] * s;
      key[b] = k[b] * c - k[a] * s;
    }
    return key;
  }

  void ChooseKept(const Case& c, uint64_t seed) {
    std::mt19937_64 engine(seed);
    kept_.assign(heads_ * kept_stride_, -1);
    for (int h = 0; h < heads_; ++h) {
      std::vector<int32_t> all(c.n);
      std::iota(all.begin(), all.end(), 0);
      if (c.with_kept) std::shuffle(all.begin(), all.end(), engine);
      std::sort(all.begin(), all.begin() + c.keep[h]);
      std::copy_n(all.begin(), c.keep[h], kept_.begin() + h * kept_stride_);
    }
  }

  // With one spare block per head.
  void MakePool(const Case& c, uint64_t seed) {
    const int longest = *std::max_element(c.keep.begin(), c.keep.end());
    before_ = PagedPool({.num_slots = kSlots,
                         .num_layers = kLayers,
                         .num_kv_heads = heads_,
                         .width = (longest + c.block_size - 1) / c.block_size + 1,
                         .dtype = c.dtype,
                         .head_dim = c.head_dim,
                         .block_size = c.block_size},
                        seed);
    before_.positions.assign(before_.NumPlaces(), kUntouched);
    before_.scores.assign(before_.NumPlaces(), kUntouched);
    before_.log_weights.assign(2 * before_.NumPlaces(), kUntouched);
    before_.caps.assign(before_.caps.size(), c.cap);
    before_.lengths.assign(before_.lengths.size(), kUntouched);
    before_.victims = before_.lengths;
    before_.rules[kSlot] = c.rule;
  }

  void Execute(const Case& c) {
    DevicePool pool(backend(), before_);
    auto k = Upload(k_), v = Upload(v_), scores_in = Upload(scores_);
    auto kept = Upload(kept_), keep = Upload(c.keep);
    auto cos = Upload(cos_), sin = Upload(sin_);
    WritePagesArgs args;
    args.k = k.data();
    args.v = v.data();
    args.kv_head_stride = kv_stride_;
    args.scores = c.with_scores ? scores_in.data() : nullptr;
    args.score_stride = score_stride_;
    args.kept = c.with_kept ? kept.data() : nullptr;
    args.kept_stride = kept_stride_;
    args.keep = keep.data();
    args.n = c.n;
    args.num_written = c.num_written;
    args.rotary = rotary_;
    args.rotary.cos = cos.data();
    args.rotary.sin = sin.data();
    args.slot = kSlot;
    args.layer = kLayer;
    args.pages = pool.Pages();
    if (!c.has_scores) args.pages.scores = nullptr;
    if (!c.with_log_weights) args.pages.log_weights = nullptr;
    args.tables = pool.Tables();
    backend().WritePages(args);
    written_ = before_;
    pool.ReadBack(&written_);
  }

  int32_t Position(int head, int entry) const { return kept_[head * kept_stride_ + entry]; }
  size_t Row(int head) const { return before_.Head(kSlot, kLayer, head); }
  size_t Place(int head, int entry) const { return before_.Place(kSlot, kLayer, head, entry); }
  size_t State(int head, int entry) const { return before_.State(Place(head, entry)); }

  static bool Same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

  // Compares everything with the contract.
  void Check(const Case& c, const std::string& what) {
    SCOPED_TRACE(what);
    ChangedPlaces changed(before_);
    for (int h = 0; h < heads_; ++h) {
      EXPECT_EQ(written_.lengths[Row(h)], c.keep[h]);
      for (int e = c.num_written; e < c.keep[h]; ++e) {
        CheckData(c, h, e);
        changed.data[Place(h, e)] = true;
      }
      for (int e = 0; e < c.keep[h]; ++e) {
        CheckState(c, h, e);
        changed.state[Place(h, e)] = true;
      }
    }
    ExpectNothingElseChanged(before_, written_, changed, kSlot, kLayer);
  }

  void CheckData(const Case& c, int h, int e) {
    const size_t place = Place(h, e);
    const int32_t position = Position(h, e);
    const std::vector<float> keys = written_.LoadRow(written_.keys, place);
    const std::vector<float> values = written_.LoadRow(written_.values, place);
    ASSERT_EQ(written_.positions[place], c.rule.rolling ? e : position);
    const size_t in = h * kv_stride_ + static_cast<size_t>(position) * c.head_dim;
    const std::vector<double> unturned = Unturned(&k_[in], c.head_dim, position);
    const double rounding = c.dtype == DType::kF32 ? 0.0 : c.dtype == DType::kF16 ? 6e-4 : 5e-3;
    for (int j = 0; j < c.head_dim; ++j) {
      const float key = keys[j];
      if (c.rule.rolling) {
        ASSERT_NEAR(key, unturned[j], 1e-6 + rounding * std::abs(unturned[j]))
            << "head " << h << " entry " << e << " element " << j;
      } else {
        ASSERT_PRED2(Same, key, RoundTo(c.dtype, k_[in + j]))
            << k_[in + j] << " head " << h << " entry " << e << " element " << j;
      }
      ASSERT_PRED2(Same, values[j], RoundTo(c.dtype, v_[in + j]));
    }
  }

  void CheckState(const Case& c, int h, int e) {
    const size_t index = State(h, e);
    const int32_t position = Position(h, e);
    float score = c.with_scores ? scores_[h * score_stride_ + position] : 0.0f;
    if (!c.rule.scored && !c.with_scores) score = kUntouched;
    if (c.rule.scored && c.rule.by_position)
      score = static_cast<float>(c.rule.rolling ? e : position);
    if (!c.has_scores) score = kUntouched;
    ASSERT_EQ(written_.scores[index], score) << "head " << h << " entry " << e;
    const float log_weight = c.rule.weighted ? 0.0f : kUntouched;
    ASSERT_EQ(written_.log_weights[2 * index], log_weight) << "head " << h << " entry " << e;
    ASSERT_EQ(written_.log_weights[2 * index + 1], log_weight) << "head " << h << " entry " << e;
  }

  int heads_ = 0;
  int64_t kv_stride_ = 0, score_stride_ = 0, kept_stride_ = 0;
  std::vector<float> k_, v_, scores_;
  std::vector<int32_t> kept_;
  std::vector<float> cos_, sin_;
  Rotary rotary_;  // without the tables
  PagedPool before_, written_;
};

TEST_P(WritePagesTest, EveryDTypeAndSize) {
  uint64_t seed = 100;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int block_size : {1, 16, 5}) {
      // 1, block - 1, block, block + 1, several tasks of the cpu backend.
      for (int keep : {1, 4, 5, 6, 15, 16, 17, 300}) {
        for (int head_dim : {1, 7, 8, 64}) {
          Case c{.dtype = dtype, .head_dim = head_dim, .block_size = block_size};
          c.keep = {keep, 1, std::max(1, keep - 2)};
          c.n = keep + 9;
          c.rule.scored = true;
          Run(c, ++seed);
          Check(c, std::string(DTypeName(dtype)) + " block " + std::to_string(block_size) +
                       " keep " + std::to_string(keep) + " head_dim " + std::to_string(head_dim) +
                       " seed " + std::to_string(seed));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(WritePagesTest, WholePromptWithoutScores) {
  Case c{.dtype = DType::kBF16, .head_dim = 16, .keep = {40, 40}, .n = 40};
  c.with_kept = c.with_scores = false;
  Run(c, 900);
  Check(c, "policy full: scores untouched");
  c.rule.scored = true;
  Run(c, 901);
  Check(c, "scores start at 0");
  c.rule.by_position = true;
  Run(c, 902);
  Check(c, "scores are positions");
}

TEST_P(WritePagesTest, SharedEntriesAreNotWritten) {
  for (const int written : {0, 1, 16, 32, 299, 300}) {
    Case c{.dtype = DType::kF16, .head_dim = 8, .keep = {300, 300}, .n = 300};
    c.with_kept = c.with_scores = false;
    c.num_written = written;
    for (const bool by_position : {false, true}) {
      for (const bool scored : {false, true}) {
        c.rule = {.by_position = by_position, .scored = scored};
        c.with_scores = scored && !by_position;
        Run(c, 970 + written);
        Check(c, std::to_string(written) + " written, scored " + std::to_string(scored) +
                     ", by position " + std::to_string(by_position));
      }
    }
  }
}

// Slots without state (their pages have no state ids), and layers with a window.
TEST_P(WritePagesTest, WhereThereAreNoScoresNoneAreWritten) {
  for (const bool by_position : {false, true}) {
    Case c{.dtype = DType::kF16, .head_dim = 8, .keep = {33, 7}, .n = 40};
    c.has_scores = false;
    c.rule = {.by_position = by_position, .scored = by_position};
    if (by_position) c.cap = 33;
    Run(c, 990);
    Check(c, "by position " + std::to_string(by_position));
  }
}

TEST_P(WritePagesTest, LogWeightsStartAtZero) {
  for (const int keep : {1, 17, 300}) {
    Case c{.dtype = DType::kF16, .head_dim = 8, .keep = {keep, 1}, .n = keep + 3};
    c.with_log_weights = true;
    Run(c, 950 + keep);
    Check(c, "no log weights, keep " + std::to_string(keep));
    c.rule.weighted = true;
    Run(c, 950 + keep);
    Check(c, "keep " + std::to_string(keep));
  }
}

TEST_P(WritePagesTest, FirstVictimFollowsTheRule) {
  const uint64_t seed = 77;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 engine(seed);
  for (int trial = 0; trial < 100; ++trial) {
    const int keep = 8 + static_cast<int>(engine() % 20);
    Case c{.keep = {keep, keep, keep - 1}, .n = 40, .cap = keep};
    c.rule.scored = true;
    c.rule.by_position = trial % 4 == 0;
    c.rule.sinks = static_cast<int32_t>(engine() % 4);
    c.rule.recent = static_cast<int32_t>(engine() % 4);
    Run(c, 1000 + trial);
    Check(c, "trial " + std::to_string(trial));
    EXPECT_EQ(written_.victims[Row(2)], kUntouched) << "below its cap: no victim";
    for (int h = 0; h < 2; ++h) {
      std::optional<int> expected;
      for (int e = 0; e < keep; ++e) {  // ascending positions: the first tie is the lower one
        const int32_t p = Position(h, e);
        if (p < c.rule.sinks || p > c.n - c.rule.recent) continue;
        auto score = [&](int entry) { return written_.scores[State(h, entry)]; };
        if (!expected || score(e) < score(*expected)) expected = e;
      }
      ASSERT_TRUE(expected.has_value());
      EXPECT_EQ(written_.victims[Row(h)], *expected) << "trial " << trial;
    }
  }
}

// Keys before RoPE, ranks for positions, and the victim by ranks.
TEST_P(WritePagesTest, RollingSlotsHoldUnturnedKeysAndRanks) {
  uint64_t seed = 2000;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int rotary_dim : {16, 6}) {
      for (const bool interleaved : {false, true}) {
        for (const int keep : {9, 20, 140}) {
          Case c{.dtype = dtype, .head_dim = 16, .keep = {keep, keep}, .n = keep + 30, .cap = keep};
          c.rule = {.by_position = keep == 20, .scored = true, .sinks = 2, .recent = 3};
          c.rule.rolling = true;
          c.rotary_dim = rotary_dim;
          c.interleaved = interleaved;
          Run(c, ++seed);
          Check(c, "seed " + std::to_string(seed));
          if (HasFatalFailure()) return;
          for (int h = 0; h < 2; ++h) {
            int expected = c.rule.sinks;
            const auto score = [&](int e) { return written_.scores[State(h, e)]; };
            for (int e = c.rule.sinks; e <= keep - c.rule.recent; ++e) {
              if (score(e) < score(expected)) expected = e;
            }
            EXPECT_EQ(written_.victims[Row(h)], expected);
          }
        }
      }
    }
  }
}

TEST_P(WritePagesTest, EqualScoresEvictTheLowerPosition) {
  Case c{.keep = {20}, .n = 30, .cap = 20};
  c.rule.scored = true;
  c.rule.sinks = 3;
  c.with_kept = c.with_scores = false;
  Run(c, 5);
  EXPECT_EQ(written_.victims[Row(0)], 3);
}

HYDRANT_FOR_EACH_BACKEND(WritePagesTest);

}  // namespace
}  // namespace hydrant
