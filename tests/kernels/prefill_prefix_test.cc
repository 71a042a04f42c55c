// Prefill attention with a paged prefix, on every backend: against dense attention in double
// precision, against the same keys in one piece, and against exact properties.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <sstream>
#include <vector>

#include "kernels/float16.h"
#include "kernels/ops/prefill_attention.h"
#include "tests/kernels/backend_test.h"
#include "tests/kernels/page_ids.h"

namespace hydrant {
namespace {

constexpr int kSlots = 3, kLayers = 2, kSlot = 1, kLayer = 1;
constexpr int32_t kNextPosition = 5000;
constexpr uint64_t kSeed = 20260711;

struct Case {
  int num_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 16;
  GroupReduce reduce = GroupReduce::kMean;
  DType dtype = DType::kF32;  // of the pages
  int block_size = 16;
  std::vector<int32_t> lengths = {};  // of the prefix, per KV head
  int n = 0;                          // tokens of the suffix
  int first_summed = 0;
  DType precision = DType::kF32;
  ColumnStatistic::Kind kind = ColumnStatistic::Kind::kSum;
  float softcap = 0.0f;
  bool sinks = false;  // head h has the sink logit h - 2
  int window = kNoWindow;

  int group() const { return num_heads / num_kv_heads; }
  int longest() const { return *std::max_element(lengths.begin(), lengths.end()); }
};

std::string NameOf(const Case& c) {
  std::ostringstream name;
  name << c.num_heads << " heads, " << c.num_kv_heads << " kv heads, dim " << c.head_dim
       << ", kind " << static_cast<int>(c.kind) << ", reduce " << static_cast<int>(c.reduce)
       << ", pages " << DTypeName(c.dtype) << ", precision " << DTypeName(c.precision) << ", n "
       << c.n << ", softcap " << c.softcap << (c.sinks ? ", sinks" : "") << ", window " << c.window
       << ", lengths";
  for (const int32_t length : c.lengths) name << " " << length;
  return name.str();
}

float RoundTo(DType dtype, float value) {
  if (dtype == DType::kF16) return F16ToFloat(FloatToF16(value));
  if (dtype == DType::kBF16) return BF16ToFloat(FloatToBF16(value));
  return value;
}

uint16_t HalfBits(DType dtype, float value) {
  return dtype == DType::kF16 ? FloatToF16(value) : FloatToBF16(value);
}

struct Results {
  std::vector<float> out;          // [n, num_heads, head_dim]
  std::vector<float> column_sums;  // [num_kv_heads, column_stride]
  std::vector<float> prefix_sums;  // [num_kv_heads, prefix_stride]
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool SameBits(const Results& a, const Results& b) {
  return SameBits(a.out, b.out) && SameBits(a.column_sums, b.column_sums) &&
         SameBits(a.prefix_sums, b.prefix_sums);
}

// The sums that a run requests.
struct Wanted {
  bool column_sums = true;
  bool prefix_sums = true;
};

// A suffix with its scratch, and its prefix in pages; NaN in all memory that must not be read.
class Sequence {
 public:
  Sequence(const Case& c, uint64_t seed, bool all_nan = false) : c_(c), capacity_(c.n + 9) {
    std::mt19937_64 engine(seed);
    const size_t suffix_rows = static_cast<size_t>(c.num_kv_heads) * capacity_;
    const DType rounding = c.precision;
    const auto draw = [&](DType dtype) {
      if (all_nan) return kNan;
      return RoundTo(rounding, RoundTo(dtype, std::normal_distribution<float>()(engine)));
    };
    q_.resize(static_cast<size_t>(c.n) * c.num_heads * c.head_dim);
    for (float& x : q_) x = draw(DType::kF32);
    k_.assign(suffix_rows * c.head_dim, kNan);
    v_ = k_;
    for (int h = 0; h < c.num_kv_heads; ++h) {
      for (int i = 0; i < c.n * c.head_dim; ++i) {
        k_[h * KvStride() + i] = draw(DType::kF32);
        v_[h * KvStride() + i] = draw(DType::kF32);
      }
    }
    width_ = (c.longest() + c.block_size - 1) / c.block_size + 1;
    num_blocks_ = kLayers * c.num_kv_heads * width_ + 3;
    std::vector<int32_t> ids(num_blocks_);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), engine);
    const std::vector<PageIds> pages = WithStates(ids, num_blocks_);
    blocks_.assign(5, {-1, -1});
    blocks_.insert(blocks_.end(), pages.begin(), pages.begin() + kLayers * c.num_kv_heads * width_);
    page_k_.assign(static_cast<size_t>(num_blocks_) * c.block_size * c.head_dim, kNan);
    page_v_ = page_k_;
    positions_.assign(static_cast<size_t>(num_blocks_) * c.block_size, 1 << 28);
    entries_.resize(c.num_kv_heads);
    for (int h = 0; h < c.num_kv_heads; ++h) {
      entries_[h].resize(c.lengths[h]);
      std::iota(entries_[h].begin(), entries_[h].end(), 0);
      if (c.window != kNoWindow) std::shuffle(entries_[h].begin(), entries_[h].end(), engine);
      for (int j = 0; j < c.lengths[h]; ++j)
        positions_[PageRow(h, entries_[h][j]) / c.head_dim] = kNextPosition - c.lengths[h] + j;
      for (int e = 0; e < c.lengths[h]; ++e) {
        for (int d = 0; d < c.head_dim; ++d) {
          page_k_[PageRow(h, e) + d] = draw(c.dtype);
          page_v_[PageRow(h, e) + d] = draw(c.dtype);
        }
      }
    }
  }

