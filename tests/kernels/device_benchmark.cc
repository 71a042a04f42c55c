// Speed of a backend's operations on shapes of Llama-3.1-8B (32 query and 8 KV heads of 128), each
// as a share of the device's limit measured in the same run: bytes per second against a plain copy,
// floating point operations per second against the largest matrix product. Prints markdown tables.
//
//   device_benchmark [--backend cuda] [--json FILE] [--quick] [--only matmul,decode,prefill]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/float16.h"
#include "tests/kernels/llama_attention.h"
#include "tests/kernels/random_rows.h"
#include "tests/measurement_log.h"

namespace hydrant {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void Fail(const absl::Status& status) {
  std::fprintf(stderr, "device_benchmark: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

// Repeats a few random rows of blocks: generating a whole matrix would take longer
// than measuring it.
class RepeatedRow final : public RowMaker {
 public:
  RepeatedRow(DType dtype, int cols) : row_bytes_(BytesOf(dtype, cols)) {
    std::mt19937 random(1);
    rows_ = RandomRows(dtype, kRows, cols, random);
  }
  void Make(int64_t row, uint8_t* out) const override {
    std::memcpy(out, &rows_[row % kRows * row_bytes_], row_bytes_);
  }

 private:
  static constexpr int kRows = 64;
  size_t row_bytes_;
  std::vector<uint8_t> rows_;
};

// Memory of the current measurement.
class Memory {
 public:
  explicit Memory(Backend& backend) : backend_(backend) {}

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
  // Normal numbers with a short period, so that large arrays are fast to make.
  static std::vector<float> Normals(size_t count) {
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    std::vector<float> values(std::min<size_t>(count, (1 << 16) + 1));
    for (float& value : values) value = normal(rng);
    return values;
  }
  template <typename T>
  T* Repeated(const std::vector<T>& values, size_t count) {
    T* device = Allocate<T>(count);
    for (size_t at = 0; at < count; at += values.size())
      backend_.CopyToDevice(device + at, values.data(),
                            std::min(values.size(), count - at) * sizeof(T));
    return device;
  }
  float* Floats(size_t count) { return Repeated(Normals(count), count); }
  uint16_t* Halves(size_t count) {
    std::vector<uint16_t> values;
    for (const float value : Normals(count)) values.push_back(FloatToBF16(value));
    return Repeated(values, count);
  }
  void Clear() { buffers_.clear(); }

 private:
  Backend& backend_;
  std::vector<DeviceBuffer> buffers_;
};

class Bench {
 public:
  Bench(Backend* backend, bool quick, const std::string& json, const std::string& only)
      : backend_(*backend), memory_(*backend), quick_(quick), only_(only), log_(json) {}

  void Run() {
    std::printf("%s\n\n", backend_.Description().c_str());
    log_.Write("device",
               {{"program", "device_benchmark"}, {"description", backend_.Description()}});
    MeasureCopy();
    if (IsWanted("matmul")) MeasureMatmul();
    if (IsWanted("matmul")) MeasureBlocks();
    if (IsWanted("decode")) MeasureDecode();
    if (IsWanted("prefill")) MeasurePrefill();
  }

 private:
  bool IsWanted(const std::string& part) const {
    return only_.empty() || only_.find(part) != std::string::npos;
  }
  void Synchronize() {
    if (const absl::Status status = backend_.Synchronize(); !status.ok()) Fail(status);
  }

  // Seconds per call: the fastest of five runs, each with enough calls for a tenth of a second.
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
    auto* from = memory_.Allocate<uint8_t>(bytes);
    auto* to = memory_.Allocate<uint8_t>(bytes);
    copy_ =
        2.0 * static_cast<double>(bytes) / Time([&] { backend_.CopyOnDevice(to, from, bytes); });
    std::printf("copy: %.0f GB/s, read and written\n\n", copy_ * 1e-9);
    log_.Write("copy", {{"bytes_per_s", copy_}});
    memory_.Clear();
  }

  void MeasureMatmul() {
    const int n = quick_ ? 64 : 14336, k = quick_ ? 64 : 4096;
    const std::vector<float> normals = Memory::Normals(size_t{1} << 20);
    std::vector<float> values(static_cast<size_t>(n) * k);
    for (size_t i = 0; i < values.size(); ++i) values[i] = normals[i % normals.size()];
    const WeightPart part{DType::kF32, values.data(), n, k};
    auto weight = backend_.PackWeight(std::span(&part, 1), WeightDType::kBFloat16);
    if (!weight.ok()) Fail(weight.status());
    const DType x_dtype = backend_.ActivationDType(DType::kBF16);
    std::printf(
        "| bf16 matmul %d x %d, rows | us | TFLOP/s | weights' bytes, share of copy "
        "|\n|---|---|---|---|\n",
        n, k);
    for (const int m : {1, 16, 64, 256, 1024, 4096}) {
      if (quick_ && m > 16) break;
      const size_t count = static_cast<size_t>(m) * k;
      const void* x = x_dtype == DType::kBF16 ? static_cast<void*>(memory_.Halves(count))
                                              : static_cast<void*>(memory_.Floats(count));
      auto* y = memory_.Allocate<float>(static_cast<size_t>(m) * n);
      const double seconds = Time([&] {
        backend_.Matmul({.x = x, .x_dtype = x_dtype, .m = m, .weight = weight->get(), .y = y});
      });
      const double flops = 2.0 * m * n * k / seconds;
      matmul_ = std::max(matmul_, flops);
      std::printf("| %d | %.1f | %.1f | %.2f |\n", m, seconds * 1e6, flops * 1e-12,
                  static_cast<double>((*weight)->bytes()) / seconds / copy_);
      log_.Write("matmul",
                 {{"rows", m}, {"n", n}, {"k", k}, {"seconds", seconds}, {"flops", flops}});
      memory_.Clear();
    }
    std::printf("\n");
  }

  // Few rows with block-quantized weights, as in a decode step: several matrices in rotation, so
  // that none is cached.
  void MeasureBlocks() {
    const int n = quick_ ? 64 : 14336, k = quick_ ? 256 : 4096;
    const double least_bytes = quick_ ? 1 : 256e6;
    std::printf(
        "| matmul %d x %d in blocks, rows | type | us | weights' bytes, share of copy |\n"
        "|---|---|---|---|\n",
        n, k);
    for (const DType type :
         {DType::kQ4_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kQ8_0, DType::kF8_E4M3}) {
      const RepeatedRow row(type, k);
      const WeightPart part = {.dtype = type, .rows = n, .cols = k, .maker = &row};
      std::vector<std::unique_ptr<Weight>> weights;
      for (double bytes = 0; bytes < least_bytes; bytes += weights.back()->bytes()) {
        auto weight = backend_.PackWeight(std::span(&part, 1), WeightDType::kStored);
        if (!weight.ok()) Fail(weight.status());
        weights.push_back(*std::move(weight));
      }
      for (const int m : {1, 8, 16, 32, 64, 256, 1024}) {
        if (quick_ && m > 8) break;
        MeasureBlocks(type, weights, m, n, k);
      }
    }
    std::printf("\n");
  }
  void MeasureBlocks(DType type, const std::vector<std::unique_ptr<Weight>>& weights, int m, int n,
                     int k) {
    const size_t count = static_cast<size_t>(m) * k;
    const DType x_dtype =
        backend_.ActivationDType(backend_.PackedDType(type, WeightDType::kStored, k));
    const void* x = x_dtype == DType::kBF16 ? static_cast<void*>(memory_.Halves(count))
                                            : static_cast<void*>(memory_.Floats(count));
    auto* y = memory_.Allocate<float>(static_cast<size_t>(m) * n);
    size_t turn = 0;
    const double seconds = Time([&] {
      const Weight* weight = weights[turn++ % weights.size()].get();
      backend_.Matmul({.x = x, .x_dtype = x_dtype, .m = m, .weight = weight, .y = y});
    });
    const std::string name(DTypeName(type));
    std::printf("| %d | %s | %.1f | %.2f |\n", m, name.c_str(), seconds * 1e6,
                static_cast<double>(weights[0]->bytes()) / seconds / copy_);
    log_.Write("matmul_blocks",
               {{"rows", m}, {"type", name}, {"n", n}, {"k", k}, {"seconds", seconds}});
    memory_.Clear();
  }

  // `rows` sequences, row r by rules[r % rules.size()], every head at its cap, so
  // that steps repeat.
  DecodeAttentionArgs DecodeWorld(int rows, int length, const std::vector<DecodeRule>& rules) {
    DecodeAttentionArgs args =
        MakeDecode(memory_, rows, length, quick_ ? 1 : LayersOf(6e9, rows, length));
    std::vector<DecodeRule> row_rules(rows);
    for (int row = 0; row < rows; ++row) {
      row_rules[row] = rules[row % rules.size()];
      if (row_rules[row].scored) args.max_scored_entries = length;
    }
    args.tables.rules = memory_.Upload(row_rules);
    return args;
  }

  // The rules of a launch's rows. Nothing recent is protected: the new token always has the same
  // position, and after many calls all entries would be protected.
  struct Mix {
    const char* name;
    std::vector<DecodeRule> rules;  // of the rows, cyclically
    double score_bytes;  // per entry, on average: positions read, scores read and written
  };
  static std::vector<Mix> Mixes() {
    const DecodeRule full, h2o = {.scored = true};
    const DecodeRule window = {.by_position = true, .scored = true, .sinks = 4};
    return {{"full", {full}, 0},
            {"h2o", {h2o}, 12},
            {"window", {window}, 12},
            {"mixed", {full, h2o, full, window}, 6}};
  }

  void MeasureDecode() {
    std::printf(
        "| decode attention, sequences x entries | us, full | share of copy | us, h2o | share of "
        "copy | scoring costs | us, window | us, mixed |\n|---|---|---|---|---|---|---|---|\n");
    using Shapes = std::vector<std::pair<int, int>>;
    const Shapes shapes = {{64, 512},  {64, 1024}, {64, 2048}, {64, 8192},  {256, 205},
                           {256, 512}, {1, 1024},  {1, 8192},  {1, 131072}, {8, 8192}};
    for (const auto& [rows, length] : quick_ ? Shapes{{1, 1024}, {4, 208}} : shapes)
      MeasureDecode(rows, length);
    std::printf("\n");
  }

  void MeasureDecode(int rows, int length) {
    const double entries = static_cast<double>(rows) * kKvHeads * length;
    const double kv_bytes = entries * 2 * kHeadDim * 2;
    std::map<std::string, double> seconds, share;
    for (const Mix& mix : Mixes()) {
      DecodeAttentionArgs args = DecodeWorld(rows, length, mix.rules);
      const double taken = Time([&] {
        backend_.DecodeAttention(args);
        args.layer = (args.layer + 1) % args.tables.num_layers;  // nothing is cached from before
      });
      memory_.Clear();
      seconds[mix.name] = taken;
      share[mix.name] = (kv_bytes + entries * mix.score_bytes) / taken / copy_;
      log_.Write("decode_attention", {{"variant", mix.name},
                                      {"batch", rows},
                                      {"length", length},
                                      {"seconds", taken},
                                      {"kv_bytes", kv_bytes},
                                      {"share_of_copy", share[mix.name]}});
    }
    std::printf("| %d x %d | %.1f | %.2f | %.1f | %.2f | %+.1f %% | %.1f | %.1f |\n", rows, length,
                seconds["full"] * 1e6, share["full"], seconds["h2o"] * 1e6, share["h2o"],
                (seconds["h2o"] / seconds["full"] - 1) * 100, seconds["window"] * 1e6,
                seconds["mixed"] * 1e6);
  }

  void MeasurePrefill() {
    std::printf(
        "| prompt attention, tokens | us | TFLOP/s | share of matmul | column sums add "
        "|\n|---|---|---|---|---|\n");
    for (const int n : {128, 2048, 4096, 8192, 16384}) {
      if (quick_ != (n == 128)) continue;
      const bool halves = backend_.ArenaDType(DType::kBF16, kHeadDim) == DType::kBF16;
      PrefillAttentionArgs args = MakePrompt(memory_, n, halves);
      const double plain = Time([&] { backend_.PrefillAttention(args); });
      args.statistics[0].out = memory_.Allocate<float>(static_cast<size_t>(kKvHeads) * n);
      args.statistics[0].stride = n;
      const double summed = Time([&] { backend_.PrefillAttention(args); });
      const double flops = 2.0 * 2.0 * kHeads * kHeadDim * (0.5 * n * (n + 1.0)) / plain;
      std::printf("| %d | %.0f | %.1f | %.2f | %+.0f %% |\n", n, plain * 1e6, flops * 1e-12,
                  flops / matmul_, (summed / plain - 1) * 100);
      log_.Write("prefill_attention", {{"tokens", n},
                                       {"seconds", plain},
                                       {"flops", flops},
                                       {"share_of_matmul", flops / matmul_},
                                       {"seconds_with_sums", summed}});
      memory_.Clear();
    }
  }

  Backend& backend_;
  Memory memory_;
  const bool quick_;
  const std::string only_;
  MeasurementLog log_;
  double copy_ = 0.0;    // bytes per second, read and written
  double matmul_ = 0.0;  // floating point operations per second
};

}  // namespace
}  // namespace hydrant

int main(int argc, char** argv) {
  std::string backend = "cuda", json, only;
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else if (std::strcmp(argv[i], "--backend") == 0 && i + 1 < argc) {
      backend = argv[++i];
    } else if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      json = argv[++i];
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = argv[++i];
    } else {
      std::fprintf(stderr,
                   "usage: device_benchmark [--backend cuda] [--json FILE] [--quick] [--only "
                   "matmul,decode,prefill]\n");
      return 2;
    }
  }
  auto made = hydrant::CreateBackend(backend, {.num_threads = 1});
  if (!made.ok()) hydrant::Fail(made.status());
  hydrant::Bench(made->get(), quick, json, only).Run();
}
