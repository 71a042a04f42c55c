// Decode attention of a backend (HYDRANT_TEST_BACKEND) against two oracles: a model of one head in
// double precision, without pages or vectors, and the reference backend. Dead slots and foreign
// blocks hold NaN, which must be neither read nor overwritten.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/float16.h"
#include "kernels/page_row.h"
#include "kernels/reference/ops.h"
#include "kernels/victim.h"
#include "tests/kernels/backend_test.h"
#include "tests/kernels/paged_pool.h"

namespace hydrant {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr uint32_t kSeed = 20240607;
constexpr int kLayers = 2;
constexpr int kLayer = 1;

using Rng = std::mt19937;

float Normal(Rng& rng) { return std::normal_distribution<float>()(rng); }

std::vector<float> Normals(Rng& rng, size_t n, float scale = 1.0f) {
  std::vector<float> v(n);
  for (float& x : v) x = Normal(rng) * scale;
  return v;
}

struct Shape {
  int num_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 16;
  int block_size = 16;
  DType dtype = DType::kF32;
  int group() const { return num_heads / num_kv_heads; }
};

std::string NameOf(const Shape& s) {
  return std::string(DTypeName(s.dtype)) + "_h" + std::to_string(s.num_heads) + "_kv" +
         std::to_string(s.num_kv_heads) + "_d" + std::to_string(s.head_dim) + "_b" +
         std::to_string(s.block_size);
}

// A pool of sequences, and the rotation tables of rolling rows.
struct World : PagedPool {
  Shape shape;
  std::vector<float> cos, sin;  // of rolling rows
  Rotary rotary;                // without the tables

  // Assigns `width` blocks to every head of every sequence.
  World(const Shape& s, int num_seqs, int width, Rng& rng)
      : PagedPool({.num_slots = num_seqs,
                   .num_layers = kLayers,
                   .num_kv_heads = s.num_kv_heads,
                   .width = width,
                   .dtype = s.dtype,
                   .head_dim = s.head_dim,
                   .block_size = s.block_size},
                  rng()),
        shape(s) {}

  size_t Head(int seq, int kv_head) const { return PagedPool::Head(seq, kLayer, kv_head); }
  size_t Slot(int seq, int kv_head, int entry) const { return Place(seq, kLayer, kv_head, entry); }
  // Index of an entry's score and log weights.
  using PagedPool::State;
  size_t State(int seq, int kv_head, int entry) const { return State(Slot(seq, kv_head, entry)); }
  void SetEntry(int seq, int kv_head, int entry, const float* k, const float* v, int32_t position,
                float score) {
    const size_t slot = Slot(seq, kv_head, entry);
    StoreRow(keys, slot, k);
    StoreRow(values, slot, v);
    positions[slot] = position;
    scores[State(slot)] = score;
    if (IsWeighted(seq)) SetLogWeights(slot, 0.0f, 0.0f);
  }
  bool IsWeighted(int seq) const { return !log_weights.empty() && rules[seq].weighted; }
  void SetLogWeights(size_t slot, float numerator, float denominator) {
    log_weights[2 * State(slot)] = numerator;
    log_weights[2 * State(slot) + 1] = denominator;
  }
  // Gives all sequences log weights: (0, 0) for live entries, NaN in dead slots.
  void AddLogWeights() {
    for (DecodeRule& rule : rules) rule.weighted = true;
    log_weights.assign(2 * positions.size(), kNaN);
    for (size_t slot = 0; slot < positions.size(); ++slot)
      if (positions[slot] != INT_MIN) SetLogWeights(slot, 0.0f, 0.0f);
  }
};

// Log weights of every kind: none, small, large, and -infinity.
void DrawLogWeights(World* world, Rng& rng) {
  world->AddLogWeights();
  for (size_t slot = 0; slot < world->positions.size(); ++slot) {
    if (world->positions[slot] == INT_MIN) continue;
    float pair[2];
    for (float& weight : pair) {
      const uint32_t kind = rng() % 16;
      weight = kind < 2    ? -INFINITY
               : kind == 2 ? 12.0f
               : kind == 3 ? -20.0f
               : kind == 4 ? 0.0f
                           : Normal(rng);
    }
    world->SetLogWeights(slot, pair[0], pair[1]);
  }
}

// Fills a head with `length` random entries at positions 0 .. length - 1, in shuffled order.
void FillHead(World* world, int seq, int h, int length, int cap, Rng& rng) {
  std::vector<int32_t> order(length);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), rng);
  for (int e = 0; e < length; ++e) {
    const std::vector<float> k = Normals(rng, world->shape.head_dim);
    const std::vector<float> v = Normals(rng, world->shape.head_dim);
    world->SetEntry(seq, h, e, k.data(), v.data(), order[e], std::abs(Normal(rng)));
  }
  const size_t head = world->Head(seq, h);
  world->lengths[head] = length;
  world->caps[head] = cap;
  if (length == cap) world->victims[head] = static_cast<int32_t>(rng() % cap);
}

// Fills all heads of a sequence the same way.
void FillSequence(World* world, int seq, int length, int cap, const DecodeRule& rule, Rng& rng) {
  world->rules[seq] = rule;
  for (int h = 0; h < world->shape.num_kv_heads; ++h) FillHead(world, seq, h, length, cap, rng);
}

// The inputs and output of a step.
struct Step {
  std::vector<int32_t> slots, positions;
  std::vector<float> q, k, v, out;
  int mean_entries = 0;
  float softcap = 0.0f;
  std::vector<float> sinks;  // [num_heads]; empty: none

  Step(const Shape& s, std::vector<int32_t> step_slots, std::vector<int32_t> step_positions,
       Rng& rng, float q_scale = 1.0f)
      : slots(std::move(step_slots)), positions(std::move(step_positions)) {
    q = Normals(rng, slots.size() * s.num_heads * s.head_dim, q_scale);
    k = Normals(rng, slots.size() * s.num_kv_heads * s.head_dim);
    v = Normals(rng, slots.size() * s.num_kv_heads * s.head_dim);
    out.assign(q.size(), kNaN);
  }

  // Sinks of every size: some with almost no share, and one that leaves little to the entries.
  void AddSinks(int num_heads, Rng& rng) {
    sinks = Normals(rng, num_heads, 3.0f);
    sinks[0] = 12.0f;
    sinks[num_heads - 1] = -40.0f;
  }
  double Sink(int head) const { return sinks.empty() ? -INFINITY : sinks[head]; }
};

DecodeAttentionArgs ArgsOf(World* world, Step* step) {
  DecodeAttentionArgs args;
  args.num_rows = static_cast<int>(step->slots.size());
  args.slots = step->slots.data();
  args.positions = step->positions.data();
  args.q = step->q.data();
  args.k = step->k.data();
  args.v = step->v.data();
  args.layer = kLayer;
  args.num_heads = world->shape.num_heads;
  args.scale = 1.0f / std::sqrt(static_cast<float>(world->shape.head_dim));
  args.softcap = step->softcap;
  if (!step->sinks.empty()) args.sink_logits = step->sinks.data();
  args.rotary = world->rotary;
  args.rotary.cos = world->cos.data();
  args.rotary.sin = world->sin.data();
  args.pages = world->Pages();
  args.tables = world->Tables();
  args.max_entries = *std::max_element(world->lengths.begin(), world->lengths.end()) + 1;
  args.max_scored_entries = args.max_entries;
  args.weighted = !world->log_weights.empty();
  args.out = step->out.data();
  args.mean_entries = step->mean_entries;
  return args;
}

const auto* const kSkip = testing::AddGlobalTestEnvironment(new SkipWithoutTestBackend);

// If `rounded` is given, the output goes there as bf16.
// Runs a step of `world`, whose pool is in the backend's memory and stays there.
void RunOnPool(Backend& backend, DevicePool* pool, World* world, Step* step,
               std::vector<uint16_t>* rounded = nullptr) {
  Mirror mirror(backend);
  DecodeAttentionArgs args = ArgsOf(world, step);
  const auto map = [&mirror](auto& pointer, const auto& vector) {
    pointer = mirror.Map(vector.data(), vector.size());
  };
  map(args.slots, step->slots);
  map(args.positions, step->positions);
  map(args.q, step->q);
  map(args.k, step->k);
  map(args.v, step->v);
  if (!step->sinks.empty()) map(args.sink_logits, step->sinks);
  if (rounded != nullptr) {
    rounded->assign(step->out.size(), 0xFFFF);
    args.out = mirror.Map(rounded->data(), rounded->size());
    args.out_dtype = DType::kBF16;
  } else {
    args.out = mirror.Map(step->out.data(), step->out.size());
  }
  map(args.rotary.cos, world->cos);
  map(args.rotary.sin, world->sin);
  args.pages = pool->Pages();
  args.tables = pool->Tables();
  backend.DecodeAttention(args);
  mirror.ReadBack();
}

