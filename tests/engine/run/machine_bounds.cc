// Measures upper bounds of the machine, so that speeds can be given as a share of them: read
// bandwidth, and multiply-adds per second of the cores' vector units in fp32, bf16 (if available)
// and 8 bits, or of their tile units (AMX) in the last two; within HYDRANT_CPU_ISA
// (kernels/cpu/isa/isa.h). Prints JSON lines; scripts/bench runs it beside engine_benchmark.
//
//   machine_bounds --threads N --bytes N     bytes: read by a decode step, the size of the weights
//
// GCC 12 warns about deliberately undefined operands in its own AVX-512 intrinsics.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/cpu/isa/isa.h"

namespace hydrant {
namespace {

constexpr int kPasses = 7;

// Seconds to run work(thread) on `threads` threads, the best of kPasses.
double BestSeconds(int threads, const std::function<void(int)>& work) {
  double best = 1e30;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> workers;
    workers.reserve(threads);
    for (int t = 0; t < threads; ++t) workers.emplace_back(work, t);
    for (std::thread& worker : workers) worker.join();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count());
  }
  return best;
}

using Words = uint64_t __attribute__((vector_size(32)));

[[gnu::target("avx2")]] uint64_t SumWords(const Words* data, size_t count) {
  Words a = {}, b = {}, c = {}, d = {};  // several loads in flight
  for (size_t i = 0; i + 4 <= count; i += 4) {
    a += data[i];
    b += data[i + 1];
    c += data[i + 2];
    d += data[i + 3];
  }
  const Words sum = a + b + c + d;
  return sum[0] + sum[1] + sum[2] + sum[3];
}

double ReadBandwidth(size_t bytes, int threads) {
  const std::vector<Words> buffer(bytes / sizeof(Words), Words{} + 1);
  std::vector<uint64_t> sums(threads);
  const double seconds = BestSeconds(threads, [&](int thread) {
    const size_t share = buffer.size() / threads;
    sums[thread] = SumWords(buffer.data() + thread * share, share);
  });
  if (sums[0] == 0) std::abort();  // keeps the reads alive
  return bytes / seconds;
}

// Twelve independent chains of multiply-adds fill the units of any x86 core.
template <typename Vector>
[[gnu::always_inline]] inline float FmaChains(int64_t rounds, float seed) {
  Vector a[12];  // all different, else the compiler merges them
  for (int chain = 0; chain < 12; ++chain) a[chain] = Vector{} + seed * chain;
  const Vector x = Vector{} + seed, y = Vector{} + 0.5f;
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int chain = 0; chain < 12; ++chain) a[chain] = a[chain] * x + y;
  }
  Vector total = {};
  for (const Vector& chain : a) total += chain;
  return total[0];
}

using Vector8 = float __attribute__((vector_size(32)));
using Vector16 = float __attribute__((vector_size(64)));

[[gnu::target("avx2,fma")]] float FmaChains8(int64_t rounds, float seed) {
  return FmaChains<Vector8>(rounds, seed);
}
[[gnu::target("avx512f,fma")]] float FmaChains16(int64_t rounds, float seed) {
  return FmaChains<Vector16>(rounds, seed);
}

// The same with dot products. In assembly, because compilers carry the sums of intrinsics through
// memory; the values of the sums do not matter.
#define HYDRANT_TWELVE(instructions) ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n" instructions "\n.endr"
#define HYDRANT_TWELVE_SUMS \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11"

[[gnu::target("avx512f,avx512vnni")]] float ByteDots16(int64_t rounds, float /*seed*/) {
  const __m512i one = _mm512_set1_epi8(1);
  for (int64_t i = 0; i < rounds; ++i)
    asm volatile(HYDRANT_TWELVE("vpdpbusd %0, %0, %%zmm\\r")::"v"(one) : HYDRANT_TWELVE_SUMS);
  return 1;
}
[[gnu::target("avx2")]] float ByteDots8(int64_t rounds, float /*seed*/) {
  const __m256i one = _mm256_set1_epi8(1);
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile(HYDRANT_TWELVE("vpmaddubsw %0, %0, %%ymm12\n"
                                "vpmaddwd %0, %%ymm12, %%ymm12\n"
                                "vpaddd %%ymm12, %%ymm\\r, %%ymm\\r")::"x"(one)
                 : HYDRANT_TWELVE_SUMS, "xmm12");
  }
  return 1;
}
[[gnu::target("avx512f,avx512bf16")]] float PairDots16(int64_t rounds, float /*seed*/) {
  const __m512i one = _mm512_set1_epi16(0x3f80);
  for (int64_t i = 0; i < rounds; ++i)
    asm volatile(HYDRANT_TWELVE("vdpbf16ps %0, %0, %%zmm\\r")::"v"(one) : HYDRANT_TWELVE_SUMS);
  return 1;
}

