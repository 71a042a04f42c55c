// Speed of the cpu backend's attention. Decode: page bytes read per second, compared with a plain
// read of as many bytes by as many threads in the same run; with and without scores; and heads of
// different lengths against equal heads with the same total. Prefill: useful (causal) floating
// point operations per second, with and without column sums. Shapes: SmolLM2-135M (9 query heads, 3
// KV heads, head_dim 64) and one layer of Llama-3 8B.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/attention/decode_attention.h"
#include "kernels/cpu/attention/prefill_attention.h"
#include "kernels/host_memory.h"

namespace hydrant {
namespace {

struct Model {
  int num_heads, num_kv_heads, head_dim, num_layers;
};
constexpr Model kSmolLm2{9, 3, 64, 30};
constexpr Model kLlama8B{32, 8, 128, 4};  // a few layers: enough to exceed the caches

std::vector<float> Random(size_t n) {
  std::mt19937 rng(7);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> v(n);
  for (float& x : v) x = uniform(rng);
  return v;
}

std::vector<int32_t> EqualLengths(const Model& model, int rows, int context) {
  return std::vector<int32_t>(static_cast<size_t>(rows) * model.num_layers * model.num_kv_heads,
                              context);
}

// Lengths as from Ada-KV: a fifth of a layer's entries is split equally, the rest by
// random attention shares. A few heads get two to three times the mean, some little more
// than the equal part.
std::vector<int32_t> SharedLengths(const Model& model, int rows, int context) {
  std::mt19937 rng(7);
  std::normal_distribution<double> normal(0.0, 1.2);
  std::vector<int32_t> lengths;
  for (int layer = 0; layer < rows * model.num_layers; ++layer) {
    std::vector<double> shares;
    shares.reserve(model.num_kv_heads);
    for (int head = 0; head < model.num_kv_heads; ++head) shares.push_back(std::exp(normal(rng)));
    const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
    int left = model.num_kv_heads * context;
    for (const double share : shares) {
      const double even = 0.2 * context, rest = 0.8 * context * model.num_kv_heads * share / all;
      lengths.push_back(static_cast<int32_t>(even + rest));
      left -= lengths.back();
    }
    lengths.back() += left;
  }
  return lengths;
}

// Every layer of every sequence at its cap, so that steps repeat. lengths: [rows, layers, KV heads]
class DecodeWorld {
 public:
  DecodeWorld(const Model& model, int rows, const std::vector<int32_t>& lengths, DType dtype,
              bool scored)
      : model_(model), rows_(rows) {
    constexpr int kBlock = 16;
    const auto heads = static_cast<int>(lengths.size());
    const auto pages = [](int32_t length) { return (length + kBlock - 1) / kBlock; };
    const int width = pages(*std::max_element(lengths.begin(), lengths.end()));
    int num_blocks = 0;
    for (const int32_t length : lengths) num_blocks += pages(length);
    layout_ = {dtype, model.head_dim, kBlock, num_blocks};
    const size_t slots = static_cast<size_t>(layout_.num_blocks) * kBlock;
    page_bytes_ = BytesOf(dtype, slots * model.head_dim);
    // Allocated like the pool. Zeros: every entry has the same weight.
    keys_ = AllocateHostMemory(page_bytes_).value();
    values_ = AllocateHostMemory(page_bytes_).value();
    std::memset(keys_.get(), 0, page_bytes_);  // untouched memory would map to one page
    std::memset(values_.get(), 0, page_bytes_);
    positions_.resize(slots);
    scores_.resize(slots);
    std::vector<int32_t> ids(num_blocks);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(7));
    blocks_.resize(static_cast<size_t>(heads) * width);
    for (int head = 0; head < heads; ++head) {
      for (int i = 0; i < pages(lengths[head]); ++i, ids.pop_back())
        blocks_[static_cast<size_t>(head) * width + i] = {ids.back(), ids.back()};
    }
    for (int row = 0; row < rows; ++row) {
      row_begin_.push_back(static_cast<int64_t>(row) * model.num_layers * model.num_kv_heads *
                           width);
      slots_.push_back(row);
    }
    row_width_.assign(rows, width);
    caps_ = lengths_ = lengths;
    victims_.assign(heads, 0);
    DecodeRule rule;
    rule.scored = scored;
    rule.recent = *std::min_element(lengths.begin(), lengths.end()) / 2;
    rules_.assign(rows, rule);
    q_ = Random(static_cast<size_t>(rows) * model.num_heads * model.head_dim);
    k_ = Random(static_cast<size_t>(rows) * model.num_kv_heads * model.head_dim);
    out_.resize(q_.size());
  }