void RunOnBackend(World* world, Step* step, int threads = 2,
                  std::vector<uint16_t>* rounded = nullptr) {
  Backend& backend = *TestBackend(threads);
  DevicePool pool(backend, *world);
  RunOnPool(backend, &pool, world, step, rounded);
  pool.ReadBack(world);
}

// One head in double precision: a plain list of entries.
struct Entry {
  std::vector<double> k, v;
  int32_t position = 0;
  double score = 0;
  double numerator = 0, denominator = 0;  // log weights
};

std::vector<Entry> EntriesOf(World& world, int seq, int kv_head, int count) {
  std::vector<Entry> entries(count);
  for (int e = 0; e < count; ++e) {
    const size_t slot = world.Slot(seq, kv_head, e);
    const std::vector<float> k = world.LoadRow(world.keys, slot);
    const std::vector<float> v = world.LoadRow(world.values, slot);
    entries[e].k.assign(k.begin(), k.end());
    entries[e].v.assign(v.begin(), v.end());
    entries[e].position = world.positions[slot];
    entries[e].score = world.scores[world.State(slot)];
    if (!world.IsWeighted(seq)) continue;
    entries[e].numerator = world.log_weights[2 * world.State(slot)];
    entries[e].denominator = world.log_weights[2 * world.State(slot) + 1];
  }
  return entries;
}

// Attention weights of one query over the entries, and its output. `magnitude`: the sum of
// the values' factors.
std::vector<double> AttendPlainly(const std::vector<Entry>& entries, const float* q, double scale,
                                  std::vector<double>* out, double* largest_logit,
                                  double* magnitude = nullptr, double softcap = 0,
                                  double sink = -INFINITY) {
  const size_t dim = entries[0].k.size();
  std::vector<double> w(entries.size()), numerators(entries.size());
  for (size_t e = 0; e < entries.size(); ++e) {
    for (size_t d = 0; d < dim; ++d) w[e] += scale * q[d] * entries[e].k[d];
    *largest_logit = std::max(*largest_logit, std::abs(w[e]));
    if (softcap > 0) w[e] = softcap * std::tanh(w[e] / softcap);
    numerators[e] = w[e] + entries[e].numerator;
    w[e] += entries[e].denominator;
    for (const double weighted : {numerators[e], w[e]})
      if (std::isfinite(weighted)) *largest_logit = std::max(*largest_logit, std::abs(weighted));
  }
  const double top = std::max(sink, *std::max_element(w.begin(), w.end()));
  double sum = std::exp(sink - top), factors = 0;
  for (double& x : w) sum += x = std::exp(x - top);
  out->assign(dim, 0.0);
  for (size_t e = 0; e < entries.size(); ++e) {
    w[e] /= sum;
    const double factor = std::exp(numerators[e] - top) / sum;
    factors += factor;
    for (size_t d = 0; d < dim; ++d) (*out)[d] += factor * entries[e].v[d];
  }
  if (magnitude != nullptr) *magnitude = factors;
  return w;
}

double GroupWeight(GroupReduce reduce, const std::vector<std::vector<double>>& weights, size_t e) {
  double mean = 0, max = 0, squares = 0;
  for (const std::vector<double>& w : weights) {
    mean += w[e] / static_cast<double>(weights.size());
    max = std::max(max, w[e]);
    squares += w[e] * w[e];
  }
  return reduce == GroupReduce::kMean ? mean : reduce == GroupReduce::kMax ? max : squares;
}

// The rule's eviction order: lowest score first, ties to the lower position.
std::vector<int> VictimOrder(const std::vector<Entry>& entries, const DecodeRule& rule,
                             int32_t next) {
  std::vector<int> order;
  for (int e = 0; e < static_cast<int>(entries.size()); ++e) {
    if (entries[e].position >= rule.sinks && entries[e].position <= next - rule.recent)
      order.push_back(e);
  }
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return std::make_pair(entries[a].score, entries[a].position) <
           std::make_pair(entries[b].score, entries[b].position);
  });
  return order;
}

// Typical absolute error of fp32 logits of this size, and so the relative error of their weights.
double WeightError(double largest_logit, int dim) {
  return (8 + largest_logit * std::sqrt(static_cast<double>(dim))) * 1.2e-7;
}

// Compares the state after a backend's step with the model applied to the state before it. Counts
// excused victims: scores within 1e-5 of the lowest.
void ExpectStep(World& before, World& after, const Step& step, int* excused) {
  const Shape& s = before.shape;
  const double scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  for (size_t row = 0; row < step.slots.size(); ++row) {
    const int seq = step.slots[row];
    const DecodeRule& rule = before.rules[seq];
    for (int h = 0; h < s.num_kv_heads; ++h) {
      SCOPED_TRACE("row " + std::to_string(row) + " head " + std::to_string(h) + " length " +
                   std::to_string(before.lengths[before.Head(seq, h)]));
      const size_t head = before.Head(seq, h);
      const bool append = before.lengths[head] < before.caps[head];
      const int entry = append ? before.lengths[head] : before.victims[head];
      const int count = before.lengths[head] + append;
      const size_t kv = (row * s.num_kv_heads + h) * s.head_dim;
      const float score = rule.scored && !rule.by_position
                              ? 0.0f
                              : before.scores[before.State(seq, h, entry)];  // not written
      before.SetEntry(seq, h, entry, &step.k[kv], &step.v[kv], step.positions[row], score);
      std::vector<Entry> entries = EntriesOf(before, seq, h, count);

      double largest = 0, error = 0, worst = 0;
      std::vector<std::vector<double>> weights;
      for (int g = 0; g < s.group(); ++g) {
        const size_t q = (row * s.num_heads + h * s.group() + g) * s.head_dim;
        std::vector<double> out;
        double magnitude = 1;
        weights.push_back(AttendPlainly(entries, &step.q[q], scale, &out, &largest, &magnitude,
                                        step.softcap, step.Sink(h * s.group() + g)));
        error = WeightError(largest, s.head_dim);
        for (int d = 0; d < s.head_dim; ++d)
          worst = std::max(worst, std::abs(step.out[q + d] - out[d]) / std::max(1.0, magnitude));
        ASSERT_FALSE(std::isnan(std::accumulate(&step.out[q], &step.out[q] + s.head_dim, 0.0f)));
      }
      EXPECT_LE(worst, 4 * error);
      EXPECT_EQ(after.lengths[head], count);
      if (rule.scored) {
        for (int e = 0; e < count; ++e) {
          const float got = after.scores[after.State(seq, h, e)];
          if (rule.by_position) {  // by_position entries have no score
            entries[e].score = entries[e].position;
            continue;
          }
          const double w = GroupWeight(rule.reduce, weights, e);
          entries[e].score = rule.decay * entries[e].score + rule.gain * w;
          ASSERT_NEAR(got, entries[e].score,
                      error * s.group() * w + 1e-6 * std::abs(entries[e].score) + 1e-30)
              << "entry " << e;
          entries[e].score = got;  // the next victim depends on it
        }
      }
      for (int e = 0; e < count; ++e) {
        const size_t slot = after.Slot(seq, h, e);
        ASSERT_EQ(after.positions[slot], entries[e].position);
        const size_t state = after.State(slot);
        if (rule.scored && !rule.by_position) before.scores[state] = after.scores[state];
      }
      if (rule.scored && count == before.caps[head]) {
        const std::vector<int> order = VictimOrder(entries, rule, step.positions[row] + 1);
        ASSERT_FALSE(order.empty());
        const int victim = after.victims[head];
        if (victim != order[0]) {
          const double lowest = entries[order[0]].score;
          ASSERT_THAT(order, testing::Contains(victim));
          ASSERT_NEAR(entries[victim].score, lowest, 1e-5 * std::abs(lowest));
          ++*excused;
        }
        before.victims[head] = victim;
      }
      before.lengths[head] = count;
    }
  }
  // Nothing else changed: `before` now equals `after` everywhere, NaN included.
  EXPECT_EQ(before.keys, after.keys);
  EXPECT_EQ(before.values, after.values);
  EXPECT_EQ(before.positions, after.positions);
  EXPECT_EQ(before.lengths, after.lengths);
  EXPECT_EQ(before.victims, after.victims);
  if (!before.log_weights.empty()) {
    EXPECT_EQ(std::memcmp(before.log_weights.data(), after.log_weights.data(),
                          before.log_weights.size() * sizeof(float)),
              0);
  }
  EXPECT_EQ(
      std::memcmp(before.scores.data(), after.scores.data(), before.scores.size() * sizeof(float)),
      0);
}

