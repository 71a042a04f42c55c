// Matmul of the cpu backend on SmolLM2-135M's shapes: GFLOP/s, and GB/s of weight bytes, against
// the machine's limits measured here: the read bandwidth of all threads and the rate of fp32
// multiply-adds in registers. Each measurement cycles through several copies of the weights, 256 MB
// or more if possible, so that small weights do not stay in caches, as in a model; "Layer" instead
// runs the four matrices of a layer, as a step does. "Experts" is the first product of
// Qwen3-30B-A3B's mixture of experts with random rows; "Turns" the same with one Matmul per expert.
//
//   matmul_benchmark [--threads=N] [Google Benchmark's own flags]
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/cpu/matmul/matmul_experts.h"
#include "kernels/float16.h"

namespace hydrant::cpu {
namespace {

struct Shape {
  const char* name;
  int rows;
  int cols;
};
constexpr Shape kShapes[] = {{"qkv", 960, 576},
                             {"out", 576, 576},
                             {"gate_up", 3072, 576},
                             {"down", 576, 1536},
                             {"logits", 49152, 576}};
constexpr int kLayerShapes = 4;  // the first four make a layer

struct Form {
  const char* name;
  WeightDType weight_dtype;
  DType file_dtype;
};
constexpr Form kForms[] = {
    {"f32", WeightDType::kFloat32, DType::kF32},  {"bf16", WeightDType::kBFloat16, DType::kF32},
    {"q4_0", WeightDType::kStored, DType::kQ4_0}, {"q4_1", WeightDType::kStored, DType::kQ4_1},
    {"q8_0", WeightDType::kStored, DType::kQ8_0}, {"q5_1", WeightDType::kStored, DType::kQ5_1}};
constexpr Form kSuperForms[] = {{"q4_k", WeightDType::kStored, DType::kQ4_K},
                                {"q6_k", WeightDType::kStored, DType::kQ6_K},
                                {"q2_k", WeightDType::kStored, DType::kQ2_K},
                                {"q3_k", WeightDType::kStored, DType::kQ3_K},
                                {"iq4_nl", WeightDType::kStored, DType::kIQ4_NL},
                                {"iq4_xs", WeightDType::kStored, DType::kIQ4_XS},
                                {"mxfp4", WeightDType::kStored, DType::kMXFP4},
                                {"f8", WeightDType::kStored, DType::kF8_E4M3}};
constexpr Shape kSuperShape = {"square", 2048, 2048};

std::vector<uint8_t> RandomBytes(DType dtype, int rows, int cols) {
  std::vector<uint8_t> bytes(BytesOf(dtype, static_cast<size_t>(rows) * cols));
  std::mt19937 random(7);
  if (dtype == DType::kF32) {
    std::uniform_real_distribution<float> uniform(-0.1f, 0.1f);
    for (size_t i = 0; i < bytes.size(); i += 4) {
      const float value = uniform(random);
      std::memcpy(&bytes[i], &value, 4);
    }
    return bytes;
  }
  // Bytes below 0x7c: scales at any offset are finite, and so are 8-bit floats.
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() % 0x7c);
  return bytes;
}

std::unique_ptr<Weight> MakeWeight(const Form& form, const Shape& shape, ThreadPool& pool) {
  const std::vector<uint8_t> bytes = RandomBytes(form.file_dtype, shape.rows, shape.cols);
  const WeightPart part = {form.file_dtype, bytes.data(), shape.rows, shape.cols};
  return *PackWeight({&part, 1}, form.weight_dtype, false, pool);
}

void Report(benchmark::State& state, double flops, double bytes) {
  const double n = static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] = benchmark::Counter(flops * n / 1e9, benchmark::Counter::kIsRate);
  state.counters["GB/s"] = benchmark::Counter(bytes * n / 1e9, benchmark::Counter::kIsRate);
}

void BenchShape(benchmark::State& state, const Form& form, const Shape& shape, int m,
                ThreadPool* pool) {
  constexpr size_t kColdBytes = size_t{256} << 20;
  constexpr size_t kMaxCopies = 64;
  std::vector<std::unique_ptr<Weight>> copies;
  do {
    copies.push_back(MakeWeight(form, shape, *pool));
  } while (copies.size() < kMaxCopies && copies.size() * copies[0]->bytes() < kColdBytes);
  const std::vector<float> x(static_cast<size_t>(m) * shape.cols, 0.5f);
  std::vector<float> y(static_cast<size_t>(m) * shape.rows);
  size_t next = 0;
  while (state.KeepRunning()) {
    Matmul(
        {.x = x.data(), .m = m, .weight = copies[next].get(), .y = y.data(), .accumulate = false},
        false, *pool);
    next = (next + 1) % copies.size();
  }
  Report(state, 2.0 * m * shape.rows * shape.cols, static_cast<double>(copies[0]->bytes()));
}

