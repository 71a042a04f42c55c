#include "tests/kernels/cuda_emulation/fibers.h"

#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/kernels/cuda_emulation/tracing.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the callee-saved registers and the stack pointer into *from, goes on at `to`.
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

constexpr size_t kStackBytes = 256 * 1024;

// The sanitizer follows stacks by name.
struct StackOwner {
  void* fake = nullptr;
  const void* bottom = nullptr;
  size_t size = 0;
};

// A stack, and where its code goes on.
struct Context {
  void* stack_pointer = nullptr;
  StackOwner owner;
};

enum class State { kReady, kAtBlockBarrier, kAtWarpBarrier, kDone };

struct Fiber {
  Context context;
  char* stack = nullptr;
  uint3 index = {};
  State state = State::kDone;
  unsigned exchanges = 0;
};

struct Warp {
  std::array<std::array<uint64_t, kWarpSize>, 2> given;
  int live = 0;
  int waiting = 0;
};

struct Block {
  std::vector<Fiber> fibers;  // stacks are kept from block to block
  std::vector<Warp> warps;
  std::vector<int> ready;
  const std::function<void(int)>* body = nullptr;
  uint64_t random = 0;
  int num_threads = 0;
  int live = 0;
  int at_block_barrier = 0;
  int current = -1;
  Context caller;           // of RunBlock
  Context* left = nullptr;  // by the last switch
};

Block block;

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

// Returns when another switch comes back to `from`.
void Switch(Context* from, Context* to, bool forever) {
  block.left = from;
  BeforeSwitch(forever ? nullptr : &from->owner.fake, to->owner);
  HydrantSwitchStack(&from->stack_pointer, to->stack_pointer);
  AfterSwitch(from->owner.fake);
}

int TakeReady() {
  block.random += 0x9e3779b97f4a7c15u;
  uint64_t z = block.random;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  const size_t at = ((z ^ (z >> 27)) & 0xFFFFFFFF) * block.ready.size() >> 32;
  const int thread = block.ready[at];
  block.ready[at] = block.ready.back();
  block.ready.pop_back();
  return thread;
}

void Release(State waiting, int first, int last) {
  for (int t = first; t < last; ++t) {
    if (block.fibers[t].state != waiting) continue;
    block.fibers[t].state = State::kReady;
    block.ready.push_back(t);
  }
}

// Barriers that all the living have reached.
void OpenBarriers() {
  for (size_t w = 0; w < block.warps.size(); ++w) {
    Warp& warp = block.warps[w];
    if (warp.waiting == 0 || warp.waiting < warp.live) continue;
    warp.waiting = 0;
    const int first = static_cast<int>(w) * kWarpSize;
    Release(State::kAtWarpBarrier, first, std::min(first + kWarpSize, block.num_threads));
  }
  if (block.ready.empty() && block.at_block_barrier == block.live && block.live > 0) {
    block.at_block_barrier = 0;
    Release(State::kAtBlockBarrier, 0, block.num_threads);
  }
}

[[noreturn]] void ReportDeadlock() {
  std::fprintf(stderr, "cuda emulation: no thread of the block can go on:\n");
  for (int t = 0; t < block.num_threads; ++t) {
    const State state = block.fibers[t].state;
    if (state == State::kAtBlockBarrier) std::fprintf(stderr, " %d waits for the block;", t);
    if (state == State::kAtWarpBarrier) std::fprintf(stderr, " %d waits for its warp;", t);
  }
  std::fprintf(stderr, "\n");
  std::abort();
}

// A thread that can go on, or, when all have ended, RunBlock.
Context* Next() {
  if (block.live == 0) return &block.caller;
  if (block.ready.empty()) OpenBarriers();
  if (block.ready.empty()) ReportDeadlock();
  block.current = TakeReady();
  threadIdx = block.fibers[block.current].index;
  return &block.fibers[block.current].context;
}

void Wait(State state) {
  Fiber& fiber = block.fibers[block.current];
  fiber.state = state;
  Context* const next = Next();
  if (next != &fiber.context) Switch(&fiber.context, next, /*forever=*/false);
}

void FiberMain() {
  AfterSwitch(nullptr);
  const int thread = block.current;
  (*block.body)(thread);
  Fiber& fiber = block.fibers[thread];
  fiber.state = State::kDone;
  --block.live;
  --block.warps[thread / kWarpSize].live;
  Switch(&fiber.context, Next(), /*forever=*/true);
}

char* MapStack() {
  void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) std::abort();
  return static_cast<char*>(stack);
}

void Prepare(int thread) {
  Fiber& fiber = block.fibers[thread];
  if (fiber.stack == nullptr) fiber.stack = MapStack();
  fiber.context.owner = {nullptr, fiber.stack, kStackBytes};
  fiber.state = State::kReady;
  fiber.exchanges = 0;
  const auto number = static_cast<unsigned>(thread);
  fiber.index = {number % blockDim.x, number / blockDim.x % blockDim.y,
                 number / blockDim.x / blockDim.y};
  // Stacks begin at different lines of a page. Else the used parts of all stacks would compete for
  // a few sets of the cache.
  constexpr unsigned kLines = 64, kLineBytes = 64;
  char* const end = fiber.stack + kStackBytes - size_t{number * 5 % kLines} * kLineBytes;
  // As if FiberMain had been called from address 0: six registers, the address to return to, and a
  // stack pointer that is 8 off a multiple of 16, as at any function's entry.
  auto** top = reinterpret_cast<void**>(end);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&FiberMain);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fiber.context.stack_pointer = top;
}

}  // namespace

void RunBlock(int num_threads, uint64_t seed, const std::function<void(int)>& body) {
  if (block.fibers.size() < static_cast<size_t>(num_threads)) block.fibers.resize(num_threads);
  block.warps.assign((num_threads + kWarpSize - 1) / kWarpSize, Warp{});
  block.ready.clear();
  block.body = &body;
  block.random = seed;
  block.num_threads = block.live = num_threads;
  block.at_block_barrier = 0;
  for (int t = 0; t < num_threads; ++t) {
    Prepare(t);
    ++block.warps[t / kWarpSize].live;
    block.ready.push_back(t);
  }
  Switch(&block.caller, Next(), /*forever=*/false);
  block.current = -1;
}

void BlockBarrier() {
  NoteBlockBarrier();
  ++block.at_block_barrier;
  Wait(State::kAtBlockBarrier);
}

void WarpBarrier() {
  ++block.warps[block.current / kWarpSize].waiting;
  Wait(State::kAtWarpBarrier);
}

int CurrentThread() { return block.current; }
int CurrentLane() { return block.current % kWarpSize; }

const uint64_t* Exchange(uint64_t value) {
  auto& given = block.warps[block.current / kWarpSize].given;
  auto& slot = given[block.fibers[block.current].exchanges++ % 2];
  slot[CurrentLane()] = value;
  WarpBarrier();
  return slot.data();
}

uint32_t LiveLanes() {
  const int first = block.current / kWarpSize * kWarpSize;
  uint32_t lanes = 0;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const size_t thread = static_cast<size_t>(first) + lane;
    const bool exists = thread < block.warps.size() * kWarpSize && thread < block.fibers.size();
    if (exists && block.fibers[thread].state != State::kDone) lanes |= 1u << lane;
  }
  return lanes;
}

}  // namespace hydrant::emulation