DecodeRule H2o(int sinks, int recent, GroupReduce reduce = GroupReduce::kMean) {
  return {1.0f, 1.0f, reduce, false, true, sinks, recent};
}
DecodeRule Co2(float alpha, int recent) {
  return {1 - alpha, alpha, GroupReduce::kMean, false, true, 0, recent};
}
DecodeRule Tova() { return {0.0f, 1.0f, GroupReduce::kMean, false, true, 0, 1}; }
DecodeRule Streaming(int sinks) { return {1.0f, 1.0f, GroupReduce::kMean, true, true, sinks, 0}; }

std::vector<DecodeRule> AllRules() {
  return {DecodeRule{},
          H2o(0, 4),
          H2o(2, 3, GroupReduce::kMax),
          H2o(1, 2, GroupReduce::kSumOfSquares),
          Co2(0.25f, 3),
          Tova(),
          Streaming(0),
          Streaming(4)};
}

constexpr int kLengths[] = {0, 1, 15, 16, 17, 31, 33, 100, 257, 530};

// Rows of every length and rule: below the cap, at it, and reaching it in this step.
World MixedWorld(const Shape& shape, Rng& rng, std::vector<int32_t>* positions) {
  const std::vector<DecodeRule> rules = AllRules();
  const int num_seqs = 3 * static_cast<int>(std::size(kLengths));
  World world(shape, num_seqs, 540 / shape.block_size + 1, rng);
  for (int seq = 0; seq < num_seqs; ++seq) {
    const int length = kLengths[seq % std::size(kLengths)];
    const DecodeRule& rule = rules[(seq + seq / 10) % rules.size()];
    const int slack =
        seq / static_cast<int>(std::size(kLengths));  // 0: at the cap, 1: reaches it, 2: no cap
    const int cap = slack == 2 || length < 10 || !rule.scored ? INT32_MAX : length + slack;
    FillSequence(&world, seq, length, cap, rule, rng);
    positions->push_back(length + static_cast<int>(rng() % 5));
  }
  return world;
}

std::vector<int32_t> ShuffledSlots(size_t n, Rng& rng) {
  std::vector<int32_t> slots(n);
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), rng);
  return slots;
}

std::vector<int32_t> Pick(const std::vector<int32_t>& from, const std::vector<int32_t>& indices) {
  std::vector<int32_t> picked;
  picked.reserve(indices.size());
  for (int32_t i : indices) picked.push_back(from[i]);
  return picked;
}

class DecodeAttentionTest : public testing::TestWithParam<Shape> {
 protected:
  DecodeAttentionTest() : rng_(kSeed) { RecordProperty("seed", kSeed); }
  Rng rng_;
};

// Expected for pages of whole vectors or blocks, if the trial kernels are requested and results may
// depend on the batch.
TEST_P(DecodeAttentionTest, PlansOnTheDeviceOnRequest) {
  const Shape& s = GetParam();
  const char* trial = std::getenv("HYDRANT_CUDA_TRIAL");
  const bool asked = trial != nullptr && std::strstr(trial, "decode") != nullptr &&
                     std::getenv("HYDRANT_TEST_FAST") != nullptr;
  const bool blocks = s.dtype == DType::kQ8_0 || s.dtype == DType::kQ4_0;
  const bool can = blocks                    ? s.block_size % 16 == 0
                   : s.dtype == DType::kE4M3 ? s.head_dim <= 256
                                             : s.dtype != DType::kF32 && s.head_dim % 8 == 0;
  const KvLayout layout = {s.dtype, s.head_dim, s.block_size, 1};
  EXPECT_EQ(TestBackend(2)->PlansDecode(layout, s.group()), asked && can);
}

TEST_P(DecodeAttentionTest, MixedBatchMatchesPlainModel) {
  std::vector<int32_t> positions;
  World world = MixedWorld(GetParam(), rng_, &positions);
  int excused = 0;
  for (int step_index = 0; step_index < 3; ++step_index) {
    const std::vector<int32_t> slots = ShuffledSlots(positions.size(), rng_);
    Step step(GetParam(), slots, Pick(positions, slots), rng_, step_index == 1 ? 4.0f : 1.0f);
    World before = world;
    RunOnBackend(&world, &step);
    ASSERT_NO_FATAL_FAILURE(ExpectStep(before, world, step, &excused)) << "step " << step_index;
    for (int32_t& p : positions) ++p;
  }
  EXPECT_LE(excused, 1);
}

TEST_P(DecodeAttentionTest, MixedBatchMatchesReferenceBackend) {
  std::vector<int32_t> positions;
  World world = MixedWorld(GetParam(), rng_, &positions);
  const std::vector<int32_t> slots = ShuffledSlots(positions.size(), rng_);
  Step step(GetParam(), slots, Pick(positions, slots), rng_);
  World truth = world;
  Step truth_step = step;
  RunOnBackend(&world, &step);
  reference::DecodeAttention(ArgsOf(&truth, &truth_step));
  for (size_t i = 0; i < step.out.size(); ++i)
    ASSERT_NEAR(step.out[i], truth_step.out[i], 2e-5) << i;
  EXPECT_EQ(world.keys, truth.keys);
  EXPECT_EQ(world.values, truth.values);
  EXPECT_EQ(world.positions, truth.positions);
  EXPECT_EQ(world.lengths, truth.lengths);
  EXPECT_EQ(world.victims, truth.victims);
  for (size_t i = 0; i < world.scores.size(); ++i) {
    if (std::isnan(truth.scores[i])) {
      ASSERT_TRUE(std::isnan(world.scores[i])) << i;
    } else {
      ASSERT_NEAR(world.scores[i], truth.scores[i], 1e-5 * (1e-3 + std::abs(truth.scores[i]))) << i;
    }
  }
}

// If matrix products take bf16 rows, the output is the rounded floats and nothing else differs.
TEST_P(DecodeAttentionTest, MixedBatchRoundsForTheMatrixProduct) {
  if (TestBackend(1)->ActivationDType(DType::kBF16) == DType::kF32)
    GTEST_SKIP() << "the backend's matrix products take fp32 rows";
  std::vector<int32_t> positions;
  World world = MixedWorld(GetParam(), rng_, &positions);
  const std::vector<int32_t> slots = ShuffledSlots(positions.size(), rng_);
  Step step(GetParam(), slots, Pick(positions, slots), rng_);
  World rounding_world = world;
  std::vector<uint16_t> rounded;
  RunOnBackend(&rounding_world, &step, 2, &rounded);
  RunOnBackend(&world, &step);
  for (size_t i = 0; i < rounded.size(); ++i) ASSERT_EQ(rounded[i], FloatToBF16(step.out[i])) << i;
  EXPECT_EQ(rounding_world.victims, world.victims);
}

// Heads of one row hold zero to hundreds of entries, below and at their caps. Results are correct
// for any claimed mean, and bit-identical if they must not depend on the batch.
TEST_P(DecodeAttentionTest, RaggedMixedBatchIsRightForAnyMean) {
  const Shape& shape = GetParam();
  const std::vector<DecodeRule> rules = AllRules();
  constexpr int kRows = 6;
  World world(shape, kRows, 540 / shape.block_size + 1, rng_);
  for (int seq = 0; seq < kRows; ++seq) {
    world.rules[seq] = rules[seq + 1];
    for (int h = 0; h < shape.num_kv_heads; ++h) {
      const int length = kLengths[(3 * seq + 7 * h) % std::size(kLengths)];
      const bool full = length >= 10 && (seq + h) % 2 == 0;
      FillHead(&world, seq, h, length, full ? length : INT32_MAX, rng_);
    }
  }
  Step step(shape, ShuffledSlots(kRows, rng_), std::vector<int32_t>(kRows, 600), rng_);
  std::vector<float> first_out, first_scores;
  int excused = 0;
  for (const int mean : {0, 1, 100, 540, INT_MAX}) {
    SCOPED_TRACE("mean " + std::to_string(mean));
    World before = world, after = world;
    step.mean_entries = mean;
    step.out.assign(step.out.size(), kNaN);
    RunOnBackend(&after, &step);
    ASSERT_NO_FATAL_FAILURE(ExpectStep(before, after, step, &excused));
    if (mean == 0) first_out = step.out, first_scores = after.scores;
    if (std::getenv("HYDRANT_TEST_FAST") != nullptr) continue;
    EXPECT_EQ(std::memcmp(step.out.data(), first_out.data(), step.out.size() * sizeof(float)), 0);
    EXPECT_EQ(
        std::memcmp(after.scores.data(), first_scores.data(), first_scores.size() * sizeof(float)),
        0);
  }
  EXPECT_LE(excused, 1);
}

