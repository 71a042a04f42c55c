// Prefill attention of the cpu backend against dense attention in double precision, against the
// reference backend, and against exact properties: slicing and threads change no bit, zero keys
// give harmonic column sums.
#include "kernels/cpu/attention/prefill_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/cpu/attention/prefill_attention_kernels.h"
#include "kernels/cpu/isa/isa.h"
#include "kernels/float16.h"
#include "kernels/reference/ops.h"
#include "tests/dot.h"
#include "tests/kernels/backend_test.h"

namespace hydrant {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr uint32_t kSeed = 20240611;

struct Shape {
  int num_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 16;
  GroupReduce reduce = GroupReduce::kMean;
  int group() const { return num_heads / num_kv_heads; }
};

std::string NameOf(const Shape& s) {
  std::ostringstream name;
  name << "h" << s.num_heads << "_kv" << s.num_kv_heads << "_d" << s.head_dim << "_reduce"
       << static_cast<int>(s.reduce);
  return name.str();
}

// A prompt: its layer scratch, with NaN past the last key, and buffers for the results.
struct Prompt {
  Shape shape;
  int n = 0;
  int capacity = 0;
  int first_summed = 0;
  int first_position = 0;  // of the first query, if it differs from its key's
  bool attended = true;    // whether the output is requested
  int keys = 0;            // number of keys; n if queries and keys are the same tokens
  int window = kNoWindow;
  float softcap = 0.0f;
  std::vector<float> sinks;         // [num_heads]; empty: none
  std::vector<float> byte_factors;  // [num_heads + num_kv_heads, head_dim]; empty: none
  std::vector<float> q, k, v, out, column_sums;
  std::vector<ColumnStatistic> more;         // besides the column sums; without outputs
  std::vector<std::vector<float>> more_out;  // like column_sums

  Prompt(const Shape& s, int tokens, uint32_t seed, float q_scale = 1.0f)
      : shape(s), n(tokens), capacity(tokens + 37), keys(tokens) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    q.resize(static_cast<size_t>(n) * s.num_heads * s.head_dim);
    for (float& x : q) x = normal(rng) * q_scale;
    k.assign(static_cast<size_t>(capacity) * s.num_kv_heads * s.head_dim, kNaN);
    v = k;
    for (int h = 0; h < s.num_kv_heads; ++h) {
      for (int i = 0; i < n * s.head_dim; ++i) {
        k[h * KvStride() + i] = normal(rng);
        v[h * KvStride() + i] = normal(rng);
      }
    }
    out.assign(q.size(), kNaN);
    column_sums.assign(static_cast<size_t>(capacity) * s.num_kv_heads, kNaN);
    for (int h = 0; h < s.num_kv_heads; ++h)
      std::fill_n(&column_sums[static_cast<size_t>(h) * capacity], n, 0.0f);
  }

  // Places the queries after all keys, of which only `num_keys` exist.
  void AskFromAfar(int from, int num_keys) {
    first_position = from;
    keys = num_keys;
    for (int h = 0; h < shape.num_kv_heads; ++h) {
      for (int j = keys; j < n; ++j) {
        column_sums[static_cast<size_t>(h) * capacity + j] = kNaN;
        for (int d = 0; d < shape.head_dim; ++d)
          k[h * KvStride() + j * shape.head_dim + d] = v[h * KvStride() + j * shape.head_dim + d] =
              kNaN;
      }
    }
  }
  int KeysSeen(int query) const { return std::min(first_position + query + 1, keys); }
  int FirstSeen(int query) const {
    const int64_t first = int64_t{first_position} + query - window + 1;
    return static_cast<int>(std::max<int64_t>(first, 0));
  }

  int64_t KvStride() const { return static_cast<int64_t>(capacity) * shape.head_dim; }

  PrefillAttentionArgs Args(int begin, int end, bool with_sums) {
    PrefillAttentionArgs args;
    const size_t row = static_cast<size_t>(shape.num_heads) * shape.head_dim;
    args.q = q.data() + begin * row;
    args.k = k.data();
    args.v = v.data();
    args.kv_head_stride = KvStride();
    args.num_queries = end - begin;
    args.first_position = first_position + begin;
    if (keys < n || first_position > 0) args.end_key = keys;
    args.window = window;
    args.softcap = softcap;
    if (!sinks.empty()) args.sink_logits = sinks.data();
    args.num_heads = shape.num_heads;
    args.num_kv_heads = shape.num_kv_heads;
    args.head_dim = shape.head_dim;
    args.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    args.out = out.data() + begin * row;
    args.statistics[0] = {.reduce = shape.reduce,
                          .first_query = first_summed,
                          .out = with_sums ? column_sums.data() : nullptr,
                          .stride = capacity};
    for (size_t s = 0; s < more.size(); ++s) {
      args.statistics[1 + s] = more[s];
      args.statistics[1 + s].out = more_out[s].data();
      args.statistics[1 + s].stride = capacity;
    }
    return args;
  }

  // Requests another statistic, from the same first query as the column sums.
  void Ask(const ColumnStatistic& statistic) {
    more.push_back(statistic);
    more_out.push_back(column_sums);
  }
};

const auto* const kSkip = testing::AddGlobalTestEnvironment(new SkipWithoutTestBackend);

// Arena rows: fp32, or rounded to a 16-bit dtype in `memory`.
ArenaRows MapRows(Mirror* mirror, const std::vector<float>& rows, DType arena,
                  std::vector<uint16_t>* memory) {
  if (arena == DType::kF32) return mirror->Map(rows.data(), rows.size());
  for (const float x : rows)
    memory->push_back(arena == DType::kBF16 ? FloatToBF16(x) : FloatToF16(x));
  return {mirror->Map(static_cast<const uint16_t*>(memory->data()), memory->size()), arena};
}

void RunSlice(Prompt* prompt, int begin, int end, bool with_sums, int threads,
              DType precision = DType::kF32, std::vector<uint16_t>* rounded = nullptr,
              DType arena = DType::kF32) {
  Backend& backend = *TestBackend(threads);
  Mirror mirror(backend);
  PrefillAttentionArgs args = prompt->Args(0, prompt->n, with_sums);
  const size_t row = static_cast<size_t>(prompt->shape.num_heads) * prompt->shape.head_dim;
  std::vector<uint16_t> q, k, v;
  args.q = MapRows(&mirror, prompt->q, arena, &q) + static_cast<int64_t>(begin * row);
  args.k = MapRows(&mirror, prompt->k, arena, &k);
  args.v = MapRows(&mirror, prompt->v, arena, &v);
  if (!prompt->sinks.empty())
    args.sink_logits = mirror.Map(prompt->sinks.data(), prompt->sinks.size());
  if (!prompt->byte_factors.empty())
    args.byte_factors = mirror.Map(prompt->byte_factors.data(), prompt->byte_factors.size());
  if (rounded != nullptr) {  // the output goes there as bf16
    rounded->resize(prompt->out.size(), 0xFFFF);
    args.out = mirror.Map(rounded->data(), rounded->size()) + begin * row;
    args.out_dtype = DType::kBF16;
  } else {
    args.out = mirror.Map(prompt->out.data(), prompt->out.size()) + begin * row;
    if (!prompt->attended) args.out = nullptr;
  }
  for (ColumnStatistic& statistic : args.statistics) {
    if (statistic.out != nullptr)
      statistic.out = mirror.Map(statistic.out, prompt->column_sums.size());
  }
  args.num_queries = end - begin;
  args.first_position += begin;
  args.precision = precision;
  backend.PrefillAttention(args);
  mirror.ReadBack();
}

void RunOnBackend(Prompt* prompt, bool with_sums = true, int threads = 2) {
  RunSlice(prompt, 0, prompt->n, with_sums, threads);
}