// All 30 layers' matrices and the logits, as a step runs them: a token's whole matrix work.
void BenchModel(benchmark::State& state, const Form& form, int m, ThreadPool* pool) {
  constexpr int kLayers = 30;
  std::vector<std::pair<const Shape*, std::unique_ptr<Weight>>> weights;
  double bytes = 0, flops = 0;
  const auto add = [&](const Form& with, const Shape& shape) {
    weights.emplace_back(&shape, MakeWeight(with, shape, *pool));
    bytes += static_cast<double>(weights.back().second->bytes());
  };
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int i = 0; i < kLayerShapes; ++i) add(form, kShapes[i]);
  }
  const Form q8 = {"q8_0", WeightDType::kStored, DType::kQ8_0};
  add(form.weight_dtype == WeightDType::kStored ? q8 : form, kShapes[kLayerShapes]);
  const int logit_rows = std::min(m, 16);  // a prompt's other rows need no logits
  const std::vector<float> x(static_cast<size_t>(m) * 1536, 0.5f);
  std::vector<float> y(
      std::max<size_t>(static_cast<size_t>(m) * 3072, static_cast<size_t>(logit_rows) * 49152));
  const auto rows_of = [&](const Shape& shape) { return shape.rows == 49152 ? logit_rows : m; };
  for (const auto& [shape, weight] : weights)
    flops += 2.0 * rows_of(*shape) * shape->rows * shape->cols;
  while (state.KeepRunning()) {
    for (const auto& [shape, weight] : weights) {
      Matmul({.x = x.data(),
              .m = rows_of(*shape),
              .weight = weight.get(),
              .y = y.data(),
              .accumulate = false},
             false, *pool);
    }
  }
  Report(state, flops, bytes);
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * m, benchmark::Counter::kIsRate);
}

// Places of the experts chosen by m rows.
struct Choice {
  std::vector<int32_t> offsets = {0}, sources;
  int chosen = 0;  // experts
};
constexpr int kExperts = 128, kChosen = 8;
constexpr Shape kExpert = {"expert", 1536, 2048};

Choice Choose(int m) {
  std::mt19937 random(11);
  std::vector<std::vector<int32_t>> rows(kExperts);
  std::vector<int> ids(kExperts);
  std::iota(ids.begin(), ids.end(), 0);
  for (int row = 0; row < m; ++row) {
    std::shuffle(ids.begin(), ids.end(), random);
    for (int c = 0; c < kChosen; ++c) rows[ids[c]].push_back(row);
  }
  Choice choice;
  for (const std::vector<int32_t>& own : rows) {
    choice.sources.insert(choice.sources.end(), own.begin(), own.end());
    choice.offsets.push_back(static_cast<int32_t>(choice.sources.size()));
    choice.chosen += own.empty() ? 0 : 1;
  }
  return choice;
}

void ReportExperts(benchmark::State& state, const Choice& choice, size_t expert_bytes) {
  Report(state, 2.0 * choice.offsets.back() * kExpert.rows * kExpert.cols,
         static_cast<double>(choice.chosen) * static_cast<double>(expert_bytes));
}

void BenchExperts(benchmark::State& state, const Form& form, int m, ThreadPool* pool) {
  const auto weight = MakeWeight(form, {"experts", kExperts * kExpert.rows, kExpert.cols}, *pool);
  const Choice choice = Choose(m);
  const std::vector<float> x(static_cast<size_t>(m) * kExpert.cols, 0.5f);
  std::vector<float> y(choice.sources.size() * kExpert.rows);
  while (state.KeepRunning()) {
    ExpertMatmul({.x = x.data(),
                  .rows = m,
                  .sources = choice.sources.data(),
                  .offsets = choice.offsets.data(),
                  .places = choice.offsets.back(),
                  .experts = kExperts,
                  .weight = weight.get(),
                  .y = y.data()},
                 false, *pool);
  }
  ReportExperts(state, choice, weight->bytes() / kExperts);
}

