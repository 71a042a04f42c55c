// Speed of a backend's operations on shapes of Llama-3.1-8B (32 query and 8 KV heads of 128), each
// as a share of what the device itself can do, measured in the same run: bytes a second beside a
// plain copy, floating point operations a second beside the largest matrix product. Prints markdown
// tables.
//
//   device_benchmark [--backend cuda] [--quick]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace hydrant {
namespace {

constexpr int kHeads = 32, kKvHeads = 8, kHeadDim = 128, kBlockSize = 16;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void Fail(const absl::Status& status) {
  std::fprintf(stderr, "device_benchmark: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

class Bench {
 public:
  Bench(Backend* backend, bool quick) : backend_(*backend), quick_(quick) {}

  void Run() {
    std::printf("%s\n\n", backend_.Description().c_str());
    MeasureCopy();
    MeasureMatmul();
    MeasureDecode();
    MeasurePrefill();
  }

 private:
  template <typename T>
  T* Allocate(size_t count) {
    auto buffer = backend_.Allocate(count * sizeof(T));
    if (!buffer.ok()) Fail(buffer.status());
    buffers_.push_back(*std::move(buffer));
    return static_cast<T*>(buffers_.back().get());
  }
  template <typename T>
  T* Upload(const std::vector<T>& values) {
    T* device = Allocate<T>(values.size());
    backend_.CopyToDevice(device, values.data(), values.size() * sizeof(T));
    return device;
  }
  // Random numbers of a short period, so that large arrays are made in no time.
  float* Random(size_t count) {
    constexpr size_t kPeriod = (1 << 16) + 1;
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    std::vector<float> values(std::min(count, kPeriod));
    for (float& value : values) value = normal(rng);
    float* device = Allocate<float>(count);
    for (size_t at = 0; at < count; at += values.size())
      backend_.CopyToDevice(device + at, values.data(),
                            std::min(values.size(), count - at) * sizeof(float));
    return device;
  }
  void Synchronize() {
    if (const absl::Status status = backend_.Synchronize(); !status.ok()) Fail(status);
  }

  // Seconds of one call: the fastest of five runs of as many calls as fill a tenth of a second.
  template <typename Operation>
  double Time(Operation operation) {
    operation();
    Synchronize();
    const double once = TimeCalls(1, operation);
    const int calls = std::clamp(static_cast<int>(0.1 / std::max(once, 1e-6)), 1, 10000);
    double fastest = once;
    for (int run = 0; run < (quick_ ? 1 : 5); ++run)
      fastest = std::min(fastest, TimeCalls(calls, operation));
    return fastest;
  }
  template <typename Operation>
  double TimeCalls(int calls, Operation operation) {
    const double start = Now();
    for (int i = 0; i < calls; ++i) operation();
    Synchronize();
    return (Now() - start) / calls;
  }

  void MeasureCopy() {
    const size_t bytes = quick_ ? size_t{1} << 20 : size_t{4} << 30;
    auto* from = Allocate<uint8_t>(bytes);
    auto* to = Allocate<uint8_t>(bytes);
    copy_ =
        2.0 * static_cast<double>(bytes) / Time([&] { backend_.CopyOnDevice(to, from, bytes); });
    std::printf("copy: %.0f GB/s, read and written\n\n", copy_ * 1e-9);
    buffers_.clear();
  }

  void MeasureMatmul() {
    const int n = quick_ ? 64 : 14336, k = quick_ ? 64 : 4096;
    const std::vector<float> values(static_cast<size_t>(n) * k, 0.01f);
    const WeightPart part{DType::kF32, values.data(), n, k};
    auto weight = backend_.PackWeight(std::span(&part, 1), WeightDType::kBFloat16);
    if (!weight.ok()) Fail(weight.status());
    std::printf(
        "| bf16 matmul %d x %d, rows | us | TFLOP/s | weights' bytes, share of copy "
        "|\n|---|---|---|---|\n",
        n, k);
    for (const int m : {1, 16, 64, 256, 1024, 4096}) {
      if (quick_ && m > 16) break;
      const float* x = Random(static_cast<size_t>(m) * k);
      auto* y = Allocate<float>(static_cast<size_t>(m) * n);
      const double seconds =
          Time([&] { backend_.Matmul({.x = x, .m = m, .weight = weight->get(), .y = y}); });
      const double flops = 2.0 * m * n * k / seconds;
      matmul_ = std::max(matmul_, flops);
      std::printf("| %d | %.1f | %.1f | %.2f |\n", m, seconds * 1e6, flops * 1e-12,
                  static_cast<double>((*weight)->bytes()) / seconds / copy_);
      buffers_.clear();
    }
    std::printf("\n");
  }

  // Every head of `rows` sequences at its cap, so that steps repeat.
  DecodeAttentionArgs DecodeWorld(int rows, int length, const DecodeRule& rule) {
    const int width = (length + kBlockSize - 1) / kBlockSize, heads = rows * kKvHeads;
    DecodeAttentionArgs args;
    args.pages.layout = {DType::kBF16, kHeadDim, kBlockSize, heads * width};
    const size_t slots = static_cast<size_t>(heads) * width * kBlockSize;
    args.pages.keys = Random(slots * kHeadDim / 2);  // any bits but NaN: floats read as pairs
    args.pages.values = Random(slots * kHeadDim / 2);
    args.pages.positions = Allocate<int32_t>(slots);
    args.pages.scores = Allocate<float>(slots);
    std::vector<int32_t> blocks(static_cast<size_t>(heads) * width), slot_ids(rows);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(7));
    std::iota(slot_ids.begin(), slot_ids.end(), 0);
    std::vector<int64_t> row_begin(rows);
    for (int row = 0; row < rows; ++row)
      row_begin[row] = static_cast<int64_t>(row) * kKvHeads * width;
    args.tables = {.num_layers = 1,
                   .num_kv_heads = kKvHeads,
                   .blocks = Upload(blocks),
                   .row_begin = Upload(row_begin),
                   .row_width = Upload(std::vector<int32_t>(rows, width)),
                   .caps = Upload(std::vector<int32_t>(heads, length)),
                   .lengths = Upload(std::vector<int32_t>(heads, length)),
                   .victims = Upload(std::vector<int32_t>(heads, length / 2)),
                   .rules = Upload(std::vector<DecodeRule>(rows, rule))};
    args.num_rows = rows;
    args.slots = Upload(slot_ids);
    args.positions = Upload(std::vector<int32_t>(rows, length));
    args.q = Random(static_cast<size_t>(rows) * kHeads * kHeadDim);
    args.k = Random(static_cast<size_t>(rows) * kKvHeads * kHeadDim);
    args.v = Random(static_cast<size_t>(rows) * kKvHeads * kHeadDim);
    args.num_heads = kHeads;
    args.scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
    args.max_entries = length;
    args.max_scored_entries = rule.scored ? length : 0;
    args.out = Allocate<float>(static_cast<size_t>(rows) * kHeads * kHeadDim);
    return args;
  }

  void MeasureDecode() {
    std::printf(
        "| decode attention, sequences x entries | us, full | share of copy | us, h2o | share of "
        "copy "
        "| scoring costs |\n|---|---|---|---|---|---|\n");
    const DecodeRule h2o = {.scored = true, .sinks = 0, .recent = 64};
    for (const auto& [rows, length] : std::vector<std::pair<int, int>>{{64, 512},
                                                                       {64, 1024},
                                                                       {64, 2048},
                                                                       {64, 8192},
                                                                       {1, 1024},
                                                                       {1, 8192},
                                                                       {1, 131072},
                                                                       {8, 8192}}) {
      if (quick_ && (rows > 1 || length > 2048)) continue;
      double seconds[2];
      for (const bool scored : {false, true}) {
        const DecodeAttentionArgs args = DecodeWorld(rows, length, scored ? h2o : DecodeRule{});
        seconds[scored] = Time([&] { backend_.DecodeAttention(args); });
        buffers_.clear();
      }
      const double entries = static_cast<double>(rows) * kKvHeads * length;
      const double kv_bytes = entries * 2 * kHeadDim * 2;
      // Scores are read and written, positions read.
      const double score_bytes = entries * 12;
      std::printf("| %d x %d | %.1f | %.2f | %.1f | %.2f | %+.1f %% |\n", rows, length,
                  seconds[0] * 1e6, kv_bytes / seconds[0] / copy_, seconds[1] * 1e6,
                  (kv_bytes + score_bytes) / seconds[1] / copy_,
                  (seconds[1] / seconds[0] - 1) * 100);
    }
    std::printf("\n");
  }

  void MeasurePrefill() {
    std::printf(
        "| prompt attention, tokens | us | TFLOP/s | share of matmul | column sums add "
        "|\n|---|---|---|---|---|\n");
    for (const int n : {128, 2048, 4096, 8192, 16384}) {
      if (quick_ != (n == 128)) continue;
      PrefillAttentionArgs args;
      args.q = Random(static_cast<size_t>(n) * kHeads * kHeadDim);
      args.k = Random(static_cast<size_t>(n) * kKvHeads * kHeadDim);
      args.v = Random(static_cast<size_t>(n) * kKvHeads * kHeadDim);
      args.kv_head_stride = static_cast<int64_t>(n) * kHeadDim;
      args.num_queries = n;
      args.num_heads = kHeads;
      args.num_kv_heads = kKvHeads;
      args.head_dim = kHeadDim;
      args.scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
      args.out = Allocate<float>(static_cast<size_t>(n) * kHeads * kHeadDim);
      args.precision = DType::kBF16;
      const double plain = Time([&] { backend_.PrefillAttention(args); });
      args.column_sums = Allocate<float>(static_cast<size_t>(kKvHeads) * n);
      args.column_stride = n;
      const double summed = Time([&] { backend_.PrefillAttention(args); });
      const double flops = 2.0 * 2.0 * kHeads * kHeadDim * (0.5 * n * (n + 1.0)) / plain;
      std::printf("| %d | %.0f | %.1f | %.2f | %+.0f %% |\n", n, plain * 1e6, flops * 1e-12,
                  flops / matmul_, (summed / plain - 1) * 100);
      buffers_.clear();
    }
  }

  Backend& backend_;
  const bool quick_;
  std::vector<DeviceBuffer> buffers_;  // of the measurement at work
  double copy_ = 0.0;                  // bytes a second, read and written
  double matmul_ = 0.0;                // floating point operations a second
};

}  // namespace
}  // namespace hydrant

int main(int argc, char** argv) {
  std::string backend = "cuda";
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else if (std::strcmp(argv[i], "--backend") == 0 && i + 1 < argc) {
      backend = argv[++i];
    } else {
      std::fprintf(stderr, "usage: device_benchmark [--backend cuda] [--quick]\n");
      return 2;
    }
  }
  auto made = hydrant::CreateBackend(backend, {.num_threads = 1});
  if (!made.ok()) hydrant::Fail(made.status());
  hydrant::Bench(made->get(), quick).Run();
}
