// ShareBudget, AssignPages, CountBest, RetainedMass, KeptMass, KeepForMass and CombineCachedScores
// of every backend against their contracts, computed differently: shares by handing out one at a
// time, best entries by their rank among all, mass in double.
#include "kernels/ops/share_budget.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "tests/kernels/backend_test.h"
#include "tests/kernels/page_ids.h"

namespace hydrant {
namespace {

class ShareBudgetTest : public BackendTest {
 protected:
  std::vector<int32_t> Share(const std::vector<int32_t>& best, int base, int floor_ppm,
                             int guarded) {
    auto device = Upload(best);
    ShareBudgetArgs args;
    args.best = args.keep = device.data();
    args.heads = static_cast<int>(best.size());
    args.base = base;
    args.floor_ppm = floor_ppm;
    args.guarded = guarded;
    backend().ShareBudget(args);
    return device.Read();
  }
};

// Shares are the formula rounded to integers: each is less than one entry off, and every share that
// was rounded up has a remainder no smaller than those rounded down.
TEST_P(ShareBudgetTest, SharesAreTheFormulaRoundedByLargestRemainder) {
  const uint64_t seed = 31;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  for (const int heads : {1, 2, 3, 8, 32, 257, 1300}) {
    for (const int floor_ppm : {0, 200000, 333333, 999999, 1000000}) {
      const int base = static_cast<int>(rng() % 500);
      std::vector<int32_t> best(heads, 0);
      for (int i = 0; i < heads * base; ++i) ++best[rng() % (heads / 2 + 1)];
      const std::vector<int32_t> keep = Share(best, base, floor_ppm, 7);
      ASSERT_EQ(std::accumulate(keep.begin(), keep.end(), int64_t{0}), heads * (base + 7L));
      const long double alpha = floor_ppm / 1e6L;
      double least_up = 2.0, most_down = -1.0;
      for (int h = 0; h < heads; ++h) {
        const long double exact = alpha * base + (1 - alpha) * best[h];
        const long double off = keep[h] - 7 - exact;
        ASSERT_LT(std::abs(off), 1.0L) << "head " << h << " of " << heads;
        ASSERT_GE(keep[h] - 7, static_cast<int>(std::floor(alpha * base + 1e-9L)));
        const auto remainder = static_cast<double>(exact - std::floor(exact + 1e-9L));
        if (off > 1e-9L) {
          least_up = std::min(least_up, remainder);
        } else if (off < -1e-9L) {
          most_down = std::max(most_down, remainder);
        }
      }
      EXPECT_GE(least_up, most_down - 1e-9) << heads << " heads, floor " << floor_ppm;
    }
  }
}

TEST_P(ShareBudgetTest, EqualRemaindersGoToTheLowerHeads) {
  // 0.2 * 3 + 0.8 * best: 1.4, 1.4, 6.2 -> 1, 1, 6 and one left for head 0.
  EXPECT_EQ(Share({1, 1, 7}, 3, 200000, 0), (std::vector<int32_t>{2, 1, 6}));
  EXPECT_EQ(Share({9, 0, 0}, 3, 1000000, 2), (std::vector<int32_t>{5, 5, 5}));
  EXPECT_EQ(Share({9, 0, 0}, 3, 0, 0), (std::vector<int32_t>{9, 0, 0}));
}

// Layers are prefilled in order. After each layer a head keeps enough entries for its final budget,
// and the best entries counted at that point are among them.
TEST_P(ShareBudgetTest, WhileOthersFollowAHeadKeepsAllThatItMayBeGiven) {
  constexpr uint64_t kSeed = 43;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 200; ++round) {
    const int heads = 2 + static_cast<int>(random() % 12);
    const int32_t base = 1 + static_cast<int32_t>(random() % 20);
    const int32_t guarded = static_cast<int32_t>(random() % 4);
    const auto floor_ppm = static_cast<int32_t>(random() % 3 == 0 ? 0 : random() % 1000001);
    std::vector<std::pair<int, int>> entries;  // (score, head), all scores differ
    entries.reserve(static_cast<size_t>(heads) * 3 * base);
    for (int i = 0; i < heads * 3 * base; ++i) entries.emplace_back(i, i / (3 * base));
    for (size_t i = entries.size(); i > 1; --i)
      std::swap(entries[i - 1].first, entries[random() % i].first);
    const auto best_of = [&](int first_heads) {
      std::vector<std::pair<int, int>> there;
      for (const auto& entry : entries) {
        if (entry.second < first_heads) there.push_back(entry);
      }
      std::sort(there.rbegin(), there.rend());
      if (there.size() > static_cast<size_t>(heads) * base) there.resize(heads * base);
      std::vector<int32_t> best(first_heads, 0);
      for (const auto& entry : there) ++best[entry.second];
      return best;
    };
    const auto shares = [&](int first_heads) {
      std::vector<int32_t> keep(first_heads);
      auto best = Upload(best_of(first_heads));
      auto device_keep = Upload(keep);
      backend().ShareBudget({.best = best.data(),
                             .heads = first_heads,
                             .base = base,
                             .floor_ppm = floor_ppm,
                             .guarded = guarded,
                             .others_follow = first_heads < heads,
                             .keep = device_keep.data()});
      return device_keep.Read();
    };
    const std::vector<int32_t> at_last = shares(heads), best_at_last = best_of(heads);
    for (int first_heads = 1; first_heads < heads; ++first_heads) {
      const std::vector<int32_t> best = best_of(first_heads), keep = shares(first_heads);
      for (int h = 0; h < first_heads; ++h) {
        EXPECT_GE(keep[h], at_last[h]) << "round " << round << ", head " << h;
        EXPECT_GE(keep[h], best_at_last[h] + guarded) << "round " << round << ", head " << h;
        const double formula =
            (double{1} * floor_ppm * base + (1e6 - floor_ppm) * static_cast<double>(best[h])) / 1e6;
        EXPECT_EQ(keep[h], std::max<int64_t>(best[h], std::ceil(formula - 1e-9)) + guarded);
      }
    }
  }
}

HYDRANT_FOR_EACH_BACKEND(ShareBudgetTest);

// One slot of a pool with ragged heads, random scores and payments.
class PagedBudgetTest : public BackendTest {
 protected:
  static constexpr int kSlot = 1, kHeadDim = 8, kBlock = 4;