void RunSliced(Prompt* prompt, const std::vector<int>& ends, int threads) {
  int begin = 0;
  for (int end : ends) {
    RunSlice(prompt, begin, end, true, threads);
    begin = end;
  }
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr int kNumReduces = 3;  // of GroupReduce

// Dense attention in double.
struct Dense {
  std::vector<double> out;          // [n, num_heads, head_dim]
  std::vector<double> column_sums;  // [num_kv_heads, n]
  // [reduce][num_kv_heads * n], [keys] of each query: its weights, reduced over the group.
  std::vector<std::vector<double>> reduced[kNumReduces];
  double largest_logit = 0;

  const std::vector<double>& Reduced(GroupReduce reduce, size_t row) const {
    return reduced[static_cast<int>(reduce)][row];
  }
};

// Weights of one query over keys [first, first + count).
struct QueryWeights {
  size_t row;  // index of its output row
  int kv_head;
  int first, count;
  const double* weights;  // of key `first`
};
using SeeWeights = std::function<void(const QueryWeights&)>;

// Logits become weights; `sink` is one more logit.
void Softmax(double softcap, double sink, double* largest_logit, std::span<double> weights) {
  double top = std::max(sink, -1e300);
  for (double& w : weights) {
    *largest_logit = std::max(*largest_logit, std::abs(w));
    if (softcap > 0) w = softcap * std::tanh(w / softcap);
    top = std::max(top, w);
  }
  double sum = std::exp(sink - top);
  for (double& w : weights) sum += w = std::exp(w - top);
  for (double& w : weights) w /= sum;
}

// [kNumReduces][keys]: one query's weights, reduced over its group.
using ReducedWeights = std::array<std::vector<double>, kNumReduces>;

void Reduce(std::span<const double> weights, int first, int group, ReducedWeights* reduced) {
  auto& [means, maxima, squares] = *reduced;
  for (size_t j = 0; j < weights.size(); ++j) {
    const double w = weights[j];
    means[first + j] += w / group;
    maxima[first + j] = std::max(maxima[first + j], w);
    squares[first + j] += w * w;
  }
}

Dense AttendPlainly(const Prompt& p, const SeeWeights& see = {}) {
  const Shape& s = p.shape;
  const int dim = s.head_dim;
  const double scale = 1.0f / std::sqrt(static_cast<float>(dim));
  Dense dense;
  dense.out.assign(p.q.size(), 0.0);
  dense.column_sums.assign(static_cast<size_t>(p.n) * s.num_kv_heads, 0.0);
  std::vector<double> query(dim), weights;
  for (int kv = 0; kv < s.num_kv_heads; ++kv) {
    const auto rows = [&](const std::vector<float>& of) {
      const float* const head = &of[kv * p.KvStride()];
      return std::vector<double>(head, head + static_cast<size_t>(p.keys) * dim);
    };
    const std::vector<double> keys = rows(p.k), values = rows(p.v);
    for (int i = 0; i < p.n; ++i) {
      const int first = p.FirstSeen(i), seen = p.KeysSeen(i);
      ReducedWeights reduced;
      reduced.fill(std::vector<double>(seen));
      for (int g = 0; g < s.group(); ++g) {
        const size_t row = (static_cast<size_t>(i) * s.num_heads + kv * s.group() + g) * dim;
        for (int d = 0; d < dim; ++d) query[d] = scale * p.q[row + d];
        weights.resize(std::max(0, seen - first));
        for (int j = first; j < seen; ++j)
          weights[j - first] = Dot(query.data(), &keys[static_cast<size_t>(j) * dim], dim);
        const double sink = p.sinks.empty() ? -INFINITY : p.sinks[kv * s.group() + g];
        Softmax(p.softcap, sink, &dense.largest_logit, weights);
        if (see) see({row, kv, first, static_cast<int>(weights.size()), weights.data()});
        for (int j = first; j < seen; ++j) {
          const double* const value = &values[static_cast<size_t>(j) * dim];
          for (int d = 0; d < dim; ++d) dense.out[row + d] += weights[j - first] * value[d];
        }
        Reduce(weights, first, s.group(), &reduced);
      }
      for (int j = 0; j < seen && p.first_position + i >= p.first_summed; ++j)
        dense.column_sums[static_cast<size_t>(kv) * p.n + j] +=
            reduced[static_cast<int>(s.reduce)][j];
      for (int r = 0; r < kNumReduces; ++r) dense.reduced[r].push_back(std::move(reduced[r]));
    }
  }
  return dense;
}

// Rounding of fp32 logits, and of sums over n terms added in blocks.
double ErrorOf(const Prompt& p, const Dense& dense) {
  return (8 + dense.largest_logit * std::sqrt(p.shape.head_dim)) * 1.2e-7;
}

// Checks the output of the queries from `begin` on.
void ExpectOutput(const Prompt& p, const Dense& dense, int begin = 0) {
  double worst = 0;
  const size_t first = static_cast<size_t>(begin) * p.shape.num_heads * p.shape.head_dim;
  for (size_t i = first; i < p.out.size(); ++i) {
    ASSERT_FALSE(std::isnan(p.out[i])) << i;
    worst = std::max(worst, std::abs(p.out[i] - dense.out[i]));
  }
  EXPECT_LE(worst, 4 * ErrorOf(p, dense));
}

void ExpectMatches(const Prompt& p, const Dense& dense) {
  ASSERT_NO_FATAL_FAILURE(ExpectOutput(p, dense));
  const double error = ErrorOf(p, dense);
  for (int h = 0; h < p.shape.num_kv_heads; ++h) {
    for (int j = 0; j < p.keys; ++j) {
      const double expected = dense.column_sums[static_cast<size_t>(h) * p.n + j];
      ASSERT_NEAR(p.column_sums[static_cast<size_t>(h) * p.capacity + j], expected,
                  2 * error * expected + 1e-9)
          << "head " << h << " key " << j;
    }
    for (int j = p.keys; j < p.capacity; ++j)
      ASSERT_TRUE(std::isnan(p.column_sums[static_cast<size_t>(h) * p.capacity + j]))
          << "written past the prompt";
  }
}

// Relative error of a weight, or of its square: in bf16 1 %, and as much again from the divisor.
double WeightError(DType precision, GroupReduce reduce = GroupReduce::kMean) {
  if (precision != DType::kBF16) return 0.0;
  return reduce == GroupReduce::kSumOfSquares ? 0.04 : 0.02;
}

// The same for lower-precision products with operands rounded beforehand.
void ExpectColumnSums(const Prompt& p, const Dense& dense, DType precision) {
  const double error = 2e-5 + WeightError(precision, p.shape.reduce);
  for (int h = 0; h < p.shape.num_kv_heads; ++h) {
    for (int j = 0; j < p.n; ++j) {
      const double expected = dense.column_sums[static_cast<size_t>(h) * p.n + j];
      ASSERT_NEAR(p.column_sums[static_cast<size_t>(h) * p.capacity + j], expected,
                  error * expected + 1e-9)
          << "head " << h << " key " << j;
    }
  }
}

using Kind = ColumnStatistic::Kind;

const char* NameOf(Kind kind) {
  return kind == Kind::kSum ? "sum" : kind == Kind::kMax ? "max" : "below mean";
}

// Allowed range of a key's statistic, from the plain weights of `dense` reduced as
// the statistic says.
struct Range {
  double low = 0, high = 0;
};

Range ExpectedStatistic(const ColumnStatistic& statistic, const Prompt& p, const Dense& dense,
                        DType precision, int head, int key) {
  const double error = (8 + dense.largest_logit * std::sqrt(p.shape.head_dim)) * 2.4e-7 +
                       WeightError(precision, statistic.reduce);
  Range range;
  for (int i = 0; i < p.n; ++i) {
    const int position = p.first_position + i;
    if (key >= p.KeysSeen(i) || position < statistic.first_query || position >= statistic.end_query)
      continue;
    const double w = dense.Reduced(statistic.reduce, static_cast<size_t>(head) * p.n + i)[key];
    if (statistic.kind == Kind::kBelowMean) {
      const double limit = (1.0 - kBelowMeanMargin) / p.KeysSeen(i);
      range.low += w * (1 + error) < limit ? 1 : 0;
      range.high += w * (1 - error) < limit ? 1 : 0;
    } else {
      range.high = statistic.kind == Kind::kMax ? std::max(range.high, w) : range.high + w;
    }
  }
  if (statistic.kind == Kind::kBelowMean) return range;
  return {range.high * (1 - error) - 1e-9, range.high * (1 + error) + 1e-9};
}

void ExpectStatistics(const Prompt& p, const Dense& dense, DType precision = DType::kF32) {
  for (size_t s = 0; s < p.more.size(); ++s) {
    const ColumnStatistic& statistic = p.more[s];
    SCOPED_TRACE(std::string(NameOf(statistic.kind)) + ", reduce " +
                 std::to_string(static_cast<int>(statistic.reduce)) + ", queries " +
                 std::to_string(statistic.first_query) + " to " +
                 std::to_string(statistic.end_query));
    double doubts = 0;
    for (int h = 0; h < p.shape.num_kv_heads; ++h) {
      const float* got = &p.more_out[s][static_cast<size_t>(h) * p.capacity];
      for (int j = 0; j < p.keys; ++j) {
        const Range expected = ExpectedStatistic(statistic, p, dense, precision, h, j);
        ASSERT_TRUE(got[j] >= expected.low && got[j] <= expected.high)
            << "head " << h << " key " << j << ": " << got[j] << " is not in [" << expected.low
            << ", " << expected.high << "]";
        if (statistic.kind == Kind::kBelowMean) doubts += expected.high - expected.low;
      }
      for (int j = p.keys; j < p.capacity; ++j)
        ASSERT_TRUE(std::isnan(got[j])) << "written past the prompt";
    }
    EXPECT_LE(doubts, p.n * p.shape.num_kv_heads * (precision == DType::kBF16 ? p.n : 1) / 20)
        << "counts too uncertain to be compared";
  }
}

class PrefillAttentionTest : public testing::TestWithParam<Shape> {
 protected:
  PrefillAttentionTest() { RecordProperty("seed", kSeed); }
};

TEST_P(PrefillAttentionTest, MatchesDenseAttention) {
  for (const int n : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 129, 161, 257, 290}) {
    SCOPED_TRACE("n " + std::to_string(n));
    Prompt prompt(GetParam(), n, kSeed + n, n % 2 == 0 ? 3.0f : 1.0f);
    RunOnBackend(&prompt);
    ASSERT_NO_FATAL_FAILURE(ExpectMatches(prompt, AttendPlainly(prompt)));
  }
}

TEST_P(PrefillAttentionTest, MatchesReferenceBackend) {
  Prompt prompt(GetParam(), 200, kSeed);
  Prompt truth = prompt;
  RunOnBackend(&prompt);
  reference::PrefillAttention(truth.Args(0, 200, true));
  for (size_t i = 0; i < prompt.out.size(); ++i)
    ASSERT_NEAR(prompt.out[i], truth.out[i], 1e-5) << i;
  for (size_t i = 0; i < prompt.column_sums.size(); ++i) {
    if (std::isnan(truth.column_sums[i])) continue;
    ASSERT_NEAR(prompt.column_sums[i], truth.column_sums[i], 1e-5 * truth.column_sums[i]) << i;
  }
}

// If matrix products take bf16 rows, the output is the rounded floats.
TEST_P(PrefillAttentionTest, RoundsForTheMatrixProduct) {
  if (TestBackend(1)->ActivationDType(DType::kBF16) == DType::kF32)
    GTEST_SKIP() << "the backend's matrix products take fp32 rows";
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    Prompt prompt(GetParam(), 70, kSeed);
    std::vector<uint16_t> rounded;
    RunSlice(&prompt, 0, 70, false, 1, precision, &rounded);
    RunSlice(&prompt, 0, 70, false, 1, precision);
    for (size_t i = 0; i < rounded.size(); ++i)
      ASSERT_EQ(rounded[i], FloatToBF16(prompt.out[i])) << i;
  }
}

// Runs that start at multiples of the query tile, of any length, on any number of threads.
TEST_P(PrefillAttentionTest, SlicingAndThreadsChangeNoBit) {
  const int n = 333;
  const Prompt start(GetParam(), n, kSeed);
  Prompt expected = start;
  RunOnBackend(&expected, true, 1);
  const std::vector<std::vector<int>> cuts = {{333},
                                              {32, 333},
                                              {64, 96, 320, 333},
                                              {160, 333},
                                              {32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 333},
                                              {320, 333}};
  for (size_t c = 0; c < cuts.size(); ++c) {
    Prompt sliced = start;
    RunSliced(&sliced, cuts[c], 1 + static_cast<int>(c % 4));
    EXPECT_TRUE(SameBits(sliced.out, expected.out)) << "cut " << c;
    EXPECT_TRUE(SameBits(sliced.column_sums, expected.column_sums)) << "cut " << c;
  }
  Prompt without = start;
  RunOnBackend(&without, false, 3);
  EXPECT_TRUE(SameBits(without.out, expected.out)) << "column sums must not change the output";
  EXPECT_TRUE(SameBits(without.column_sums, start.column_sums)) << "not asked for";
}

// SnapKV's window: only the last queries add to the sums, from any position on.
TEST_P(PrefillAttentionTest, WindowOfQueriesMatchesDenseAttention) {
  for (const int n : {1, 33, 100, 161}) {
    for (const int window : {0, 1, 7, 32, 33, 64, 90}) {
      if (window > n) continue;
      SCOPED_TRACE("n " + std::to_string(n) + ", window " + std::to_string(window));
      Prompt prompt(GetParam(), n, kSeed + n);
      prompt.first_summed = n - window;
      RunOnBackend(&prompt);
      ASSERT_NO_FATAL_FAILURE(ExpectMatches(prompt, AttendPlainly(prompt)));
    }
  }
  Prompt prompt(GetParam(), 40, kSeed);
  prompt.first_summed = 50;
  const std::vector<float> before = prompt.column_sums;
  RunOnBackend(&prompt);
  EXPECT_TRUE(SameBits(prompt.column_sums, before)) << "the window lies beyond the run";
}

