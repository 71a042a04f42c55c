// SubGen of every backend against a double-precision model of algorithm 1 that works on token
// numbers instead of pages and uses the same random keys; and against the paper's theorems.
#include "kernels/ops/subgen.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/float16.h"
#include "kernels/victim.h"
#include "tests/kernels/backend_test.h"
#include "tests/kernels/page_ids.h"

namespace hydrant {
namespace {

constexpr int kSlots = 3, kLayers = 2, kSlot = 1, kLayer = 1;
using Row = std::vector<float>;

struct Case {
  DType dtype = DType::kF32;
  int heads = 1;
  int head_dim = 8;
  int block_size = 16;
  SubGenRule rule = {};
  int n = 0;
};

struct Tokens {
  std::vector<std::vector<Row>> k, v;  // [heads][n]
};

float RoundTo(DType dtype, float value) {
  if (dtype == DType::kF16) return F16ToFloat(FloatToF16(value));
  if (dtype == DType::kBF16) return BF16ToFloat(FloatToBF16(value));
  return value;
}

// Keys scattered by `spread` around `centres` points (0: around the origin),
// values of unequal norms.
Tokens DrawTokens(const Case& c, int centres, float spread, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  const auto draw = [&](float scale) {
    Row row(c.head_dim);
    for (float& x : row) x = scale * normal(engine);
    return row;
  };
  Tokens tokens;
  for (int h = 0; h < c.heads; ++h) {
    std::vector<Row> points;
    points.reserve(centres);
    for (int i = 0; i < centres; ++i) points.push_back(draw(2.0f));
    tokens.k.emplace_back();
    tokens.v.emplace_back();
    for (int j = 0; j < c.n; ++j) {
      Row key = draw(spread);
      if (centres > 0) {
        const Row& point = points[engine() % centres];
        for (int d = 0; d < c.head_dim; ++d) key[d] += point[d];
      }
      tokens.k[h].push_back(key);
      tokens.v[h].push_back(draw(0.2f + static_cast<float>(engine() % 4)));
    }
  }
  return tokens;
}

double SquaredDistance(const Row& a, const Row& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return sum;
}

// Contents of an entry of a built cache.
struct Entry {
  int32_t position = 0;
  Row key, value;
  float score = 0.0f;
  float numerator = 0.0f, denominator = 0.0f;
};

// The model of one head.
class SlowSubGen {
 public:
  SlowSubGen(const Case& c, int head, std::vector<Row> k, std::vector<Row> v)
      : c_(c), head_(head), k_(std::move(k)), v_(std::move(v)) {
    for (std::vector<Row>* rows : {&k_, &v_}) {
      for (Row& row : *rows)
        for (float& x : row) x = RoundTo(c.dtype, x);
    }
    values_.assign(c.rule.value_samples, -1);
    clusters_.resize(c.rule.max_clusters);
    radius_squared_ = c.rule.radius_squared;
    for (int j = c.rule.sinks; j < c.n - c.rule.recent; ++j) Stream(j);
  }

  struct Cluster {
    int centre = -1;
    std::vector<int> members, samples;
  };
  const std::vector<Cluster>& clusters() const { return clusters_; }
  double radius() const { return std::sqrt(radius_squared_); }
  int widenings() const { return widenings_; }

  std::vector<Entry> Entries() const {
    const Row zeros(c_.head_dim, 0.0f);
    std::vector<Entry> entries(c_.rule.Capacity(), {-1, zeros, zeros, 0.0f, -INFINITY, -INFINITY});
    const int sinks = c_.rule.sinks, recent = c_.rule.recent, exact = sinks + recent;
    for (int p = 0; p < sinks; ++p) entries[p] = {p, k_[p], v_[p], 0.0f, 0.0f, 0.0f};
    for (int p = c_.n - recent; p < c_.n; ++p)
      entries[sinks + p % recent] = {p, k_[p], v_[p], 0.0f, 0.0f, 0.0f};
    entries[0].score = static_cast<float>(mu_);
    entries[1].score = static_cast<float>(radius_squared_);
    const Row origin(c_.head_dim, 0.0f);
    for (int j = 0; j < c_.rule.value_samples; ++j) {
      if (values_[j] < 0) continue;
      const double norm = SquaredDistance(v_[values_[j]], origin);
      entries[exact + j] = {values_[j],
                            k_[values_[j]],
                            v_[values_[j]],
                            static_cast<float>(norm),
                            static_cast<float>(std::log(mu_ / (c_.rule.value_samples * norm))),
                            -INFINITY};
    }
    for (int i = 0; i < c_.rule.max_clusters; ++i) {
      const Cluster& cluster = clusters_[i];
      if (cluster.centre < 0) continue;
      const double count = static_cast<double>(cluster.members.size());
      for (int j = 0; j < c_.rule.cluster_samples; ++j) {
        Entry& entry = entries[exact + c_.rule.value_samples + i * c_.rule.cluster_samples + j];
        entry.position = cluster.samples[j];
        entry.key = k_[cluster.samples[j]];
        entry.denominator = static_cast<float>(std::log(count / c_.rule.cluster_samples));
        if (j > 0) continue;
        entry.value = k_[cluster.centre];
        entry.score = static_cast<float>(count);
      }
    }
    return entries;
  }