  struct Entry {
    int32_t position;
    float score;
    float received;
  };

  void Make(int layers, int heads, int n, bool few_scores, uint64_t seed) {
    layers_ = layers;
    heads_ = heads;
    n_ = n;
    std::mt19937_64 rng(seed);
    const int all = layers * heads;
    width_ = (n + kBlock - 1) / kBlock + 1;
    std::vector<int32_t> ids(all * width_ + 3);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), rng);
    num_blocks_ = static_cast<int>(ids.size());
    ids.resize(all * width_);
    blocks_ = WithStates(ids, num_blocks_);
    const size_t slots = static_cast<size_t>(num_blocks_) * kBlock;
    positions_.assign(slots, 0);
    scores_.assign(slots, INFINITY);  // scores past a head's length would win if read
    weights_.assign(2 * slots, 1.0f);
    lengths_.assign(2 * all, 0);
    entries_.assign(all, {});
    for (int h = 0; h < all; ++h) {
      const int length = static_cast<int>(rng() % (n + 1));
      lengths_[all + h] = length;
      std::vector<int32_t> order(n);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), rng);
      for (int e = 0; e < length; ++e) {
        Entry entry{order[e], std::normal_distribution<float>()(rng),
                    std::uniform_real_distribution<float>(0.0f, 1.0f)(rng)};
        if (few_scores) entry.score = static_cast<float>(rng() % 4) - 1.0f;
        if (rng() % 30 == 0) entry.score = kNan;
        if (rng() % 10 == 0) entry.received = 0.0f;
        positions_[blocks_[h * width_ + e / kBlock].data * kBlock + e % kBlock] = entry.position;
        scores_[State(h, e)] = entry.score;
        weights_[2 * State(h, e)] = entry.received;
        if (std::isnan(entry.score)) entry.score = -INFINITY;
        entries_[h].push_back(entry);
      }
    }
  }

  // Index of an entry's score. Heads are numbered over all layers.
  size_t State(int head, int entry) const {
    return blocks_[head * width_ + entry / kBlock].state * kBlock + entry % kBlock;
  }

  template <typename Args>
  void Fill(Args* args) {
    row_begin_.emplace(Upload(std::vector<int64_t>{0, 0}));
    row_width_.emplace(Upload(std::vector<int32_t>{width_, width_}));
    blocks_device_.emplace(Upload(blocks_));
    positions_device_.emplace(Upload(positions_));
    lengths_device_.emplace(Upload(lengths_));
    scores_device_.emplace(Upload(scores_));
    weights_device_.emplace(Upload(weights_));
    args->slot = kSlot;
    args->max_length = n_;
    args->pages = {.layout = {.dtype = DType::kF32, .head_dim = kHeadDim, .block_size = kBlock},
                   .positions = positions_device_->data(),
                   .scores = scores_device_->data(),
                   .log_weights = weights_device_->data()};
    args->tables = {.num_layers = layers_,
                    .num_kv_heads = heads_,
                    .blocks = blocks_device_->data(),
                    .row_begin = row_begin_->data(),
                    .row_width = row_width_->data(),
                    .lengths = lengths_device_->data()};
  }

  std::vector<float> Scores() { return scores_device_->Read(); }

  int layers_ = 0, heads_ = 0, n_ = 0, num_blocks_ = 0;
  int32_t width_ = 0;
  std::vector<PageIds> blocks_;
  std::vector<int32_t> positions_, lengths_;
  std::vector<float> scores_, weights_;
  std::vector<std::vector<Entry>> entries_;  // [layer * heads + head]

 private:
  std::optional<DeviceArray<int64_t>> row_begin_;
  std::optional<DeviceArray<PageIds>> blocks_device_;
  std::optional<DeviceArray<int32_t>> row_width_, positions_device_, lengths_device_;
  std::optional<DeviceArray<float>> scores_device_, weights_device_;
};