  const Case& c() const { return c_; }
  int64_t KvStride() const { return static_cast<int64_t>(capacity_) * c_.head_dim; }
  int column_stride() const { return capacity_; }
  int prefix_stride() const { return c_.longest() + 5; }

  // Sums start at 0 where they are accumulated, NaN elsewhere.
  Results Start() const {
    Results r;
    r.out.assign(q_.size(), kNan);
    r.column_sums.assign(static_cast<size_t>(c_.num_kv_heads) * column_stride(), kNan);
    r.prefix_sums.assign(static_cast<size_t>(c_.num_kv_heads) * prefix_stride(), kNan);
    for (int h = 0; h < c_.num_kv_heads; ++h) {
      std::fill_n(&r.column_sums[static_cast<size_t>(h) * column_stride()], c_.n, 0.0f);
      std::fill_n(&r.prefix_sums[static_cast<size_t>(h) * prefix_stride()], c_.lengths[h], 0.0f);
    }
    return r;
  }

  // Runs queries [begin, end). slack: how far the bound exceeds the longest head.
  void Run(Backend& backend, int begin, int end, int slack, Results* results,
           const Wanted& wanted = {}) const {
    Mirror mirror(backend);
    const size_t row = static_cast<size_t>(c_.num_heads) * c_.head_dim;
    const size_t table = static_cast<size_t>(kSlots) * kLayers * c_.num_kv_heads;
    std::vector<int32_t> lengths(table, 1 << 20);
    std::copy(c_.lengths.begin(), c_.lengths.end(),
              lengths.begin() + (kSlot * kLayers + kLayer) * c_.num_kv_heads);
    const std::vector<int64_t> row_begin = {0, 5, 0};
    const std::vector<int32_t> row_width(kSlots, width_);
    std::vector<uint16_t> half_k, half_v;
    for (size_t i = 0; i < page_k_.size() && c_.dtype != DType::kF32; ++i) {
      half_k.push_back(HalfBits(c_.dtype, page_k_[i]));
      half_v.push_back(HalfBits(c_.dtype, page_v_[i]));
    }
    PagedPrefix prefix;
    prefix.pages.layout = {.dtype = c_.dtype,
                           .head_dim = c_.head_dim,
                           .block_size = c_.block_size,
                           .num_blocks = num_blocks_};
    if (c_.dtype == DType::kF32) {
      prefix.pages.keys = mirror.Map(page_k_.data(), page_k_.size());
      prefix.pages.values = mirror.Map(page_v_.data(), page_v_.size());
    } else {
      prefix.pages.keys = mirror.Map(half_k.data(), half_k.size());
      prefix.pages.values = mirror.Map(half_v.data(), half_v.size());
    }
    prefix.pages.positions = mirror.Map(positions_.data(), positions_.size());
    prefix.next_position = kNextPosition;
    prefix.tables.num_layers = kLayers;
    prefix.tables.num_kv_heads = c_.num_kv_heads;
    prefix.tables.blocks = mirror.Map(blocks_.data(), blocks_.size());
    prefix.tables.row_begin = mirror.Map(row_begin.data(), row_begin.size());
    prefix.tables.row_width = mirror.Map(row_width.data(), row_width.size());
    prefix.tables.lengths = mirror.Map(lengths.data(), lengths.size());
    prefix.slot = kSlot;
    prefix.layer = kLayer;
    prefix.max_entries = c_.longest() + slack;
    PrefillAttentionArgs args;
    args.q = mirror.Map(q_.data(), q_.size()) + begin * row;
    args.k = mirror.Map(k_.data(), k_.size());
    args.v = mirror.Map(v_.data(), v_.size());
    args.kv_head_stride = KvStride();
    args.num_queries = end - begin;
    args.first_position = begin;
    args.num_heads = c_.num_heads;
    args.num_kv_heads = c_.num_kv_heads;
    args.head_dim = c_.head_dim;
    args.scale = Scale();
    args.softcap = c_.softcap;
    std::vector<float> sinks(c_.num_heads);
    std::iota(sinks.begin(), sinks.end(), -2.0f);
    if (c_.sinks) args.sink_logits = mirror.Map(sinks.data(), sinks.size());
    args.out = mirror.Map(results->out.data(), results->out.size()) + begin * row;
    ColumnStatistic& sums = args.statistics[1];  // any index works
    sums.reduce = c_.reduce;
    sums.kind = c_.kind;
    sums.first_query = c_.first_summed;
    sums.stride = column_stride();
    sums.prefix_stride = prefix_stride();
    if (wanted.column_sums)
      sums.out = mirror.Map(results->column_sums.data(), results->column_sums.size());
    if (wanted.prefix_sums)
      sums.prefix_out = mirror.Map(results->prefix_sums.data(), results->prefix_sums.size());
    args.precision = c_.precision;
    args.window = c_.window;
    args.prefix = &prefix;
    backend.PrefillAttention(args);
    mirror.ReadBack();
  }

