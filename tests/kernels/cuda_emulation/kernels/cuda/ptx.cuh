// Emulation of kernels/cuda/ptx.cuh with the same names and semantics. Asynchronous copies happen
// at their wait, so that a missing wait is detected.
#ifndef HYDRANT_TESTS_KERNELS_CUDA_EMULATION_PTX_CUH_
#define HYDRANT_TESTS_KERNELS_CUDA_EMULATION_PTX_CUH_

#include <cuda_runtime.h>

#include "kernels/float16.h"

namespace hydrant::emulation {

void* DynamicSharedMemory();

// For the running thread: queues a copy, closes a group, performs all but the
// last `pending` groups.
void QueueCopy(void* to, const void* from, int bytes, bool valid);
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
  emulation::QueueCopy(shared, global, 16, valid);
}
inline void CopyAsync4(void* shared, const void* global, bool valid) {
  emulation::QueueCopy(shared, global, 4, valid);
}
inline int OnlyHere(int x) { return x; }

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

inline uint32_t E4M3ToHalves(uint32_t two) {
  return PackHalves<false>(E4M3ToFloat(static_cast<uint8_t>(two)),
                           E4M3ToFloat(static_cast<uint8_t>(two >> 8)));
}

inline uint32_t AndOr(uint32_t a, uint32_t b, uint32_t c) { return (a & b) | c; }

inline uint32_t FmaHalves(uint32_t a, uint32_t b, uint32_t c) {
  // Exact in double: 8 bits by 8 bits, plus a third; rounds to odd first, so that
  // it is rounded once.
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
  struct Fragment {
    float a[2][2][2];  // row / 8, column / 8, column % 2
    float b[2][2];     // row / 8, row % 2
  };
  Fragment own;
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      for (int row = 0; row < 2; ++row) own.a[row][i][j] = HalfOf<kBF16>(a[2 * i + row], j);
      own.b[i][j] = HalfOf<kBF16>(b[i], j);
    }
  }
  const Fragment* all = emulation::Exchange(own);
  const int lane = emulation::CurrentLane();
  const Fragment* row = all + lane / 4 * 4;
  const Fragment* columns[2] = {all + lane % 4 * 8, all + lane % 4 * 8 + 4};
  float sums[4] = {};
  for (int k = 0; k < 16; ++k) {
    const int owner = k % 8 / 2;
    for (int i = 0; i < 4; ++i)
      sums[i] += row[owner].a[i / 2][k / 8][k % 2] * columns[i % 2][owner].b[k / 8][k % 2];
  }
  for (int i = 0; i < 4; ++i) d[i] += sums[i];
}

// Four 8 x 8 matrices of 16-bit elements: lane i gives the address of row i % 8 of matrix i / 8.
template <bool kTransposed>
void LoadMatrices(uint32_t (&r)[4], const void* row) {
  const void* const* rows = emulation::Exchange(row);
  const int lane = emulation::CurrentLane();
  for (int m = 0; m < 4; ++m) {
    uint16_t pair[2];
    for (int i = 0; i < 2; ++i) {
      const int at = lane / 4, other = lane % 4 * 2 + i;
      const auto* from = static_cast<const uint16_t*>(rows[m * 8 + (kTransposed ? other : at)]);
      pair[i] = from[kTransposed ? at : other];
    }
    r[m] = pair[0] | uint32_t{pair[1]} << 16;
  }
  __syncwarp();
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_TESTS_KERNELS_CUDA_EMULATION_PTX_CUH_