TEST_P(PrefillAttentionTest, SlicingChangesNoBitOfAWindow) {
  const int n = 141;
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    for (const int first_summed : {13, 109}) {
      Prompt start(GetParam(), n, kSeed);
      start.first_summed = first_summed;
      Prompt expected = start;
      RunSlice(&expected, 0, n, true, 1, precision);
      Prompt sliced = start;
      const int cuts[] = {0, 32, 96, n};
      for (int i = 0; i < 3; ++i) RunSlice(&sliced, cuts[i], cuts[i + 1], true, 1 + i, precision);
      EXPECT_TRUE(SameBits(sliced.out, expected.out)) << first_summed;
      EXPECT_TRUE(SameBits(sliced.column_sums, expected.column_sums)) << first_summed;
      Prompt all = start;
      all.first_summed = 0;
      RunSlice(&all, 0, n, true, 1, precision);
      EXPECT_TRUE(SameBits(all.out, expected.out)) << "the window must not change the output";
    }
  }
}

// A device may round to 16 bits if the caller allows it. With inputs exact in 16 bits, the rounding
// of the weights is the only error.
TEST_P(PrefillAttentionTest, LowPrecisionRoundsNothingButWeights) {
  for (const DType precision : {DType::kBF16, DType::kF16}) {
    const bool bf16 = precision == DType::kBF16;
    const double weight_error = bf16 ? 1.0 / 100 : 1.0 / 2048;
    for (const int n : {1, 31, 64, 65, 127, 129, 200}) {
      SCOPED_TRACE(std::string(DTypeName(precision)) + ", n " + std::to_string(n));
      Prompt prompt(GetParam(), n, kSeed + n);
      double largest = 0;
      for (std::vector<float>* values : {&prompt.q, &prompt.k, &prompt.v}) {
        for (float& x : *values) {
          x = bf16 ? BF16ToFloat(FloatToBF16(x)) : F16ToFloat(FloatToF16(x));
          if (!std::isnan(x)) largest = std::max(largest, static_cast<double>(std::abs(x)));
        }
      }
      prompt.first_summed = n % 2 == 0 ? n / 3 : 0;
      RunSlice(&prompt, 0, n, true, 2, precision);
      const Dense dense = AttendPlainly(prompt);
      for (size_t i = 0; i < prompt.out.size(); ++i)
        ASSERT_NEAR(prompt.out[i], dense.out[i], weight_error * largest) << i;
      ASSERT_NO_FATAL_FAILURE(ExpectColumnSums(prompt, dense, precision));
    }
  }
}

// Keys are multiples of one vector, and values identify the keys. logits[j]: of key
// j for every query.
Prompt PromptOfLogits(const Shape& shape, const std::vector<float>& logits) {
  Prompt prompt(shape, static_cast<int>(logits.size()), kSeed);
  std::fill(prompt.q.begin(), prompt.q.end(), 0.0f);
  std::fill(prompt.k.begin(), prompt.k.end(), 0.0f);
  const float root = std::sqrt(static_cast<float>(shape.head_dim));
  for (size_t row = 0; row < prompt.q.size(); row += shape.head_dim) prompt.q[row] = 1.0f;
  for (int h = 0; h < shape.num_kv_heads; ++h) {
    for (size_t j = 0; j < logits.size(); ++j) {
      const size_t row = h * prompt.KvStride() + j * shape.head_dim;
      prompt.k[row] = BF16ToFloat(FloatToBF16(logits[j] * root));
      for (int d = 0; d < shape.head_dim; ++d) prompt.v[row + d] = j % 2 == 0 ? 0.0f : 1.0f;
    }
  }
  return prompt;
}

// The weight of the second of two keys over its whole range: each query gives that key a different
// logit, and the other keys none.
TEST_P(PrefillAttentionTest, EveryWeightIsWithinOnePercentInLowPrecision) {
  const Shape& shape = GetParam();
  const int n = 300;
  Prompt prompt = PromptOfLogits(shape, std::vector<float>(n, 0.0f));
  const float root = std::sqrt(static_cast<float>(shape.head_dim));
  for (size_t row = 0; row < prompt.q.size(); row += shape.head_dim) {
    const size_t query = row / shape.head_dim / shape.num_heads;
    prompt.q[row] = BF16ToFloat(FloatToBF16(-0.2053f * static_cast<float>(query) * root));
    prompt.q[row + 1] = 1.0f;
  }
  for (int h = 0; h < shape.num_kv_heads; ++h) {
    for (int j = 1; j < n; ++j)
      prompt.k[h * prompt.KvStride() + j * shape.head_dim + (j == 1 ? 0 : 1)] =
          j == 1 ? 1.0f : -4096.0f;
  }
  RunSlice(&prompt, 0, n, false, 2, DType::kBF16);
  const size_t stride = static_cast<size_t>(shape.num_heads) * shape.head_dim;
  const double scale = 1.0f / root;
  double mean = 0;
  for (int i = 1; i < n; ++i) {
    const double expected = std::exp(scale * prompt.q[i * stride]);
    const double weight = prompt.out[i * stride] / (1.0 - prompt.out[i * stride]);
    ASSERT_NEAR(weight, expected, 0.0101 * expected + 1e-26) << i;
    mean += (weight / expected - 1) / (n - 1);
  }
  EXPECT_LT(std::abs(mean), 0.002) << "weights lean to one side";
}

// Later keys exceed the first panel's maximum, by less and by more than a kernel's headroom.
TEST_P(PrefillAttentionTest, LogitsThatRiseInLowPrecision) {
  for (const float rise : {3.0f, 23.0f, 5000.0f}) {
    for (const float start : {-2000.0f, 0.0f}) {
      SCOPED_TRACE(std::to_string(start) + " and " + std::to_string(rise) + " more");
      std::vector<float> logits(150);
      for (size_t j = 0; j < logits.size(); ++j) {
        const size_t step = j / 64, offset = j % 7;
        logits[j] = start + rise * static_cast<float>(step) + 0.25f * static_cast<float>(offset);
      }
      Prompt prompt = PromptOfLogits(GetParam(), logits);
      RunSlice(&prompt, 0, prompt.n, true, 2, DType::kBF16);
      const Dense dense = AttendPlainly(prompt);
      for (size_t i = 0; i < prompt.out.size(); ++i)
        ASSERT_NEAR(prompt.out[i], dense.out[i], 0.01) << i;
      ASSERT_NO_FATAL_FAILURE(ExpectColumnSums(prompt, dense, DType::kBF16));
    }
  }
}

TEST_P(PrefillAttentionTest, SlicingChangesNoBitInLowPrecision) {
  const int n = 205;
  const Prompt start(GetParam(), n, kSeed);
  Prompt expected = start;
  RunSlice(&expected, 0, n, true, 1, DType::kBF16);
  for (const std::vector<int>& cuts :
       {std::vector<int>{32, n}, {64, 96, n}, {96, 128, 160, 192, n}}) {
    Prompt sliced = start;
    int begin = 0;
    for (const int end : cuts) {
      RunSlice(&sliced, begin, end, true, 1, DType::kBF16);
      begin = end;
    }
    EXPECT_TRUE(SameBits(sliced.out, expected.out));
    EXPECT_TRUE(SameBits(sliced.column_sums, expected.column_sums));
  }
}

// Every kind, together with the column sums and each other, over arbitrary ranges.
TEST_P(PrefillAttentionTest, StatisticsMatchDenseAttention) {
  constexpr int32_t kNoEnd = std::numeric_limits<int32_t>::max();
  struct Ranges {
    int n;
    int32_t begin, end;
  };
  for (const auto& [n, begin, end] : std::vector<Ranges>{{1, 0, kNoEnd},
                                                         {32, 0, 31},
                                                         {65, 31, 33},
                                                         {100, 0, kNoEnd},
                                                         {129, 32, 96},
                                                         {161, -5, 97},
                                                         {161, 100, 140},
                                                         {161, 159, kNoEnd}}) {
    for (const auto& [first, second] :
         {std::pair{Kind::kMax, Kind::kBelowMean}, {Kind::kBelowMean, Kind::kSum}}) {
      SCOPED_TRACE("n " + std::to_string(n));
      Prompt prompt(GetParam(), n, kSeed + n);
      prompt.first_summed = n / 3;
      const GroupReduce reduce = GetParam().reduce;
      prompt.Ask({.kind = first, .reduce = reduce, .first_query = begin, .end_query = end});
      prompt.Ask({.kind = second,
                  .reduce = reduce == GroupReduce::kMax ? GroupReduce::kMean : GroupReduce::kMax,
                  .first_query = n / 2,
                  .end_query = n - 1});
      RunOnBackend(&prompt);
      const Dense dense = AttendPlainly(prompt);
      ASSERT_NO_FATAL_FAILURE(ExpectMatches(prompt, dense));
      ASSERT_NO_FATAL_FAILURE(ExpectStatistics(prompt, dense));
    }
  }
}

// A statistic changes no bit of another or of the output, and slicing changes no bit of any.
TEST_P(PrefillAttentionTest, SlicingChangesNoBitOfStatistics) {
  const int n = 141;
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    const Prompt alone(GetParam(), n, kSeed);
    Prompt sums_alone = alone;
    RunSlice(&sums_alone, 0, n, true, 1, precision);
    Prompt start = alone;
    start.Ask({.kind = Kind::kMax, .reduce = GroupReduce::kMax, .first_query = 7});
    start.Ask({.kind = Kind::kBelowMean, .first_query = 40, .end_query = 101});
    Prompt expected = start;
    RunSlice(&expected, 0, n, true, 2, precision);
    Prompt sliced = start;
    const int cuts[] = {0, 32, 96, n};
    for (int i = 0; i < 3; ++i) RunSlice(&sliced, cuts[i], cuts[i + 1], true, 1 + i, precision);
    EXPECT_TRUE(SameBits(expected.out, sums_alone.out));
    EXPECT_TRUE(SameBits(expected.column_sums, sums_alone.column_sums));
    EXPECT_TRUE(SameBits(sliced.out, expected.out));
    EXPECT_TRUE(SameBits(sliced.column_sums, expected.column_sums));
    for (size_t s = 0; s < start.more.size(); ++s)
      EXPECT_TRUE(SameBits(sliced.more_out[s], expected.more_out[s])) << s;
  }
}

