// PTX instructions without a CUDA C++ name. Every function is one instruction or a few; NVIDIA's
// PTX ISA, chapter 9, specifies them. (Tests without a GPU replace this header.)
#ifndef HYDRANT_KERNELS_CUDA_PTX_CUH_
#define HYDRANT_KERNELS_CUDA_PTX_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/float16.h"

namespace hydrant::cuda {

// Dynamic shared memory of the block, aligned to 16 bytes.
template <typename T>
__device__ T* DynamicShared() {
  extern __shared__ __align__(16) unsigned char hydrant_dynamic_shared[];
  return reinterpret_cast<T*>(hydrant_dynamic_shared);
}

// First statement of kernels started by LaunchOverlapped() (launch.cuh). Allows the next kernel to
// launch its blocks, then waits until all earlier kernels have finished and their writes are
// visible. Nothing is read or written before it, so no kernel ends before its predecessors.
__device__ inline void WaitForPredecessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n");
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// Copies 16 bytes to shared memory, bypassing registers; zero-fills if !valid (`global` must still
// be a valid address). Both addresses are multiples of 16.
__device__ inline void CopyAsync16(void* shared, const void* global, bool valid) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
// The same for 4 bytes.
__device__ inline void CopyAsync4(void* shared, const void* global, bool valid) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(global),
               "r"(valid ? 4 : 0)
               : "memory");
}

// Returns x, hiding its value from the compiler, so that later computations on it are not hoisted
// into registers across a loop.
__device__ inline int OnlyHere(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Closes a group of copies.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Waits for all of this thread's groups except the last kPending.
template <int kPending>
__device__ inline void WaitCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}
// The same for 0 to 4 pending groups, known at run time.
__device__ inline void WaitCopies(int pending) {
  switch (pending) {
    case 0:
      return WaitCopies<0>();
    case 1:
      return WaitCopies<1>();
    case 2:
      return WaitCopies<2>();
    case 3:
      return WaitCopies<3>();
    default:
      return WaitCopies<4>();
  }
}

// 2^x; relative error 2^-22; -infinity gives 0.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats rounded to nearest even; the first is the low half.
template <bool kBF16>
__device__ inline uint32_t PackHalves(float low, float high) {
  uint32_t pair;
  if constexpr (kBF16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// a & b | c in one instruction: the compiler emits two if b and c are constants.
__device__ inline uint32_t AndOr(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// a * b + c on both bf16 of a pair, rounded once.
__device__ inline uint32_t FmaHalves(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Two e4m3 values, in the low bytes of `two`, as a pair of halves.
__device__ inline uint32_t E4M3ToHalves(uint32_t two) {
  uint32_t pair;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(two)));
#else
  constexpr uint32_t k256s = 0x5C005C00u;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(E4M3PairToHalves(two)), "r"(k256s));
#endif
  return pair;
}

// Half `which` of a pair as a float.
template <bool kBF16>
__device__ inline float HalfOf(uint32_t pair, int which) {
  if constexpr (kBF16) {
    return __uint_as_float(which == 0 ? pair << 16 : pair & 0xFFFF0000u);
  } else {
    const auto bits = static_cast<unsigned short>(which == 0 ? pair : pair >> 16);
    return __half2float(__ushort_as_half(bits));
  }
}

// D += A B of one warp, 16 x 16 by 16 x 8, fp32 sums. Lane 4 g + t holds rows g and g + 8 of A
// (columns 2t, 2t + 1 and those + 8), column g of B (rows 2t, 2t + 1 and those + 8), rows g and g +
// 8 of D (columns 2t, 2t + 1).
template <bool kBF16>
__device__ inline void Mma16816(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (kBF16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lane i gives the address of row
// i % 8 of matrix i / 8; r[m] is the lane's pair of matrix m (row lane / 4, columns 2 (lane % 4)
// and the next), of its transpose if kTransposed.
template <bool kTransposed>
__device__ inline void LoadMatrices(uint32_t (&r)[4], const void* row) {
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
  }
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_PTX_CUH_
