// Loops over registers, unrolled before register allocation: arrays of sums indexed this way never
// touch memory, which plain loops do not ensure. Always inlined, so that the linker cannot pick
// code for one instruction set for another file.
#ifndef HYDRANT_KERNELS_CPU_ISA_UNROLL_H_
#define HYDRANT_KERNELS_CPU_ISA_UNROLL_H_

namespace hydrant::cpu {

// A compile-time integer as a type, for kernels with fixed sizes.
template <int kValue>
struct Int {
  // NOLINTNEXTLINE(readability-identifier-naming): as in std::integral_constant
  static constexpr int value = kValue;
  // NOLINTNEXTLINE(google-explicit-constructor): converts wherever an int is expected
  constexpr operator int() const { return kValue; }
};

// Calls body(Int<0>()) .. body(Int<kCount - 1>()).
template <int kCount, int kFrom = 0, typename Body>
inline __attribute__((always_inline)) void Unroll(const Body& body) {
  if constexpr (kFrom < kCount) {
    body(Int<kFrom>());
    Unroll<kCount, kFrom + 1>(body);
  }
}
#define HYDRANT_UNROLLED(i) [&](auto i) __attribute__((always_inline))

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_ISA_UNROLL_H_