 private:
  uint64_t Bits(SubGenPurpose purpose, int position, int index) const {
    return SubBits(RandomBits(SubGenKey(c_.rule, purpose, kLayer, head_), position), index);
  }
  // fp32, as in the contract: a radius equal to a distance contains it.
  float Distance(int a, int b) const { return static_cast<float>(SquaredDistance(k_[a], k_[b])); }

  void Stream(int token) {
    const double norm = SquaredDistance(v_[token], Row(c_.head_dim, 0.0f));
    for (int j = 0; j < c_.rule.value_samples && norm > 0; ++j) {
      if (RandomUnit(Bits(SubGenPurpose::kValueSample, token, j)) < norm / (mu_ + norm))
        values_[j] = token;
    }
    mu_ += norm;
    if (Place(token)) return;
    Widen(token);
    EXPECT_TRUE(Place(token));
  }

  // Joins or founds a cluster, if possible.
  bool Place(int token) {
    Cluster* nearest = nullptr;
    Cluster* free = nullptr;
    for (Cluster& cluster : clusters_) {
      if (cluster.centre < 0) {
        if (free == nullptr) free = &cluster;
      } else if (nearest == nullptr ||
                 Distance(token, cluster.centre) < Distance(token, nearest->centre)) {
        nearest = &cluster;
      }
    }
    if (nearest != nullptr && Distance(token, nearest->centre) <= radius_squared_) {
      nearest->members.push_back(token);
      for (int j = 0; j < c_.rule.cluster_samples; ++j) {
        const uint64_t bits = Bits(SubGenPurpose::kClusterSample, token, j);
        if (RandomBelow(bits, nearest->members.size()) == 0) nearest->samples[j] = token;
      }
      return true;
    }
    if (free == nullptr) return false;
    *free = {token, {token}, std::vector<int>(c_.rule.cluster_samples, token)};
    return true;
  }

  void Widen(int token) {
    ++widenings_;
    float least = INFINITY;
    for (size_t i = 0; i < clusters_.size(); ++i) {
      least = std::min(least, Distance(token, clusters_[i].centre));
      for (size_t j = 0; j < i; ++j)
        least = std::min(least, Distance(clusters_[i].centre, clusters_[j].centre));
    }
    if (radius_squared_ == 0) radius_squared_ = least;
    while (radius_squared_ < least) radius_squared_ *= c_.rule.growth * c_.rule.growth;
    for (size_t i = 0; i < clusters_.size(); ++i) {
      for (size_t j = i + 1; j < clusters_.size() && clusters_[i].centre >= 0; ++j) {
        if (clusters_[j].centre < 0) continue;
        if (Distance(clusters_[i].centre, clusters_[j].centre) <= radius_squared_)
          Absorb(&clusters_[i], static_cast<int>(j), token);
      }
    }
  }
  void Absorb(Cluster* into, int from_index, int token) {
    Cluster& from = clusters_[from_index];
    const size_t all = into->members.size() + from.members.size();
    for (int j = 0; j < c_.rule.cluster_samples; ++j) {
      const uint64_t bits =
          Bits(SubGenPurpose::kMerge, token, from_index * c_.rule.cluster_samples + j);
      if (RandomBelow(bits, all) < from.members.size()) into->samples[j] = from.samples[j];
    }
    into->members.insert(into->members.end(), from.members.begin(), from.members.end());
    from = {};
  }