// Entries with log weights, on the backend and on the reference.
TEST_P(DecodeAttentionTest, WeightedMixedBatchMatchesPlainModel) {
  std::vector<int32_t> positions;
  World world = MixedWorld(GetParam(), rng_, &positions);
  DrawLogWeights(&world, rng_);
  int excused = 0;
  for (const float q_scale : {1.0f, 4.0f}) {
    const std::vector<int32_t> slots = ShuffledSlots(positions.size(), rng_);
    Step step(GetParam(), slots, Pick(positions, slots), rng_, q_scale);
    World before = world, before_truth = world, truth = world;
    Step truth_step = step;
    RunOnBackend(&world, &step);
    ASSERT_NO_FATAL_FAILURE(ExpectStep(before, world, step, &excused)) << "queries * " << q_scale;
    reference::DecodeAttention(ArgsOf(&truth, &truth_step));
    ASSERT_NO_FATAL_FAILURE(ExpectStep(before_truth, truth, truth_step, &excused)) << "reference";
    for (int32_t& p : positions) ++p;
  }
  EXPECT_LE(excused, 2);
}

// Capped logits: slightly and strongly.
TEST_P(DecodeAttentionTest, CappedMixedBatchMatchesPlainModel) {
  int excused = 0;
  for (const bool weighted : {false, true}) {
    std::vector<int32_t> positions;
    World world = MixedWorld(GetParam(), rng_, &positions);
    if (weighted) DrawLogWeights(&world, rng_);
    for (const float softcap : {30.0f, 2.0f}) {
      SCOPED_TRACE("softcap " + std::to_string(softcap));
      const std::vector<int32_t> slots = ShuffledSlots(positions.size(), rng_);
      Step step(GetParam(), slots, Pick(positions, slots), rng_, 3.0f);
      step.softcap = softcap;
      World before = world, before_truth = world, truth = world;
      Step truth_step = step;
      RunOnBackend(&world, &step);
      ASSERT_NO_FATAL_FAILURE(ExpectStep(before, world, step, &excused));
      reference::DecodeAttention(ArgsOf(&truth, &truth_step));
      ASSERT_NO_FATAL_FAILURE(ExpectStep(before_truth, truth, truth_step, &excused)) << "reference";
      for (int32_t& p : positions) ++p;
    }
  }
  EXPECT_LE(excused, 2);
}

// Sinks lower the entries' shares, in whole heads and in split heads.
TEST_P(DecodeAttentionTest, SinksOfMixedBatchMatchPlainModel) {
  int excused = 0;
  for (const bool weighted : {false, true}) {
    std::vector<int32_t> positions;
    World world = MixedWorld(GetParam(), rng_, &positions);
    if (weighted) DrawLogWeights(&world, rng_);
    for (const float softcap : {0.0f, 3.0f}) {
      SCOPED_TRACE("softcap " + std::to_string(softcap));
      const std::vector<int32_t> slots = ShuffledSlots(positions.size(), rng_);
      Step step(GetParam(), slots, Pick(positions, slots), rng_, 2.0f);
      step.softcap = softcap;
      step.AddSinks(GetParam().num_heads, rng_);
      World before = world, before_truth = world, truth = world;
      Step truth_step = step;
      RunOnBackend(&world, &step);
      ASSERT_NO_FATAL_FAILURE(ExpectStep(before, world, step, &excused));
      reference::DecodeAttention(ArgsOf(&truth, &truth_step));
      ASSERT_NO_FATAL_FAILURE(ExpectStep(before_truth, truth, truth_step, &excused)) << "reference";
      for (int32_t& p : positions) ++p;
    }
  }
  EXPECT_LE(excused, 2);
}

// Zero queries: a sink of 0 counts as one more entry, once for any number of splits; a sink far
// above all entries leaves them nothing.
TEST_P(DecodeAttentionTest, SinkOfMixedBatchCountsOnce) {
  const Shape& s = GetParam();
  for (const int length : {0, 40, 299, 1100}) {
    World world(s, 1, length / s.block_size + 1, rng_);
    FillSequence(&world, 0, length, INT32_MAX, Tova(), rng_);
    World covered = world;
    Step step(s, {0}, {length}, rng_, 0.0f);
    Step covered_step = step;
    step.sinks.assign(s.num_heads, 0.0f);
    covered_step.sinks.assign(s.num_heads, 1e4f);
    RunOnBackend(&world, &step);
    RunOnBackend(&covered, &covered_step);
    for (int h = 0; h < s.num_kv_heads; ++h) {
      for (int e = 0; e <= length; ++e) {
        ASSERT_NEAR(world.scores[world.State(0, h, e)] * (length + 2), 1.0, 2e-6) << length;
        ASSERT_LE(covered.scores[covered.State(0, h, e)], 1e-30f) << length;
      }
    }
    for (const float x : covered_step.out) ASSERT_LE(std::abs(x), 1e-30f) << length;
  }
}

// Log weights of 0 give the same bits as none.
TEST_P(DecodeAttentionTest, WeightedMixedBatchOfZerosChangesNoBit) {
  std::vector<int32_t> positions;
  World world = MixedWorld(GetParam(), rng_, &positions);
  World zeros = world;
  zeros.AddLogWeights();
  const std::vector<int32_t> slots = ShuffledSlots(positions.size(), rng_);
  Step step(GetParam(), slots, Pick(positions, slots), rng_);
  Step zeros_step = step;
  RunOnBackend(&world, &step);
  RunOnBackend(&zeros, &zeros_step);
  EXPECT_EQ(std::memcmp(step.out.data(), zeros_step.out.data(), step.out.size() * sizeof(float)),
            0);
  EXPECT_EQ(
      std::memcmp(world.scores.data(), zeros.scores.data(), world.scores.size() * sizeof(float)),
      0);
  EXPECT_EQ(world.victims, zeros.victims);
}

// Weighted and plain rows in one batch: plain rows give the same bits as in a plain batch, and the
// memory of their log weights is left alone.
TEST_P(DecodeAttentionTest, WeightedMixedBatchLeavesOtherRowsAlone) {
  std::vector<int32_t> positions;
  const World plain = MixedWorld(GetParam(), rng_, &positions);
  World world = plain;
  DrawLogWeights(&world, rng_);
  for (size_t seq = 0; seq < world.rules.size(); ++seq) {
    world.rules[seq].weighted = seq % 2 == 0;
    if (seq % 2 == 0) continue;
    for (int h = 0; h < world.shape.num_kv_heads; ++h) {
      const int32_t length = world.lengths[world.Head(seq, h)];
      for (int e = 0; e < length; ++e) world.SetLogWeights(world.Slot(seq, h, e), kNaN, kNaN);
    }
  }
  const std::vector<int32_t> slots = ShuffledSlots(positions.size(), rng_);
  Step step(GetParam(), slots, Pick(positions, slots), rng_);
  World before = world, alone = plain;
  Step alone_step = step;
  RunOnBackend(&world, &step);
  RunOnBackend(&alone, &alone_step);
  int excused = 0;
  ASSERT_NO_FATAL_FAILURE(ExpectStep(before, world, step, &excused));
  EXPECT_LE(excused, 2);
  const size_t row_floats = static_cast<size_t>(GetParam().num_heads) * GetParam().head_dim;
  for (size_t row = 0; row < slots.size(); ++row) {
    if (slots[row] % 2 == 0) continue;
    EXPECT_EQ(std::memcmp(&step.out[row * row_floats], &alone_step.out[row * row_floats],
                          row_floats * sizeof(float)),
              0)
        << "slot " << slots[row];
  }
}