TEST_P(PagedBudgetTest, CountsTheBestOfAllHeadsOfTheLayers) {
  const uint64_t seed = 41;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  for (const auto& [layers, heads, n, few] :
       {std::tuple(1, 1, 5, false), std::tuple(1, 3, 16, true), std::tuple(3, 2, 65, false),
        std::tuple(2, 4, 300, true), std::tuple(4, 1, 700, false)}) {
    Make(layers, heads, n, few, seed + n);
    for (const int begin : {0, layers - 1}) {
      const int sinks = n / 16, recent = n / 8, count = (layers - begin) * heads;
      std::vector<std::tuple<float, int32_t, int>> open;  // ascending: worst first
      for (int h = 0; h < count; ++h) {
        for (const Entry& e : entries_[begin * heads + h])
          if (e.position >= sinks && e.position < n - recent)
            open.emplace_back(e.score, e.position, -h);
      }
      std::sort(open.begin(), open.end());
      for (const size_t total : {size_t{0}, size_t{1}, open.size() / 3, open.size()}) {
        if (total > open.size()) continue;
        std::vector<int32_t> expected(count, 0);
        for (size_t i = 0; i < total; ++i) ++expected[-std::get<2>(open[open.size() - 1 - i])];
        CountBestArgs args;
        Fill(&args);
        auto counts = Upload(std::vector<int32_t>(count, -5));
        args.layer_begin = begin;
        args.layer_end = layers;
        args.total = static_cast<int64_t>(total);
        args.sinks = sinks;
        args.recent = recent;
        args.next_position = n;
        args.counts = counts.data();
        backend().CountBest(args);
        EXPECT_EQ(counts.Read(), expected) << n << " tokens, " << total << " best";
      }
    }
  }
}

TEST_P(PagedBudgetTest, RetainedMassIsTheEntriesAttention) {
  Make(3, 2, 130, false, 43);
  RetainedMassArgs args;
  Fill(&args);
  auto mass = Upload(std::vector<float>(6, -1.0f));
  args.queries = 9;
  args.mass = mass.data();
  backend().RetainedMass(args);
  const std::vector<float> actual = mass.Read();
  for (int h = 0; h < 6; ++h) {
    double sum = 0;
    for (const Entry& e : entries_[h]) sum += e.received;
    EXPECT_NEAR(actual[h], sum / 9, 1e-6 * (1 + sum)) << "head " << h;
  }
}

TEST_P(PagedBudgetTest, KeptMassIsThePositionsAttention) {
  constexpr int kHeads = 3, kTokens = 300, kStride = 310;
  const uint64_t seed = 45;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  std::vector<float> received(kHeads * kStride, kNan);
  std::vector<int32_t> kept(kHeads * kTokens,
                            kStride - 1);  // past the count: the position of a NaN
  const std::vector<int32_t> keep = {0, 17, 300};
  std::vector<double> expected(kHeads, 0.0);
  for (int h = 0; h < kHeads; ++h) {
    for (int j = 0; j < kTokens; ++j)
      received[h * kStride + j] = std::uniform_real_distribution<float>(0.0f, 2.0f)(rng);
    std::vector<int32_t> order(kTokens);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), rng);
    for (int i = 0; i < keep[h]; ++i) {
      kept[h * kTokens + i] = order[i];
      expected[h] += received[h * kStride + order[i]] / 7.0;
    }
  }
  auto device_received = Upload(received);
  auto device_kept = Upload(kept);
  auto device_keep = Upload(keep);
  auto mass = Upload(std::vector<float>(kHeads, -1.0f));
  backend().KeptMass({.window_sums = device_received.data(),
                      .window_stride = kStride,
                      .kept = device_kept.data(),
                      .kept_stride = kTokens,
                      .keep = device_keep.data(),
                      .num_kv_heads = kHeads,
                      .queries = 7,
                      .mass = mass.data()});
  const std::vector<float> actual = mass.Read();
  for (int h = 0; h < kHeads; ++h)
    EXPECT_NEAR(actual[h], expected[h], 1e-6 * (1 + expected[h])) << "head " << h;
  // Without positions: the first entries.
  backend().KeptMass({.window_sums = device_received.data(),
                      .window_stride = kStride,
                      .keep = device_keep.data(),
                      .num_kv_heads = kHeads,
                      .queries = 7,
                      .mass = mass.data()});
  const std::vector<float> of_first = mass.Read();
  for (int h = 0; h < kHeads; ++h) {
    double sum = 0.0;
    for (int j = 0; j < keep[h]; ++j) sum += received[h * kStride + j] / 7.0;
    EXPECT_NEAR(of_first[h], sum, 1e-6 * (1 + sum)) << "head " << h;
  }
}