  const Case c_;
  const int head_;
  std::vector<Row> k_, v_;
  double mu_ = 0.0;
  float radius_squared_ = 0.0f;
  int widenings_ = 0;
  std::vector<int> values_;
  std::vector<Cluster> clusters_;
};

class SubGenTest : public BackendTest {
 protected:
  // Pages and tables in device memory, poisoned.
  struct World {
    World(SubGenTest& test, const Case& c, uint64_t seed) : c(c), test(&test) {
      width = (std::max(c.rule.Capacity(), 1) + c.block_size - 1) / c.block_size;
      const int rows = kLayers * c.heads * width;
      layout = {c.dtype, c.head_dim, c.block_size, rows + 5};
      std::vector<int32_t> ids(layout.num_blocks);
      std::iota(ids.begin(), ids.end(), 0);
      std::shuffle(ids.begin(), ids.end(), std::mt19937_64(seed));
      ids.resize(rows);
      blocks_host = WithStates(ids, layout.num_blocks);
      const size_t slots = static_cast<size_t>(layout.num_blocks) * c.block_size;
      const size_t bytes = BytesOf(c.dtype, slots * c.head_dim);
      const size_t table = static_cast<size_t>(kSlots) * kLayers * c.heads;
      Put(&keys, std::vector<uint8_t>(bytes, 0xFF));  // NaN in every dtype
      Put(&values, std::vector<uint8_t>(bytes, 0xFF));
      Put(&positions, std::vector<int32_t>(slots, -9));
      Put(&scores, std::vector<float>(slots, kNan));
      Put(&log_weights, std::vector<float>(2 * slots, kNan));
      Put(&blocks, blocks_host);
      Put(&row_begin, std::vector<int64_t>(kSlots, 0));
      Put(&row_width, std::vector<int32_t>(kSlots, width));
      Put(&caps, std::vector<int32_t>(table, c.rule.Capacity()));
      Put(&lengths, std::vector<int32_t>(table, 0));
      Put(&victims, std::vector<int32_t>(table, -1));
      DecodeRule rule;
      rule.recent = c.rule.recent;
      rule.weighted = true;
      std::vector<uint8_t> bytes_of_rules(kSlots * sizeof(DecodeRule));
      std::vector<uint8_t> bytes_of_subgens(kSlots * sizeof(SubGenRule));
      for (int slot = 0; slot < kSlots; ++slot) {
        std::memcpy(&bytes_of_rules[slot * sizeof(rule)], &rule, sizeof(rule));
        std::memcpy(&bytes_of_subgens[slot * sizeof(c.rule)], &c.rule, sizeof(c.rule));
      }
      Put(&rules, bytes_of_rules);
      Put(&subgens, bytes_of_subgens);
    }
    template <typename T>
    void Put(std::unique_ptr<DeviceArray<T>>* array, std::vector<T> host) {
      *array = std::make_unique<DeviceArray<T>>(test->backend(), std::move(host));
    }
    KvPages Pages() const {
      return {layout,         keys->data(),       values->data(), positions->data(),
              scores->data(), log_weights->data()};
    }
    SequenceTables Tables() const {
      SequenceTables t;
      t.num_layers = kLayers;
      t.num_kv_heads = c.heads;
      t.blocks = blocks->data();
      t.row_begin = row_begin->data();
      t.row_width = row_width->data();
      t.caps = caps->data();
      t.lengths = lengths->data();
      t.victims = victims->data();
      t.rules = reinterpret_cast<const DecodeRule*>(rules->data());
      return t;
    }
    size_t Slot(int head, int entry) const {
      return PageIndex(layout, &blocks_host[(kLayer * c.heads + head) * width], entry);
    }
    // [heads][capacity]
    std::vector<std::vector<Entry>> Entries() const {
      const std::vector<uint8_t> k = keys->Read(), v = values->Read();
      const std::vector<int32_t> p = positions->Read();
      const std::vector<float> s = scores->Read(), w = log_weights->Read();
      std::vector<std::vector<Entry>> heads(c.heads);
      for (int h = 0; h < c.heads; ++h) {
        for (int e = 0; e < c.rule.Capacity(); ++e) {
          const size_t slot = Slot(h, e);
          const size_t state = StateSlot(slot, c.block_size, layout.num_blocks);
          Entry entry = {p[slot], {}, {}, s[state], w[2 * state], w[2 * state + 1]};
          for (int d = 0; d < c.head_dim; ++d) {
            entry.key.push_back(Element(k, slot * c.head_dim + d));
            entry.value.push_back(Element(v, slot * c.head_dim + d));
          }
          heads[h].push_back(entry);
        }
      }
      return heads;
    }
    float Element(const std::vector<uint8_t>& bytes, size_t i) const {
      float x = 0.0f;
      uint16_t half = 0;
      if (c.dtype == DType::kF32) {
        std::memcpy(&x, &bytes[4 * i], 4);
        return x;
      }
      std::memcpy(&half, &bytes[2 * i], 2);
      return c.dtype == DType::kF16 ? F16ToFloat(half) : BF16ToFloat(half);
    }
    // All memory that an operation may write, as bytes.
    std::vector<std::vector<uint8_t>> Bytes() const {
      std::vector<std::vector<uint8_t>> all;
      const auto add = [&all](const auto& host) {
        std::vector<uint8_t> bytes(host.size() * sizeof(host[0]));
        std::memcpy(bytes.data(), host.data(), bytes.size());
        all.push_back(std::move(bytes));
      };
      add(keys->Read());
      add(values->Read());
      add(positions->Read());
      add(scores->Read());
      add(log_weights->Read());
      add(lengths->Read());
      add(victims->Read());
      return all;
    }