// Long runs of entries (including whole parts of a head) that count only in the numerator or only
// in the denominator: their values or scores have no effect on any bit.
TEST_P(DecodeAttentionTest, WeightedMixedBatchSkipsUncountedEntries) {
  const Shape& s = GetParam();
  const int length = 1100, border = 550;
  World world(s, 1, length / s.block_size + 1, rng_);
  FillSequence(&world, 0, length, INT32_MAX, H2o(0, 4), rng_);
  world.AddLogWeights();
  World other = world;
  for (int h = 0; h < s.num_kv_heads; ++h) {
    for (int e = 0; e < length; ++e) {
      const bool no_value = e < border;
      for (World* w : {&world, &other}) {
        const size_t slot = w->Slot(0, h, e);
        w->SetLogWeights(slot, no_value ? -INFINITY : 1.0f, no_value ? -1.0f : -INFINITY);
        if (no_value && w == &other) {
          w->StoreRow(w->values, slot, std::vector<float>(s.head_dim, 1e4f).data());
        }
      }
    }
  }
  Step step(s, {0}, {length}, rng_);
  Step other_step = step;
  World before = world;
  RunOnBackend(&world, &step);
  RunOnBackend(&other, &other_step);
  EXPECT_EQ(std::memcmp(step.out.data(), other_step.out.data(), step.out.size() * sizeof(float)),
            0);
  for (int h = 0; h < s.num_kv_heads; ++h) {
    for (int e = border; e < length; ++e) {
      const size_t slot = world.Slot(0, h, e);
      ASSERT_EQ(world.scores[world.State(slot)], before.scores[world.State(slot)])
          << "head " << h << " entry " << e;
    }
  }
  int excused = 0;
  ASSERT_NO_FATAL_FAILURE(ExpectStep(before, world, step, &excused));
}

// Two entries, in one or two parts of a head, with a ratio beyond the range of floats.
TEST_P(DecodeAttentionTest, WeightedMixedBatchIsFiniteForAnySamples) {
  const Shape& s = GetParam();
  for (const auto& [length, second] : {std::pair(40, 30), std::pair(1100, 900)}) {
    World world(s, 1, length / s.block_size + 1, rng_);
    FillSequence(&world, 0, length, INT32_MAX, H2o(0, 4), rng_);
    world.AddLogWeights();
    for (int h = 0; h < s.num_kv_heads; ++h) {
      world.SetLogWeights(world.Slot(0, h, 10), 300.0f, 0.0f);
      world.SetLogWeights(world.Slot(0, h, second), 300.0f - std::log(2.0f), 0.0f);
    }
    Step step(s, {0}, {length}, rng_, /*q_scale=*/0.0f);
    World truth = world;
    Step truth_step = step;
    RunOnBackend(&world, &step);
    reference::DecodeAttention(ArgsOf(&truth, &truth_step));
    const double unit = std::exp(double{kMaxLogExcess}) / (length + 1);
    for (int head = 0; head < s.num_heads; ++head) {
      const int kv_head = head / (s.num_heads / s.num_kv_heads);
      const std::vector<float> one = world.LoadRow(world.values, world.Slot(0, kv_head, 10));
      const std::vector<float> two = world.LoadRow(world.values, world.Slot(0, kv_head, second));
      for (int d = 0; d < s.head_dim; ++d) {
        const double expected = unit * (one[d] + 0.5 * two[d]);
        const double bound = 1e-4 * unit * (std::abs(one[d]) + std::abs(two[d]) + 1e-3);
        ASSERT_NEAR(step.out[head * s.head_dim + d], expected, bound) << length;
        ASSERT_NEAR(truth_step.out[head * s.head_dim + d], expected, bound) << length;
      }
    }
  }
}

// Padding among the rows: the other rows' bits are the same, and nothing else changes.
TEST_P(DecodeAttentionTest, PaddingRowsChangeNothing) {
  std::vector<int32_t> positions;
  const World start = MixedWorld(GetParam(), rng_, &positions);
  std::vector<int32_t> slots = ShuffledSlots(positions.size(), rng_);
  const std::vector<int32_t> padding = {0, static_cast<int32_t>(slots.size()) / 2};
  for (const int32_t row : padding) slots[row] = -1;
  std::vector<int32_t> row_positions;
  row_positions.reserve(slots.size());
  for (const int32_t slot : slots) row_positions.push_back(slot < 0 ? 0 : positions[slot]);
  Step padded(GetParam(), slots, row_positions, rng_);
  Step bare = padded;
  for (auto row = padding.rbegin(); row != padding.rend(); ++row) {
    const auto cut = [&](auto& rows) {
      const auto width = static_cast<std::ptrdiff_t>(rows.size() / bare.slots.size());
      rows.erase(rows.begin() + *row * width, rows.begin() + (*row + 1) * width);
    };
    for (auto* rows : {&bare.q, &bare.k, &bare.v, &bare.out}) cut(*rows);
    cut(bare.positions);
    cut(bare.slots);
  }
  World world = start, bare_world = start;
  RunOnBackend(&world, &padded);
  RunOnBackend(&bare_world, &bare);
  EXPECT_EQ(world.lengths, bare_world.lengths);
  EXPECT_EQ(world.victims, bare_world.victims);
  EXPECT_EQ(world.keys, bare_world.keys);
  EXPECT_EQ(world.values, bare_world.values);
  EXPECT_EQ(std::memcmp(world.scores.data(), bare_world.scores.data(),
                        world.scores.size() * sizeof(float)),
            0);
  const size_t width = static_cast<size_t>(GetParam().num_heads) * GetParam().head_dim;
  size_t next = 0;
  for (size_t row = 0; row < slots.size(); ++row) {
    if (slots[row] < 0) continue;
    ASSERT_EQ(
        std::memcmp(&padded.out[row * width], &bare.out[next++ * width], width * sizeof(float)), 0)
        << "row " << row;
  }
}