// Queries repeated after all keys, so that they also see the keys after them; the
// output may be omitted.
TEST_P(PrefillAttentionTest, QueriesFromAfarSeeEveryKey) {
  struct Sizes {
    int queries, from, keys;
  };
  for (const auto& [queries, from, keys] : std::vector<Sizes>{{1, 32, 1},
                                                              {33, 32, 31},
                                                              {64, 64, 64},
                                                              {100, 128, 100},
                                                              {161, 160, 130},
                                                              {161, 64, 90}}) {
    SCOPED_TRACE(std::to_string(queries) + " queries from " + std::to_string(from) + " on, " +
                 std::to_string(keys) + " keys");
    Prompt prompt(GetParam(), queries, kSeed + queries);
    prompt.AskFromAfar(from, keys);
    prompt.Ask({.kind = Kind::kMax, .reduce = GetParam().reduce, .first_query = from + 7});
    prompt.Ask({.kind = Kind::kBelowMean, .reduce = GetParam().reduce});
    const Prompt start = prompt;
    RunOnBackend(&prompt);
    const Dense dense = AttendPlainly(prompt);
    ASSERT_NO_FATAL_FAILURE(ExpectMatches(prompt, dense));
    ASSERT_NO_FATAL_FAILURE(ExpectStatistics(prompt, dense));
    for (const DType precision : {DType::kF32, DType::kBF16}) {
      Prompt whole = start, sliced = start;
      RunSlice(&whole, 0, queries, true, 2, precision);
      sliced.attended = false;
      for (int begin = 0; begin < queries; begin += 64)
        RunSlice(&sliced, begin, std::min(begin + 64, queries), true, 1, precision);
      EXPECT_TRUE(SameBits(sliced.out, start.out)) << "not asked for";
      EXPECT_TRUE(SameBits(sliced.column_sums, whole.column_sums));
      for (size_t s = 0; s < start.more.size(); ++s)
        EXPECT_TRUE(SameBits(sliced.more_out[s], whole.more_out[s])) << s;
    }
  }
}

// Rows already in 16 bits give the same bits as fp32 rows that are rounded on the way.
TEST_P(PrefillAttentionTest, ArenaOfSixteenBitsChangesNoBit) {
  const int n = 161;
  for (const DType precision : {DType::kBF16, DType::kF16}) {
    if (TestBackend(1)->ArenaDType(precision, GetParam().head_dim) == DType::kF32)
      GTEST_SKIP() << "the backend's arenas are of fp32";
    for (const int window : {kNoWindow, 40}) {
      SCOPED_TRACE(std::string(DTypeName(precision)) + ", window " + std::to_string(window));
      const bool counted = window == kNoWindow;
      Prompt start(GetParam(), n, kSeed);
      start.window = window;
      if (counted) start.Ask({.kind = Kind::kMax, .reduce = GroupReduce::kMax, .first_query = 7});
      Prompt expected = start, got = start;
      RunSlice(&expected, 0, n, counted, 1, precision);
      RunSlice(&got, 0, 96, counted, 1, precision, nullptr, precision);
      RunSlice(&got, 96, n, counted, 1, precision, nullptr, precision);
      EXPECT_TRUE(SameBits(got.out, expected.out));
      EXPECT_TRUE(SameBits(got.column_sums, expected.column_sums));
      for (size_t s = 0; s < start.more.size(); ++s)
        EXPECT_TRUE(SameBits(got.more_out[s], expected.more_out[s])) << s;
    }
  }
}

// As in a bf16 model: rows, precision and output are all bf16. A device may have a
// separate kernel for it.
TEST(PrefillAttentionBFloat16Test, RowsAndOutputMatchDenseAttention) {
  for (const Shape& shape : {Shape{8, 2, 128}, Shape{9, 3, 64}}) {
    if (TestBackend(1)->ArenaDType(DType::kBF16, shape.head_dim) != DType::kBF16)
      GTEST_SKIP() << "the backend's arenas are of fp32";
    for (const std::vector<int>& cuts : std::vector<std::vector<int>>{{64}, {129}, {96, 300}}) {
      const int n = cuts.back();
      SCOPED_TRACE(NameOf(shape) + ", n " + std::to_string(n));
      Prompt prompt(shape, n, kSeed + n);
      double largest = 0;
      for (std::vector<float>* values : {&prompt.q, &prompt.k, &prompt.v}) {
        for (float& x : *values) {
          x = BF16ToFloat(FloatToBF16(x));
          if (!std::isnan(x)) largest = std::max(largest, static_cast<double>(std::abs(x)));
        }
      }
      std::vector<uint16_t> out;
      int begin = 0;
      for (const int end : cuts) {
        RunSlice(&prompt, begin, end, true, 1, DType::kBF16, &out, DType::kBF16);
        begin = end;
      }
      const Dense dense = AttendPlainly(prompt);
      for (size_t i = 0; i < out.size(); ++i)
        ASSERT_NEAR(BF16ToFloat(out[i]), dense.out[i], largest / 100 + std::abs(dense.out[i]) / 256)
            << i;
      ASSERT_NO_FATAL_FAILURE(ExpectColumnSums(prompt, dense, DType::kBF16));
    }
  }
}

// Several prompts in one call, of different lengths, some with statistics, one starting after its
// first queries: each gets the same bits as alone.
TEST_P(PrefillAttentionTest, SeveralPromptsAtOnceChangeNoBit) {
  Backend& backend = *TestBackend(1);
  const Shape& shape = GetParam();
  const DType arena = backend.ArenaDType(DType::kBF16, shape.head_dim);
  struct Part {
    int n, begin, statistics;
    int window = kNoWindow;
  };
  const std::vector<Part> parts = {{70, 0, 0}, {33, 0, 2}, {161, 96, 1},    {1, 0, 0},
                                   {64, 0, 3}, {65, 0, 1}, {100, 32, 0, 20}};
  std::vector<Prompt> alone, together;
  Mirror mirror(backend);
  std::vector<PrefillAttentionArgs> runs;
  std::vector<std::vector<uint16_t>> rows(3 * parts.size());
  for (const Part& part : parts) {
    Prompt prompt(shape, part.n, kSeed + part.n);
    prompt.window = part.window;
    if (part.statistics > 1)
      prompt.Ask({.kind = Kind::kMax, .reduce = GroupReduce::kMax, .first_query = 7});
    if (part.statistics > 2) prompt.Ask({.kind = Kind::kBelowMean, .end_query = 50});
    alone.push_back(prompt);
    together.push_back(std::move(prompt));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    RunSlice(&alone[i], part.begin, part.n, part.statistics > 0, 1, DType::kBF16, nullptr, arena);
    Prompt& prompt = together[i];
    PrefillAttentionArgs args = prompt.Args(part.begin, part.n, part.statistics > 0);
    const int64_t first = int64_t{part.begin} * shape.num_heads * shape.head_dim;
    args.q = MapRows(&mirror, prompt.q, arena, &rows[3 * i]) + first;
    args.k = MapRows(&mirror, prompt.k, arena, &rows[3 * i + 1]);
    args.v = MapRows(&mirror, prompt.v, arena, &rows[3 * i + 2]);
    args.out = mirror.Map(prompt.out.data(), prompt.out.size()) + first;
    for (ColumnStatistic& statistic : args.statistics) {
      if (statistic.out != nullptr)
        statistic.out = mirror.Map(statistic.out, prompt.column_sums.size());
    }
    args.precision = DType::kBF16;
    runs.push_back(args);
  }
  backend.PrefillAttentions(runs);
  mirror.ReadBack();
  for (size_t i = 0; i < parts.size(); ++i) {
    SCOPED_TRACE("prompt " + std::to_string(i));
    EXPECT_TRUE(SameBits(together[i].out, alone[i].out));
    EXPECT_TRUE(SameBits(together[i].column_sums, alone[i].column_sums));
    for (size_t s = 0; s < alone[i].more.size(); ++s)
      EXPECT_TRUE(SameBits(together[i].more_out[s], alone[i].more_out[s])) << s;
  }
}

// Statistics use weights rounded at most like the output's.
TEST_P(PrefillAttentionTest, LowPrecisionRoundsStatisticsAsWeights) {
  for (const int n : {33, 130}) {
    SCOPED_TRACE("n " + std::to_string(n));
    Prompt prompt(GetParam(), n, kSeed + n);
    for (std::vector<float>* values : {&prompt.q, &prompt.k, &prompt.v}) {
      for (float& x : *values) x = BF16ToFloat(FloatToBF16(x));
    }
    prompt.Ask({.kind = Kind::kMax, .reduce = GetParam().reduce, .first_query = 5});
    prompt.Ask({.kind = Kind::kBelowMean, .reduce = GetParam().reduce, .end_query = n - 3});
    RunSlice(&prompt, 0, n, true, 2, DType::kBF16);
    ASSERT_NO_FATAL_FAILURE(ExpectStatistics(prompt, AttendPlainly(prompt), DType::kBF16));
  }
}

// The statistics of an echo: a sum and a maximum over the same queries, which a backend
// may compute together.
TEST_P(PrefillAttentionTest, ASumAndTheLargestWeightOfTheSameQueries) {
  for (const int n : {1, 31, 130, 161}) {
    SCOPED_TRACE("n " + std::to_string(n));
    for (const int first : {0, n / 2}) {
      Prompt prompt(GetParam(), n, kSeed + n);
      prompt.first_summed = first;
      prompt.Ask({.kind = Kind::kMax, .reduce = GroupReduce::kMax, .first_query = first});
      prompt.Ask({.kind = Kind::kBelowMean, .reduce = GetParam().reduce});
      RunOnBackend(&prompt);
      const Dense dense = AttendPlainly(prompt);
      ASSERT_NO_FATAL_FAILURE(ExpectMatches(prompt, dense));
      ASSERT_NO_FATAL_FAILURE(ExpectStatistics(prompt, dense));
    }
  }
}

// Whether the backend ranks in 8 bits if its bits may depend on the batch. The operation itself
// follows its arguments.
bool RanksByBytes() {
  const auto backend = CreateBackend(TestBackendName(), {});
  return backend.ok() && (*backend)->RankingDType(DType::kF16, DType::kF32) == DType::kQ8_0;
}

// Rows of integer steps with a maximum of 127.
void RoundToBytes(int head_dim, std::vector<float>* rows) {
  for (size_t begin = 0; begin < rows->size(); begin += head_dim) {
    float largest = 0;
    for (int d = 0; d < head_dim; ++d) largest = std::max(largest, std::abs((*rows)[begin + d]));
    for (int d = 0; d < head_dim; ++d) {
      float& x = (*rows)[begin + d];
      x = std::rint(x * 127.0f / largest) * (largest / 127.0f);
    }
  }
}

// Only the statistics of an echo: weights may be rough then.
Prompt PromptToRank(const Shape& shape, int n, DType precision, float q_scale = 1.0f) {
  Prompt prompt(shape, n, kSeed + n, q_scale);
  if (precision == DType::kQ8_0) {
    RoundToBytes(shape.head_dim, &prompt.q);
    RoundToBytes(shape.head_dim, &prompt.k);
  } else {
    for (std::vector<float>* values : {&prompt.q, &prompt.k}) {
      for (float& x : *values) x = BF16ToFloat(FloatToBF16(x));
    }
  }
  prompt.AskFromAfar((n + kQueryTile - 1) / kQueryTile * kQueryTile, n);
  prompt.attended = false;
  prompt.Ask({.kind = Kind::kMax, .reduce = GroupReduce::kMax});
  return prompt;
}

