// Products of a few rows with block weights on the cpu backend. Weights are read once per product,
// so the bound is a read of the same bytes, with prefetching, by the same threads. Products and
// reads alternate over copies of a weight that together exceed the caches; a line gives the medians:
//
//   TYPE ROWS GB/s of the product  GB/s of the read  their ratio       (separated by tabs)
//
//   products_benchmark [--threads N] [--types q4_k,q6_k] [--rows 1,2,4] [--megabytes N] [--rounds N]
//
// tools/benchmarks/products runs it for each instruction set and makes a table.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/cpu/matmul/matmul_weight.h"
#include "kernels/dtype.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {
namespace {

// The gate of Qwen2.5-1.5B's feed-forward layers.
constexpr int kRows = 8960, kCols = 1536;

constexpr DType kTypes[] = {DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,   DType::kQ4_0,
                            DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,   DType::kQ8_0,
                            DType::kQ2_K, DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS,
                            DType::kMXFP4};

struct Options {
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<DType> types{std::begin(kTypes), std::end(kTypes)};
  std::vector<int> rows = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 31};
  int megabytes = 256;  // of all copies of a weight
  int rounds = 9;
};

std::unique_ptr<Weight> DrawWeight(DType dtype, ThreadPool& pool) {
  std::vector<uint8_t> bytes(BytesOf(dtype, static_cast<size_t>(kRows) * kCols));
  std::mt19937 random(7);
  // Below 0x7c: half-precision scales are finite at any offset.
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() % 0x7c);
  // Usual exponents: products of small ones are denormal, and slow.
  if (dtype == DType::kMXFP4)
    for (size_t i = 0; i < bytes.size(); i += BytesOf(dtype, 32)) bytes[i] = 120;
  const WeightPart part = {dtype, bytes.data(), kRows, kCols};
  return *PackWeight({&part, 1}, WeightDType::kStored, false, pool);
}

std::unique_ptr<Weight> Copy(const Weight& weight) {
  const auto& packed = static_cast<const PackedWeight&>(weight);
  std::vector<Segment> segments = packed.segments();
  for (Segment& segment : segments) {
    const size_t bytes = segment.panel_bytes * segment.NumPanels();
    std::shared_ptr<uint8_t> panels = AllocatePanels(bytes);
    std::memcpy(panels.get(), segment.panels.get(), bytes);
    segment.panels = std::move(panels);
  }
  return std::make_unique<PackedWeight>(packed.rows(), packed.cols(), packed.bytes(),
                                        packed.round_activations(), std::move(segments));
}

using Words = uint64_t __attribute__((vector_size(32), aligned(8), may_alias));

// With prefetching, without which reading is up to half slower.
uint64_t SumWords(const uint8_t* bytes, size_t size) {
  constexpr size_t kNear = 1536, kFar = 32768;
  const auto* words = reinterpret_cast<const Words*>(bytes);
  Words sums[4] = {};  // several loads in flight
  for (size_t i = 0; i + 4 <= size / sizeof(Words); i += 4) {
    for (int line = 0; line < 2; ++line) {
      __builtin_prefetch(words + i + 2 * line + kNear / sizeof(Words), 0, 3);
      __builtin_prefetch(words + i + 2 * line + kFar / sizeof(Words), 0, 2);
    }
    for (int j = 0; j < 4; ++j) sums[j] += words[i + j];
  }
  const Words sum = sums[0] + sums[1] + sums[2] + sums[3];
  return sum[0] + sum[1] + sum[2] + sum[3];
}

// Reads all panels, in four tasks a thread.
void Read(const Weight& weight, ThreadPool& pool) {
  const int tasks = 4 * pool.num_threads();
  for (const Segment& segment : static_cast<const PackedWeight&>(weight).segments()) {
    const size_t bytes = segment.panel_bytes * segment.NumPanels();
    std::vector<uint64_t> sums(tasks);
    pool.ParallelForRanges(tasks, [&](int task, int) {
      const size_t begin = bytes * task / tasks / 64 * 64,
                   end = bytes * (task + 1) / tasks / 64 * 64;
      sums[task] = SumWords(segment.panels.get() + begin, end - begin);
    });
    if (sums[0] == 1) std::printf(" ");  // keeps the reads alive
  }
}

