// Emulation of kernels/cuda/sm90.cuh with the same names and semantics (../../warpgroups.cc).
#ifndef HYDRANT_TESTS_KERNELS_CUDA_EMULATION_SM90_CUH_
#define HYDRANT_TESTS_KERNELS_CUDA_EMULATION_SM90_CUH_

#include <cuda_runtime.h>

namespace hydrant::emulation {

// Shared-memory address for the tensor cores: in an 18-bit window.
uint32_t SharedWindowAddress(const void* shared);

// For the running thread. A product reads its operands at the start and writes the result at the
// wait; in between its D holds NaN. Ends the program with the reason if a kernel breaks the rules:
//   D, A or B changes between a product's start and its wait;
//   a product starts without FenceWgmma() since the thread's last wait;
//   B holds copies without FenceSharedForWgmma() by the copying thread since;
//   a descriptor is not of the one supported kind.
void StartProduct(bool bf16, float* d, const uint32_t* a, uint64_t b, bool adds);
void CloseProductGroup();
void WaitForProducts();
void FenceProducts();
void FenceSharedWrites();
void NoteSharedWrite(const void* at);  // an asynchronous copy wrote these 16 bytes

}  // namespace hydrant::emulation

namespace hydrant::cuda {

inline constexpr bool kHasWgmma = true;
inline constexpr int kWarpgroupSize = 128;

inline uint32_t SharedAddress(const void* shared) { return emulation::SharedWindowAddress(shared); }

inline void FenceSharedForWgmma() { emulation::FenceSharedWrites(); }
inline void FenceWgmma() { emulation::FenceProducts(); }
inline void CommitWgmma() { emulation::CloseProductGroup(); }

template <bool kBF16, bool kAdds>
void StartWgmma64x64x16(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {
  emulation::StartProduct(kBF16, d[0], a, b, kAdds);
}

inline void WaitWgmma(float (&)[8][4]) { emulation::WaitForProducts(); }

}  // namespace hydrant::cuda

#endif  // HYDRANT_TESTS_KERNELS_CUDA_EMULATION_SM90_CUH_