// The same bits as DeriveScores on the two parts.
TEST_P(PagedBudgetTest, SecondScoresAreAddedToScores) {
  Make(3, 2, 130, false, 46);
  RetainedMassArgs cache;
  Fill(&cache);
  const std::vector<float> before = Scores();
  const float of_score = 0.37f, of_second = 1.9f;
  backend().CombineCachedScores({.slot = cache.slot,
                                 .weight_score = of_score,
                                 .weight_second = of_second,
                                 .pages = cache.pages,
                                 .tables = cache.tables});
  auto second = before;
  for (size_t i = 0; i < second.size(); ++i) second[i] = weights_[2 * i];
  auto a = Upload(before), b = Upload(second), combined = Upload(before);
  backend().DeriveScores({.a = a.data(),
                          .b = b.data(),
                          .weight_a = of_score,
                          .weight_b = of_second,
                          .num_kv_heads = 1,
                          .n = static_cast<int>(before.size()),
                          .out = combined.data(),
                          .stride = static_cast<int64_t>(before.size())});
  const std::vector<float> expected = combined.Read(), actual = Scores();
  std::vector<bool> is_entry(before.size(), false);
  for (int h = 0; h < layers_ * heads_; ++h) {
    for (int e = 0; e < static_cast<int>(entries_[h].size()); ++e) is_entry[State(h, e)] = true;
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    const float wanted = is_entry[i] ? expected[i] : before[i];
    EXPECT_TRUE(actual[i] == wanted || (std::isnan(actual[i]) && std::isnan(wanted)))
        << i << ": " << actual[i] << " instead of " << wanted;
  }
}

TEST_P(PagedBudgetTest, KeepsTheEntriesThatTheMassNeeds) {
  const uint64_t seed = 47;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  for (const bool few : {false, true}) {
    Make(2, 3, 150, few, seed + few);
    const int sinks = 3, recent = 10, start = 20;
    for (const float min_mass : {0.05f, 1.0f, 2.5f, 4.0f, 9.0f}) {
      KeepForMassArgs args;
      Fill(&args);
      auto keep = Upload(std::vector<int32_t>(6, start));
      args.queries = 10;
      args.min_mass = min_mass;
      args.most = 70;
      args.sinks = sinks;
      args.recent = recent;
      args.next_position = n_;
      args.keep = keep.data();
      backend().KeepForMass(args);
      const std::vector<int32_t> actual = keep.Read();
      for (int h = 0; h < 6; ++h) {
        std::vector<std::tuple<bool, float, int32_t, float>> order;
        for (const Entry& e : entries_[h])
          order.emplace_back(e.position < sinks || e.position >= n_ - recent, e.score, e.position,
                             e.received);
        std::sort(order.rbegin(), order.rend());
        const auto mass_of = [&](int count) {
          double mass = 0;
          for (int i = 0; i < std::min<int>(count, order.size()); ++i)
            mass += std::get<3>(order[i]) / 10.0;
          return mass;
        };
        const int length = static_cast<int>(order.size());
        if (actual[h] == start) {  // was enough, or all entries
          EXPECT_TRUE(mass_of(start) > min_mass - 1e-6 || length <= start) << "head " << h;
        } else if (actual[h] == length) {
          EXPECT_LT(mass_of(std::min(70, length - 1)), min_mass + 1e-6) << "head " << h;
        } else {
          EXPECT_LE(actual[h], 70);
          EXPECT_GT(mass_of(actual[h]), min_mass - 1e-6) << "head " << h;
          EXPECT_LT(mass_of(actual[h] - 1), min_mass + 1e-6) << "head " << h;
        }
      }
    }
  }
}