template <typename Work>
double SecondsOf(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Measure(std::span<const std::unique_ptr<Weight>> copies, DType dtype, int m, int rounds,
             ThreadPool& pool) {
  const std::vector<float> x(static_cast<size_t>(m) * kCols, 0.5f);
  std::vector<float> y(static_cast<size_t>(m) * kRows);
  const double bytes = static_cast<double>(copies[0]->bytes()) * static_cast<double>(copies.size());
  std::vector<double> products, reads, shares;
  for (int round = 0; round < rounds; ++round) {
    const double product = SecondsOf([&] {
      for (const auto& weight : copies)
        Matmul({.x = x.data(), .m = m, .weight = weight.get(), .y = y.data()}, false, pool);
    });
    const double read = SecondsOf([&] {
      for (const auto& weight : copies) Read(*weight, pool);
    });
    products.push_back(bytes / product / 1e9);
    reads.push_back(bytes / read / 1e9);
    shares.push_back(read / product);
  }
  std::printf("%s\t%d\t%.2f\t%.2f\t%.3f\n", std::string(DTypeName(dtype)).c_str(), m,
              MedianOf(products), MedianOf(reads), MedianOf(shares));
  std::fflush(stdout);
}

void Run(const Options& options) {
  ThreadPool pool(options.threads);
  std::printf("# %s, %d threads\n", std::string(IsaName(DetectIsa())).c_str(), pool.num_threads());
  for (const DType dtype : options.types) {
    std::vector<std::unique_ptr<Weight>> copies;
    copies.push_back(DrawWeight(dtype, pool));
    while (copies.size() * copies[0]->bytes() < static_cast<size_t>(options.megabytes) << 20)
      copies.push_back(Copy(*copies[0]));
    for (const int m : options.rows) Measure(copies, dtype, m, options.rounds, pool);
  }
}

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "products_benchmark: %s\n", message.c_str());
  std::exit(2);
}

int NumberOf(std::string_view flag, const std::string& text) {
  int number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < 1)
    Fail(std::string(flag) + " takes numbers from 1 on, not \"" + text + "\"");
  return number;
}

std::vector<std::string> Parts(const std::string& list) { return absl::StrSplit(list, ','); }

DType TypeOf(std::string_view name) {
  for (const DType dtype : kTypes)
    if (DTypeName(dtype) == name) return dtype;
  std::string names;
  for (const DType dtype : kTypes) names += " " + std::string(DTypeName(dtype));
  Fail("--types takes" + names + ", not \"" + std::string(name) + "\"");
}

Options OptionsFrom(std::span<char*> args) {
  Options options;
  for (size_t i = 1; i < args.size(); i += 2) {
    const std::string_view flag = args[i];
    if (i + 1 == args.size()) Fail(std::string(flag) + " needs a value");
    const std::string value = args[i + 1];
    if (flag == "--threads") {
      options.threads = NumberOf(flag, value);
    } else if (flag == "--megabytes") {
      options.megabytes = NumberOf(flag, value);
    } else if (flag == "--rounds") {
      options.rounds = NumberOf(flag, value);
    } else if (flag == "--rows") {
      options.rows.clear();
      for (const std::string& part : Parts(value)) options.rows.push_back(NumberOf(flag, part));
    } else if (flag == "--types") {
      options.types.clear();
      for (const std::string& part : Parts(value)) options.types.push_back(TypeOf(part));
    } else {
      Fail("unknown flag " + std::string(flag) + "; see the head of products_benchmark.cc");
    }
  }
  return options;
}

}  // namespace
}  // namespace hydrant::cpu

int main(int argc, char** argv) {
  hydrant::cpu::Run(hydrant::cpu::OptionsFrom({argv, static_cast<size_t>(argc)}));
}