void RankInSlices(Prompt* prompt, DType precision) {
  for (int begin = 0; begin < prompt->n; begin += 64)
    RunSlice(prompt, begin, std::min(begin + 64, prompt->n), true, 1, precision);
}

// Relative errors of all keys' statistics.
struct Roughness {
  double least = 0, most = 0, mean = 0;
};

Roughness RoughnessOf(const Prompt& p, const Dense& dense, const std::vector<float>& got,
                      const ColumnStatistic& statistic) {
  Roughness found;
  int count = 0;
  for (int h = 0; h < p.shape.num_kv_heads; ++h) {
    for (int j = 0; j < p.keys; ++j) {
      const double expected = ExpectedStatistic(statistic, p, dense, DType::kF32, h, j).high;
      const float number = got[static_cast<size_t>(h) * p.capacity + j];
      if (expected < 2e-9) {  // 1e-9 is its absolute accuracy
        EXPECT_LE(number, 1e-8) << "head " << h << " key " << j;
        continue;
      }
      const double off = number / expected - 1;
      found.least = std::min(found.least, off);
      found.most = std::max(found.most, off);
      found.mean += off;
      ++count;
    }
  }
  found.mean /= std::max(count, 1);
  return found;
}

void ExpectRough(const Prompt& p, const Dense& dense, const std::vector<float>& got,
                 const ColumnStatistic& statistic) {
  SCOPED_TRACE(NameOf(statistic.kind));
  const Roughness found = RoughnessOf(p, dense, got, statistic);
  EXPECT_GE(found.least, -0.07);
  EXPECT_LE(found.most, 0.07);
  EXPECT_LE(std::abs(found.mean), p.n >= 100 ? 0.02 : 0.07);
}

// The column sums and the other statistics.
void ExpectRough(const Prompt& p) {
  const Dense dense = AttendPlainly(p);
  ExpectRough(p, dense, p.column_sums, {.reduce = p.shape.reduce, .first_query = p.first_summed});
  for (size_t s = 0; s < p.more.size(); ++s) ExpectRough(p, dense, p.more_out[s], p.more[s]);
}

// With rows exact in the precision, for any slicing of the queries.
TEST_P(PrefillAttentionTest, WeightsThatOnlyRankAreRoughAtMost) {
  for (const DType precision : {DType::kBF16, DType::kQ8_0}) {
    if (precision == DType::kQ8_0 && GetParam().head_dim < 4)
      continue;  // a word holds four numbers
    for (const int n : {1, 31, 33, 130, 200}) {
      for (const float q_scale : {1.0f, 6.0f}) {
        SCOPED_TRACE(std::string(DTypeName(precision)) + ", n " + std::to_string(n) +
                     ", queries times " + std::to_string(q_scale));
        Prompt prompt = PromptToRank(GetParam(), n, precision, q_scale);
        Prompt sliced = prompt;
        const std::vector<float> untouched = prompt.out;
        RunSlice(&prompt, 0, n, true, 2, precision);
        RankInSlices(&sliced, precision);
        EXPECT_TRUE(SameBits(prompt.out, untouched));
        EXPECT_TRUE(SameBits(sliced.column_sums, prompt.column_sums));
        EXPECT_TRUE(SameBits(sliced.more_out[0], prompt.more_out[0]));
        ExpectRough(prompt);
      }
    }
  }
}

// A query's weights still sum to 1.
TEST_P(PrefillAttentionTest, RoughWeightsSumToOne) {
  if (GetParam().reduce != GroupReduce::kMean) GTEST_SKIP() << "sums of something else";
  for (const int n : {1, 33, 200, 700}) {
    Prompt prompt = PromptToRank(GetParam(), n, DType::kBF16);
    RunSlice(&prompt, 0, n, true, 2, DType::kBF16);
    for (int h = 0; h < GetParam().num_kv_heads; ++h) {
      const float* sums = &prompt.column_sums[static_cast<size_t>(h) * prompt.capacity];
      EXPECT_NEAR(std::accumulate(sums, sums + n, 0.0), n, 1e-4 * n) << "n " << n;
    }
  }
}

// Only some of the queries.
TEST_P(PrefillAttentionTest, SomeQueriesRank) {
  const int n = 150;
  Prompt prompt = PromptToRank(GetParam(), n, DType::kBF16);
  prompt.first_summed = prompt.first_position + 40;
  prompt.more[0].first_query = prompt.first_summed;
  RunSlice(&prompt, 0, n, true, 2, DType::kBF16);
  ExpectRough(prompt);
}

// The first keys get no weight: the others' logits are hundreds higher, in some of the heads.
TEST_P(PrefillAttentionTest, RoughWeightsFarAboveTheFirst) {
  const int n = 140, late = 100, dim = GetParam().head_dim;
  Prompt prompt = PromptToRank(GetParam(), n, DType::kBF16);
  for (int h = 0; h < GetParam().num_kv_heads; ++h) {
    for (int j = late; j < n; ++j) prompt.k[h * prompt.KvStride() + int64_t{j} * dim] = 16.0f;
  }
  for (size_t row = 0; row < prompt.q.size() / dim; row += 2)
    prompt.q[row * dim] = 32.0f * std::sqrt(static_cast<float>(dim));
  for (float& x : prompt.q) x = BF16ToFloat(FloatToBF16(x));
  RunSlice(&prompt, 0, n, true, 2, DType::kBF16);
  ExpectRough(prompt);
}

// NaN, infinities and huge numbers: nothing is written past the keys.
TEST_P(PrefillAttentionTest, FaultsWriteNothingBeyondTheKeys) {
  for (const float fault : {INFINITY, -INFINITY, kNaN, 3e38f}) {
    Prompt prompt = PromptToRank(GetParam(), 70, DType::kBF16);
    prompt.k[int64_t{50} * GetParam().head_dim] = fault;
    prompt.q[0] = fault;
    RunSlice(&prompt, 0, 70, true, 2, DType::kBF16);
    for (const std::vector<float>* found : {&prompt.column_sums, &prompt.more_out[0]}) {
      for (int h = 0; h < GetParam().num_kv_heads; ++h) {
        for (int j = 70; j < prompt.capacity; ++j)
          ASSERT_TRUE(std::isnan((*found)[static_cast<size_t>(h) * prompt.capacity + j])) << j;
      }
    }
  }
}

// Rows that 8 bits do not represent, and other statistics: the rows are rounded.
TEST_P(PrefillAttentionTest, EightBitsRoundQueriesAndKeys) {
  if (!RanksByBytes()) GTEST_SKIP() << "the backend ranks by what it attends with";
  if (GetParam().head_dim < 4) GTEST_SKIP() << "a word holds four numbers";
  Prompt exact(GetParam(), 64, kSeed);
  exact.AskFromAfar(64, 64);
  exact.attended = false;
  Prompt rounded = exact;
  RunSlice(&exact, 0, 64, true, 2, DType::kF32);
  RunSlice(&rounded, 0, 64, true, 2, DType::kQ8_0);
  EXPECT_FALSE(SameBits(rounded.column_sums, exact.column_sums));
}

// Whether prompts of block-quantized weights attend in 8 bits there.
bool AttendsByBytes() {
  const auto backend = CreateBackend(TestBackendName(), {});
  return backend.ok() && (*backend)->AttentionDType(DType::kF16, DType::kQ4_0) == DType::kQ8_0;
}

// Makes some channels of the keys large and others small, by powers of two, and the queries the
// inverse; byte_factors restore them.
void SpreadChannels(Prompt* p) {
  const int heads = p->shape.num_heads, kv_heads = p->shape.num_kv_heads, dim = p->shape.head_dim;
  std::mt19937 random(kSeed);
  p->byte_factors.resize(static_cast<size_t>(heads + kv_heads) * dim);
  for (int h = 0; h < kv_heads; ++h) {
    for (int d = 0; d < dim; ++d) {
      const float large = std::ldexp(1.0f, static_cast<int>(random() % 17) - 8);
      p->byte_factors[static_cast<size_t>(heads + h) * dim + d] = 1.0f / large;
      for (int j = 0; j < p->n; ++j) p->k[h * p->KvStride() + int64_t{j} * dim + d] *= large;
      for (int g = h * heads / kv_heads; g < (h + 1) * heads / kv_heads; ++g) {
        p->byte_factors[static_cast<size_t>(g) * dim + d] = large;
        for (int i = 0; i < p->n; ++i)
          p->q[(static_cast<size_t>(i) * heads + g) * dim + d] /= large;
      }
    }
  }
}

// Factors that are powers of two round no product: the same bits, whatever the backend multiplies
// in. Without them 8 bits lose the small channels.
TEST_P(PrefillAttentionTest, ByteFactorsRestoreTheChannels) {
  const int n = 150;
  for (const bool attended : {true, false}) {
    for (const DType precision : {DType::kQ8_0, DType::kF32}) {
      Prompt even(GetParam(), n, kSeed);
      even.attended = attended;
      if (!attended) even.AskFromAfar(160, n);
      Prompt spread = even;
      SpreadChannels(&spread);
      Prompt without = spread;
      without.byte_factors.clear();
      RunSlice(&even, 0, n, true, 2, precision);
      RunSlice(&spread, 0, n, true, 2, precision);
      RunSlice(&without, 0, n, true, 2, precision);
      EXPECT_TRUE(SameBits(spread.out, even.out)) << DTypeName(precision);
      EXPECT_TRUE(SameBits(spread.column_sums, even.column_sums)) << DTypeName(precision);
      const bool bytes = precision == DType::kQ8_0 && GetParam().head_dim >= 4 &&
                         (attended ? AttendsByBytes() : RanksByBytes());
      if (bytes) {
        EXPECT_FALSE(SameBits(without.column_sums, even.column_sums));
      }
    }
  }
}

// Queries, keys and values exact in 8 bits.
void RoundRowsToBytes(Prompt* p) {
  for (std::vector<float>* rows : {&p->q, &p->k, &p->v}) RoundToBytes(p->shape.head_dim, rows);
}

// The output's summed squared error if only weights are rounded, and its expected value. A weight
// times the scale of its value is rounded to a 255th of the largest within 128 keys, on ARM to a
// 127th: a mean squared error of a twelfth of that step squared, times the squared value in its own
// steps.
struct ByteErrors {
  double found = 0, likely = 0, fp32 = 0;
};

ByteErrors ErrorsOf(const Prompt& p) {
  constexpr int kPanel = 128;
  constexpr int kSteps = cpu::kIsX86 ? 255 : 127;
  const int dim = p.shape.head_dim;
  ByteErrors errors;
  const auto see = [&](const QueryWeights& q) {
    const float* values = &p.v[q.kv_head * p.KvStride()];
    for (int begin = q.first; begin < q.first + q.count;) {
      const int end = std::min((begin / kPanel + 1) * kPanel, q.first + q.count);
      double step = 0, squares = 0;
      for (int j = begin; j < end; ++j) {
        double largest = 0, sum = 0;
        for (int d = 0; d < dim; ++d) {
          const double value = std::abs(values[static_cast<size_t>(j) * dim + d]);
          largest = std::max(largest, value);
          sum += value * value;
        }
        step = std::max(step, q.weights[j - q.first] * largest / kSteps);
        if (largest > 0) squares += sum / (largest * largest);
      }
      errors.likely += step * step / 12 * squares;
      begin = end;
    }
  };
  const Dense dense = AttendPlainly(p, see);
  for (size_t i = 0; i < p.out.size(); ++i) {
    errors.found += std::pow(p.out[i] - dense.out[i], 2);
    errors.fp32 += std::pow(4 * ErrorOf(p, dense), 2);
  }
  return errors;
}

