// The emulated half of kernels/cuda/ptx.cuh, which it stands in for: the same names, the same
// meaning. An asynchronous copy happens no earlier than its wait, so that a missing wait shows.
#ifndef HYDRANT_TESTS_KERNELS_CUDA_EMULATION_PTX_CUH_
#define HYDRANT_TESTS_KERNELS_CUDA_EMULATION_PTX_CUH_

#include <cuda_runtime.h>

#include "kernels/float16.h"

namespace hydrant::emulation {

void* DynamicSharedMemory();

// Of the running thread: queues a copy, closes a group, performs all but the last `pending` groups.
void QueueCopy(void* to, const void* from, bool valid);
void CloseCopyGroup();
void WaitForCopies(int pending);

}  // namespace hydrant::emulation

namespace hydrant::cuda {

template <typename T>
T* DynamicShared() {
  return static_cast<T*>(emulation::DynamicSharedMemory());
}

inline void WaitForPredecessor() { emulation::NoteWait(); }

inline void CopyAsync16(void* shared, const void* global, bool valid) {
  emulation::QueueCopy(shared, global, valid);
}
inline void CommitCopies() { emulation::CloseCopyGroup(); }
template <int kPending>
void WaitCopies() {
  emulation::WaitForCopies(kPending);
}

inline void WaitCopies(int pending) { emulation::WaitForCopies(pending); }

inline float Exp2(float x) { return std::exp2(x); }

// The 16-bit elements of a fragment register.
template <bool kBF16>
float HalfOf(uint32_t pair, int which) {
  const auto bits = static_cast<uint16_t>(which == 0 ? pair : pair >> 16);
  return kBF16 ? BF16ToFloat(bits) : F16ToFloat(bits);
}

template <bool kBF16>
uint32_t PackHalves(float low, float high) {
  const uint32_t l = kBF16 ? FloatToBF16(low) : FloatToF16(low);
  const uint32_t h = kBF16 ? FloatToBF16(high) : FloatToF16(high);
  return l | h << 16;
}

inline uint32_t AndOr(uint32_t a, uint32_t b, uint32_t c) { return (a & b) | c; }

inline uint32_t FmaHalves(uint32_t a, uint32_t b, uint32_t c) {
  // Exact in double: 8 bits by 8 bits, and a third; to odd first, so that it is rounded once.
  const auto fma = [&](int which) {
    const double exact = static_cast<double>(HalfOf<true>(a, which)) * HalfOf<true>(b, which) +
                         HalfOf<true>(c, which);
    auto bits = std::bit_cast<uint32_t>(static_cast<float>(exact));
    const double rounded = std::bit_cast<float>(bits);
    if (rounded != exact && (bits & 1u) == 0)
      bits = std::abs(rounded) > std::abs(exact) ? bits - 1 : bits + 1;
    return std::bit_cast<float>(bits);
  };
  return PackHalves<true>(fma(0), fma(1));
}

template <bool kBF16>
void Mma16816(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  // Lane 4 g + t holds rows g and g + 8 of A (columns 2t, 2t+1 and those + 8), column g of B (rows
  // 2t, 2t+1 and those + 8), and rows g and g + 8 of D (columns 2t, 2t+1).
  uint64_t given[3][32];
  const auto collect = [](uint64_t value, uint64_t* out) {
    const uint64_t* all = emulation::Exchange(value);
    std::copy(all, all + 32, out);
  };
  collect(a[0] | uint64_t{a[1]} << 32, given[0]);
  collect(a[2] | uint64_t{a[3]} << 32, given[1]);
  collect(b[0] | uint64_t{b[1]} << 32, given[2]);
  const int lane = emulation::CurrentLane(), g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; ++i) {
    const int row = g + (i / 2) * 8, column = 2 * t + i % 2;
    float sum = 0.0f;
    for (int k = 0; k < 16; ++k) {
      const int owner = k % 8 / 2;
      // Registers of A: (row < 8, k < 8), (row >= 8, k < 8), (row < 8, k >= 8), (row >= 8, k >= 8).
      const uint64_t pair_a = given[k / 8][(row % 8) * 4 + owner];
      const auto reg_a = static_cast<uint32_t>(row < 8 ? pair_a : pair_a >> 32);
      const uint64_t pair_b = given[2][column * 4 + owner];
      const auto reg_b = static_cast<uint32_t>(k < 8 ? pair_b : pair_b >> 32);
      sum += HalfOf<kBF16>(reg_a, k % 2) * HalfOf<kBF16>(reg_b, k % 2);
    }
    d[i] += sum;
  }
}

// Four 8 x 8 matrices of 16-bit elements: lane i names row i % 8 of matrix i / 8 by its address.
template <bool kTransposed>
void LoadMatrices(uint32_t (&r)[4], const void* row) {
  const uint64_t* rows = emulation::Exchange(reinterpret_cast<uint64_t>(row));
  const int lane = emulation::CurrentLane();
  for (int m = 0; m < 4; ++m) {
    uint16_t pair[2];
    for (int i = 0; i < 2; ++i) {
      const int at = lane / 4, other = lane % 4 * 2 + i;
      const auto* from =
          reinterpret_cast<const uint16_t*>(rows[m * 8 + (kTransposed ? other : at)]);
      pair[i] = from[kTransposed ? at : other];
    }
    r[m] = pair[0] | uint32_t{pair[1]} << 16;
  }
  __syncwarp();
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_TESTS_KERNELS_CUDA_EMULATION_PTX_CUH_
