#include "tests/kernels/cuda_emulation/fibers.h"

#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "tests/kernels/cuda_emulation/tracing.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the callee-saved registers and the stack pointer into *from, and continues at `to`.
extern "C" [[gnu::visibility("hidden")]] void HydrantSwitchStack(void** from, void* to);
asm(R"(
.text
.globl HydrantSwitchStack
.hidden HydrantSwitchStack
.type HydrantSwitchStack, @function
HydrantSwitchStack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size HydrantSwitchStack, .-HydrantSwitchStack
)");

namespace hydrant::emulation {
namespace {

// An odd number of pages including the guard page; otherwise the used pages of all stacks would
// compete for a few sets of the TLB and the L2 cache.
constexpr size_t kPageBytes = 4096;
constexpr size_t kStackBytes = 64 * kPageBytes;

// Stack information for the address sanitizer.
struct StackOwner {
  void* fake = nullptr;
  const void* bottom = nullptr;
  size_t size = 0;
};

// A stack and its resume point.
struct Context {
  void* stack_pointer = nullptr;
  StackOwner owner;
};

struct Fiber {
  Context context;
  char* stack = nullptr;
  uint3 index = {};
  unsigned exchanges = 0;
};

// Each mask has one bit per thread of the warp. The running thread is only in `live`.
struct Warp {
  alignas(64) std::array<Exchanged, 2> given;
  uint32_t live = 0;
  uint32_t ready = 0;
  uint32_t at_barrier = 0;
  uint32_t at_block_barrier = 0;

  bool CanGoOn() const { return ready != 0 || (live != 0 && at_barrier == live); }
};

struct Block {
  std::vector<Fiber> fibers;  // stacks are reused by later blocks
  std::vector<Warp> warps;
  const std::function<void(int)>* body = nullptr;
  uint64_t random = 0;
  int live = 0;
  int at_block_barrier = 0;
  int current = -1;
  Context caller;           // of RunBlock
  Context* left = nullptr;  // context left by the last switch
};

Block& block = *new Block;

Warp& CurrentWarp() { return block.warps[block.current / kWarpSize]; }
uint32_t CurrentBit() { return 1u << block.current % kWarpSize; }

void BeforeSwitch([[maybe_unused]] void** fake, [[maybe_unused]] const StackOwner& to) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake, to.bottom, to.size);
#endif
}

void AfterSwitch([[maybe_unused]] void* fake) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, &block.left->owner.bottom, &block.left->owner.size);
#endif
}

// Returns when another switch resumes `from`.
void Switch(Context* from, Context* to, bool forever) {
  block.left = from;
  BeforeSwitch(forever ? nullptr : &from->owner.fake, to->owner);
  HydrantSwitchStack(&from->stack_pointer, to->stack_pointer);
  AfterSwitch(from->owner.fake);
}

uint32_t Random() {
  block.random += 0x9e3779b97f4a7c15u;
  const uint64_t z = (block.random ^ (block.random >> 30)) * 0xbf58476d1ce4e5b9u;
  return static_cast<uint32_t>(z >> 32);
}

[[noreturn]] void ReportDeadlock() {
  std::fprintf(stderr, "cuda emulation: no thread of the block can go on:\n");
  for (size_t w = 0; w < block.warps.size(); ++w) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const int t = static_cast<int>(w) * kWarpSize + lane;
      if (block.warps[w].at_block_barrier >> lane & 1)
        std::fprintf(stderr, " %d waits for the block;", t);
      if (block.warps[w].at_barrier >> lane & 1) std::fprintf(stderr, " %d waits for its warp;", t);
    }
  }
  std::fprintf(stderr, "\n");
  std::abort();
}

void OpenBlockBarrier() {
  block.at_block_barrier = 0;
  for (Warp& warp : block.warps) warp.ready = std::exchange(warp.at_block_barrier, 0);
}

// The first runnable warp, searching from a random one.
int TakeWarp() {
  if (block.at_block_barrier == block.live) OpenBlockBarrier();
  const int count = static_cast<int>(block.warps.size());
  const int first = static_cast<int>(uint64_t{Random()} * count >> 32);
  for (int i = 0; i < count; ++i) {
    const int w = first + i < count ? first + i : first + i - count;
    if (block.warps[w].CanGoOn()) return w;
  }
  ReportDeadlock();
}