    const Case c;
    SubGenTest* test;
    KvLayout layout;
    int width = 0;
    std::vector<PageIds> blocks_host;
    std::unique_ptr<DeviceArray<uint8_t>> keys, values, rules, subgens;
    std::unique_ptr<DeviceArray<PageIds>> blocks;
    std::unique_ptr<DeviceArray<int32_t>> positions, row_width, caps, lengths, victims;
    std::unique_ptr<DeviceArray<float>> scores, log_weights;
    std::unique_ptr<DeviceArray<int64_t>> row_begin;
  };

  // Builds from the first n tokens, with NaN in spare rows.
  void Build(const World& world, const Tokens& tokens, int n) {
    const Case& c = world.c;
    const int64_t stride = static_cast<int64_t>(n) * c.head_dim + 5;
    std::vector<float> k(c.heads * stride, kNan), v(c.heads * stride, kNan);
    for (int h = 0; h < c.heads; ++h) {
      for (int j = 0; j < n; ++j) {
        std::copy(tokens.k[h][j].begin(), tokens.k[h][j].end(),
                  k.begin() + h * stride + j * c.head_dim);
        std::copy(tokens.v[h][j].begin(), tokens.v[h][j].end(),
                  v.begin() + h * stride + j * c.head_dim);
      }
    }
    auto k_device = Upload(k), v_device = Upload(v);
    backend().SubGenBuild({.k = k_device.data(),
                           .v = v_device.data(),
                           .kv_head_stride = stride,
                           .n = n,
                           .rule = c.rule,
                           .slot = kSlot,
                           .layer = kLayer,
                           .pages = world.Pages(),
                           .tables = world.Tables()});
    ASSERT_TRUE(backend().Synchronize().ok()) << backend().Synchronize();
  }

  // A decode step with the token `position`: SubGenInsert, then DecodeAttention,
  // with a padding row.
  void Step(const World& world, const Tokens& tokens, int position) {
    const Case& c = world.c;
    std::vector<float> k(c.heads * c.head_dim, kNan), v = k;
    for (int h = 0; h < c.heads; ++h) {
      k.insert(k.end(), tokens.k[h][position].begin(), tokens.k[h][position].end());
      v.insert(v.end(), tokens.v[h][position].begin(), tokens.v[h][position].end());
    }
    auto k_device = Upload(k), v_device = Upload(v), q = Upload(k);
    auto slots = Upload(std::vector<int32_t>{-1, kSlot});
    auto positions = Upload(std::vector<int32_t>{0, position});
    auto out = Output(k.size());
    Insert(world, slots.data(), positions.data(), 2);
    backend().DecodeAttention({.num_rows = 2,
                               .slots = slots.data(),
                               .positions = positions.data(),
                               .q = q.data(),
                               .k = k_device.data(),
                               .v = v_device.data(),
                               .layer = kLayer,
                               .num_heads = c.heads,
                               .scale = 0.25f,
                               .pages = world.Pages(),
                               .tables = world.Tables(),
                               .max_entries = c.rule.Capacity(),
                               .weighted = true,
                               .out = out.data()});
    const std::vector<float> attended = out.Read();
    for (size_t i = attended.size() / 2; i < attended.size(); ++i)
      ASSERT_TRUE(std::isfinite(attended[i])) << "position " << position << " element " << i;
  }
  void Insert(const World& world, const int32_t* slots, const int32_t* positions, int rows) {
    backend().SubGenInsert({.num_rows = rows,
                            .slots = slots,
                            .positions = positions,
                            .rules = reinterpret_cast<const SubGenRule*>(world.subgens->data()),
                            .layer = kLayer,
                            .pages = world.Pages(),
                            .tables = world.Tables()});
  }

