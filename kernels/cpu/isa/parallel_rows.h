// Runs a row-wise operation over the pool if it is large enough to pay for waking the threads.
#ifndef HYDRANT_KERNELS_CPU_ISA_PARALLEL_ROWS_H_
#define HYDRANT_KERNELS_CPU_ISA_PARALLEL_ROWS_H_

#include <algorithm>
#include <cstdint>

#include "kernels/thread_pool.h"

namespace hydrant::cpu {

// Calls fn(row) for each row in [0, rows); elements_per_row is the work of one row in float
// elements. Rows are independent, so results do not depend on threads or chunks.
template <typename Fn>
void ParallelRows(ThreadPool& threads, int rows, int64_t elements_per_row, const Fn& fn) {
  constexpr int64_t kSerialElements = 16 * 1024;  // about the time it takes to wake a thread
  constexpr int kChunksPerThread = 4;
  if (threads.num_threads() == 1 || rows <= 1 || rows * elements_per_row <= kSerialElements) {
    for (int row = 0; row < rows; ++row) fn(row);
    return;
  }
  const int chunks = std::min(rows, kChunksPerThread * threads.num_threads());
  threads.ParallelForRanges(chunks, [&](int chunk, int) {
    const int begin = static_cast<int>(static_cast<int64_t>(rows) * chunk / chunks);
    const int end = static_cast<int>(static_cast<int64_t>(rows) * (chunk + 1) / chunks);
    for (int row = begin; row < end; ++row) fn(row);
  });
}

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_ISA_PARALLEL_ROWS_H_