int TakeLane(Warp* warp, uint32_t random) {
  if (warp->ready == 0) warp->ready = std::exchange(warp->at_barrier, 0);
  const int turn = static_cast<int>(random % kWarpSize);
  const int lane = (std::countr_zero(std::rotr(warp->ready, turn)) + turn) % kWarpSize;
  warp->ready &= ~(1u << lane);
  return lane;
}

// The next thread to run, or RunBlock() when all have ended. Usually from the same warp, for cache
// locality; one time in 32 from any warp.
Context* Next() {
  if (block.live == 0) return &block.caller;
  const uint32_t random = Random();
  int w = block.current / kWarpSize;
  if (random >> 27 == 0 || !block.warps[w].CanGoOn()) w = TakeWarp();
  block.current = w * kWarpSize + TakeLane(&block.warps[w], random);
  threadIdx = block.fibers[block.current].index;
  return &block.fibers[block.current].context;
}

void SwitchToNext(bool forever) {
  Fiber& fiber = block.fibers[block.current];
  Context* const next = Next();
  if (next != &fiber.context) Switch(&fiber.context, next, forever);
}

// It never returns, so the address sanitizer would leave the borders of its variables poisoned for
// the stack's next fiber.
[[gnu::no_sanitize("address")]] void FiberMain() {
  AfterSwitch(nullptr);
  const int thread = block.current;
  (*block.body)(thread);
  --block.live;
  CurrentWarp().live &= ~CurrentBit();
  SwitchToNext(/*forever=*/true);
}

char* MapStack() {
  void* guard = mmap(nullptr, kPageBytes + kStackBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (guard == MAP_FAILED || mprotect(guard, kPageBytes, PROT_NONE) != 0) std::abort();
  return static_cast<char*>(guard) + kPageBytes;
}

void Prepare(int thread) {
  Fiber& fiber = block.fibers[thread];
  if (fiber.stack == nullptr) fiber.stack = MapStack();
  fiber.context.owner = {nullptr, fiber.stack, kStackBytes};
  fiber.exchanges = 0;
  const auto number = static_cast<unsigned>(thread);
  fiber.index = {number % blockDim.x, number / blockDim.x % blockDim.y,
                 number / blockDim.x / blockDim.y};
  // Stacks begin at different cache lines of a page; otherwise their used parts would compete
  // for a few cache sets.
  constexpr unsigned kLines = 64, kLineBytes = 64;
  char* const end = fiber.stack + kStackBytes - size_t{number * 5 % kLines} * kLineBytes;
  // Initial frame as if FiberMain had been called from address 0: six registers, the return
  // address, and a stack pointer that is 8 off a multiple of 16, as at function entry.
  auto** top = reinterpret_cast<void**>(end);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&FiberMain);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fiber.context.stack_pointer = top;
}

}  // namespace

void RunBlock(int num_threads, uint64_t seed, const std::function<void(int)>& body) {
  if (block.fibers.size() < static_cast<size_t>(num_threads)) block.fibers.resize(num_threads);
  block.warps.resize((num_threads + kWarpSize - 1) / kWarpSize);
  block.body = &body;
  block.random = seed;
  block.live = num_threads;
  block.at_block_barrier = 0;
  for (size_t w = 0; w < block.warps.size(); ++w) {
    const int lanes = std::min(kWarpSize, num_threads - static_cast<int>(w) * kWarpSize);
    Warp& warp = block.warps[w];
    warp.live = warp.ready = ~0u >> (kWarpSize - lanes);
    warp.at_barrier = warp.at_block_barrier = 0;
  }
  for (int t = 0; t < num_threads; ++t) Prepare(t);
  block.current = 0;
  Switch(&block.caller, Next(), /*forever=*/false);
  block.current = -1;
}

void BlockBarrier() {
  NoteBlockBarrier();
  ++block.at_block_barrier;
  CurrentWarp().at_block_barrier |= CurrentBit();
  SwitchToNext(/*forever=*/false);
}

void WarpBarrier() {
  CurrentWarp().at_barrier |= CurrentBit();
  SwitchToNext(/*forever=*/false);
}

int CurrentThread() { return block.current; }
int CurrentLane() { return block.current % kWarpSize; }

Exchanged& NextExchange() {
  return CurrentWarp().given[block.fibers[block.current].exchanges++ % 2];
}

uint32_t LiveLanes() { return CurrentWarp().live; }

}  // namespace hydrant::emulation