  void Step(ThreadPool& pool) {
    step_positions_.assign(rows_, position_++);
    for (int layer = 0; layer < model_.num_layers; ++layer) {
      DecodeAttentionArgs args;
      args.num_rows = rows_;
      args.slots = slots_.data();
      args.positions = step_positions_.data();
      args.q = q_.data();
      args.k = k_.data();
      args.v = k_.data();
      args.layer = layer;
      args.num_heads = model_.num_heads;
      args.scale = 1.0f / std::sqrt(static_cast<float>(model_.head_dim));
      args.pages = {layout_, keys_.get(), values_.get(), positions_.data(), scores_.data()};
      args.tables.num_layers = model_.num_layers;
      args.tables.num_kv_heads = model_.num_kv_heads;
      args.tables.blocks = blocks_.data();
      args.tables.row_begin = row_begin_.data();
      args.tables.row_width = row_width_.data();
      args.tables.caps = caps_.data();
      args.tables.lengths = lengths_.data();
      args.tables.victims = victims_.data();
      args.tables.rules = rules_.data();
      args.out = out_.data();
      cpu::DecodeAttention(args, pool);
    }
  }

  // Reads the same pages without computing: the upper bound.
  uint64_t Read(ThreadPool& pool) {
    const int tasks = pool.num_threads() * 8;
    std::vector<uint64_t> sums(tasks);
    pool.ParallelFor(tasks, [&](int task, int) {
      uint64_t sum = 0;
      for (const void* page : {keys_.get(), values_.get()}) {
        const auto* words = static_cast<const uint64_t*>(page);
        const size_t n = page_bytes_ / sizeof(uint64_t);
        for (size_t i = n * task / tasks; i < n * (task + 1) / tasks; ++i) sum += words[i];
      }
      sums[task] = sum;
    });
    return std::accumulate(sums.begin(), sums.end(), uint64_t{0});
  }

  double Bytes() const { return 2.0 * static_cast<double>(page_bytes_); }

 private:
  const Model model_;
  const int rows_;
  int position_ = 1 << 20;
  KvLayout layout_;
  size_t page_bytes_ = 0;
  DeviceBuffer keys_, values_;
  std::vector<PageIds> blocks_;
  std::vector<int32_t> positions_, row_width_, caps_, lengths_, victims_, slots_, step_positions_;
  std::vector<float> scores_, q_, k_, out_;
  std::vector<int64_t> row_begin_;
  std::vector<DecodeRule> rules_;
};

void SetBandwidth(benchmark::State& state, double bytes) {
  state.counters["GB/s"] =
      benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

// Arguments: rows, context, dtype, scored, threads.
void BM_Decode(benchmark::State& state, const Model& model) {
  ThreadPool pool(static_cast<int>(state.range(4)));
  const int rows = static_cast<int>(state.range(0));
  DecodeWorld world(model, rows, EqualLengths(model, rows, static_cast<int>(state.range(1))),
                    static_cast<DType>(state.range(2)), state.range(3) != 0);
  while (state.KeepRunning()) world.Step(pool);
  SetBandwidth(state, world.Bytes());
}

void BM_ReadPages(benchmark::State& state, const Model& model) {
  ThreadPool pool(static_cast<int>(state.range(4)));
  const int rows = static_cast<int>(state.range(0));
  DecodeWorld world(model, rows, EqualLengths(model, rows, static_cast<int>(state.range(1))),
                    static_cast<DType>(state.range(2)), false);
  while (state.KeepRunning()) benchmark::DoNotOptimize(world.Read(pool));
  SetBandwidth(state, world.Bytes());
}

void DecodeCases(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "context", "dtype", "scored", "threads"})
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
  constexpr int kF16 = static_cast<int>(DType::kF16), kF32 = static_cast<int>(DType::kF32),
                kBF16 = static_cast<int>(DType::kBF16), kQ8 = static_cast<int>(DType::kQ8_0),
                kQ4 = static_cast<int>(DType::kQ4_0), kFp8 = static_cast<int>(DType::kE4M3);
  for (int scored : {0, 1}) {
    for (int dtype : {kF16, kBF16, kF32, kQ8, kQ4, kFp8}) b->Args({1, 512, dtype, scored, 2});
    for (int dtype : {kQ8, kQ4, kFp8}) b->Args({32, 512, dtype, scored, 2});
    b->Args({1, 512, kF16, scored, 1})
        ->Args({32, 512, kF16, scored, 2})
        ->Args({1, 8192, kF16, scored, 2});
  }
}

void ReadCases(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "context", "dtype", "scored", "threads"})
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
  constexpr int kF16 = static_cast<int>(DType::kF16);
  b->Args({1, 512, kF16, 0, 1})
      ->Args({1, 512, kF16, 0, 2})
      ->Args({32, 512, kF16, 0, 2})
      ->Args({1, 8192, kF16, 0, 2});
}

BENCHMARK_CAPTURE(BM_ReadPages, SmolLM2, kSmolLm2)->Apply(ReadCases);
BENCHMARK_CAPTURE(BM_Decode, SmolLM2, kSmolLm2)->Apply(DecodeCases);
BENCHMARK_CAPTURE(BM_Decode, Llama8B, kLlama8B)->Apply(DecodeCases);