// Tiles of 16 rows of 64 bytes each. A tile holds 16 x 16 sums; four tiles accumulate.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
#define HYDRANT_TWELVE_TILES(dot)                                                 \
  ".rept 3\n" dot " %%tmm1, %%tmm0, %%tmm4\n" dot " %%tmm1, %%tmm0, %%tmm5\n" dot \
  " %%tmm1, %%tmm0, %%tmm6\n" dot " %%tmm1, %%tmm0, %%tmm7\n.endr"

[[gnu::target("amx-tile,amx-bf16")]] float PairTiles(int64_t rounds, float /*seed*/) {
  const TileConfig config;
  asm volatile("ldtilecfg %0" ::"m"(config));
  for (int64_t i = 0; i < rounds; ++i) asm volatile(HYDRANT_TWELVE_TILES("tdpbf16ps")::);
  asm volatile("tilerelease");
  return 1;
}
[[gnu::target("amx-tile,amx-int8")]] float ByteTiles(int64_t rounds, float /*seed*/) {
  const TileConfig config;
  asm volatile("ldtilecfg %0" ::"m"(config));
  for (int64_t i = 0; i < rounds; ++i) asm volatile(HYDRANT_TWELVE_TILES("tdpbusd")::);
  asm volatile("tilerelease");
  return 1;
}

// Multiplications and additions per second of twelve chains. multiply_adds: per chain and round.
double RateOf(float (*chains)(int64_t, float), int multiply_adds, int threads) {
  const int64_t rounds = multiply_adds > 64 ? 1'000'000 : 10'000'000;
  std::vector<float> results(threads);
  const double seconds = BestSeconds(
      threads, [&](int thread) { results[thread] = chains(rounds, 0.25f + 0.001f * thread); });
  if (results[0] == 0.0f) std::abort();  // keeps the sums alive
  return 2.0 * multiply_adds * 12 * rounds * threads / seconds;
}

void PrintRates(int threads) {
  const auto print = [](const char* what, double rate) {
    std::printf("{\"what\": \"%s\", \"operations_per_s\": %.4g}\n", what, rate);
  };
  const cpu::Isa isa = cpu::DetectIsa();
  const bool wide = isa >= cpu::Isa::kAvx512;
  print("fma_f32", wide ? RateOf(FmaChains16, 16, threads) : RateOf(FmaChains8, 8, threads));
  if (isa >= cpu::Isa::kAmx) {
    print("dot_bf16", RateOf(PairTiles, 16 * 16 * 32, threads));
  } else if (isa >= cpu::Isa::kAvx512Bf16) {
    print("dot_bf16", RateOf(PairDots16, 32, threads));
  }
  if (cpu::HasAmxInt8()) {
    print("dot_i8", RateOf(ByteTiles, 16 * 16 * 64, threads));
  } else if (cpu::HasVnni()) {
    print("dot_i8", RateOf(ByteDots16, 64, threads));
  } else {
    print("dot_i8", RateOf(ByteDots8, 32, threads));
  }
}

int Main(int argc, char** argv) {
  int threads = 0;
  int64_t bytes = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--threads") == 0) threads = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--bytes") == 0) bytes = std::atoll(argv[i + 1]);
  }
  if (threads < 1 || threads > 1024 || bytes < 4096) {
    std::fprintf(stderr, "usage: machine_bounds --threads N --bytes N   (1 to 1024, from 4096)\n");
    return 1;
  }
  std::printf("{\"what\": \"read\", \"bytes\": %lld, \"bytes_per_s\": %.4g}\n",
              static_cast<long long>(bytes), ReadBandwidth(bytes, threads));
  std::printf("{\"what\": \"read\", \"bytes\": 1073741824, \"bytes_per_s\": %.4g}\n",
              ReadBandwidth(size_t{1} << 30, threads));
  PrintRates(threads);
  return 0;
}

}  // namespace
}  // namespace hydrant

int main(int argc, char** argv) { return hydrant::Main(argc, argv); }
