// The emulated half of kernels/cuda/sm90.cuh, which it stands in for: the same names, the same
// meaning (../../warpgroups.cc).
#ifndef HYDRANT_TESTS_KERNELS_CUDA_EMULATION_SM90_CUH_
#define HYDRANT_TESTS_KERNELS_CUDA_EMULATION_SM90_CUH_

#include <cuda_runtime.h>

namespace hydrant::emulation {

// As the tensor cores see shared memory: an address in a window of 18 bits.
uint32_t SharedWindowAddress(const void* shared);

// Of the running thread. A product reads its operands when it is started, and leaves the result
// when it is waited for; until then its D holds NaN. Ends the program with the reason where a
// kernel breaks the rules of the instructions:
//   D, A or B change between a product's start and its wait;
//   a product is started without FenceWgmma() since the thread's last wait;
//   B holds copies whose thread has not called FenceSharedForWgmma() since;
//   a descriptor is not of the one kind that is emulated.
void StartProduct(bool bf16, float* d, const uint32_t* a, uint64_t b, bool adds);
void CloseProductGroup();
void WaitForProducts();
void FenceProducts();
void FenceSharedWrites();
void NoteSharedWrite(const void* at);  // by an asynchronous copy, to these 16 bytes

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
