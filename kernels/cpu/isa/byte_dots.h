// Dot products of bytes, for files compiled for AVX-512 VNNI. Always inlined, so that the linker
// cannot pick this code for a file of another instruction set.
#ifndef HYDRANT_KERNELS_CPU_ISA_BYTE_DOTS_H_
#define HYDRANT_KERNELS_CPU_ISA_BYTE_DOTS_H_

#include <immintrin.h>

namespace hydrant::cpu {

// sum += dot products of four unsigned and four signed bytes each. Inline asm, because GCC 12
// copies loop-carried sums of its own intrinsic back and forth.
inline __attribute__((always_inline)) void AddByteDots(__m512i bytes, __m512i signed_bytes,
                                                       __m512i* sum) {
  asm("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(bytes), "v"(signed_bytes));
}

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_ISA_BYTE_DOTS_H_
