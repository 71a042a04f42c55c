// Emulated warpgroup products (wgmma), as used by kernels/cuda: m64n64k16, A in registers, B in
// shared memory with the 128-byte swizzle, a column's elements contiguous.
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/float16.h"

namespace hydrant::emulation {
namespace {

constexpr int kMaxThreads = 1024, kInner = 16, kColumns = 64;
constexpr int kElements = 32;  // of D, per thread
constexpr uint32_t kWindowBytes = 1u << 18;
// Offset of dynamic shared memory: aligned to 16 only, as the language guarantees.
constexpr uint32_t kWindowBegin = 1024 + 16;

[[noreturn]] void Fail(const char* why) {
  std::fprintf(stderr, "cuda emulation: wgmma of thread %d: %s\n", CurrentThread(), why);
  std::abort();
}

using Elements = std::array<float, kElements>;

float Poison() { return std::bit_cast<float>(0xFFC0DEADu); }

// An accumulator with products in flight.
struct Result {
  float* d;
  Elements values;
  uint64_t group;  // the last one that adds to it
};

// Operands of a product. They must not change before its wait.
struct Operands {
  const uint32_t* a;
  std::array<uint32_t, 4> a_values;
  uint64_t b;
  uint64_t b_sum;  // kept by the first lane of a warp
  uint64_t group;
};

struct ThreadProducts {
  std::vector<Result> results;
  std::vector<Operands> operands;
  uint64_t groups = 0;  // closed
  bool fenced = false;
};

auto& threads = *new std::vector<ThreadProducts>(kMaxThreads);

// When a copy last wrote 16 bytes of shared memory, and its thread; when each thread last fenced.
struct Write {
  uint64_t time = 0;
  int thread = 0;
};
auto& writes = *new std::vector<Write>(kWindowBytes / 16);
std::array<uint64_t, kMaxThreads> shared_fences = {};
uint64_t now = 0;

// Element (column, k) of B for a descriptor (PTX ISA, "Matrix Descriptor Format"): columns in
// groups of eight, "stride dimension byte offset" apart; a column of a group has 128 bytes, and
// address bits 4 to 6 are xored with bits 7 to 9.
class SharedColumns {
 public:
  explicit SharedColumns(uint64_t descriptor)
      : begin_(static_cast<uint32_t>(descriptor & 0x3FFF) * 16),
        stride_(static_cast<uint32_t>(descriptor >> 32 & 0x3FFF) * 16) {
    if (descriptor >> 62 != 1) Fail("B has another swizzle than that of 128 bytes");
    if ((descriptor >> 49 & 7) != 0) Fail("B has a base offset");
  }
  uint32_t AddressOf(int column, int k) const {
    const uint32_t address = begin_ + static_cast<uint32_t>(column) / 8 * stride_ +
                             static_cast<uint32_t>(column) % 8 * 128 + static_cast<uint32_t>(k) * 2;
    return address ^ (address >> 7 & 7) << 4;
  }
  uint16_t At(int column, int k) const {
    uint16_t bits;
    std::memcpy(
        &bits,
        static_cast<const char*>(DynamicSharedMemory()) + AddressOf(column, k) - kWindowBegin,
        sizeof(bits));
    return bits;
  }
  uint64_t Sum() const {
    uint64_t sum = 0;
    for (int column = 0; column < kColumns; ++column) {
      for (int k = 0; k < kInner; ++k) sum = sum * 0x9e3779b97f4a7c15u + At(column, k) + 1;
    }
    return sum;
  }
  void CheckFences() const {
    for (int column = 0; column < kColumns; ++column) {
      for (int k = 0; k < kInner; k += 8) {
        const Write& write = writes[AddressOf(column, k) / 16];
        if (write.time > shared_fences[write.thread])
          Fail("B holds copies that no fence has ordered before it");
      }
    }
  }