  // The same with each head's keys in one piece; lengths are equal, a multiple of kQueryTile.
  Results RunInOnePiece(Backend& backend) const {
    const int length = c_.lengths[0], keys = length + c_.n;
    std::vector<float> k, v;
    for (int h = 0; h < c_.num_kv_heads; ++h) {
      for (int j = 0; j < keys; ++j) {
        k.insert(k.end(), Key(h, j), Key(h, j) + c_.head_dim);
        v.insert(v.end(), Value(h, j), Value(h, j) + c_.head_dim);
      }
    }
    Results pieces = Start();
    std::vector<float> sums(static_cast<size_t>(c_.num_kv_heads) * keys, 0.0f);
    Mirror mirror(backend);
    PrefillAttentionArgs args;
    args.q = mirror.Map(q_.data(), q_.size());
    args.k = mirror.Map(k.data(), k.size());
    args.v = mirror.Map(v.data(), v.size());
    args.kv_head_stride = static_cast<int64_t>(keys) * c_.head_dim;
    args.num_queries = c_.n;
    args.first_position = length;
    args.num_heads = c_.num_heads;
    args.num_kv_heads = c_.num_kv_heads;
    args.head_dim = c_.head_dim;
    args.scale = Scale();
    args.out = mirror.Map(pieces.out.data(), pieces.out.size());
    args.statistics[0] = {.kind = c_.kind,
                          .reduce = c_.reduce,
                          .first_query = length + c_.first_summed,
                          .out = mirror.Map(sums.data(), sums.size()),
                          .stride = keys};
    args.precision = c_.precision;
    backend.PrefillAttention(args);
    mirror.ReadBack();
    for (int h = 0; h < c_.num_kv_heads; ++h) {
      const auto from = sums.begin() + static_cast<size_t>(h) * keys;
      std::copy(from, from + length, pieces.prefix_sums.begin() + h * prefix_stride());
      std::copy(from + length, from + keys, pieces.column_sums.begin() + h * column_stride());
    }
    return pieces;
  }