// A slot with five pages per row, two layers of a model with three, and a list after all rows.
TEST_P(PagedBudgetTest, PagesAreAssignedFromTheEndOfTheListAndReturnedToIt) {
  constexpr int kWidth = 5, kLayers = 2, kHeads = 4, kAllHeads = 3 * kHeads, kBegin = 3;
  constexpr int kList = kBegin + kAllHeads * kWidth;
  const auto pages_of = [](int32_t entries) { return (entries + kBlock - 1) / kBlock; };
  std::vector<PageIds> table(kList + 40);
  for (size_t i = 0; i < table.size(); ++i)
    table[i] = {100 + static_cast<int32_t>(i), 500 - static_cast<int32_t>(i)};
  std::vector<int32_t> lengths(2 * kLayers * kHeads, 0);
  std::vector<PageIds> list(table.begin() + kList, table.end());
  std::vector<std::vector<PageIds>> rows(kLayers * kHeads);
  auto blocks = Upload(table);
  auto row_begin = Upload(std::vector<int64_t>{0, kBegin});
  auto row_width = Upload(std::vector<int32_t>{1, kWidth});
  auto unassigned = Upload(std::vector<int32_t>{7, static_cast<int32_t>(list.size())});
  const auto tables_of = [&](int32_t* device_lengths) {
    return SequenceTables{.num_layers = kLayers,
                          .num_kv_heads = kHeads,
                          .blocks = blocks.data(),
                          .row_begin = row_begin.data(),
                          .row_width = row_width.data(),
                          .lengths = device_lengths,
                          .unassigned = unassigned.data()};
  };
  const auto check = [&](const SequenceTables& tables) {
    const std::vector<PageIds> now = blocks.Read();
    for (int head = 0; head < kLayers * kHeads; ++head) {
      for (size_t i = 0; i < rows[head].size(); ++i)
        EXPECT_EQ(now[kBegin + head * kWidth + static_cast<int>(i)], rows[head][i])
            << "head " << head << " page " << i;
    }
    int32_t left[2];
    backend().CopyToHost(left, tables.unassigned, sizeof(left));
    EXPECT_EQ(left[0], 7) << "another slot's";
    ASSERT_EQ(left[1], static_cast<int32_t>(list.size()));
    EXPECT_TRUE(std::equal(list.begin(), list.end(), now.begin() + kList));
    for (int i = 0; i < kBegin; ++i) EXPECT_EQ(now[i], table[i]) << "another slot's";
  };
  const std::vector<std::vector<int32_t>> keeps = {{5, 1, 0, 9}, {17, 3, 19, 1}};
  for (int layer = 0; layer < kLayers; ++layer) {
    auto keep = Upload(keeps[layer]);
    auto device_lengths = Upload(lengths);
    const SequenceTables tables = tables_of(device_lengths.data());
    backend().AssignPages({.keep = keep.data(),
                           .block_size = kBlock,
                           .slot = kSlot,
                           .layer = layer,
                           .num_heads = kAllHeads,
                           .tables = tables,
                           .blocks = blocks.data()});
    for (int h = 0; h < kHeads; ++h) {
      for (int i = 0; i < pages_of(keeps[layer][h]); ++i) {
        rows[layer * kHeads + h].push_back(list.back());
        list.pop_back();
      }
      lengths[tables.HeadIndex(kSlot, layer, h)] = keeps[layer][h];
    }
    check(tables);
  }
  // Some heads keep less, some all, and one is asked to keep more than it has.
  std::vector<int32_t> keep = {1, 1, 0, 90, 8, 3, 16, 0};
  auto device_keep = Upload(keep);
  auto device_lengths = Upload(lengths);
  const SequenceTables tables = tables_of(device_lengths.data());
  backend().ReturnPages({.keep = device_keep.data(),
                         .block_size = kBlock,
                         .slot = kSlot,
                         .layer_end = kLayers,
                         .num_heads = kAllHeads,
                         .tables = tables,
                         .blocks = blocks.data()});
  keep[3] = 9;
  EXPECT_EQ(device_keep.Read(), keep);
  for (int head = 0; head < kLayers * kHeads; ++head) {
    const auto kept = static_cast<size_t>(pages_of(keep[head]));
    list.insert(list.end(), rows[head].begin() + static_cast<int64_t>(kept), rows[head].end());
    rows[head].resize(kept);
  }
  check(tables);
}

HYDRANT_FOR_EACH_BACKEND(PagedBudgetTest);

}  // namespace
}  // namespace hydrant