// With rows already gathered.
void BenchTurns(benchmark::State& state, const Form& form, int m, ThreadPool* pool) {
  std::vector<std::unique_ptr<Weight>> weights;
  weights.reserve(kExperts);
  for (int e = 0; e < kExperts; ++e) weights.push_back(MakeWeight(form, kExpert, *pool));
  const Choice choice = Choose(m);
  const std::vector<float> x(choice.sources.size() * kExpert.cols, 0.5f);
  std::vector<float> y(choice.sources.size() * kExpert.rows);
  while (state.KeepRunning()) {
    for (int e = 0; e < kExperts; ++e) {
      const size_t first = choice.offsets[e];
      Matmul({.x = x.data() + first * kExpert.cols,
              .m = choice.offsets[e + 1] - choice.offsets[e],
              .weight = weights[e].get(),
              .y = y.data() + first * kExpert.rows},
             false, *pool);
    }
  }
  ReportExperts(state, choice, weights[0]->bytes());
}

// Bytes per second that all threads together read from memory larger than most caches.
void BenchReadBandwidth(benchmark::State& state, ThreadPool* pool) {
  constexpr size_t kBytes = size_t{1} << 30;
  constexpr int kTasks = 256;
  std::vector<uint64_t> data(kBytes / 8, 1);
  std::vector<uint64_t> sums(kTasks);
  while (state.KeepRunning()) {
    pool->ParallelFor(kTasks, [&](int task, int) {
      const uint64_t* p = data.data() + data.size() / kTasks * task;
      uint64_t sum[8] = {};
      for (size_t i = 0; i < data.size() / kTasks; i += 8) {
        for (int j = 0; j < 8; ++j) sum[j] += p[i + j];
      }
      for (uint64_t s : sum) sums[task] += s;
    });
    benchmark::DoNotOptimize(sums.data());
  }
  Report(state, 0, static_cast<double>(kBytes));
}

// Product with a matrix that stays in L1: the limit of the arithmetic.
void BenchPeak(benchmark::State& state, const Form& form, ThreadPool* pool) {
  BenchShape(state, form, {"peak", 768, 512}, 384, pool);
}

void Register(ThreadPool* pool) {
  const auto add = [](const std::string& name, const std::function<void(benchmark::State&)>& run) {
    benchmark::RegisterBenchmark(name.c_str(), run)->UseRealTime()->Unit(benchmark::kMicrosecond);
  };
  add("ReadBandwidth", [=](benchmark::State& state) { BenchReadBandwidth(state, pool); });
  add("EmptyLoop", [=](benchmark::State& state) {
    while (state.KeepRunning()) pool->ParallelFor(2 * pool->num_threads(), [](int, int) {});
  });
  for (const Form& form : kForms) {
    add(std::string("Peak/") + form.name,
        [=](benchmark::State& state) { BenchPeak(state, form, pool); });
  }
  for (const Form& form : kForms) {
    for (int m : {1, 4, 8, 16, 32, 64, 96, 128, 256, 1024}) {
      const std::string suffix = std::string("/") + form.name + "/" + std::to_string(m);
      add("Model" + suffix, [=](benchmark::State& state) { BenchModel(state, form, m, pool); });
      for (const Shape& shape : kShapes) {
        if (shape.rows == 49152 && m > 64) continue;  // a step has logits for its last rows only
        add(std::string("Shape/") + shape.name + suffix,
            [=](benchmark::State& state) { BenchShape(state, form, shape, m, pool); });
      }
    }
  }
  for (const Form& form : {kForms[1], kForms[2]}) {
    for (int m : {1, 4, 16, 64, 512}) {
      const std::string suffix = std::string(form.name) + "/" + std::to_string(m);
      add("Experts/" + suffix,
          [=](benchmark::State& state) { BenchExperts(state, form, m, pool); });
      add("Turns/" + suffix, [=](benchmark::State& state) { BenchTurns(state, form, m, pool); });
    }
  }
  for (const Form& form : kSuperForms) {
    for (int m : {1, 4, 8, 16, 32, 64, 96, 128, 256, 1024}) {
      add(std::string("Shape/") + kSuperShape.name + "/" + form.name + "/" + std::to_string(m),
          [=](benchmark::State& state) { BenchShape(state, form, kSuperShape, m, pool); });
    }
  }
}

int ThreadsFrom(int* argc, char** argv) {
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  int kept = 1;
  for (int i = 1; i < *argc; ++i) {
    if (std::strncmp(argv[i], "--threads=", 10) == 0) {
      threads = std::atoi(argv[i] + 10);
    } else {
      argv[kept++] = argv[i];
    }
  }
  *argc = kept;
  return threads;
}

}  // namespace
}  // namespace hydrant::cpu

int main(int argc, char** argv) {
  hydrant::ThreadPool pool(hydrant::cpu::ThreadsFrom(&argc, argv));
  std::cout << hydrant::cpu::IsaName(hydrant::cpu::DetectIsa()) << ", " << pool.num_threads()
            << " threads\n";
  hydrant::cpu::Register(&pool);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