 private:
  const uint32_t begin_, stride_;
};

// A and B of a warp's product as floats, shared by its lanes: each lane stores its
// share, then all meet.
struct WarpOperands {
  float a[kInner][kInner];  // [row][k]
  float b[kInner][kColumns];
};

// Double buffer: a lane that is ahead writes the other one, and waits there for all lanes.
const WarpOperands& Meet(bool bf16, const uint32_t* a, const SharedColumns& b) {
  static auto& of_warps = *new std::vector<std::array<WarpOperands, 2>>(kMaxThreads / kWarpSize);
  static std::array<unsigned, kMaxThreads> turns = {};
  const int thread = CurrentThread(), lane = CurrentLane();
  WarpOperands& mine = of_warps[thread / kWarpSize][turns[thread]++ % 2];
  const auto value = [&](uint32_t bits) {
    return bf16 ? BF16ToFloat(static_cast<uint16_t>(bits))
                : F16ToFloat(static_cast<uint16_t>(bits));
  };
  for (int i = 0; i < 4; ++i) {
    for (int e = 0; e < 2; ++e)
      mine.a[lane / 4 + i % 2 * 8][i / 2 * 8 + lane % 4 * 2 + e] = value(a[i] >> 16 * e & 0xFFFF);
  }
  for (int column = lane; column < kColumns; column += kWarpSize) {
    for (int k = 0; k < kInner; ++k) mine.b[k][column] = value(b.At(column, k));
  }
  WarpBarrier();
  return mine;
}

void AddProduct(const WarpOperands& operands, Elements* d) {
  const int lane = CurrentLane();
  Elements sums = {};
  for (int k = 0; k < kInner; ++k) {
    const float top = operands.a[lane / 4][k], bottom = operands.a[lane / 4 + 8][k];
    for (int piece = 0; piece < kColumns / 8; ++piece) {
      const float* b = &operands.b[k][piece * 8 + lane % 4 * 2];
      sums[piece * 4] += top * b[0];
      sums[piece * 4 + 1] += top * b[1];
      sums[piece * 4 + 2] += bottom * b[0];
      sums[piece * 4 + 3] += bottom * b[1];
    }
  }
  for (int i = 0; i < kElements; ++i) (*d)[i] += sums[i];
}

void CheckOperands(const Operands& read) {
  if (std::memcmp(read.a, read.a_values.data(), sizeof(read.a_values)) != 0)
    Fail("A has changed before the wait");
  if (CurrentLane() == 0 && SharedColumns(read.b).Sum() != read.b_sum)
    Fail("B has changed before the wait");
}

}  // namespace

uint32_t SharedWindowAddress(const void* shared) {
  return kWindowBegin + static_cast<uint32_t>(static_cast<const char*>(shared) -
                                              static_cast<const char*>(DynamicSharedMemory()));
}

void NoteSharedWrite(const void* at) {
  const uint32_t address = SharedWindowAddress(at);
  if (address < kWindowBytes) writes[address / 16] = {++now, CurrentThread()};
}
void FenceSharedWrites() { shared_fences[CurrentThread()] = ++now; }
void FenceProducts() { threads[CurrentThread()].fenced = true; }

void StartProduct(bool bf16, float* d, const uint32_t* a, uint64_t descriptor, bool adds) {
  ThreadProducts& mine = threads[CurrentThread()];
  if (!mine.fenced) Fail("no fence since the last wait");
  const SharedColumns b(descriptor);
  Operands read{a, {a[0], a[1], a[2], a[3]}, descriptor, 0, mine.groups};
  if (CurrentLane() == 0) {
    b.CheckFences();
    read.b_sum = b.Sum();
  }
  auto result = mine.results.begin();
  while (result != mine.results.end() && result->d != d) ++result;
  if (result == mine.results.end()) {
    result = mine.results.insert(result, {d, {}, 0});
    if (adds) std::memcpy(result->values.data(), d, sizeof(Elements));
    std::fill_n(d, kElements, Poison());
  } else if (!adds) {
    result->values = {};
  }
  result->group = mine.groups;
  mine.operands.push_back(read);
  AddProduct(Meet(bf16, a, b), &result->values);
}

void CloseProductGroup() { ++threads[CurrentThread()].groups; }

void WaitForProducts() {
  ThreadProducts& mine = threads[CurrentThread()];
  mine.fenced = false;
  const auto is_done = [&](const auto& x) { return x.group < mine.groups; };
  for (const Operands& read : mine.operands) {
    if (is_done(read)) CheckOperands(read);
  }
  std::erase_if(mine.operands, is_done);
  for (const Result& result : mine.results) {
    if (!is_done(result)) continue;
    for (int i = 0; i < kElements; ++i) {
      if (std::bit_cast<uint32_t>(result.d[i]) != std::bit_cast<uint32_t>(Poison()))
        Fail("D has changed before the wait");
      result.d[i] = result.values[i];
    }
  }
  std::erase_if(mine.results, is_done);
}

}  // namespace hydrant::emulation