void ExpectByteErrors(const Prompt& p) {
  const ByteErrors errors = ErrorsOf(p);
  EXPECT_LE(errors.found, 1.3 * errors.likely + errors.fp32);
  if (p.n >= 100 && p.window > 100) {
    EXPECT_GE(errors.found, 0.2 * errors.likely) << "not in 8 bits";
  }
}

TEST_P(PrefillAttentionTest, EightBitsRoundWeightsToTheirSteps) {
  if (!AttendsByBytes()) GTEST_SKIP() << "the backend attends with more bits";
  if (GetParam().head_dim < 4) GTEST_SKIP() << "a word holds four numbers";
  for (const int n : {1, 2, 3, 4, 5, 31, 33, 64, 127, 128, 130, 131, 257, 290}) {
    SCOPED_TRACE("n " + std::to_string(n));
    Prompt prompt(GetParam(), n, kSeed + n, n % 2 == 0 ? 2.0f : 1.0f);
    RoundRowsToBytes(&prompt);
    RunSlice(&prompt, 0, n, n % 2 == 0, 2, DType::kQ8_0);
    ExpectByteErrors(prompt);
    if (n % 2 != 0) continue;
    ASSERT_NO_FATAL_FAILURE(ExpectColumnSums(prompt, AttendPlainly(prompt), DType::kQ8_0));
  }
}

// A first key with nearly all attention and almost no value, as in real models. The other keys keep
// their precision: the first key adds little to the expected error.
TEST_P(PrefillAttentionTest, EightBitErrorIsRelativeToAKeysShare) {
  if (!AttendsByBytes()) GTEST_SKIP() << "the backend attends with more bits";
  if (GetParam().head_dim < 4) GTEST_SKIP() << "a word holds four numbers";
  const int n = 200, dim = GetParam().head_dim;
  Prompt prompt(GetParam(), n, kSeed);
  for (size_t row = 0; row < prompt.q.size(); row += dim) prompt.q[row] = 2.0f;
  for (int h = 0; h < prompt.shape.num_kv_heads; ++h) {
    float* const key = &prompt.k[h * prompt.KvStride()];
    std::fill_n(key, dim, 0.0f);
    key[0] = 4.0f * std::sqrt(static_cast<float>(dim));
    for (int d = 0; d < dim; ++d) prompt.v[h * prompt.KvStride() + d] *= 1e-4f;
  }
  RoundRowsToBytes(&prompt);
  RunSlice(&prompt, 0, n, false, 2, DType::kQ8_0);
  ExpectByteErrors(prompt);
}

TEST_P(PrefillAttentionTest, SlicingAndThreadsChangeNoBitInEightBits) {
  const int n = 333;
  const Prompt start(GetParam(), n, kSeed);
  Prompt expected = start;
  RunSlice(&expected, 0, n, true, 1, DType::kQ8_0);
  for (const std::vector<int>& cuts :
       {std::vector<int>{32, n}, {64, 96, n}, {96, 128, 160, 192, 320, n}}) {
    for (const int threads : {1, 3}) {
      Prompt sliced = start;
      int begin = 0;
      for (const int end : cuts) {
        RunSlice(&sliced, begin, end, true, threads, DType::kQ8_0);
        begin = end;
      }
      EXPECT_TRUE(SameBits(sliced.out, expected.out));
      EXPECT_TRUE(SameBits(sliced.column_sums, expected.column_sums));
    }
  }
}

// Zero values add nothing; an infinite value shows wherever it is seen.
TEST_P(PrefillAttentionTest, EightBitsOfZeroAndOfFaults) {
  if (!AttendsByBytes()) GTEST_SKIP() << "the backend attends with more bits";
  if (GetParam().head_dim < 4) GTEST_SKIP() << "a word holds four numbers";
  const int n = 140, bad = 70;
  Prompt prompt(GetParam(), n, kSeed);
  const std::vector<float> values = prompt.v;
  std::fill(prompt.v.begin(), prompt.v.end(), 0.0f);
  RunSlice(&prompt, 0, n, false, 2, DType::kQ8_0);
  for (const float x : prompt.out) ASSERT_EQ(x, 0.0f);
  prompt.v = values;
  for (int h = 0; h < prompt.shape.num_kv_heads; ++h)
    prompt.v[h * prompt.KvStride() + int64_t{bad} * prompt.shape.head_dim] = INFINITY;
  RunSlice(&prompt, 0, n, false, 2, DType::kQ8_0);
  const size_t row = static_cast<size_t>(prompt.shape.num_heads) * prompt.shape.head_dim;
  for (int i = 0; i < n; ++i) {
    for (int head = 0; head < prompt.shape.num_heads; ++head) {
      const float first = prompt.out[i * row + static_cast<size_t>(head) * prompt.shape.head_dim];
      ASSERT_EQ(std::isfinite(first), i < bad) << "query " << i << ", head " << head;
    }
  }
}

// Equal weights are the mean, not below it; the maximum stays where it was higher.
TEST_P(PrefillAttentionTest, EqualWeightsAreNotBelowTheMean) {
  const int n = 70;
  Prompt prompt(GetParam(), n, kSeed);
  std::fill(prompt.q.begin(), prompt.q.end(), 0.0f);
  prompt.Ask({.kind = Kind::kBelowMean});
  prompt.Ask({.kind = Kind::kMax});
  for (float& x : prompt.more_out[1]) x = std::isnan(x) ? x : 0.1f;
  RunOnBackend(&prompt);
  for (int h = 0; h < GetParam().num_kv_heads; ++h) {
    for (int j = 0; j < n; ++j) {
      const size_t i = static_cast<size_t>(h) * prompt.capacity + j;
      EXPECT_EQ(prompt.more_out[0][i], 0.0f) << "key " << j;
      const float highest = 1.0f / static_cast<float>(j + 1);
      EXPECT_NEAR(prompt.more_out[1][i], std::max(0.1f, highest), 2e-6 * highest) << "key " << j;
    }
  }
}

// One key gets 1/4,000 to 1/2,000 less than the mean from every query that sees other keys too. All
// of them count; the first query, which sees no other key, does not.
TEST_P(PrefillAttentionTest, WeightsLittleBelowTheMeanCount) {
  const Shape& s = GetParam();
  const int n = 70;
  Prompt prompt(s, n, kSeed);
  std::fill(prompt.q.begin(), prompt.q.end(), 1.0f);
  for (int h = 0; h < s.num_kv_heads; ++h) {
    std::fill_n(&prompt.k[h * prompt.KvStride()], n * s.head_dim, 0.0f);
    prompt.k[h * prompt.KvStride()] = -5e-4f * std::sqrt(static_cast<float>(s.head_dim));
  }
  prompt.Ask({.kind = Kind::kBelowMean});
  RunOnBackend(&prompt);
  for (int h = 0; h < s.num_kv_heads; ++h) {
    for (int j = 0; j < n; ++j) {
      EXPECT_EQ(prompt.more_out[0][static_cast<size_t>(h) * prompt.capacity + j],
                j == 0 ? static_cast<float>(n - 1) : 0.0f)
          << "key " << j;
    }
  }
}