  void CheckAgainstModel(const Case& c, const Tokens& tokens, const World& world) {
    const auto actual = world.Entries();
    const std::vector<int32_t> lengths = world.lengths->Read();
    for (int h = 0; h < c.heads; ++h) {
      SCOPED_TRACE("head " + std::to_string(h));
      EXPECT_EQ(lengths[world.Tables().HeadIndex(kSlot, kLayer, h)], c.rule.Capacity());
      const std::vector<Entry> expected = SlowSubGen(c, h, tokens.k[h], tokens.v[h]).Entries();
      for (int e = 0; e < c.rule.Capacity(); ++e) {
        SCOPED_TRACE("entry " + std::to_string(e));
        const Entry &a = actual[h][e], &b = expected[e];
        ASSERT_EQ(a.position, b.position);
        if (b.position >= 0) {
          ASSERT_EQ(a.key, b.key);
          ASSERT_EQ(a.value, b.value);
        }
        for (int d = 0; d < c.head_dim; ++d)
          ASSERT_TRUE(std::isfinite(a.key[d]) && std::isfinite(a.value[d]));
        ASSERT_NEAR(a.score, b.score, 1e-5 * std::abs(b.score));
        ExpectLog(a.numerator, b.numerator);
        ExpectLog(a.denominator, b.denominator);
      }
    }
  }
  // Contents of kSlot's heads, as bits, without slots past the capacity.
  static std::vector<uint32_t> Essential(const World& world) {
    std::vector<uint32_t> words;
    for (const std::vector<Entry>& head : world.Entries()) {
      for (const Entry& entry : head) {
        words.push_back(static_cast<uint32_t>(entry.position));
        for (const Row* row : {&entry.key, &entry.value})
          for (const float x : *row) words.push_back(std::bit_cast<uint32_t>(x));
        for (const float x : {entry.score, entry.numerator, entry.denominator})
          words.push_back(std::bit_cast<uint32_t>(x));
      }
    }
    return words;
  }
  static void ExpectLog(float actual, float expected) {
    if (std::isinf(expected)) {
      EXPECT_EQ(actual, expected);
    } else {
      EXPECT_NEAR(actual, expected, 2e-5);
    }
  }
};

HYDRANT_FOR_EACH_BACKEND(SubGenTest);

const SubGenRule kRules[] = {
    {.recent = 5, .value_samples = 7, .cluster_samples = 3, .max_clusters = 6, .seed = 11},
    {.recent = 2, .value_samples = 1, .cluster_samples = 1, .max_clusters = 1, .seed = 12},
    {.recent = 16, .value_samples = 33, .cluster_samples = 1, .max_clusters = 15, .seed = 13},
    {.recent = 9,
     .value_samples = 2,
     .cluster_samples = 40,
     .max_clusters = 4,
     .radius_squared = 0.25f,
     .seed = 14},
    {.recent = 3,
     .value_samples = 4,
     .cluster_samples = 4,
     .max_clusters = 12,
     .radius_squared = 9.0f,
     .seed = ~uint64_t{0}},
    {.sinks = 3,
     .recent = 4,
     .value_samples = 3,
     .cluster_samples = 2,
     .max_clusters = 11,
     .growth = 1.25f,
     .seed = 16},
};

TEST_P(SubGenTest, BuildMatchesTheModel) {
  int trial = 0;
  for (const SubGenRule& rule : kRules) {
    for (const int centres : {0, 4}) {
      for (const int extra : {0, 1, 60}) {
        Case c{.rule = rule, .n = rule.Capacity() + extra};
        c.dtype = trial % 3 == 0 ? DType::kF32 : trial % 3 == 1 ? DType::kF16 : DType::kBF16;
        c.heads = 1 + trial % 3;
        c.head_dim = trial % 5 == 0 ? 19 : trial % 5 == 1 ? 64 : 8;
        c.block_size = trial % 2 == 0 ? 16 : 1 + trial % 7;
        const uint64_t seed = 700 + trial++;
        SCOPED_TRACE("seed " + std::to_string(seed));
        const Tokens tokens = DrawTokens(c, centres, centres > 0 ? 0.2f : 1.0f, seed);
        const World world(*this, c, seed);
        ASSERT_NO_FATAL_FAILURE(Build(world, tokens, c.n));
        ASSERT_NO_FATAL_FAILURE(CheckAgainstModel(c, tokens, world));
      }
    }
  }
}

// A longer stream with a radius that grows repeatedly.
TEST_P(SubGenTest, LongStreamMatchesTheModel) {
  Case c{.heads = 2, .head_dim = 6, .rule = kRules[0], .n = 600};
  Tokens tokens = DrawTokens(c, 0, 1.0f, 5);
  for (int j = 0; j < c.n; ++j)
    for (float& x : tokens.k[0][j]) x *= std::exp2(static_cast<float>(j) / 60.0f);
  ASSERT_GE(SlowSubGen(c, 0, tokens.k[0], tokens.v[0]).widenings(), 5);
  const World world(*this, c, 5);
  ASSERT_NO_FATAL_FAILURE(Build(world, tokens, c.n));
  CheckAgainstModel(c, tokens, world);
}

// A head that was full until now: built from its own pages, in place.
TEST_P(SubGenTest, BuildFromPagesEqualsBuildFromRows) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const SubGenRule& rule : kRules) {
      const Case c{.dtype = dtype, .heads = 2, .block_size = 7, .rule = rule, .n = rule.Capacity()};
      const Tokens tokens = DrawTokens(c, 3, 0.3f, 21);
      const World from_rows(*this, c, 22), from_pages(*this, c, 22);
      ASSERT_NO_FATAL_FAILURE(Build(from_rows, tokens, c.n));
      auto keep = Upload(std::vector<int32_t>(c.heads, c.n));
      std::vector<float> k, v;
      for (int h = 0; h < c.heads; ++h) {
        for (int j = 0; j < c.n; ++j) {
          k.insert(k.end(), tokens.k[h][j].begin(), tokens.k[h][j].end());
          v.insert(v.end(), tokens.v[h][j].begin(), tokens.v[h][j].end());
        }
      }
      auto k_device = Upload(k), v_device = Upload(v);
      backend().WritePages({.k = k_device.data(),
                            .v = v_device.data(),
                            .kv_head_stride = static_cast<int64_t>(c.n) * c.head_dim,
                            .keep = keep.data(),
                            .n = c.n,
                            .slot = kSlot,
                            .layer = kLayer,
                            .pages = from_pages.Pages(),
                            .tables = from_pages.Tables()});
      backend().SubGenBuild({.n = c.n,
                             .rule = rule,
                             .slot = kSlot,
                             .layer = kLayer,
                             .pages = from_pages.Pages(),
                             .tables = from_pages.Tables()});
      ASSERT_TRUE(backend().Synchronize().ok());
      EXPECT_EQ(Essential(from_pages), Essential(from_rows)) << "seed 21";
    }
  }
}