// A row alone, in another order, with other numbers of threads: the same bits.
void ExpectSameBitsInAnyBatch(const Shape& s, float softcap, bool sinks, Rng& rng) {
  std::vector<int32_t> positions;
  const World start = MixedWorld(s, rng, &positions);
  const std::vector<int32_t> slots = ShuffledSlots(positions.size(), rng);
  Step inputs(s, slots, Pick(positions, slots), rng);
  inputs.softcap = softcap;
  if (sinks) inputs.AddSinks(s.num_heads, rng);
  World expected = start;
  Step expected_step = inputs;
  RunOnBackend(&expected, &expected_step, 1);
  for (int threads : {2, 3, 8}) {
    World world = start;
    Step step = inputs;
    RunOnBackend(&world, &step, threads);
    EXPECT_EQ(
        std::memcmp(step.out.data(), expected_step.out.data(), step.out.size() * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(world.scores.data(), expected.scores.data(),
                          world.scores.size() * sizeof(float)),
              0);
    EXPECT_EQ(world.victims, expected.victims);
  }
  World alone = start;
  for (int threads : {2, 3, 4}) {
    Backend& backend = *TestBackend(threads);
    DevicePool pool(backend, alone);
    for (size_t row = threads - 2; row < slots.size(); row += 3) {
      Step step(s, {slots[row]}, {inputs.positions[row]}, rng);
      step.softcap = inputs.softcap;
      step.sinks = inputs.sinks;
      const size_t q = static_cast<size_t>(s.num_heads) * s.head_dim;
      const size_t kv = static_cast<size_t>(s.num_kv_heads) * s.head_dim;
      std::copy_n(&inputs.q[row * q], q, step.q.begin());
      std::copy_n(&inputs.k[row * kv], kv, step.k.begin());
      std::copy_n(&inputs.v[row * kv], kv, step.v.begin());
      RunOnPool(backend, &pool, &alone, &step);
      ASSERT_EQ(std::memcmp(step.out.data(), &expected_step.out[row * q], q * sizeof(float)), 0)
          << "row " << row;
    }
    pool.ReadBack(&alone);
  }
  EXPECT_EQ(
      std::memcmp(alone.scores.data(), expected.scores.data(), alone.scores.size() * sizeof(float)),
      0);
  EXPECT_EQ(alone.victims, expected.victims);
}

TEST_P(DecodeAttentionTest, BatchAndThreadsChangeNoBit) {
  ExpectSameBitsInAnyBatch(GetParam(), 0.0f, false, rng_);
}

TEST_P(DecodeAttentionTest, BatchAndThreadsChangeNoBitOfOtherLogits) {
  ExpectSameBitsInAnyBatch(GetParam(), 2.0f, true, rng_);
}

// Rows far past their caps; the reference and the cpu follow their own choices, and the
// kept positions must agree at every step. A choice within 1e-5 is excused, and the
// reference then adopts it.
TEST_P(DecodeAttentionTest, LongDecodeKeepsTheReferencesEntries) {
  const Shape& s = GetParam();
  const std::vector<DecodeRule> rules = AllRules();
  const int cap = 37;
  World world(s, static_cast<int>(rules.size()), 400 / s.block_size + 2, rng_);
  for (size_t seq = 0; seq < rules.size(); ++seq)
    FillSequence(&world, static_cast<int>(seq), 20, rules[seq].scored ? cap : INT32_MAX, rules[seq],
                 rng_);
  World truth = world;
  Backend& backend = *TestBackend(2);
  DevicePool pool(backend, world);
  int excused = 0;
  for (int t = 20; t < 20 + cap - 20 + 300; ++t) {
    const std::vector<int32_t> slots = ShuffledSlots(rules.size(), rng_);
    Step step(s, slots, std::vector<int32_t>(slots.size(), t), rng_);
    Step truth_step = step;
    RunOnPool(backend, &pool, &world, &step);
    pool.ReadTables(&world);  // keys and values take most of the time to copy
    reference::DecodeAttention(ArgsOf(&truth, &truth_step));
    for (size_t i = 0; i < step.out.size(); ++i)
      ASSERT_NEAR(step.out[i], truth_step.out[i], 5e-5) << "step " << t;
    ASSERT_EQ(world.positions, truth.positions) << "step " << t;
    ASSERT_EQ(world.lengths, truth.lengths);
    for (size_t seq = 0; seq < rules.size(); ++seq) {
      for (int h = 0; h < s.num_kv_heads; ++h) {
        const size_t head = world.Head(static_cast<int>(seq), h);
        if (world.victims[head] == truth.victims[head]) continue;
        const float lowest =
            truth.scores[truth.State(static_cast<int>(seq), h, truth.victims[head])];
        const float taken =
            truth.scores[truth.State(static_cast<int>(seq), h, world.victims[head])];
        ASSERT_NEAR(taken, lowest, 1e-5 * std::abs(lowest)) << "step " << t << " sequence " << seq;
        truth.victims[head] = world.victims[head];
        ++excused;
      }
    }
  }
  pool.ReadBack(&world);
  EXPECT_EQ(world.keys, truth.keys);
  EXPECT_EQ(world.values, truth.values);
  RecordProperty("excused", excused);
  EXPECT_LE(excused, 5);
}

// ---- Rolling heads -----------------------------------------------------------------------------

double Angle(const Rotary& rotary, int pair) {
  return std::pow(10000.0, -2.0 * pair / rotary.rotary_dim);
}

// Tables for ranks below `positions`. still: rotation by zero.
void SetRotary(World* world, int rotary_dim, bool interleaved, int positions, bool still = false) {
  world->rotary = {.rotary_dim = rotary_dim, .interleaved = interleaved};
  for (int p = 0; p < positions; ++p) {
    for (int i = 0; i < rotary_dim / 2; ++i) {
      const double angle = still ? 0.0 : p * Angle(world->rotary, i);
      world->cos.push_back(static_cast<float>(std::cos(angle)));
      world->sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
}

// RoPE in double precision.
std::vector<double> Turned(const Rotary& rotary, std::vector<double> row, int position) {
  for (int i = 0; i < rotary.rotary_dim / 2; ++i) {
    const double angle = position * Angle(rotary, i);
    double& a = row[rotary.interleaved ? 2 * i : i];
    double& b = row[rotary.interleaved ? 2 * i + 1 : i + rotary.rotary_dim / 2];
    const double turned = a * std::cos(angle) - b * std::sin(angle);
    b = a * std::sin(angle) + b * std::cos(angle);
    a = turned;
  }
  return row;
}

// One head as in the paper: live tokens in order, so that an entry's index is its rank. Queries and
// keys are fully rotated to their ranks.
struct RollingHead {
  std::vector<Entry> entries;  // keys before RoPE

  RollingHead(World& world, int seq, int kv_head) {
    entries = EntriesOf(world, seq, kv_head, world.lengths[world.Head(seq, kv_head)]);
    std::sort(entries.begin(), entries.end(),
              [](const Entry& a, const Entry& b) { return a.position < b.position; });
  }

  // Adds the token in page slot `slot`; `left`: the evicted rank, or -1.
  void Push(const World& world, size_t slot, int left) {
    if (left >= 0) entries.erase(entries.begin() + left);
    Entry entry;
    const std::vector<float> k = world.LoadRow(world.keys, slot);
    const std::vector<float> v = world.LoadRow(world.values, slot);
    entry.k.assign(k.begin(), k.end());
    entry.v.assign(v.begin(), v.end());
    entries.push_back(entry);
  }

  std::vector<Entry> TurnedEntries(const Rotary& rotary) const {
    std::vector<Entry> turned = entries;
    for (size_t rank = 0; rank < turned.size(); ++rank) {
      turned[rank].k = Turned(rotary, turned[rank].k, static_cast<int>(rank));
      turned[rank].position = static_cast<int32_t>(rank);
    }
    return turned;
  }
};

// Compares a head after a step with the plain model, which then adopts the scores.
void ExpectRolled(World& after, const Step& step, int row, int kv_head, RollingHead* plain,
                  int* excused) {
  const Shape& s = after.shape;
  const int seq = step.slots[row];
  const DecodeRule& rule = after.rules[seq];
  const size_t head = after.Head(seq, kv_head);
  const int count = static_cast<int>(plain->entries.size());
  ASSERT_EQ(after.lengths[head], count);
  std::vector<Entry> turned = plain->TurnedEntries(after.rotary);
  double largest = 0, error = 0;
  std::vector<std::vector<double>> weights;
  for (int g = 0; g < s.group(); ++g) {
    const size_t q =
        (static_cast<size_t>(row) * s.num_heads + kv_head * s.group() + g) * s.head_dim;
    const std::vector<double> query =
        Turned(after.rotary, {&step.q[q], &step.q[q] + s.head_dim}, count - 1);
    const std::vector<float> rounded(query.begin(), query.end());
    std::vector<double> out;
    const double scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    weights.push_back(AttendPlainly(turned, rounded.data(), scale, &out, &largest, nullptr,
                                    step.softcap, step.Sink(kv_head * s.group() + g)));
    error = 2 * WeightError(largest, s.head_dim);  // keys are rotated in fp32
    for (int d = 0; d < s.head_dim; ++d) ASSERT_NEAR(step.out[q + d], out[d], 8 * error);
  }
  std::vector<int> entry_of(count, -1);
  for (int e = 0; e < count; ++e) {
    const size_t slot = after.Slot(seq, kv_head, e);
    const int rank = after.positions[slot];
    ASSERT_TRUE(rank >= 0 && rank < count && entry_of[rank] < 0) << "entry " << e;
    entry_of[rank] = e;
    Entry& entry = plain->entries[rank];
    const std::vector<float> k = after.LoadRow(after.keys, slot);
    const std::vector<float> v = after.LoadRow(after.values, slot);
    ASSERT_EQ(std::vector<double>(k.begin(), k.end()), entry.k);
    ASSERT_EQ(std::vector<double>(v.begin(), v.end()), entry.v);
    if (rule.by_position) {
      turned[rank].score = entry.score = rank;
      continue;
    }
    const double w = GroupWeight(rule.reduce, weights, rank);
    const double score = rule.decay * entry.score + rule.gain * w;
    ASSERT_NEAR(after.scores[after.State(slot)], score,
                error * s.group() * w + 1e-6 * std::abs(score) + 1e-30);
    turned[rank].score = entry.score = after.scores[after.State(slot)];
  }
  if (count != after.caps[head]) return;
  const std::vector<int> order = VictimOrder(turned, rule, count);
  ASSERT_FALSE(order.empty());
  if (entry_of[order[0]] == after.victims[head]) return;
  const int rank = after.positions[after.Slot(seq, kv_head, after.victims[head])];
  ASSERT_THAT(order, testing::Contains(rank));
  ASSERT_NEAR(turned[rank].score, turned[order[0]].score, 1e-5 * turned[order[0]].score);
  ++*excused;
}

DecodeRule Rolling(DecodeRule rule) {
  rule.rolling = true;
  return rule;
}

struct RollingCase {
  int length, cap, steps;
};

TEST_P(DecodeAttentionTest, RollingHeadsMatchThePlainModel) {
  const Shape& s = GetParam();
  const std::vector<DecodeRule> rules = {Rolling(H2o(2, 3)), Rolling(Streaming(4)),
                                         Rolling(H2o(0, 5, GroupReduce::kMax)), H2o(1, 4)};
  int trial = 0, excused = 0;
  for (const auto& [length, cap, steps] :
       {RollingCase{0, 9, 24}, {33, 33, 6}, {258, 260, 4}, {530, 530, 2}, {40, INT32_MAX, 2}}) {
    SCOPED_TRACE("length " + std::to_string(length) + " cap " + std::to_string(cap));
    World world(s, static_cast<int>(rules.size()), (length + steps) / s.block_size + 1, rng_);
    const bool partly = trial % 2 == 1 && s.head_dim > 4;
    SetRotary(&world, partly ? s.head_dim / 4 * 2 : s.head_dim, trial++ % 3 != 0, length + steps);
    std::vector<std::vector<RollingHead>> plain;
    for (int seq = 0; seq < static_cast<int>(rules.size()); ++seq) {
      FillSequence(&world, seq, length, cap, rules[seq], rng_);
      plain.emplace_back();
      for (int h = 0; h < s.num_kv_heads; ++h) plain.back().emplace_back(world, seq, h);
      for (int h = 0; h < s.num_kv_heads; ++h) world.victims[world.Head(seq, h)] = length / 2;
    }
    for (int t = 0; t < steps; ++t) {
      SCOPED_TRACE("step " + std::to_string(t));
      const std::vector<int32_t> slots = ShuffledSlots(rules.size(), rng_);
      Step step(s, slots, std::vector<int32_t>(slots.size(), length + t), rng_);
      if (t % 2 == 1) step.softcap = 1.5f;
      if (t % 4 != 0) step.AddSinks(s.num_heads, rng_);
      World before = world, again = world;
      Step step_again = step;
      RunOnBackend(&world, &step, 1);
      RunOnBackend(&again, &step_again, 3);
      ASSERT_EQ(std::memcmp(step.out.data(), step_again.out.data(), step.out.size() * 4), 0);
      ASSERT_EQ(world.positions, again.positions);
      ASSERT_EQ(world.victims, again.victims);
      for (int row = 0; row < static_cast<int>(slots.size()); ++row) {
        if (!rules[slots[row]].rolling) continue;
        for (int h = 0; h < s.num_kv_heads; ++h) {
          SCOPED_TRACE("sequence " + std::to_string(slots[row]) + " head " + std::to_string(h));
          const size_t head = before.Head(slots[row], h);
          const bool append = before.lengths[head] < cap;
          const int entry = append ? before.lengths[head] : before.victims[head];
          const size_t slot = before.Slot(slots[row], h, entry);
          plain[slots[row]][h].Push(world, slot, append ? -1 : before.positions[slot]);
          ASSERT_NO_FATAL_FAILURE(
              ExpectRolled(world, step, row, h, &plain[slots[row]][h], &excused));
        }
      }
    }
  }
  EXPECT_LE(excused, 3);
}

// Without rotation a rolling head differs from an ordinary one only in its bookkeeping: the same
// entries are evicted, for any length of the stream.
TEST_P(DecodeAttentionTest, RollingRanksEvictAsPositionsDo) {
  const Shape& s = GetParam();
  const int cap = 21, start = 17, steps = 60;
  const std::vector<DecodeRule> rules = {H2o(2, 3), Streaming(4), Streaming(0), Tova()};
  World world(s, 2 * static_cast<int>(rules.size()), cap / s.block_size + 1, rng_);
  SetRotary(&world, s.head_dim, false, cap, /*still=*/true);
  const uint32_t seed = rng_();
  for (int seq = 0; seq < static_cast<int>(world.rules.size()); ++seq) {
    Rng fill(seed + seq / 2);
    FillSequence(&world, seq, start, cap, rules[seq / 2], fill);
    world.rules[seq].rolling = seq % 2 == 1;
  }
  int excused = 0;
  for (int t = start; t < start + steps; ++t) {
    std::vector<int32_t> slots(world.rules.size());
    std::iota(slots.begin(), slots.end(), 0);
    Step step(s, slots, std::vector<int32_t>(slots.size(), t), rng_);
    for (auto* rows : {&step.q, &step.k, &step.v}) {
      const size_t width = rows->size() / slots.size();
      for (size_t row = 1; row < slots.size(); row += 2)
        std::copy_n(rows->begin() + (row - 1) * width, width, rows->begin() + row * width);
    }
    RunOnBackend(&world, &step);
    for (int seq = 0; seq < static_cast<int>(world.rules.size()); seq += 2) {
      for (int h = 0; h < s.num_kv_heads; ++h) {
        const size_t head = world.Head(seq, h), rolling = world.Head(seq + 1, h);
        ASSERT_EQ(world.lengths[head], world.lengths[rolling]);
        if (world.lengths[head] < cap || world.victims[head] == world.victims[rolling]) continue;
        const float score = world.scores[world.State(seq, h, world.victims[head])];
        const float other = world.scores[world.State(seq, h, world.victims[rolling])];
        ASSERT_NEAR(other, score, 1e-5 * score) << "step " << t << " sequence " << seq;
        world.victims[rolling] = world.victims[head];
        ++excused;
      }
    }
  }
  EXPECT_LE(excused, 3);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, DecodeAttentionTest,
    testing::Values(Shape{1, 1, 8, 16, DType::kF32}, Shape{8, 8, 16, 16, DType::kF16},
                    Shape{9, 3, 64, 16, DType::kF16}, Shape{9, 3, 64, 16, DType::kF32},
                    Shape{9, 3, 64, 16, DType::kBF16}, Shape{6, 2, 48, 16, DType::kBF16},
                    Shape{8, 4, 8, 8, DType::kF16}, Shape{10, 2, 10, 5, DType::kBF16},
                    Shape{10, 2, 66, 24, DType::kF32}, Shape{7, 1, 34, 1, DType::kF16},
                    Shape{17, 1, 128, 32, DType::kF16}, Shape{4, 1, 256, 64, DType::kBF16},
                    Shape{4, 2, 96, 48, DType::kF16}, Shape{4, 2, 6, 300, DType::kF32},
                    Shape{32, 2, 80, 16, DType::kF32}, Shape{8, 2, 128, 16, DType::kBF16},
                    Shape{7, 1, 64, 16, DType::kF16}, Shape{8, 1, 96, 16, DType::kBF16},
                    Shape{16, 1, 128, 16, DType::kBF16}, Shape{6, 1, 256, 16, DType::kF16},
                    Shape{5, 1, 48, 7, DType::kBF16}, Shape{9, 3, 64, 16, DType::kQ8_0},
                    Shape{5, 1, 96, 7, DType::kQ8_0}, Shape{8, 2, 128, 16, DType::kQ4_0},
                    Shape{5, 1, 32, 7, DType::kQ4_0}, Shape{9, 3, 64, 16, DType::kE4M3},
                    Shape{8, 2, 128, 16, DType::kE4M3}, Shape{5, 1, 48, 7, DType::kE4M3},
                    Shape{2, 1, 272, 16, DType::kE4M3}),
    [](const testing::TestParamInfo<Shape>& info) { return NameOf(info.param); });

// Block ids do not matter; the order of entries affects only rounding.
TEST(DecodeAttentionPlacementTest, BlocksAndSlotOrderDoNotMatter) {
  const Shape shape{6, 2, 64, 16, DType::kF16};
  const int length = 300;
  for (const bool shuffle_slots : {false, true}) {
    std::vector<World> worlds;
    for (int w = 0; w < 2; ++w) {
      Rng rng(kSeed + w);
      worlds.emplace_back(shape, 2, 24, rng);
      Rng fill(kSeed);
      FillSequence(&worlds[w], 0, length, INT32_MAX, H2o(0, 10), fill);
    }
    World& a = worlds[0];
    World& b = worlds[1];
    ASSERT_NE(a.blocks, b.blocks);
    std::vector<int> order(length);
    std::iota(order.begin(), order.end(), 0);
    if (shuffle_slots) {
      Rng rng(kSeed);
      std::shuffle(order.begin(), order.end(), rng);
      for (int h = 0; h < shape.num_kv_heads; ++h) {
        const std::vector<Entry> entries = EntriesOf(a, 0, h, length);
        for (int e = 0; e < length; ++e) {
          const Entry& from = entries[e];
          const std::vector<float> k(from.k.begin(), from.k.end()), v(from.v.begin(), from.v.end());
          b.SetEntry(0, h, order[e], k.data(), v.data(), from.position,
                     static_cast<float>(from.score));
        }
      }
    }
    Rng rng(kSeed + 9);
    Step step_a(shape, {0}, {length}, rng);
    Step step_b = step_a;
    RunOnBackend(&a, &step_a);
    RunOnBackend(&b, &step_b);
    for (size_t i = 0; i < step_a.out.size(); ++i) {
      if (shuffle_slots) {
        ASSERT_NEAR(step_a.out[i], step_b.out[i], 2e-6);
      } else {
        ASSERT_EQ(step_a.out[i], step_b.out[i]);
      }
    }
    for (int h = 0; h < shape.num_kv_heads; ++h) {
      for (int e = 0; e < length; ++e) {
        const float score_a = a.scores[a.State(0, h, e)];
        const float score_b = b.scores[b.State(0, h, order[e])];
        ASSERT_NEAR(score_a, score_b, shuffle_slots ? 1e-6 * score_a : 0.0f);
      }
    }
  }
}

// Zero keys and equal scores: every entry ties, and the lowest unprotected position is evicted,
// wherever its slot is.
TEST(DecodeAttentionVictimTest, TiesGoToTheLowerPosition) {
  for (const int cap : {5, 16, 40, 300}) {
    const Shape shape{3, 1, 16, 16, DType::kF32};
    Rng rng(kSeed + cap);
    World world(shape, 1, 20, rng);
    FillSequence(&world, 0, cap, cap, H2o(2, 2), rng);
    const std::vector<float> zero(shape.head_dim, 0.0f);
    std::vector<int32_t> order = ShuffledSlots(cap, rng);
    for (int e = 0; e < cap; ++e) world.SetEntry(0, 0, e, zero.data(), zero.data(), order[e], 1.0f);
    const int overwritten = 0;
    world.victims[world.Head(0, 0)] = overwritten;
    Step step(shape, {0}, {cap}, rng);
    std::fill(step.k.begin(), step.k.end(), 0.0f);
    RunOnBackend(&world, &step);
    const int victim = world.victims[world.Head(0, 0)];
    const int expected = order[overwritten] == 2 ? 3 : 2;
    EXPECT_EQ(world.positions[world.Slot(0, 0, victim)], expected) << "cap " << cap;
    for (int e = 1; e < cap; ++e)  // the weights are 1 / cap each
      EXPECT_NEAR(world.scores[world.State(0, 0, e)], 1.0 + 1.0 / cap, 3e-7);
  }
}

// As in kernels/victim.h: NaN is evicted first, and entry 0 if all are protected.
TEST(DecodeAttentionVictimTest, NanScoresAndFullyProtectedHeads) {
  const Shape shape{1, 1, 16, 16, DType::kF32};
  Rng rng(kSeed);
  World world(shape, 2, 3, rng);
  FillSequence(&world, 0, 20, 20, H2o(0, 1), rng);
  FillSequence(&world, 1, 20, 20, H2o(20, 20), rng);
  world.victims[world.Head(0, 0)] = 3;
  world.scores[world.State(0, 0, 7)] = kNaN;
  Step step(shape, {0, 1}, {20, 20}, rng);
  RunOnBackend(&world, &step);
  EXPECT_EQ(world.victims[world.Head(0, 0)], 7);
  EXPECT_EQ(world.victims[world.Head(1, 0)], 0);
}

// Logits of +-1e4: one-hot attention, no overflow, no NaN; and zero logits: the plain mean.
TEST(DecodeAttentionRangeTest, HugeAndZeroLogits) {
  const Shape shape{4, 2, 64, 16, DType::kF32};
  Rng rng(kSeed);
  World world(shape, 1, 24, rng);
  FillSequence(&world, 0, 299, INT32_MAX, H2o(0, 8), rng);
  World zero_world = world;
  Step step(shape, {0}, {299}, rng, 2000.0f);
  World before = world;
  RunOnBackend(&world, &step);
  double largest = 0;
  for (int h = 0; h < 2; ++h) {
    before.SetEntry(0, h, 299, &step.k[h * 64], &step.v[h * 64], 299, 0.0f);
    const std::vector<Entry> entries = EntriesOf(before, 0, h, 300);
    for (int g = 0; g < 2; ++g) {
      std::vector<double> out;
      AttendPlainly(entries, &step.q[(h * 2 + g) * 64], 0.125, &out, &largest);
      for (int d = 0; d < 64; ++d) EXPECT_NEAR(step.out[(h * 2 + g) * 64 + d], out[d], 0.02);
    }
  }
  EXPECT_GT(largest, 5000);
  Step flat(shape, {0}, {299}, rng, 0.0f);
  RunOnBackend(&zero_world, &flat);
  for (int h = 0; h < 2; ++h) {
    const std::vector<Entry> entries = EntriesOf(zero_world, 0, h, 300);
    for (int d = 0; d < 64; ++d) {
      double mean = 0;
      for (const Entry& e : entries) mean += e.v[d] / 300;
      EXPECT_NEAR(flat.out[h * 2 * 64 + d], mean, 1e-6);
    }
  }
}

// Logits have fp32 accuracy for every page type: the root mean square of the weights' relative
// errors is far below that of a query in 16 bits, or in two 8-bit parts (2^-17 of a logit).
void ExpectAccurateWeights(float softcap, float sink) {
  for (const DType dtype :
       {DType::kBF16, DType::kF16, DType::kF32, DType::kE4M3, DType::kQ8_0, DType::kQ4_0}) {
    const Shape shape{8, 1, 128, 16, dtype};
    Rng rng(kSeed);
    const int length = 400;
    World world(shape, 1, length / shape.block_size + 1, rng);
    FillSequence(&world, 0, length, INT32_MAX, {0.0f, 1.0f, GroupReduce::kMean, false, true}, rng);
    Step step(shape, {0}, {length}, rng, 4.0f);
    for (int g = 1; g < shape.group(); ++g)  // all heads equal: a score is one head's weight
      std::copy_n(step.q.begin(), shape.head_dim, step.q.begin() + g * shape.head_dim);
    step.softcap = softcap;
    if (std::isfinite(sink)) step.sinks.assign(shape.num_heads, sink);
    World before = world;
    RunOnBackend(&world, &step);
    before.SetEntry(0, 0, length, step.k.data(), step.v.data(), length, 0.0f);
    std::vector<double> out;
    double largest = 0, squares = 0;
    const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    const std::vector<double> weights =
        AttendPlainly(EntriesOf(before, 0, 0, length + 1), step.q.data(), scale, &out, &largest,
                      nullptr, softcap, sink);
    for (int e = 0; e <= length; ++e)
      squares += std::pow(world.scores[world.State(0, 0, e)] / weights[e] - 1, 2);
    const double error = std::sqrt(squares / (length + 1));
    testing::Test::RecordProperty("error_" + std::string(DTypeName(dtype)),
                                  std::to_string(error * 1e6));
    EXPECT_LE(error, 5e-6) << DTypeName(dtype);
    EXPECT_GT(largest, 8);
  }
}

TEST(DecodeAttentionAccuracyTest, WeightsKeepFp32sAccuracy) {
  ExpectAccurateWeights(0.0f, -INFINITY);
}

TEST(DecodeAttentionAccuracyTest, CappedWeightsBesideASinkKeepFp32sAccuracy) {
  ExpectAccurateWeights(30.0f, 9.0f);
}

// Attention over the kept set equals dense attention over the whole history with
// evicted entries masked.
TEST(DecodeAttentionOracleTest, KeptSetIsMaskedDenseAttention) {
  const Shape shape{4, 2, 32, 16, DType::kF32};
  const int cap = 24, steps = 120;
  Rng rng(kSeed);
  World world(shape, 1, 3, rng);
  FillSequence(&world, 0, 0, cap, H2o(1, 6), rng);
  std::vector<Step> history;
  for (int t = 0; t < steps; ++t) {
    history.emplace_back(shape, std::vector<int32_t>{0}, std::vector<int32_t>{t}, rng);
    Step& step = history.back();
    RunOnBackend(&world, &step);
    for (int h = 0; h < shape.num_kv_heads; ++h) {
      const int live = world.lengths[world.Head(0, h)];
      ASSERT_EQ(live, std::min(t + 1, cap));
      std::vector<bool> kept(t + 1);
      for (int e = 0; e < live; ++e) kept[world.positions[world.Slot(0, h, e)]] = true;
      ASSERT_EQ(std::count(kept.begin(), kept.end(), true), live);
      std::vector<Entry> dense;
      for (int j = 0; j <= t; ++j) {
        if (!kept[j]) continue;  // masked: its weight is exactly zero
        const float* k = &history[j].k[h * shape.head_dim];
        const float* v = &history[j].v[h * shape.head_dim];
        dense.push_back({{k, k + shape.head_dim}, {v, v + shape.head_dim}, j, 0});
      }
      std::vector<double> out;
      double largest = 0;
      const int q = h * shape.group() * shape.head_dim;
      AttendPlainly(dense, &step.q[q], 1.0 / std::sqrt(32.0), &out, &largest);
      for (int d = 0; d < shape.head_dim; ++d)
        ASSERT_NEAR(step.out[q + d], out[d], 5e-6) << "step " << t;
    }
  }
}

}  // namespace
}  // namespace hydrant
