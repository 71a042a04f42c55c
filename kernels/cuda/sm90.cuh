// Instructions of compute capability 9.0a without a CUDA C++ name: warpgroup products (four
// neighbouring warps) and their fences (PTX ISA, "Asynchronous Warpgroup Level Matrix
// Instructions"). Tests without a GPU replace this header.
#ifndef HYDRANT_KERNELS_CUDA_SM90_CUH_
#define HYDRANT_KERNELS_CUDA_SM90_CUH_

#include <cuda_runtime.h>

#include <cstdint>

namespace hydrant::cuda {

// Whether the target has these instructions (or is the host, which only parses the code).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
inline constexpr bool kHasWgmma = true;
#define HYDRANT_WGMMA_ASM(...) asm volatile(__VA_ARGS__)
#else
inline constexpr bool kHasWgmma = false;
#define HYDRANT_WGMMA_ASM(...)
#endif

inline constexpr int kWarpgroupSize = 128;

// Shared-memory address in descriptor form.
__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Orders this thread's writes to shared memory (and its completed asynchronous copies) before the
// reads of products that start later.
__device__ inline void FenceSharedForWgmma() {
  HYDRANT_WGMMA_ASM("fence.proxy.async.shared::cta;\n" ::: "memory");
}

// Orders this thread's accesses to a product's registers before products that start later.
__device__ inline void FenceWgmma() {
  HYDRANT_WGMMA_ASM("wgmma.fence.sync.aligned;\n" ::: "memory");
}

// Closes a group of products.
__device__ inline void CommitWgmma() {
  HYDRANT_WGMMA_ASM("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

#define HYDRANT_WGMMA_ROW(how, d, i) how(d[i][0]), how(d[i][1]), how(d[i][2]), how(d[i][3])
#define HYDRANT_WGMMA_D(how, d)                                                                 \
  HYDRANT_WGMMA_ROW(how, d, 0), HYDRANT_WGMMA_ROW(how, d, 1), HYDRANT_WGMMA_ROW(how, d, 2),     \
      HYDRANT_WGMMA_ROW(how, d, 3), HYDRANT_WGMMA_ROW(how, d, 4), HYDRANT_WGMMA_ROW(how, d, 5), \
      HYDRANT_WGMMA_ROW(how, d, 6), HYDRANT_WGMMA_ROW(how, d, 7)
#define HYDRANT_WGMMA(type, adds)                                                    \
  "{\n.reg .pred adds;\nsetp.ne.b32 adds, " adds                                     \
  ", 0;\n"                                                                           \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                        \
  " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21," \
  "%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, adds, 1, 1, 0;\n}\n"
#define HYDRANT_WGMMA_START(type)                                            \
  if constexpr (kAdds) {                                                     \
    HYDRANT_WGMMA_ASM(HYDRANT_WGMMA(type, "1")                               \
                      : HYDRANT_WGMMA_D("+f", d)                             \
                      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
  } else {                                                                   \
    HYDRANT_WGMMA_ASM(HYDRANT_WGMMA(type, "0")                               \
                      : HYDRANT_WGMMA_D("=f", d)                             \
                      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
  }

// Starts D = A B, or D += A B if kAdds, of a warpgroup: 64 x 16 by 16 x 64, fp32 sums. Warp w holds
// rows 16 w to 16 w + 15 of A and D, in the lane layout of Mma16816 (ptx.cuh): d[j] are columns 8 j
// to 8 j + 7. `b` is the descriptor of B in shared memory, with each column's 16 elements
// contiguous. D, A and B must not be touched until WaitWgmma().
template <bool kBF16, bool kAdds>
__device__ inline void StartWgmma64x64x16(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (kBF16) {
    HYDRANT_WGMMA_START("bf16")
  } else {
    HYDRANT_WGMMA_START("f16")
  }
}

// Waits for this thread's groups of products. `d`: the registers read afterwards.
__device__ inline void WaitWgmma(float (&d)[8][4]) {
  HYDRANT_WGMMA_ASM("wgmma.wait_group.sync.aligned 0;\n" : HYDRANT_WGMMA_D("+f", d)::"memory");
}

#undef HYDRANT_WGMMA_START
#undef HYDRANT_WGMMA
#undef HYDRANT_WGMMA_D
#undef HYDRANT_WGMMA_ROW
#undef HYDRANT_WGMMA_ASM

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_SM90_CUH_
