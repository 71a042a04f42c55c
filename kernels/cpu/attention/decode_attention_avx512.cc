// The decode attention kernels, compiled for AVX-512: see decode_attention_kernels.h.
#include "kernels/cpu/attention/decode_attention_kernels.h"
// The vectors must come first.
// clang-format off
#define HYDRANT_SIMD_NAMESPACE avx512
#include "kernels/cpu/attention/attention_simd.h"
#include "kernels/cpu/attention/attention_softcap-inl.h"
#include "kernels/cpu/attention/decode_attention_part-inl.h"
#include "kernels/cpu/attention/decode_attention_join-inl.h"
// clang-format on

namespace hydrant::cpu {

DecodeKernels DecodeKernelsAvx512() { return {&avx512::AttendPart, &avx512::Join}; }

}  // namespace hydrant::cpu
