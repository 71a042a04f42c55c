// Runs the threads of one CUDA block as fibers of the calling thread. A fiber runs until it waits
// at a barrier or ends; the next runnable fiber is chosen at random, so that code with a missing
// barrier is likely to fail.
#ifndef HYDRANT_TESTS_KERNELS_CUDA_EMULATION_FIBERS_H_
#define HYDRANT_TESTS_KERNELS_CUDA_EMULATION_FIBERS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>

// Hidden, so that calls within the shared object are direct.
#pragma GCC visibility push(hidden)

namespace hydrant::emulation {

inline constexpr int kWarpSize = 32;

// Calls body(t) for every thread t of the block. On deadlock (a barrier that some threads never
// reach) aborts and prints what each fiber waits for.
void RunBlock(int num_threads, uint64_t seed, const std::function<void(int thread)>& body);

// For the running fiber. Ended threads do not count at a barrier.
void BlockBarrier();
void WarpBarrier();
int CurrentThread();
int CurrentLane();

// Warp exchange: every lane gives a value; all lanes' values stay readable until the
// exchange after next.
using Exchanged = std::array<std::byte, size_t{kWarpSize} * 64>;
Exchanged& NextExchange();
template <typename T>
const T* Exchange(const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) * kWarpSize <= sizeof(Exchanged));
  T* const given = reinterpret_cast<T*>(NextExchange().data());
  given[CurrentLane()] = value;
  WarpBarrier();
  return given;
}
// The lanes of this warp that have not ended.
uint32_t LiveLanes();

}  // namespace hydrant::emulation

#pragma GCC visibility pop

#endif  // HYDRANT_TESTS_KERNELS_CUDA_EMULATION_FIBERS_H_