  // Key and value j of a head, prefix first, in the order of positions.
  const float* Key(int head, int j) const { return Row(page_k_, k_, head, j); }
  const float* Value(int head, int j) const { return Row(page_v_, v_, head, j); }
  const float* Query(int i, int head) const {
    return &q_[(static_cast<size_t>(i) * c_.num_heads + head) * c_.head_dim];
  }
  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(c_.head_dim)); }

 private:
  size_t PageRow(int head, int entry) const {
    const PageIds* ids = blocks_.data() + 5 + (kLayer * c_.num_kv_heads + head) * width_;
    const int32_t block = ids[entry / c_.block_size].data;
    return (static_cast<size_t>(block) * c_.block_size + entry % c_.block_size) * c_.head_dim;
  }
  const float* Row(const std::vector<float>& pages, const std::vector<float>& suffix, int head,
                   int j) const {
    const int length = c_.lengths[head];
    return j < length ? &pages[PageRow(head, entries_[head][j])]
                      : &suffix[head * KvStride() + static_cast<int64_t>(j - length) * c_.head_dim];
  }

  Case c_;
  int capacity_ = 0, width_ = 0, num_blocks_ = 0;
  std::vector<float> q_, k_, v_, page_k_, page_v_;
  std::vector<PageIds> blocks_;
  std::vector<int32_t> positions_;         // of the pages' entries
  std::vector<std::vector<int>> entries_;  // per head, in the order of positions
};

// Dense attention in double, in the form of Results, with rounding bounds.
struct Dense {
  std::vector<double> out, column_sums, prefix_sums;
  double largest_logit = 0.0, largest_value = 0.0;
  // For kBelowMean: number of weights too close to the mean to decide, for each statistic.
  std::vector<double> column_doubts, prefix_doubts;
};

// Attention weights of one query head over all its visible keys.
std::vector<double> Weights(const Sequence& s, int query, int head, Dense* dense) {
  const Case& c = s.c();
  const int kv_head = head / c.group();
  std::vector<double> w(c.lengths[kv_head] + query + 1);
  double top = c.sinks ? head - 2.0 : -INFINITY;
  const size_t first = std::max<int64_t>(0, static_cast<int64_t>(w.size()) - c.window);
  for (size_t j = first; j < w.size(); ++j) {
    double dot = 0.0;
    for (int d = 0; d < c.head_dim; ++d)
      dot += static_cast<double>(s.Query(query, head)[d]) * s.Key(kv_head, j)[d];
    w[j] = dot * s.Scale();
    dense->largest_logit = std::max(dense->largest_logit, std::abs(w[j]));
    if (c.softcap > 0) w[j] = c.softcap * std::tanh(w[j] / c.softcap);
    top = std::max(top, w[j]);
  }
  double sum = c.sinks ? std::exp(head - 2.0 - top) : 0.0;
  for (size_t j = first; j < w.size(); ++j) sum += w[j] = std::exp(w[j] - top);
  for (double& x : w) x /= sum;
  return w;
}

// Relative error of a reduced weight: in bf16 1 %, and as much again from the divisor.
double WeightError(const Case& c) {
  if (c.precision != DType::kBF16) return 2e-5;
  return c.reduce == GroupReduce::kSumOfSquares ? 0.04 : 0.02;
}