// Zero keys: s_j = sum over i >= j of 1 / (i + 1), and the total is the number of queries.
TEST_P(PrefillAttentionTest, ZeroKeysGiveHarmonicColumnSums) {
  const Shape& s = GetParam();
  for (const int n : {10, 33, 300}) {
    Prompt prompt(s, n, kSeed);
    for (int h = 0; h < s.num_kv_heads; ++h)
      std::fill_n(&prompt.k[h * prompt.KvStride()], n * s.head_dim, 0.0f);
    RunOnBackend(&prompt);
    for (int h = 0; h < s.num_kv_heads; ++h) {
      double total = 0;
      for (int j = 0; j < n; ++j) {
        double expected = 0;
        for (int i = j; i < n; ++i) {
          const double a = 1.0 / (i + 1);
          expected += s.reduce == GroupReduce::kSumOfSquares ? s.group() * a * a : a;
        }
        const float got = prompt.column_sums[static_cast<size_t>(h) * prompt.capacity + j];
        ASSERT_NEAR(got, expected, 2e-6 * expected) << "n " << n << " key " << j;
        total += got;
      }
      if (s.reduce == GroupReduce::kSumOfSquares) continue;
      EXPECT_NEAR(total, n, 1e-5 * n);
      if (n == 10) {
        EXPECT_NEAR(prompt.column_sums[static_cast<size_t>(h) * prompt.capacity], 2.9290, 5e-5);
        EXPECT_NEAR(prompt.column_sums[static_cast<size_t>(h) * prompt.capacity + 1], 1.9290, 5e-5);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, PrefillAttentionTest,
    testing::Values(Shape{1, 1, 8}, Shape{4, 4, 16}, Shape{9, 3, 64}, Shape{6, 2, 48},
                    Shape{9, 3, 64, GroupReduce::kMax}, Shape{9, 3, 64, GroupReduce::kSumOfSquares},
                    Shape{10, 2, 10}, Shape{10, 2, 66, GroupReduce::kMax}, Shape{7, 1, 34},
                    Shape{17, 1, 128}, Shape{4, 1, 256}, Shape{3, 3, 2}, Shape{32, 2, 80}),
    [](const testing::TestParamInfo<Shape>& info) { return NameOf(info.param); });

// ---- Sliding windows ---------------------------------------------------------------------------

class PrefillWindowTest : public testing::TestWithParam<Shape> {
 protected:
  PrefillWindowTest() { RecordProperty("seed", kSeed); }
};

constexpr int kWindows[] = {1, 7, 32, 33, 100, 1000};

// NaN in keys and values that no query from `begin` on sees, in whole panels of any backend.
void ForgetPast(Prompt* p, int begin) {
  const int forgotten = p->FirstSeen(begin) / cpu::kKeyPanel * cpu::kKeyPanel;
  for (int h = 0; h < p->shape.num_kv_heads; ++h) {
    std::fill_n(&p->k[h * p->KvStride()], forgotten * p->shape.head_dim, kNaN);
    std::fill_n(&p->v[h * p->KvStride()], forgotten * p->shape.head_dim, kNaN);
  }
}

// Rounds queries, keys and values; returns the largest value.
double RoundToBF16(Prompt* p) {
  for (std::vector<float>* all : {&p->q, &p->k, &p->v}) {
    for (float& x : *all) x = BF16ToFloat(FloatToBF16(x));
  }
  double largest = 0;
  for (const float x : p->v) {
    if (!std::isnan(x)) largest = std::max(largest, static_cast<double>(std::abs(x)));
  }
  return largest;
}

TEST_P(PrefillWindowTest, MatchesDenseAttention) {
  for (const int n : {1, 33, 100, 161, 290}) {
    for (const int window : kWindows) {
      SCOPED_TRACE("n " + std::to_string(n) + ", window " + std::to_string(window));
      Prompt prompt(GetParam(), n, kSeed + n, n % 2 == 0 ? 3.0f : 1.0f);
      prompt.window = window;
      Prompt truth = prompt;
      const Dense dense = AttendPlainly(prompt);
      RunOnBackend(&prompt, false);
      ASSERT_NO_FATAL_FAILURE(ExpectOutput(prompt, dense));
      if (n > 161) continue;
      reference::PrefillAttention(truth.Args(0, n, false));
      ASSERT_NO_FATAL_FAILURE(ExpectOutput(truth, dense)) << "reference";
    }
  }
}

// A window larger than the prompt changes no bit.
TEST_P(PrefillWindowTest, WindowAboveTheLengthChangesNoBit) {
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    Prompt prompt(GetParam(), 141, kSeed);
    Prompt windowed = prompt;
    windowed.window = 141;
    RunSlice(&prompt, 0, 141, false, 2, precision);
    RunSlice(&windowed, 0, 141, false, 2, precision);
    EXPECT_TRUE(SameBits(prompt.out, windowed.out));
  }
}

// Runs that start anywhere give the same bits as in the whole prompt, and read nothing far
// before their window.
TEST_P(PrefillWindowTest, SlicingAndThreadsChangeNoBit) {
  const int n = 333;
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    for (const int window : kWindows) {
      SCOPED_TRACE("window " + std::to_string(window));
      Prompt start(GetParam(), n, kSeed);
      start.window = window;
      Prompt expected = start;
      RunSlice(&expected, 0, n, false, 1, precision);
      if (precision == DType::kF32) {
        ASSERT_NO_FATAL_FAILURE(ExpectOutput(expected, AttendPlainly(start)));
      }
      Prompt sliced = start;
      const int cuts[] = {0, 32, 96, 256, n};
      for (int i = 0; i < 4; ++i) {
        ForgetPast(&sliced, cuts[i]);
        RunSlice(&sliced, cuts[i], cuts[i + 1], false, 1 + i, precision);
      }
      EXPECT_TRUE(SameBits(sliced.out, expected.out));
    }
  }
}

TEST_P(PrefillWindowTest, LowPrecisionRoundsNothingButWeights) {
  for (const int n : {33, 129, 290}) {
    for (const int window : kWindows) {
      SCOPED_TRACE("n " + std::to_string(n) + ", window " + std::to_string(window));
      Prompt prompt(GetParam(), n, kSeed + n);
      prompt.window = window;
      const double largest = RoundToBF16(&prompt);
      RunSlice(&prompt, 0, n, false, 2, DType::kBF16);
      const Dense dense = AttendPlainly(prompt);
      for (size_t i = 0; i < prompt.out.size(); ++i)
        ASSERT_NEAR(prompt.out[i], dense.out[i], largest / 100) << i;
    }
  }
}

TEST_P(PrefillWindowTest, EightBitsRoundWeightsToTheirSteps) {
  if (!AttendsByBytes()) GTEST_SKIP() << "the backend attends with more bits";
  if (GetParam().head_dim < 4) GTEST_SKIP() << "a word holds four numbers";
  for (const int n : {33, 161, 290}) {
    for (const int window : kWindows) {
      SCOPED_TRACE("n " + std::to_string(n) + ", window " + std::to_string(window));
      Prompt prompt(GetParam(), n, kSeed + n);
      prompt.window = window;
      RoundRowsToBytes(&prompt);
      Prompt sliced = prompt;
      RunSlice(&prompt, 0, n, false, 2, DType::kQ8_0);
      ExpectByteErrors(prompt);
      RunSlice(&sliced, 0, 32, false, 2, DType::kQ8_0);
      ForgetPast(&sliced, 32);
      RunSlice(&sliced, 32, n, false, 2, DType::kQ8_0);
      EXPECT_TRUE(SameBits(sliced.out, prompt.out));
    }
  }
}

// Queries after the last key see the keys still in their windows.
TEST_P(PrefillWindowTest, KeysMayEndBeforeTheQueries) {
  Prompt prompt(GetParam(), 70, kSeed);
  prompt.AskFromAfar(64, 100 - 37);
  prompt.window = 72;
  RunOnBackend(&prompt, false);
  ASSERT_NO_FATAL_FAILURE(ExpectOutput(prompt, AttendPlainly(prompt)));
}

std::vector<Shape> ShapesOfModels() {
  return {{2, 2, 64}, {4, 2, 80},  {3, 1, 64}, {4, 1, 256},
          {5, 1, 80}, {6, 1, 128}, {7, 1, 64}, {16, 2, 128}};
}

INSTANTIATE_TEST_SUITE_P(Shapes, PrefillWindowTest, testing::ValuesIn(ShapesOfModels()),
                         [](const testing::TestParamInfo<Shape>& info) {
                           return NameOf(info.param);
                         });

// ---- Other logits ------------------------------------------------------------------------------

class PrefillLogitsTest : public testing::TestWithParam<Shape> {
 protected:
  PrefillLogitsTest() { RecordProperty("seed", kSeed); }
};

// Changes to the logits, with queries large enough to make them matter.
struct Change {
  float softcap;
  float q_scale;
  bool sinks;
};

std::vector<Change> Changes() {
  return {{50.0f, 1.0f, false},
          {2.0f, 1.0f, false},
          {5.0f, 8.0f, false},
          {0.0f, 1.0f, true},
          {3.0f, 4.0f, true}};
}

// Sinks of every size: some with almost no share, and one that leaves little to the keys.
std::vector<float> SinksOf(int num_heads, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<float> sinks(num_heads);
  for (float& sink : sinks) sink = std::normal_distribution<float>(1.0f, 2.0f)(rng);
  sinks[0] = 12.0f;
  sinks[num_heads - 1] = -40.0f;
  return sinks;
}

Prompt ChangedPrompt(const Shape& shape, int n, const Change& change) {
  Prompt prompt(shape, n, kSeed + n, change.q_scale);
  prompt.softcap = change.softcap;
  if (change.sinks) prompt.sinks = SinksOf(shape.num_heads, kSeed);
  return prompt;
}

std::string NameOf(const Change& change) {
  return "softcap " + std::to_string(change.softcap) + ", queries * " +
         std::to_string(change.q_scale) + (change.sinks ? ", sinks" : "");
}

TEST_P(PrefillLogitsTest, MatchesDenseAttention) {
  for (const int n : {20, 33, 161}) {
    for (const Change& change : Changes()) {
      SCOPED_TRACE("n " + std::to_string(n) + ", " + NameOf(change));
      Prompt prompt = ChangedPrompt(GetParam(), n, change);
      prompt.first_summed = n / 3;
      prompt.Ask({.kind = Kind::kMax, .reduce = GroupReduce::kMax, .first_query = n / 2});
      prompt.Ask({.kind = Kind::kBelowMean});
      Prompt truth = prompt;
      const Dense dense = AttendPlainly(prompt);
      RunOnBackend(&prompt);
      ASSERT_NO_FATAL_FAILURE(ExpectMatches(prompt, dense));
      ASSERT_NO_FATAL_FAILURE(ExpectStatistics(prompt, dense));
      reference::PrefillAttention(truth.Args(0, n, true));
      ASSERT_NO_FATAL_FAILURE(ExpectMatches(truth, dense)) << "reference";
      ASSERT_NO_FATAL_FAILURE(ExpectStatistics(truth, dense)) << "reference";
    }
  }
}

TEST_P(PrefillLogitsTest, MatchesDenseAttentionWithinAWindow) {
  for (const int window : {1, 33, 100}) {
    for (const Change& change : Changes()) {
      SCOPED_TRACE("window " + std::to_string(window) + ", " + NameOf(change));
      Prompt prompt = ChangedPrompt(GetParam(), 200, change);
      prompt.window = window;
      RunOnBackend(&prompt, false);
      ASSERT_NO_FATAL_FAILURE(ExpectOutput(prompt, AttendPlainly(prompt)));
    }
  }
}

TEST_P(PrefillLogitsTest, SlicingAndThreadsChangeNoBit) {
  const int n = 141;
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    for (const bool windowed : {false, true}) {
      Prompt start = ChangedPrompt(GetParam(), n, Changes().back());
      if (windowed) {
        start.window = 40;
      } else {
        start.Ask({.kind = Kind::kMax, .reduce = GroupReduce::kMax, .first_query = 7});
        start.Ask({.kind = Kind::kBelowMean, .first_query = 40, .end_query = 101});
      }
      Prompt expected = start;
      RunSlice(&expected, 0, n, !windowed, 2, precision);
      Prompt sliced = start;
      const int cuts[] = {0, 32, 96, n};
      for (int i = 0; i < 3; ++i)
        RunSlice(&sliced, cuts[i], cuts[i + 1], !windowed, 1 + i, precision);
      EXPECT_TRUE(SameBits(sliced.out, expected.out));
      EXPECT_TRUE(SameBits(sliced.column_sums, expected.column_sums));
      for (size_t s = 0; s < start.more.size(); ++s)
        EXPECT_TRUE(SameBits(sliced.more_out[s], expected.more_out[s])) << s;
    }
  }
}

// A run shorter than a tile, such as a question after a cached prefix, may use another code path:
// its queries give the same bits as among others.
TEST_P(PrefillLogitsTest, ShortRunsChangeNoBit) {
  const int n = 192, begin = 160;
  for (const Change& change : Changes()) {
    for (const int window : {kNoWindow, 5, 40}) {
      SCOPED_TRACE(NameOf(change) + ", window " + std::to_string(window));
      Prompt start = ChangedPrompt(GetParam(), n, change);
      start.window = window;
      Prompt expected = start;
      RunOnBackend(&expected, false);
      const size_t row = static_cast<size_t>(start.shape.num_heads) * start.shape.head_dim;
      for (const int count : {1, 2, 7, 8, 10, 11, 16, 21, 31}) {
        Prompt run = start;
        RunSlice(&run, begin, begin + count, false, 2);
        EXPECT_EQ(std::memcmp(&run.out[begin * row], &expected.out[begin * row],
                              count * row * sizeof(float)),
                  0)
            << count << " queries";
        EXPECT_TRUE(std::isnan(run.out[begin * row - 1]) &&
                    std::isnan(run.out[(begin + count) * row]))
            << "written past the run of " << count;
      }
    }
  }
}