// Decoding the rest of a prompt gives the same bits as building from all of it at once.
TEST_P(SubGenTest, InsertsEqualBuildingAtOnce) {
  int trial = 0;
  for (const SubGenRule& rule : kRules) {
    Case c{.rule = rule, .n = rule.Capacity() + 70};
    c.dtype = trial % 3 == 0 ? DType::kBF16 : trial % 3 == 1 ? DType::kF32 : DType::kF16;
    c.heads = 1 + trial % 2;
    c.block_size = 16 - trial;
    const uint64_t seed = 31 + trial++;
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Tokens tokens = DrawTokens(c, trial % 2 == 0 ? 0 : 5, 0.7f, seed);
    const World at_once(*this, c, seed), step_by_step(*this, c, seed);
    ASSERT_NO_FATAL_FAILURE(Build(at_once, tokens, c.n));
    ASSERT_NO_FATAL_FAILURE(CheckAgainstModel(c, tokens, at_once));
    const int first = rule.Capacity() + 3;
    ASSERT_NO_FATAL_FAILURE(Build(step_by_step, tokens, first));
    for (int p = first; p < c.n; ++p) ASSERT_NO_FATAL_FAILURE(Step(step_by_step, tokens, p));
    EXPECT_EQ(Essential(step_by_step), Essential(at_once));
  }
}

// Rows below their caps, rows with other rules, padding: no bit changes.
TEST_P(SubGenTest, InsertLeavesOtherRowsAlone) {
  const Case c{.heads = 2, .rule = kRules[0], .n = 60};
  const Tokens tokens = DrawTokens(c, 0, 1.0f, 41);
  World world(*this, c, 41);
  ASSERT_NO_FATAL_FAILURE(Build(world, tokens, c.n));
  const auto before = world.Bytes();
  auto slots = Upload(std::vector<int32_t>{-1, 0, kSlot});  // slot 0 is empty, below its cap
  auto positions = Upload(std::vector<int32_t>{0, 3, c.n});
  Insert(world, slots.data(), positions.data(), 2);
  EXPECT_EQ(world.Bytes(), before);
  const DecodeRule other;
  backend().CopyToDevice(world.rules->data() + kSlot * sizeof(other), &other, sizeof(other));
  Insert(world, slots.data(), positions.data(), 3);
  EXPECT_EQ(world.Bytes(), before);
}

// NaN and infinite keys and values make only their sequence's output meaningless.
TEST_P(SubGenTest, NumbersThatAreNoneDoNotHang) {
  for (const float poison : {kNan, INFINITY, -INFINITY}) {
    const Case c{.rule = kRules[0], .n = 90};
    Tokens tokens = DrawTokens(c, 0, 1.0f, 51);
    for (int j = 3; j < c.n; j += 2) tokens.k[0][j][j % 8] = tokens.v[0][j][j % 8] = poison;
    const World world(*this, c, 51);
    ASSERT_NO_FATAL_FAILURE(Build(world, tokens, c.n));
    double counted = 0;
    for (int i = 0; i < c.rule.max_clusters; ++i)
      counted += world.Entries()[0][c.rule.ClusterEntry(i)].score;
    EXPECT_EQ(counted, c.n - c.rule.recent) << poison;
  }
}