Dense AttendPlainly(const Sequence& s) {
  const Case& c = s.c();
  const Results start = s.Start();
  Dense dense;
  dense.out.assign(start.out.size(), 0.0);
  dense.column_sums.assign(start.column_sums.begin(), start.column_sums.end());
  dense.prefix_sums.assign(start.prefix_sums.begin(), start.prefix_sums.end());
  dense.column_doubts.assign(start.column_sums.size(), 0.0);
  dense.prefix_doubts.assign(start.prefix_sums.size(), 0.0);
  for (int i = 0; i < c.n; ++i) {
    for (int h = 0; h < c.num_kv_heads; ++h) {
      const int length = c.lengths[h];
      std::vector<double> reduced(length + i + 1, 0.0);
      for (int head = h * c.group(); head < (h + 1) * c.group(); ++head) {
        const std::vector<double> w = Weights(s, i, head, &dense);
        double* out = &dense.out[(static_cast<size_t>(i) * c.num_heads + head) * c.head_dim];
        for (size_t j = 0; j < w.size(); ++j) {
          for (int d = 0; d < c.head_dim; ++d) {
            out[d] += w[j] * s.Value(h, j)[d];
            dense.largest_value =
                std::max(dense.largest_value, std::abs(static_cast<double>(s.Value(h, j)[d])));
          }
          if (c.reduce == GroupReduce::kMean) reduced[j] += w[j] / c.group();
          if (c.reduce == GroupReduce::kMax) reduced[j] = std::max(reduced[j], w[j]);
          if (c.reduce == GroupReduce::kSumOfSquares) reduced[j] += w[j] * w[j];
        }
      }
      for (int j = 0; j <= length + i && i >= c.first_summed; ++j) {
        const size_t at =
            j < length ? h * s.prefix_stride() + j : h * s.column_stride() + j - length;
        double& total = j < length ? dense.prefix_sums[at] : dense.column_sums[at];
        const double limit = (1.0 - kBelowMeanMargin) / (length + i + 1);
        if (c.kind == ColumnStatistic::Kind::kSum) total += reduced[j];
        if (c.kind == ColumnStatistic::Kind::kMax) total = std::max(total, reduced[j]);
        if (c.kind == ColumnStatistic::Kind::kBelowMean) {
          total += reduced[j] < limit ? 1.0 : 0.0;
          (j < length ? dense.prefix_doubts : dense.column_doubts)[at] +=
              std::abs(reduced[j] - limit) < WeightError(c) * limit ? 1.0 : 0.0;
        }
      }
    }
  }
  return dense;
}

// With `weight_error` 0 only fp32 rounds; otherwise weights are also rounded before
// the value product.
void ExpectMatches(const Sequence& s, const Results& results, double weight_error) {
  const Dense dense = AttendPlainly(s);
  const double error = (8 + dense.largest_logit * std::sqrt(s.c().head_dim)) * 1.2e-7;
  const std::vector<double> out_error(
      dense.out.size(), (4 * error + weight_error) * std::max(1.0, dense.largest_value));
  ExpectNear(results.out, dense.out, out_error, "out");
  const double sum_error = weight_error > 0 ? WeightError(s.c()) : 2 * error;
  const bool counts = s.c().kind == ColumnStatistic::Kind::kBelowMean;
  const auto tolerance = [&](const std::vector<double>& sums, const std::vector<double>& doubts) {
    std::vector<double> errors = doubts;
    for (size_t i = 0; i < sums.size(); ++i) errors[i] += counts ? 0.0 : sum_error * sums[i] + 1e-9;
    return errors;
  };
  ExpectNear(results.column_sums, dense.column_sums,
             tolerance(dense.column_sums, dense.column_doubts), "column sums");
  ExpectNear(results.prefix_sums, dense.prefix_sums,
             tolerance(dense.prefix_sums, dense.prefix_doubts), "prefix sums");
}

class PrefillPrefixTest : public BackendTest {};

std::vector<Case> RaggedCases() {
  return {
      {.num_heads = 1, .num_kv_heads = 1, .head_dim = 8, .lengths = {1}, .n = 1},
      {.lengths = {0, 17}, .n = 33},
      {.num_heads = 9, .num_kv_heads = 3, .head_dim = 64, .lengths = {15, 64, 130}, .n = 40},
      {.num_heads = 6,
       .num_kv_heads = 2,
       .head_dim = 48,
       .reduce = GroupReduce::kMax,
       .block_size = 7,
       .lengths = {65, 63},
       .n = 70,
       .first_summed = 37},
      {.num_heads = 4,
       .num_kv_heads = 1,
       .head_dim = 128,
       .reduce = GroupReduce::kSumOfSquares,
       .lengths = {31},
       .n = 35},
      {.num_heads = 10, .num_kv_heads = 2, .head_dim = 10, .lengths = {128, 1}, .n = 66},
      {.num_heads = 3, .num_kv_heads = 3, .head_dim = 2, .lengths = {16, 200, 0}, .n = 31},
  };
}