// The 10th percentile: other load on the machine only makes steps slower.
double QuietUs(std::vector<double>* seconds) {
  const auto tenth = seconds->begin() + static_cast<std::ptrdiff_t>(seconds->size() / 10);
  std::nth_element(seconds->begin(), tenth, seconds->end());
  return *tenth * 1e6;
}

// Alternates heads that share a budget with heads of equal budgets: the time is of the shared ones,
// `ratio` the quotient of quiet steps. Arguments as BM_Decode.
void BM_DecodeShared(benchmark::State& state, const Model& model) {
  ThreadPool pool(static_cast<int>(state.range(4)));
  const int rows = static_cast<int>(state.range(0)), context = static_cast<int>(state.range(1));
  const auto dtype = static_cast<DType>(state.range(2));
  const bool scored = state.range(3) != 0;
  DecodeWorld equal(model, rows, EqualLengths(model, rows, context), dtype, scored);
  DecodeWorld shared(model, rows, SharedLengths(model, rows, context), dtype, scored);
  const auto seconds_of = [&pool](DecodeWorld& world) {
    const auto start = std::chrono::steady_clock::now();
    world.Step(pool);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::vector<double> equal_s, shared_s;
  while (state.KeepRunning()) {
    equal_s.push_back(seconds_of(equal));
    shared_s.push_back(seconds_of(shared));
    state.SetIterationTime(shared_s.back());
  }
  state.counters["equal_us"] = QuietUs(&equal_s);
  state.counters["shared_us"] = QuietUs(&shared_s);
  state.counters["ratio"] = QuietUs(&shared_s) / QuietUs(&equal_s);
}

void SharedCases(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "context", "dtype", "scored", "threads"})
      ->UseManualTime()
      ->MinTime(1.0)
      ->Unit(benchmark::kMicrosecond);
  constexpr int kF16 = static_cast<int>(DType::kF16);
  // Context lengths are not multiples of a vector: otherwise only equal heads would
  // avoid padding rows.
  for (const int threads : {1, 2}) {
    for (const int rows : {1, 4, 32}) {
      for (const int context : {137, 521}) b->Args({rows, context, kF16, 1, threads});
    }
  }
}

BENCHMARK_CAPTURE(BM_DecodeShared, SmolLM2, kSmolLm2)->Apply(SharedCases);
BENCHMARK_CAPTURE(BM_DecodeShared, Llama8B, kLlama8B)->Apply(SharedCases);

// One layer of a whole prompt. Arguments: tokens, column sums, threads, whether
// products may be bf16.
void BM_Prefill(benchmark::State& state, const Model& model) {
  const int n = static_cast<int>(state.range(0));
  ThreadPool pool(static_cast<int>(state.range(2)));
  const std::vector<float> q = Random(static_cast<size_t>(n) * model.num_heads * model.head_dim);
  const std::vector<float> k = Random(static_cast<size_t>(n) * model.num_kv_heads * model.head_dim);
  std::vector<float> out(q.size()), column_sums(static_cast<size_t>(n) * model.num_kv_heads);
  PrefillAttentionArgs args;
  args.q = q.data();
  args.k = k.data();
  args.v = k.data();
  args.kv_head_stride = static_cast<int64_t>(n) * model.head_dim;
  args.num_queries = n;
  args.num_heads = model.num_heads;
  args.num_kv_heads = model.num_kv_heads;
  args.head_dim = model.head_dim;
  args.scale = 0.125f;
  args.out = out.data();
  args.statistics[0].out = state.range(1) != 0 ? column_sums.data() : nullptr;
  args.statistics[0].stride = n;
  if (state.range(3) != 0) args.precision = DType::kBF16;
  while (state.KeepRunning()) cpu::PrefillAttention(args, pool);
  const double pairs = 0.5 * n * (n + 1.0) * model.num_heads;
  state.counters["GFLOP/s"] = benchmark::Counter(4e-9 * pairs * model.head_dim,
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

void PrefillCases(benchmark::internal::Benchmark* b) {
  b->ArgNames({"tokens", "sums", "threads", "bf16"})->UseRealTime()->Unit(benchmark::kMillisecond);
  for (int bf16 : {0, 1}) {
    for (int sums : {0, 1}) {
      b->Args({1024, sums, 1, bf16});
      b->Args({1024, sums, 2, bf16})->Args({4096, sums, 2, bf16});
    }
  }
}

BENCHMARK_CAPTURE(BM_Prefill, SmolLM2, kSmolLm2)->Apply(PrefillCases);
BENCHMARK_CAPTURE(BM_Prefill, Llama8B, kLlama8B)->Apply(PrefillCases);

}  // namespace
}  // namespace hydrant