// Lemma 2, with the doubled radius: centres are more than the radius apart, every key is counted
// once and lies within twice the radius of its centre, and at most m clusters are used.
TEST_P(SubGenTest, ClustersCoverTheKeys) {
  for (const int centres : {0, 3}) {
    Case c{.head_dim = 4, .rule = kRules[4], .n = 200};
    c.rule.radius_squared = 0.01f;
    c.rule.growth = 2.0f;
    const Tokens tokens = DrawTokens(c, centres, 1.0f, 61);
    const World world(*this, c, 61);
    ASSERT_NO_FATAL_FAILURE(Build(world, tokens, c.n));
    const std::vector<Entry> entries = world.Entries()[0];
    const double radius_squared = entries[kSubGenRadiusEntry].score;
    EXPECT_GT(radius_squared, 0.02) << "it was to be widened";
    std::vector<Row> found;
    double counted = 0;
    for (int i = 0; i < c.rule.max_clusters; ++i) {
      const Entry& first = entries[c.rule.ClusterEntry(i)];
      counted += first.score;
      if (first.score == 0) continue;
      for (const Row& other : found) EXPECT_GT(SquaredDistance(first.value, other), radius_squared);
      found.push_back(first.value);
    }
    EXPECT_EQ(counted, c.n - c.rule.recent);
    for (int j = 0; j < c.n - c.rule.recent; ++j) {
      double nearest = INFINITY;
      for (const Row& centre : found)
        nearest = std::min(nearest, SquaredDistance(tokens.k[0][j], centre));
      EXPECT_LE(nearest, 4 * radius_squared) << "key " << j;
    }
  }
}

// Keys of 5 clusters take 5, for any number of keys (theorem 1: memory O(d (m t + s))).
TEST_P(SubGenTest, ClusterableKeysTakeAsManyClustersAsTheyHave) {
  for (const int n : {100, 800}) {
    Case c{.head_dim = 8, .rule = {.recent = 4, .value_samples = 2, .cluster_samples = 1}, .n = n};
    c.rule.max_clusters = 32;
    c.rule.radius_squared = 1.0f;
    const Tokens tokens = DrawTokens(c, 5, 0.1f, 71);
    const World world(*this, c, 71);
    ASSERT_NO_FATAL_FAILURE(Build(world, tokens, c.n));
    int used = 0;
    for (int i = 0; i < c.rule.max_clusters; ++i)
      used += world.Entries()[0][c.rule.ClusterEntry(i)].score > 0 ? 1 : 0;
    EXPECT_EQ(used, 5) << n;
  }
}

// Numerator and denominator of the estimator for a query, and of dense attention.
struct Sums {
  std::vector<double> z;
  double tau = 0.0;
};

double Dot(const Row& a, const Row& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

Sums Estimate(const std::vector<Entry>& entries, const Row& q) {
  Sums sums = {std::vector<double>(q.size(), 0.0)};
  for (const Entry& entry : entries) {
    const double logit = Dot(q, entry.key);
    sums.tau += std::exp(logit + entry.denominator);
    for (size_t d = 0; d < q.size(); ++d)
      sums.z[d] += std::exp(logit + entry.numerator) * entry.value[d];
  }
  return sums;
}

Sums Dense(const Tokens& tokens, const Row& q) {
  Sums sums = {std::vector<double>(q.size(), 0.0)};
  for (size_t j = 0; j < tokens.k[0].size(); ++j) {
    const double weight = std::exp(Dot(q, tokens.k[0][j]));
    sums.tau += weight;
    for (size_t d = 0; d < q.size(); ++d) sums.z[d] += weight * tokens.v[0][j][d];
  }
  return sums;
}

// Oracle: over many seeds the means of z and tau are dense attention's, within five standard
// errors; also with merging clusters.
TEST_P(SubGenTest, EstimatesAreUnbiased) {
  constexpr int kSeeds = 20000;
  Case c{.head_dim = 4, .n = 60};
  c.rule = {.recent = 4, .value_samples = 8, .cluster_samples = 2, .max_clusters = 4};
  const Tokens tokens = DrawTokens(c, 0, 0.7f, 81);
  ASSERT_GE(SlowSubGen(c, 0, tokens.k[0], tokens.v[0]).widenings(), 2);
  const Row q = RandomFloats(c.head_dim, 82, 0.5f);
  const Sums dense = Dense(tokens, q);
  std::vector<double> sums(c.head_dim + 1, 0.0), squares(c.head_dim + 1, 0.0);
  for (int seed = 0; seed < kSeeds; ++seed) {
    c.rule.seed = seed;
    const World world(*this, c, 83);
    ASSERT_NO_FATAL_FAILURE(Build(world, tokens, c.n));
    Sums estimate = Estimate(world.Entries()[0], q);
    estimate.z.push_back(estimate.tau);
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] += estimate.z[i];
      squares[i] += estimate.z[i] * estimate.z[i];
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    const double mean = sums[i] / kSeeds;
    const double error = std::sqrt((squares[i] / kSeeds - mean * mean) / kSeeds);
    const double truth = i < dense.z.size() ? dense.z[i] : dense.tau;
    EXPECT_NEAR(mean, truth, 5 * error) << (i < dense.z.size() ? "z " : "tau ") << i;
    EXPECT_GT(error, 0.0) << "every seed gave the same";
    EXPECT_LT(5 * error, 0.1 * dense.tau) << "the bound says nothing";
  }
}