TEST_P(PrefillPrefixTest, RaggedHeadsMatchDenseAttention) {
  for (Case c : RaggedCases()) {
    for (const auto& [dtype, kind] : {std::pair{DType::kF32, ColumnStatistic::Kind::kSum},
                                      {DType::kF16, ColumnStatistic::Kind::kMax},
                                      {DType::kBF16, ColumnStatistic::Kind::kSum},
                                      {DType::kBF16, ColumnStatistic::Kind::kBelowMean}}) {
      c.dtype = dtype;
      c.kind = kind;
      c.softcap = dtype == DType::kF16 ? 1.5f : 0.0f;
      c.sinks = dtype == DType::kBF16;
      SCOPED_TRACE(NameOf(c));
      const Sequence sequence(c, kSeed);
      Results results = sequence.Start();
      sequence.Run(backend(), 0, c.n, dtype == DType::kF16 ? 100 : 0, &results);
      ExpectMatches(sequence, results, 0.0);
    }
  }
}

TEST_P(PrefillPrefixTest, LowPrecisionRoundsNothingButWeights) {
  for (Case c : RaggedCases()) {
    for (const DType precision : {DType::kBF16, DType::kF16}) {
      c.precision = precision;
      // Pages of a different type than the scratch, and of the same type.
      for (const DType dtype : {DType::kF32, precision}) {
        c.dtype = dtype;
        c.softcap = dtype == DType::kF32 ? 1.5f : 0.0f;
        c.sinks = dtype != DType::kF32;
        c.kind =
            dtype == DType::kF32 ? ColumnStatistic::Kind::kBelowMean : ColumnStatistic::Kind::kSum;
        SCOPED_TRACE(NameOf(c));
        const Sequence sequence(c, kSeed);
        Results results = sequence.Start();
        sequence.Run(backend(), 0, c.n, 70, &results);
        ExpectMatches(sequence, results, precision == DType::kBF16 ? 1.0 / 100 : 1.0 / 2048);
      }
    }
  }
}

TEST_P(PrefillPrefixTest, EqualLengthsMatchKeysInOnePiece) {
  for (const int length : {32, 96, 128}) {
    const Case c{.num_heads = 9,
                 .num_kv_heads = 3,
                 .head_dim = 24,
                 .dtype = DType::kBF16,
                 .lengths = {length, length, length},
                 .n = 50,
                 .first_summed = length == 96 ? 20 : 0};
    SCOPED_TRACE(NameOf(c));
    const Sequence sequence(c, kSeed + length);
    Results results = sequence.Start();
    sequence.Run(backend(), 0, c.n, 9, &results);
    const Results pieces = sequence.RunInOnePiece(backend());
    const auto expect = [](const std::vector<float>& a, const std::vector<float>& b,
                           const char* what) {
      ExpectNear(a, {b.begin(), b.end()}, std::vector<double>(a.size(), 2e-5), what);
    };
    expect(results.out, pieces.out, "out");
    expect(results.column_sums, pieces.column_sums, "column sums");
    expect(results.prefix_sums, pieces.prefix_sums, "prefix sums");
  }
}

// Slices of the suffix and a bound above the true lengths change no bit.
TEST_P(PrefillPrefixTest, SlicingAndTheBoundChangeNoBit) {
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    const Case c{.num_heads = 6,
                 .num_kv_heads = 2,
                 .head_dim = 16,
                 .dtype = DType::kBF16,
                 .lengths = {70, 133},
                 .n = 110,
                 .first_summed = 5,
                 .precision = precision};
    SCOPED_TRACE(NameOf(c));
    const Sequence sequence(c, kSeed);
    Results whole = sequence.Start();
    sequence.Run(backend(), 0, c.n, 0, &whole);
    for (const std::vector<int>& ends :
         {std::vector<int>{110}, std::vector<int>{32, 110}, std::vector<int>{32, 64, 96, 110}}) {
      for (const int slack : {0, 1, 60, 200}) {
        Results sliced = sequence.Start();
        int begin = 0;
        for (const int end : ends) {
          sequence.Run(backend(), begin, end, slack, &sliced);
          begin = end;
        }
        EXPECT_TRUE(SameBits(sliced, whole)) << ends.size() << " slices, slack " << slack;
      }
    }
  }
}

