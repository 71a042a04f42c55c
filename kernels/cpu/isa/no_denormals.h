// Flushes denormal floats of the calling thread to zero while it lives: on x86 an operation with
// one costs a microcode assist.
#ifndef HYDRANT_KERNELS_CPU_ISA_NO_DENORMALS_H_
#define HYDRANT_KERNELS_CPU_ISA_NO_DENORMALS_H_

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hydrant::cpu {

// Always inlined, so that the linker cannot pick code of one instruction set for another file.
class NoDenormals {
 public:
  __attribute__((always_inline)) NoDenormals() : before_(Read()) { Write(before_ | kFlush); }
  __attribute__((always_inline)) ~NoDenormals() { Write(before_); }
  NoDenormals(const NoDenormals&) = delete;
  NoDenormals& operator=(const NoDenormals&) = delete;

 private:
#if defined(__x86_64__)
  using Register = unsigned;                         // MXCSR
  static constexpr Register kFlush = 0x8000 | 0x40;  // results to zero, operands as zero
  __attribute__((always_inline)) static Register Read() { return _mm_getcsr(); }
  __attribute__((always_inline)) static void Write(Register value) { _mm_setcsr(value); }
#else
  using Register = uint64_t;                             // FPCR
  static constexpr Register kFlush = uint64_t{1} << 24;  // FZ
  __attribute__((always_inline)) static Register Read() {
    Register value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  __attribute__((always_inline)) static void Write(Register value) {
    asm volatile("msr fpcr, %0" : : "r"(value) : "memory");
  }
#endif

  const Register before_;
};

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_ISA_NO_DENORMALS_H_