// Oracle: with radius 0, and a cluster for each distinct key, tau is exact.
TEST_P(SubGenTest, EqualKeysMakeTauExact) {
  Case c{.head_dim = 6, .n = 150};
  c.rule = {.recent = 6, .value_samples = 4, .cluster_samples = 3, .max_clusters = 10, .seed = 3};
  const Tokens tokens = DrawTokens(c, 10, 0.0f, 91);
  const Row q = RandomFloats(c.head_dim, 92, 0.3f);
  const World world(*this, c, 93);
  ASSERT_NO_FATAL_FAILURE(Build(world, tokens, c.n));
  const std::vector<Entry> entries = world.Entries()[0];
  EXPECT_EQ(entries[kSubGenRadiusEntry].score, 0.0f);
  const double tau = Dense(tokens, q).tau;
  EXPECT_NEAR(Estimate(entries, q).tau, tau, 1e-5 * tau);
}

// Theorem 1: |z / tau - Attn| <= epsilon |softmax| |V|_op in 99 of 100 runs, with sample sizes of
// its order; and not with one sample of each.
TEST_P(SubGenTest, ErrorIsWithinTheBoundOfTheTheorem) {
  constexpr int kSeeds = 100, kClusters = 3;
  constexpr double kEpsilon = 1.0;
  Case c{.head_dim = 4, .n = 1500};
  const Row q = RandomFloats(c.head_dim, 101, 0.5f);
  const double r = std::sqrt(Dot(q, q)), delta = 0.2;
  c.rule = {.recent = 2, .max_clusters = kClusters};
  c.rule.radius_squared = static_cast<float>(delta * delta);
  const Tokens tokens = DrawTokens(c, kClusters, 0.03f, 103);
  const Sums dense = Dense(tokens, q);
  double softmax_squared = 0.0, spectrum = 0.0;
  std::vector<double> direction(c.head_dim, 1.0);
  for (const Row& key : tokens.k[0])
    softmax_squared += std::pow(std::exp(Dot(q, key)) / dense.tau, 2);
  for (int round = 0; round < 100; ++round) {  // |V|_op^2 by power iteration
    std::vector<double> next(c.head_dim, 0.0);
    for (const Row& value : tokens.v[0]) {
      double dot = 0.0;
      for (int d = 0; d < c.head_dim; ++d) dot += value[d] * direction[d];
      for (int d = 0; d < c.head_dim; ++d) next[d] += dot * value[d];
    }
    spectrum = std::sqrt(std::inner_product(next.begin(), next.end(), next.begin(), 0.0));
    for (double& x : next) x /= spectrum;
    direction = next;
  }
  const double bound = kEpsilon * std::sqrt(softmax_squared * spectrum);
  const auto count_misses = [&] {
    int misses = 0;
    for (int seed = 0; seed < kSeeds; ++seed) {
      c.rule.seed = seed;
      const World world(*this, c, 104);
      Build(world, tokens, c.n);
      const Sums estimate = Estimate(world.Entries()[0], q);
      double error = 0.0;
      for (int d = 0; d < c.head_dim; ++d)
        error += std::pow(estimate.z[d] / estimate.tau - dense.z[d] / dense.tau, 2);
      misses += std::sqrt(error) > bound ? 1 : 0;
    }
    return misses;
  };
  c.rule.value_samples = static_cast<int>(9 * c.head_dim / (kEpsilon * kEpsilon));
  c.rule.cluster_samples =
      static_cast<int>(std::ceil(std::exp(2 * delta * r) * std::log(c.n) / (kEpsilon * kEpsilon)));
  EXPECT_LE(count_misses(), 1);
  c.rule.value_samples = c.rule.cluster_samples = 1;
  EXPECT_GE(count_misses(), 10);
}

}  // namespace
}  // namespace hydrant
