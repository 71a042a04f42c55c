#include "tests/kernels/cuda_emulation/fibers.h"

#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the callee-saved registers and the stack pointer into *from, goes on at `to`.
extern "C" void HydrantSwitchStack(void** from, void* to);
asm(R"(
.text
.globl HydrantSwitchStack
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

enum class State { kReady, kAtBlockBarrier, kAtWarpBarrier, kDone };

struct Fiber {
  char* stack = nullptr;
  void* stack_pointer = nullptr;
  StackOwner owner;
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
  int live = 0;
  int at_block_barrier = 0;
  int current = -1;
  void* scheduler = nullptr;
  StackOwner scheduler_owner;
};

thread_local Block block;

void BeforeSwitch([[maybe_unused]] void** fake, [[maybe_unused]] const StackOwner& to) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake, to.bottom, to.size);
#endif
}

void AfterSwitch([[maybe_unused]] void* fake, [[maybe_unused]] StackOwner* from) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, from == nullptr ? nullptr : &from->bottom,
                                  from == nullptr ? nullptr : &from->size);
#endif
}

void ToScheduler(bool forever) {
  Fiber& fiber = block.fibers[block.current];
  BeforeSwitch(forever ? nullptr : &fiber.owner.fake, block.scheduler_owner);
  HydrantSwitchStack(&fiber.stack_pointer, block.scheduler);
  AfterSwitch(fiber.owner.fake, &block.scheduler_owner);
}

void FiberMain() {
  AfterSwitch(nullptr, &block.scheduler_owner);
  const int thread = block.current;
  (*block.body)(thread);
  block.fibers[thread].state = State::kDone;
  --block.live;
  --block.warps[thread / kWarpSize].live;
  ToScheduler(/*forever=*/true);
}

char* MapStack() {
  void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) std::abort();
  return static_cast<char*>(stack);
}

void Prepare(Fiber* fiber) {
  if (fiber->stack == nullptr) fiber->stack = MapStack();
  fiber->owner = {nullptr, fiber->stack, kStackBytes};
  fiber->state = State::kReady;
  fiber->exchanges = 0;
  // As if FiberMain had been called from address 0: six registers, the address to return to, and a
  // stack pointer that is 8 off a multiple of 16, as at any function's entry.
  auto** top = reinterpret_cast<void**>(fiber->stack + kStackBytes);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&FiberMain);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fiber->stack_pointer = top;
}

int NextReady() {
  block.random += 0x9e3779b97f4a7c15u;
  uint64_t z = block.random;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  const size_t at = (z ^ (z >> 27)) % block.ready.size();
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
void OpenBarriers(int num_threads) {
  for (size_t w = 0; w < block.warps.size(); ++w) {
    Warp& warp = block.warps[w];
    if (warp.waiting == 0 || warp.waiting < warp.live) continue;
    warp.waiting = 0;
    const int first = static_cast<int>(w) * kWarpSize;
    Release(State::kAtWarpBarrier, first, std::min(first + kWarpSize, num_threads));
  }
  if (block.ready.empty() && block.at_block_barrier == block.live && block.live > 0) {
    block.at_block_barrier = 0;
    Release(State::kAtBlockBarrier, 0, num_threads);
  }
}

[[noreturn]] void ReportDeadlock(int num_threads) {
  std::fprintf(stderr, "cuda emulation: no thread of the block can go on:\n");
  for (int t = 0; t < num_threads; ++t) {
    const State state = block.fibers[t].state;
    if (state == State::kAtBlockBarrier) std::fprintf(stderr, " %d waits for the block;", t);
    if (state == State::kAtWarpBarrier) std::fprintf(stderr, " %d waits for its warp;", t);
  }
  std::fprintf(stderr, "\n");
  std::abort();
}

void Wait(State state) {
  block.fibers[block.current].state = state;
  ToScheduler(/*forever=*/false);
}

}  // namespace

void RunBlock(int num_threads, uint64_t seed, const std::function<void(int)>& body) {
  if (block.fibers.size() < static_cast<size_t>(num_threads)) block.fibers.resize(num_threads);
  block.warps.assign((num_threads + kWarpSize - 1) / kWarpSize, Warp{});
  block.ready.clear();
  block.body = &body;
  block.random = seed;
  block.live = num_threads;
  block.at_block_barrier = 0;
  for (int t = 0; t < num_threads; ++t) {
    Prepare(&block.fibers[t]);
    ++block.warps[t / kWarpSize].live;
    block.ready.push_back(t);
  }
  while (block.live > 0) {
    if (block.ready.empty()) OpenBarriers(num_threads);
    if (block.ready.empty()) ReportDeadlock(num_threads);
    block.current = NextReady();
    const auto thread = static_cast<unsigned>(block.current);
    threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y,
                 thread / blockDim.x / blockDim.y};
    Fiber& fiber = block.fibers[block.current];
    void* fake = nullptr;
    BeforeSwitch(&fake, fiber.owner);
    HydrantSwitchStack(&block.scheduler, fiber.stack_pointer);
    AfterSwitch(fake, nullptr);
  }
  block.current = -1;
}

void BlockBarrier() {
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