// More weights than the cpu backend keeps for its sums.
TEST_P(PrefillPrefixTest, LongPrefix) {
  const Case c{.num_heads = 16, .num_kv_heads = 1, .head_dim = 8, .lengths = {4500}, .n = 10};
  const Sequence sequence(c, kSeed);
  Results results = sequence.Start();
  sequence.Run(backend(), 0, c.n, 0, &results);
  ExpectMatches(sequence, results, 0.0);
}

// Without statistics, which windows do not support. Windows shorter and longer than the suffix, the
// prefix, a query tile and a key panel; entries are in random order.
TEST_P(PrefillPrefixTest, WindowsReachIntoThePrefix) {
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    for (const int window : {1, 2, 33, 64, 130, 300, 1000}) {
      for (const int n : {1, 40, 210}) {
        const int length = std::min(window, 290);
        Case c{.num_heads = 6,
               .num_kv_heads = 2,
               .head_dim = 32,
               .block_size = 7,
               .lengths = {length, std::min(length, 129)},
               .n = n,
               .precision = precision,
               .window = window};
        if (window % 2 == 0) c.softcap = 1.5f;
        c.sinks = window % 3 == 0;
        SCOPED_TRACE(NameOf(c));
        const Sequence sequence(c, kSeed + window);
        Results whole = sequence.Start(), sliced = whole;
        sequence.Run(backend(), 0, n, 70, &whole, {false, false});
        for (int begin = 0; begin < n; begin += 64)
          sequence.Run(backend(), begin, std::min(begin + 64, n), 0, &sliced, {false, false});
        EXPECT_TRUE(SameBits(sliced.out, whole.out));
        const Dense dense = AttendPlainly(sequence);
        const double error = (8 + dense.largest_logit * std::sqrt(c.head_dim)) * 5e-7 +
                             (precision == DType::kBF16 ? 1.0 / 100 : 0.0);
        ExpectNear(
            whole.out, dense.out,
            std::vector<double>(dense.out.size(), error * std::max(1.0, dense.largest_value)),
            "out");
      }
    }
  }
}

// A device's scratch holds arbitrary data from earlier operations.
TEST_P(PrefillPrefixTest, NanOfAnEarlierRunDoesNotSpread) {
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    Case c{.lengths = {70, 3}, .n = 40, .precision = precision};
    const Sequence sequence(c, kSeed);
    c.lengths = {200, 200};
    c.n = 100;
    const Sequence nan(c, kSeed, true);
    Results before = sequence.Start(), after = before, ignored = nan.Start();
    sequence.Run(backend(), 0, 40, 0, &before);
    nan.Run(backend(), 0, 100, 0, &ignored);
    sequence.Run(backend(), 0, 40, 0, &after);
    EXPECT_TRUE(SameBits(after, before)) << DTypeName(precision);
    EXPECT_FALSE(std::isnan(after.out[0]));
  }
}

TEST_P(PrefillPrefixTest, SumsThatAreNotWantedChangeNothing) {
  const Case c{.lengths = {40, 90}, .n = 45};
  const Sequence sequence(c, kSeed);
  Results all = sequence.Start();
  sequence.Run(backend(), 0, c.n, 0, &all);
  for (const bool column_sums : {false, true}) {
    for (const bool prefix_sums : {false, true}) {
      Results some = sequence.Start();
      sequence.Run(backend(), 0, c.n, 0, &some, {column_sums, prefix_sums});
      const Results start = sequence.Start();
      EXPECT_TRUE(SameBits(some.out, all.out));
      EXPECT_TRUE(SameBits(some.column_sums, column_sums ? all.column_sums : start.column_sums));
      EXPECT_TRUE(SameBits(some.prefix_sums, prefix_sums ? all.prefix_sums : start.prefix_sums));
    }
  }
  Results twice = all;
  sequence.Run(backend(), 0, c.n, 0, &twice);
  for (size_t i = 0; i < all.prefix_sums.size(); ++i) {
    if (std::isnan(all.prefix_sums[i])) continue;
    ASSERT_NEAR(twice.prefix_sums[i], 2 * all.prefix_sums[i], 1e-5) << "sums are added to, " << i;
  }
}

HYDRANT_FOR_EACH_BACKEND(PrefillPrefixTest);

}  // namespace
}  // namespace hydrant