TEST_P(PrefillLogitsTest, LowPrecisionRoundsNothingButWeights) {
  for (const int n : {33, 129}) {
    for (const Change& change : Changes()) {
      SCOPED_TRACE("n " + std::to_string(n) + ", " + NameOf(change));
      Prompt prompt = ChangedPrompt(GetParam(), n, change);
      const double largest = RoundToBF16(&prompt);
      prompt.Ask({.kind = Kind::kMax, .first_query = 5});
      prompt.Ask({.kind = Kind::kBelowMean, .end_query = n - 3});
      RunSlice(&prompt, 0, n, true, 2, DType::kBF16);
      const Dense dense = AttendPlainly(prompt);
      ASSERT_NO_FATAL_FAILURE(ExpectStatistics(prompt, dense, DType::kBF16));
      for (size_t i = 0; i < prompt.out.size(); ++i)
        ASSERT_NEAR(prompt.out[i], dense.out[i], largest / 100) << i;
    }
  }
}

TEST_P(PrefillLogitsTest, EightBitsRoundWeightsToTheirSteps) {
  if (!AttendsByBytes()) GTEST_SKIP() << "the backend attends with more bits";
  for (const int n : {33, 129}) {
    for (const Change& change : Changes()) {
      SCOPED_TRACE("n " + std::to_string(n) + ", " + NameOf(change));
      Prompt prompt = ChangedPrompt(GetParam(), n, change);
      RoundRowsToBytes(&prompt);
      prompt.Ask({.kind = Kind::kMax, .first_query = 5});
      RunSlice(&prompt, 0, n, true, 2, DType::kQ8_0);
      ASSERT_NO_FATAL_FAILURE(ExpectStatistics(prompt, AttendPlainly(prompt)));
      ExpectByteErrors(prompt);
    }
  }
}

// A sink so high that no key has a share, and one so low that it has none.
TEST_P(PrefillLogitsTest, SinksMayTakeAllOrNothing) {
  const Shape& s = GetParam();
  Prompt without(s, 100, kSeed);
  Prompt all = without, nothing = without;
  all.sinks.assign(s.num_heads, 1e4f);
  nothing.sinks.assign(s.num_heads, -1e4f);
  RunOnBackend(&without);
  RunOnBackend(&all);
  RunOnBackend(&nothing);
  for (const float x : all.out) ASSERT_EQ(x, 0.0f);
  EXPECT_TRUE(SameBits(nothing.out, without.out));
  EXPECT_TRUE(SameBits(nothing.column_sums, without.column_sums));
}

INSTANTIATE_TEST_SUITE_P(Shapes, PrefillLogitsTest, testing::ValuesIn(ShapesOfModels()),
                         [](const testing::TestParamInfo<Shape>& info) {
                           return NameOf(info.param);
                         });

// ---- Statistics of rows in 16 bits -------------------------------------------------------------

// A device may have a separate kernel for these, with its own tiles.
struct SixteenBits {
  DType dtype;
  int group;
  int head_dim;
  std::vector<int> lengths;
};

class PrefillStatisticsTest : public testing::TestWithParam<SixteenBits> {
 protected:
  PrefillStatisticsTest() { RecordProperty("seed", kSeed); }

  // Rows exact in the dtype.
  static Prompt PromptOf(int n, GroupReduce reduce) {
    const SixteenBits& c = GetParam();
    Prompt prompt(Shape{2 * c.group, 2, c.head_dim, reduce}, n, kSeed + n);
    for (std::vector<float>* values : {&prompt.q, &prompt.k, &prompt.v}) {
      for (float& x : *values)
        x = c.dtype == DType::kBF16 ? BF16ToFloat(FloatToBF16(x)) : F16ToFloat(FloatToF16(x));
    }
    return prompt;
  }
  static void Run(Prompt* prompt, const std::vector<int>& ends) {
    const DType dtype = GetParam().dtype;
    const DType arena = TestBackend(1)->ArenaDType(dtype, GetParam().head_dim);
    int begin = 0;
    for (const int end : ends) {
      RunSlice(prompt, begin, end, true, 1, dtype, nullptr, arena);
      begin = end;
    }
  }
};

TEST_P(PrefillStatisticsTest, MatchDenseAttention) {
  constexpr GroupReduce kReduces[] = {GroupReduce::kMean, GroupReduce::kMax,
                                      GroupReduce::kSumOfSquares};
  for (const int n : GetParam().lengths) {
    SCOPED_TRACE("n " + std::to_string(n));
    Prompt prompt = PromptOf(n, kReduces[n % 3]);
    if (n % 2 == 0) prompt.first_summed = n / 3;
    if (n % 4 != 0) prompt.Ask({.kind = Kind::kMax, .reduce = kReduces[(n + 1) % 3]});
    if (n % 4 == 1 && n > 1)
      prompt.Ask({.kind = Kind::kBelowMean, .first_query = n / 4, .end_query = n - n / 5});
    Prompt sliced = prompt;
    Run(&prompt, {n});
    const Dense dense = AttendPlainly(prompt);
    ASSERT_NO_FATAL_FAILURE(ExpectColumnSums(prompt, dense, GetParam().dtype));
    ASSERT_NO_FATAL_FAILURE(ExpectStatistics(prompt, dense, GetParam().dtype));
    if (n <= 64) continue;
    Run(&sliced, n > 96 ? std::vector<int>{32, 96, n} : std::vector<int>{64, n});
    EXPECT_TRUE(SameBits(sliced.column_sums, prompt.column_sums));
    for (size_t s = 0; s < prompt.more.size(); ++s)
      EXPECT_TRUE(SameBits(sliced.more_out[s], prompt.more_out[s])) << s;
  }
}

// Queries repeated after all keys, without output; some with sinks.
TEST_P(PrefillStatisticsTest, OfAnEchoAreRoughAtMost) {
  const int n = GetParam().lengths.back();
  Prompt prompt = PromptOf(n, GroupReduce::kMean);
  prompt.AskFromAfar((n + kQueryTile - 1) / kQueryTile * kQueryTile, n);
  prompt.attended = false;
  if (GetParam().group % 2 == 0) prompt.sinks = SinksOf(prompt.shape.num_heads, kSeed);
  prompt.Ask({.kind = Kind::kMax, .reduce = GroupReduce::kMax});
  Run(&prompt, {n});
  ExpectRough(prompt);
}

INSTANTIATE_TEST_SUITE_P(
    SixteenBits, PrefillStatisticsTest,
    testing::Values(SixteenBits{DType::kBF16, 1, 128, {1, 31, 63, 64, 65, 127, 128, 129, 197}},
                    SixteenBits{DType::kF16, 2, 64, {1, 63, 64, 65, 127, 128, 129, 257}},
                    SixteenBits{DType::kBF16, 3, 80, {33, 129}},
                    SixteenBits{DType::kBF16, 4, 128, {65, 193}},
                    SixteenBits{DType::kF16, 5, 128, {96}}, SixteenBits{DType::kBF16, 6, 40, {97}},
                    SixteenBits{DType::kF16, 7, 64, {129}},
                    SixteenBits{DType::kBF16, 8, 64, {70, 133}}),
    [](const testing::TestParamInfo<SixteenBits>& info) {
      return std::string(DTypeName(info.param.dtype)) + "_group" +
             std::to_string(info.param.group) + "_d" + std::to_string(info.param.head_dim);
    });

// Every row of weights sums to 1 for any logits: the total score is the number of queries. Column
// sums add to the existing values.
TEST(PrefillAttentionSumsTest, TotalIsTheNumberOfQueriesAndAddsUp) {
  Prompt prompt(Shape{6, 2, 32}, 500, kSeed, 5.0f);
  RunOnBackend(&prompt);
  const std::vector<float> once = prompt.column_sums;
  RunOnBackend(&prompt);
  for (int h = 0; h < 2; ++h) {
    double total = 0;
    for (int j = 0; j < 500; ++j) {
      const size_t i = static_cast<size_t>(h) * prompt.capacity + j;
      total += once[i];
      ASSERT_NEAR(prompt.column_sums[i], 2 * once[i], 2e-6 * once[i]);
    }
    EXPECT_NEAR(total, 500, 1e-3);
  }
}

// One-hot attention from logits of thousands: no overflow, no NaN.
TEST(PrefillAttentionRangeTest, HugeLogits) {
  Prompt prompt(Shape{4, 2, 64}, 200, kSeed, 2000.0f);
  RunOnBackend(&prompt);
  const Dense dense = AttendPlainly(prompt);
  EXPECT_GT(dense.largest_logit, 5000);
  for (size_t i = 0; i < prompt.out.size(); ++i) ASSERT_NEAR(prompt.out[i], dense.out[i], 0.02);
  for (int h = 0; h < 2; ++h) {
    const float* sums = &prompt.column_sums[static_cast<size_t>(h) * prompt.capacity];
    EXPECT_NEAR(std::accumulate(sums, sums + 200, 0.0), 200, 1e-3);
  }
}

// Whether a full tile of the CPU backend keeps its weights for its statistics.
bool KeepsWeights(const Shape& shape, int first_position) {
  float out = 0;
  cpu::PrefillTile tile{.first_position = first_position,
                        .end_key = std::numeric_limits<int>::max(),
                        .num_queries = kQueryTile};
  tile.statistics[0].out = &out;
  return cpu::LayoutOf(cpu::PrefillShape{shape.head_dim, shape.group(), 0}, tile).keep_weights;
}

// Long prompts with weights that are not kept: logits are computed twice, and the sums are equal.
// The last tiles are run alone; the reference has no slower path than one tile.
TEST(PrefillAttentionLongTest, RecomputedWeightsGiveTheSameSums) {
  for (const GroupReduce reduce :
       {GroupReduce::kMean, GroupReduce::kMax, GroupReduce::kSumOfSquares}) {
    const Shape shape{16, 1, 8, reduce};
    const int n = 4500, begin = 4448;  // 16 x 32 x 4500 weights: more than are kept
    Prompt prompt(shape, n, kSeed);
    if (reduce != GroupReduce::kMean) prompt.softcap = 1.5f;
    if (reduce == GroupReduce::kMax) prompt.sinks = SinksOf(shape.num_heads, kSeed);
    ASSERT_FALSE(KeepsWeights(shape, begin));
    ASSERT_TRUE(KeepsWeights(shape, 1000 / kQueryTile * kQueryTile));
    prompt.first_summed = begin + 9;
    prompt.Ask({.kind = Kind::kMax, .reduce = reduce});
    Prompt truth = prompt;
    RunSlice(&prompt, begin, n, true, 2);
    reference::PrefillAttention(truth.Args(begin, n, true));
    const size_t first = static_cast<size_t>(begin) * shape.num_heads * shape.head_dim;
    for (size_t i = first; i < prompt.out.size(); ++i)
      ASSERT_NEAR(prompt.out[i], truth.out[i], 1e-5);
    for (int j = 0; j < n; ++j)
      ASSERT_NEAR(prompt.column_sums[j], truth.column_sums[j], 1e-5 * truth.column_sums[j] + 1e-12)
          << j;
  }
}

}  // namespace
}  // namespace hydrant
